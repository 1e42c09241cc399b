"""A heated room, hour by hour: comfort is the reward, energy the cost.

A small world for the tutorial, whose log ships with the package (`slater.data.samples.room`). An episode is
a day of 24 hours. `make("slater.envs.room:Room")` runs it; it needs Gymnasium, the log does not.

    observation  indoor temperature (C), outdoor temperature (C)
    action       heating power (kW), in [0, 3], held for an hour
    reward       comfort: 1 at 21 C, 0 from 6 C away
    cost         energy (kWh) of the hour
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

HOURS = 24
#: hours in which the room leaks all but 1/e of its warmth
LEAK = 20.0
#: degrees per kWh
WARMTH = 0.9
#: standard deviation of what the model leaves out, degrees per hour
DRAUGHT = 0.1


class Room(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """One day in a heated room."""

    observation_space = gymnasium.spaces.Box(-50.0, 60.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(0.0, 3.0, (1,), np.float64)
    cost_names = ("energy",)
    largest_step_cost = 3.0

    def __init__(self) -> None:
        self.indoor, self.mean_outdoor, self.hour = 17.0, 5.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Midnight of a day of its own weather."""
        super().reset(seed=seed, options=options)
        self.hour = 0
        self.indoor = float(self.np_random.normal(18.0, 2.0))
        self.mean_outdoor = float(self.np_random.normal(5.0, 3.0))
        return self._observation(), {"costs": {"energy": 0.0}}

    def step(
        self, action: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """One hour of heating."""
        power = float(np.clip(action[0], 0.0, 3.0))
        leak = (self._outdoor() - self.indoor) / LEAK
        self.indoor += leak + WARMTH * power + float(self.np_random.normal(0.0, DRAUGHT))
        comfort = max(1.0 - abs(self.indoor - 21.0) / 6.0, 0.0)
        self.hour += 1
        ended = self.hour == HOURS
        return self._observation(), comfort, False, ended, {"costs": {"energy": power}}

    def _outdoor(self) -> float:
        return self.mean_outdoor + 4.0 * float(np.sin(2 * np.pi * (self.hour - 9) / HOURS))

    def _observation(self) -> NDArray[np.float64]:
        return np.array([self.indoor, self._outdoor()])
