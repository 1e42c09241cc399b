"""SAC's return per processor minute, in the loop of `slater behaviours train` and `slater collect`.

    python -m benchmarks.sac --seconds 600 --seeds 1 2 3

Training on R alone, from nothing; programs are compiled before the clock starts. Return: mean of the training
episodes that ended in the last tenth of the time. Rows with the loop "before" in benchmarks/results/sac.json
are of the loop that `slater collect` had until commit 966b142.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from slater.collect.recipes import recipe
from slater.collect.training import Recipe, Segment, train

RESULTS = Path(__file__).parent / "results" / "sac.json"


class _TimeIsUpError(Exception):
    pass


def measure(settings: Recipe, seconds: float) -> dict[str, float]:
    """Steps and return after so many processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        train(replace(settings, steps=3_000), Path(folder))  # compiles
    begun = time.process_time()
    seen: list[tuple[float, Segment]] = []

    def heard(segment: Segment) -> None:
        seen.append((time.process_time() - begun, segment))
        if seen[-1][0] > seconds:
            raise _TimeIsUpError

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_TimeIsUpError):
        train(replace(settings, steps=10**9), Path(folder), heard)
    last = [part for spent, part in seen if spent > 0.9 * seconds and part.episodes]
    episodes = [part.episodes for part in last]
    mean = np.average([part.mean_return for part in last], weights=episodes)
    return {"steps": seen[-1][1].steps, "return": float(mean), "episodes": sum(episodes)}


def main() -> None:
    """Measure, print, and keep in benchmarks/results/sac.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["ballcircle", "antrun", "walker"])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for task in options.tasks:
        for seed in options.seeds:
            row = {"task": task, "seed": seed, "seconds": options.seconds, "loop": "after"}
            rows = [old for old in rows if {key: old[key] for key in row} != row]
            row |= measure(replace(recipe(task), free=1.0, keep=1, seed=seed), options.seconds)
            rows.append(row)
            print(
                f"{task:<11} seed {seed} {options.seconds:5.0f} processor s: {row['steps']:>8,} steps, "
                f"return {row['return']:8.1f} ({row['episodes']} episodes)",
                flush=True,
            )
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
