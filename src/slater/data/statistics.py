"""Means, spreads and ranges of all rows, gathered block by block: what normalisers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Statistics:
    """Over all rows (o observation entries, a action entries, I costs); float64.

    observation_mean, observation_std: (o,). reward_low, reward_high: (1,). cost_low, cost_high: (I,).
    action_low, action_high: (a,), or (1,) for discrete actions: the smallest and largest in the data, not
    the bounds of the environment.
    """

    observation_mean: NDArray[np.float64]
    observation_std: NDArray[np.float64]
    reward_low: NDArray[np.float64]
    reward_high: NDArray[np.float64]
    cost_low: NDArray[np.float64]
    cost_high: NDArray[np.float64]
    action_low: NDArray[np.float64]
    action_high: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back to the bit."""
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Statistics:
        """Read what `to_json` wrote."""
        return cls(**{field.name: np.array(record[field.name], dtype=np.float64) for field in fields(cls)})


class StatisticsBuilder:
    """Takes blocks of rows in any cut; means and variances are merged without losing digits."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._low: dict[str, NDArray[np.float64]] = {}
        self._high: dict[str, NDArray[np.float64]] = {}

    def update(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take the next rows."""
        observations = rows["observations"].astype(np.float64)
        count = len(observations)
        mean = observations.mean(axis=0)
        total = self._count + count
        step = mean - self._mean
        self._squares = self._squares + ((observations - mean) ** 2).sum(axis=0)
        self._squares = self._squares + step**2 * (self._count * count / total)
        self._mean = self._mean + step * (count / total)
        self._count = total
        for name in ("rewards", "costs", "actions"):
            values = rows[name].reshape(count, -1)
            low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
            self._low[name] = np.minimum(self._low.get(name, low), low)
            self._high[name] = np.maximum(self._high.get(name, high), high)

    def finish(self) -> Statistics:
        """The statistics of all rows so far; at least one is needed."""
        bounds = (side[name] for name in ("rewards", "costs", "actions") for side in (self._low, self._high))
        return Statistics(self._mean, np.sqrt(self._squares / self._count), *bounds)
