"""Episodes one after the other, growing: a replay memory while learning, a dataset afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, Metadata
from slater.envs import Transitions

__all__ = ["RecordedEpisodes"]

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

    def gather(self, index: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """s, a, r, costs, terminal, s' of the rows at `index`, of any shape."""
        names = ("observations", "actions", "rewards", "costs", "terminals", "next_observations")
        return tuple(self._arrays[name][index] for name in names)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything, as arrays; `from_arrays` reads it back."""
        held = {name: array[: self._size] for name, array in self._arrays.items()}
        episodes = np.array(self.episodes, dtype=np.int64).reshape(-1, 2)
        return {**held, "episodes": episodes, "sources": np.array(self.sources, dtype=np.str_)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> RecordedEpisodes:
        """What `arrays` gave."""
        rows = RecordedEpisodes()
        for (start, stop), source in zip(arrays["episodes"], arrays["sources"], strict=True):
            block = {name: arrays[name][start:stop] for name in _FIELDS}
            rows._extend(block, int(stop - start), str(source))
        return rows

    def sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Undiscounted return and scalar cost of each episode."""
        starts = [start for start, _ in self.episodes]
        return tuple(  # type: ignore[return-value]
            np.add.reduceat(self._arrays[name][: self._size].astype(np.float64), starts)
            for name in ("rewards", "cost")
        )

    def dataset(self, cost_names: tuple[str, ...], metadata: Metadata) -> Dataset:
        """As a dataset; with propensities if all are known, with sources if all are."""
        held = self.arrays()
        optional: dict[str, NDArray[Any]] = {}
        if not np.isnan(held["propensity"]).any():
            optional["propensity"] = held["propensity"]
        if all(self.sources):
            optional["source"] = held["sources"]
        names = ("observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts")
        return Dataset.from_arrays(
            **{name: held[name] for name in names}, **optional, cost_names=cost_names, metadata=metadata
        )
