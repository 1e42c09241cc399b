"""Where episodes begin and end, and what they add up to.

An episode ends at a row that is terminal or a timeout. Rows after the last end form an incomplete
episode: its transitions are good training data, but its return and costs are not those of an episode,
so it is never counted as safe (published readers gave it return 0 and cost 0, hence "safe").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError

__all__ = ["EpisodeCounter", "Episodes"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """A table with one line per episode, in the order of the data (E episodes, I costs).

    starts, stops: (E,) int64; the episode holds the rows starts[e] .. stops[e]-1.
    returns: (E,) float64; undiscounted sums of rewards.
    costs: (E, I) float64; undiscounted sums of each cost.
    terminated: (E,) bool; ended by a terminal (rather than by a timeout, or not at all).
    complete: (E,) bool; False only for a last episode whose end is not in the data.
    source: (E,) text, the name of the policy that took the actions of each episode; None if not recorded.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    returns: NDArray[np.float64]
    costs: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    complete: NDArray[np.bool_]
    source: NDArray[np.str_] | None = None

    @classmethod
    def of_rows(
        cls,
        rewards: NDArray[np.floating],
        costs: NDArray[np.floating],
        terminals: NDArray[np.bool_],
        timeouts: NDArray[np.bool_],
        source: NDArray[np.str_] | None = None,
    ) -> Episodes:
        """The episodes of N rows: `rewards` (N,), `costs` (N, I), `terminals`, `timeouts` and `source` (N,).

        The source of an episode is that of its first row; `slater.data.checks` sees to the others.
        """
        size = len(rewards)
        ends = np.asarray(terminals) | np.asarray(timeouts)
        stops = np.flatnonzero(ends) + 1
        if size and (len(stops) == 0 or stops[-1] < size):
            stops = np.append(stops, size)
        starts = np.concatenate([np.zeros(min(1, len(stops)), dtype=np.int64), stops[:-1]])
        if len(starts):
            returns = np.add.reduceat(rewards, starts, dtype=np.float64)
            sums = np.add.reduceat(costs, starts, axis=0, dtype=np.float64)
        else:
            returns, sums = np.zeros(0), np.zeros((0, costs.shape[1]))
        last = stops - 1
        return cls(
            starts=starts.astype(np.int64),
            stops=stops.astype(np.int64),
            returns=np.asarray(returns, dtype=np.float64),
            costs=np.asarray(sums, dtype=np.float64),
            terminated=np.asarray(terminals)[last],
            complete=ends[last],
            source=None if source is None else np.asarray(source)[starts],
        )

    def take(self, numbers: NDArray[np.integer]) -> Episodes:
        """The lines of the table with these numbers, in their order."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        chosen: dict[str, Any] = {name: None if a is None else a[numbers] for name, a in columns.items()}
        return Episodes(**chosen)

    @classmethod
    def join(cls, parts: Sequence[Episodes]) -> Episodes:
        """Tables one after the other; a source is known only if it is in all of them."""
        joined: dict[str, Any] = {}
        for column in fields(cls):
            arrays = [getattr(part, column.name) for part in parts]
            joined[column.name] = None if any(a is None for a in arrays) else np.concatenate(arrays)
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of each episode, shape (E,)."""
        return self.stops - self.starts

    def within(self, limits: ArrayLike) -> NDArray[np.bool_]:
        """Which episodes are complete and keep every cost at most at its limit, shape (E,).

        `limits` are per episode and undiscounted, one number or shape (I,).
        """
        bounds = np.asarray(limits, dtype=np.float64)
        if bounds.ndim > 1 or (bounds.ndim == 1 and len(bounds) != self.costs.shape[1]):
            raise InputError(
                f"Give one limit or one for each of the {self.costs.shape[1]} costs, not {bounds.shape}."
            )
        kept: NDArray[np.bool_] = self.complete & np.all(self.costs <= bounds, axis=1)
        return kept

    def select(self, chosen: ArrayLike) -> NDArray[np.int64]:
        """Episode numbers, sorted, from a boolean mask of shape (E,) or from a list of numbers."""
        picked = np.asarray(chosen)
        if picked.dtype == np.bool_:
            if picked.shape != (len(self),):
                raise InputError(
                    f"The mask over episodes has shape {picked.shape}; the data has {len(self)} episodes."
                )
            return np.flatnonzero(picked).astype(np.int64)
        if picked.size == 0:
            return np.zeros(0, dtype=np.int64)
        if picked.ndim != 1 or not np.issubdtype(picked.dtype, np.integer):
            raise InputError("Choose episodes by a boolean mask or by a list of whole numbers.")
        if picked.min() < 0 or picked.max() >= len(self):
            raise InputError(
                f"Episode {int(picked.max() if picked.max() >= len(self) else picked.min())} does not exist; "
                f"the data has episodes 0 to {len(self) - 1}."
            )
        if len(np.unique(picked)) != len(picked):
            raise InputError("An episode is chosen twice; list each episode once.")
        return np.sort(picked).astype(np.int64)

    def split(self, fraction: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Episode numbers of two parts, the second holding about `fraction` of the episodes.

        Whole episodes, drawn from `seed`, so that no state of a held-out episode leaks into training.
        Each part gets at least one episode.
        """
        if not 0 < fraction < 1:
            raise InputError(f"The held-out fraction must be between 0 and 1, not {fraction!r}.")
        if len(self) < 2:
            raise InputError(f"Cannot split {len(self)} episode(s) in two parts; at least 2 are needed.")
        held = min(max(1, round(fraction * len(self))), len(self) - 1)
        order = np.random.default_rng(seed).permutation(len(self))
        return np.sort(order[held:]), np.sort(order[:held])


class EpisodeCounter:
    """Builds the table of episodes from blocks of rows, wherever the blocks are cut."""

    def __init__(self, num_costs: int) -> None:
        self._size = 0
        self._num_costs = num_costs
        self._open: Episodes | None = None  # the episode that the last block left unfinished
        self._parts: list[Episodes] = []

    def update(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take the next rows (the columns rewards, costs, terminals, timeouts, and source where known)."""
        block = Episodes.of_rows(
            rows["rewards"], rows["costs"], rows["terminals"], rows["timeouts"], rows.get("source")
        )
        block = replace(block, starts=block.starts + self._size, stops=block.stops + self._size)
        self._size += len(rows["rewards"])
        if self._open is not None:
            block = _continued(self._open, block)
        done = len(block) if block.complete[-1] else len(block) - 1
        if done:
            self._parts.append(block.take(np.arange(done)))
        self._open = None if done == len(block) else block.take(np.array([done]))

    def finish(self) -> Episodes:
        """The table, with the incomplete last episode, if there is one, marked as such."""
        parts = self._parts + ([] if self._open is None else [self._open])
        if not parts:
            none = np.zeros(0, dtype=np.bool_)
            return Episodes.of_rows(np.zeros(0), np.zeros((0, self._num_costs)), none, none)
        return Episodes.join(parts)


def _continued(before: Episodes, block: Episodes) -> Episodes:
    """The table of a block whose first rows belong to the one episode of `before`."""
    starts, returns, costs = block.starts.copy(), block.returns.copy(), block.costs.copy()
    starts[0] = before.starts[0]
    returns[0] += before.returns[0]
    costs[0] += before.costs[0]
    source = block.source
    if source is not None and before.source is not None:
        source = np.concatenate([before.source, source[1:]])
    return replace(block, starts=starts, returns=returns, costs=costs, source=source)
