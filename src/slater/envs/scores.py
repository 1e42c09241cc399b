"""The scores by which the DSRL benchmark compares policies: undiscounted episode sums, normalised.

Reward: `(R - R_min) / (R_max - R_min)` with the extremes of the task's dataset. Cost: `C / limit`, and
`C + 1` at limit 0; at most 1 is safe. The benchmark's limits for Bullet are 10, 20 and 40 per episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slater.errors import InputError

#: environment -> (smallest, largest) return of an episode in its DSRL dataset
DSRL_RETURNS: dict[str, tuple[float, float]] = {
    "bullet/BallRun": (26.339754, 1327.445557),
    "bullet/CarRun": (204.287262, 574.653320),
    "bullet/DroneRun": (10.557030, 682.833008),
    "bullet/AntRun": (0.001767392, 955.481873),
    "bullet/BallCircle": (0.383122, 881.463379),
    "bullet/CarCircle": (3.484420, 534.306091),
    "bullet/DroneCircle": (207.794189, 996.389160),
    "bullet/AntCircle": (0.017703, 460.709198),
}


@dataclass(frozen=True)
class Scores:
    """Normalised reward and cost of a policy, and whether it is safe (cost score at most 1)."""

    reward: float
    cost: float
    limit: float

    @property
    def safe(self) -> bool:
        """Whether the mean episode cost is within the limit."""
        return self.cost <= 1.0


def dsrl_scores(env_id: str, mean_return: float, mean_cost: float, limit: float) -> Scores | None:
    """Scores for mean undiscounted episode sums and a limit per episode; None without constants."""
    if not (math.isfinite(limit) and limit >= 0.0):
        raise InputError(f"the cost limit is {limit}; it must be a number of at least 0, per episode.")
    extremes = DSRL_RETURNS.get(env_id.partition("?")[0])
    if extremes is None:
        return None
    low, high = extremes
    cost = mean_cost / limit if limit > 0.0 else mean_cost + 1.0
    return Scores(reward=(mean_return - low) / (high - low), cost=cost, limit=limit)
