"""Episodes one after the other; a dataset afterwards, of all of them or of some."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, Metadata
from slater.envs import Transitions

#: cells of `thin`'s grid along return and along cost
CELLS = 20


class RecordedEpisodes:
    """Episodes in the order of time, each a block of columns, with the name of its source."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, NDArray[Any]]] = []
        self._sources: list[str] = []

    @property
    def longest(self) -> int:
        """Steps of the longest episode."""
        return max(len(block["rewards"]) for block in self._blocks)

    def append(
        self, part: Transitions, terminated: bool, propensity: NDArray[np.float64], source: str
    ) -> None:
        """Add an episode; if it was not terminated, its last row is a timeout. propensity: (T,)."""
        last = np.arange(len(part.rewards)) == len(part.rewards) - 1
        block = {
            "observations": part.observations[:-1],
            "next_observations": part.observations[1:],
            "actions": part.actions,
            "rewards": part.rewards,
            "cost": part.cost,
            "costs": part.costs,
            "terminals": last & terminated,
            "timeouts": last & (not terminated),
            "propensity": propensity,
        }
        self._blocks.append(block)
        self._sources.append(source)

    def thinned(self, keep: int, rng: np.random.Generator) -> RecordedEpisodes:
        """`keep` of the episodes, evenly from a grid of undiscounted return and scalar cost; see `thin`."""
        starts = np.cumsum([0, *(len(block["rewards"]) for block in self._blocks[:-1])])
        returns, costs = (
            np.add.reduceat(self._joined(name).astype(np.float64), starts) for name in ("rewards", "cost")
        )
        kept = RecordedEpisodes()
        for number in thin(returns, costs, keep, rng):
            kept._blocks.append(self._blocks[number])
            kept._sources.append(self._sources[number])
        return kept

    def _joined(self, name: str) -> NDArray[Any]:
        return np.concatenate([block[name] for block in self._blocks])

    def dataset(self, cost_names: tuple[str, ...], metadata: Metadata) -> Dataset:
        """As a dataset, with propensities and sources."""
        columns = {name: self._joined(name) for name in self._blocks[0] if name != "cost"}
        return Dataset.from_arrays(**columns, source=self._sources, cost_names=cost_names, metadata=metadata)


def _cells(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The cell of each value, on an even grid between the smallest and the largest."""
    spread = float(np.ptp(values))
    if spread == 0.0:
        return np.zeros(len(values), np.int64)
    return np.asarray(np.minimum((values - values.min()) / spread * CELLS, CELLS - 1), dtype=np.int64)


def thin(
    returns: NDArray[np.float64], costs: NDArray[np.float64], keep: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Numbers of `keep` episodes (all, if there are no more), in order.

    Every cell gives the same number of episodes as long as it has them, drawn at random within the cell:
    crowded corners are thinned, rare ones stay whole.
    """
    cell = _cells(returns) * CELLS + _cells(costs)
    # rank of each episode within its cell, in a random order; low ranks are taken first
    order = rng.permutation(len(cell))
    rank = np.empty(len(cell), np.int64)
    seen: dict[int, int] = {}
    for number in order:
        rank[number] = seen.setdefault(int(cell[number]), 0)
        seen[int(cell[number])] += 1
    taken = order[np.argsort(rank[order], kind="stable")][:keep]
    return np.sort(taken)
