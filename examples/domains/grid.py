"""A transmission grid of 14 substations and 20 lines, in the simulator Grid2Op: who generates how much?

    observation  hour of the day; demand, wind and solar power (MW); power of the nuclear plant and of the two
                 thermal plants (MW); how far the first two are moved from their plan (MW); load of the five
                 lines that matter, as shares of their limits
    action       by how much to move the nuclear plant and the first thermal plant (MW per five minutes), in
                 [-5, 5] and [-10, 10]; the other thermal plant makes up for it
    reward       minus the cost of generation (thousand EUR)
    costs        stress: load above 90% of a line's limit, added up over lines and time (percent x five
                 minutes); disconnected: lines that protection took out

`make("grid:Grid")` runs four hours from the grid's own test series (48 steps of five minutes). Nuclear power
is cheap and far away: more of it overloads a line, and a line that is overloaded for a quarter of an hour is
taken out.

    pip install grid2op lightsim2grid
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

warnings.simplefilter("ignore")  # Grid2Op warns of what its own test grid leaves out

import grid2op  # noqa: E402
from grid2op.Parameters import Parameters  # noqa: E402
from lightsim2grid import LightSimBackend  # noqa: E402

__all__ = ["HORIZON", "Grid", "Operator"]

HORIZON, SERIES, ROWS = 48, 2, 8_000
NUCLEAR, THERMAL, OTHER, WIND, SOLAR = 0, 1, 4, 2, 3
#: lines whose load decides: those next to the plants, and the weakest ones
LINES = (0, 8, 9, 14, 17)


class Grid(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """Four hours of a grid."""

    observation_space = gymnasium.spaces.Box(-1e4, 1e4, (14,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-5.0, -10.0]), np.array([5.0, 10.0]), dtype=np.float64)
    cost_names = ("stress", "disconnected")

    def __init__(self) -> None:
        self.simulator = grid2op.make(
            "rte_case14_redisp", test=True, backend=LightSimBackend(), param=Parameters()
        )
        limits = self.simulator.get_thermal_limit()
        limits[14] *= 1.2  # a transformer that is overloaded whatever the plants do
        self.simulator.set_thermal_limit(limits)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Another four hours of the grid's own series."""
        super().reset(seed=seed)
        begin = int(self.np_random.integers(1, ROWS - HORIZON))
        series = int(self.np_random.integers(SERIES))
        self.seen = self.simulator.reset(
            seed=int(self.np_random.integers(2**31 - 1)), options={"time serie id": series, "init ts": begin}
        )
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> NDArray[np.float64]:
        seen = self.seen
        powers = seen.gen_p[[WIND, SOLAR, NUCLEAR, THERMAL, OTHER]]
        moved = seen.target_dispatch[[NUCLEAR, THERMAL]]
        hour = seen.hour_of_day + seen.minute_of_hour / 60.0
        return np.array([hour, seen.load_p.sum(), *powers, *moved, *seen.rho[list(LINES)]], np.float64)

    def step(
        self, action: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Five minutes."""
        before = self.seen.line_status.sum()
        moves = [(plant, float(power)) for plant, power in zip((NUCLEAR, THERMAL), action, strict=True)]
        seen, _, ended, info = self.simulator.step(self.simulator.action_space({"redispatch": moves}))
        dark = bool(ended and info["exception"])
        if not dark:
            self.seen = seen
        self.steps += 1
        # a blackout takes out what was left, and ends the four hours
        lost = before if dark else max(before - seen.line_status.sum(), 0)
        above = 0.0 if dark else 100.0 * float(np.maximum(seen.rho - 0.9, 0.0).sum())
        spent = float((self.seen.gen_p * self.simulator.gen_cost_per_MW).sum()) / 12.0 / 1_000.0
        costs = {"stress": above, "disconnected": float(lost)}
        return self._observation(), -spent, dark, self.steps >= HORIZON, {"costs": costs}


class Operator:
    """One operator's shift: how far nuclear power goes up, from which load on down; an unsteady hand.

    Some leave the plan alone, some go for the cheapest power, some look at the lines first.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.kind = rng.integers(3)
        self.wanted, self.highest = rng.uniform(10.0, 80.0), rng.uniform(0.85, 1.0)

    def act(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Moves of the two plants in MW, shape `(2,)`."""
        moved, load = seen[7], seen[9:].max()
        nuclear = 0.0 if self.kind == 0 else float(np.clip(self.wanted - moved, -4.0, 4.0))
        if self.kind == 2 and load > self.highest:
            nuclear = -4.0 if moved > 0.0 else 0.0
        move = np.array([nuclear, -0.3 * nuclear]) + self.rng.normal(0.0, (0.7, 1.0))
        return np.clip(move, Grid.action_space.low, Grid.action_space.high)
