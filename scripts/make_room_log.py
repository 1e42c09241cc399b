"""Write the log of the tutorial: `python scripts/make_room_log.py src/slater/data/samples/room.csv`.

200 days of thermostats in `slater.envs.room`: every day its own set temperature, some with a lower one
at night, all with noise on the power.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from slater.envs.room import HOURS, Room

HEADER = "day,hour,indoor,outdoor,power,comfort,energy,next_indoor,next_outdoor"


def days(count: int, seed: int) -> str:
    """The log as CSV, one row per hour."""
    rng = np.random.default_rng(seed)
    env, rows = Room(), [HEADER]
    for day in range(count):
        observation, _ = env.reset(seed=seed * 100_000 + day)
        wanted, lowered, strength = rng.uniform(15, 23), rng.random() < 0.5, rng.uniform(0.5, 2)
        for hour in range(HOURS):
            target = wanted - 4 * (lowered and not 5 <= hour < 22)
            power = strength * (target - observation[0]) + 0.9 + rng.normal(0, 0.4)
            power = round(float(np.clip(power, 0, 3)), 3)
            now = observation
            observation, comfort, _, _, info = env.step(np.array([power]))
            energy, after = info["costs"]["energy"], observation
            rows.append(
                f"{day},{hour},{now[0]:.2f},{now[1]:.2f},{power:.3f},{comfort:.4f},{energy:.3f},"
                f"{after[0]:.2f},{after[1]:.2f}"
            )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(days(200, 7))
