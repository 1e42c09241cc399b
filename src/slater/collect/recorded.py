"""Episodes one after the other, growing; a dataset afterwards, of all of them or of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, Metadata
from slater.envs import Transitions

__all__ = ["RecordedEpisodes", "thin"]

#: cells of `thin`'s grid along return and along cost
CELLS = 20

_FIELDS = (
    "observations",
    "next_observations",
    "actions",
    "rewards",
    "cost",
    "costs",
    "terminals",
    "timeouts",
    "propensity",
)


class RecordedEpisodes:
    """Transitions in the order of time; `episodes` has (start, stop) of each episode, `sources` its source.

    A propensity that is not known is NaN, a source that is not known the empty text.
    """

    def __init__(self) -> None:
        self.episodes: list[tuple[int, int]] = []
        self.sources: list[str] = []
        self._arrays: dict[str, NDArray[Any]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(
        self,
        part: Transitions,
        terminated: bool,
        *,
        propensity: NDArray[np.float64] | None = None,
        source: str = "",
    ) -> None:
        """Add an episode; if it was not terminated, its last row is a timeout."""
        length = len(part.rewards)
        last = np.arange(length) == length - 1
        block = {
            "observations": part.observations[:-1],
            "next_observations": part.observations[1:],
            "actions": part.actions,
            "rewards": part.rewards,
            "cost": part.cost,
            "costs": part.costs,
            "terminals": last & terminated,
            "timeouts": last & (not terminated),
            "propensity": np.full(length, np.nan) if propensity is None else propensity,
        }
        self._extend(block, length, source)

    def _extend(self, block: Mapping[str, NDArray[Any]], length: int, source: str) -> None:
        stop = self._size + length
        for name, array in block.items():
            held = self._arrays.get(name)
            if held is None or len(held) < stop:
                # doubling, so that adding many episodes costs as much as copying them once or twice
                grown = np.empty((max(stop, 2 * self._size), *array.shape[1:]), array.dtype)
                if held is not None:
                    grown[: self._size] = held[: self._size]
                self._arrays[name] = held = grown
            held[self._size : stop] = array
        self.episodes.append((self._size, stop))
        self.sources.append(source)
        self._size = stop

    def extend(
        self, other: RecordedEpisodes, chosen: Sequence[int] | NDArray[np.int64] | None = None
    ) -> None:
        """Add episodes of another, all or the chosen numbers."""
        for number in range(len(other.episodes)) if chosen is None else chosen:
            start, stop = other.episodes[number]
            block = {name: other._arrays[name][start:stop] for name in _FIELDS}
            self._extend(block, stop - start, other.sources[number])

    def sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Undiscounted return and scalar cost of each episode."""
        starts = [start for start, _ in self.episodes]
        return tuple(  # type: ignore[return-value]
            np.add.reduceat(self._arrays[name][: self._size].astype(np.float64), starts)
            for name in ("rewards", "cost")
        )

    def dataset(self, cost_names: tuple[str, ...], metadata: Metadata) -> Dataset:
        """As a dataset; with propensities if all are known, with sources if all are."""
        held = {name: array[: self._size] for name, array in self._arrays.items()}
        optional: dict[str, NDArray[Any]] = {}
        if not np.isnan(held["propensity"]).any():
            optional["propensity"] = held["propensity"]
        if all(self.sources):
            optional["source"] = np.array(self.sources, dtype=np.str_)
        names = ("observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts")
        return Dataset.from_arrays(
            **{name: held[name] for name in names}, **optional, cost_names=cost_names, metadata=metadata
        )


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
