"""Where episodes begin and end, what they add up to, and by what they are judged.

An episode *ended* if its last row is terminal, *timed out* if it was stopped at the horizon, and was *cut
off* if it was stopped before the horizon by anything else. A cut-off episode is good training data, but its
sums are not those of an episode: one row without a cost is no safe episode. So, everywhere:

- an episode that ended or timed out is judged by its sums;
- a cut-off one that lived at least half the horizon is judged by its rate: its sums times horizon / length;
- a shorter one, and rows after the last end of the data, are left out: neither safe nor unsafe, nor best;
- a limit per step is compared with the cost per step lived, in all of them.

The horizon is the stated one; without one, it is the longest episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError
from slater.limits import Limit, Units

#: Share of the horizon that a cut-off episode must have lived for its rate to say anything.
LEAST_LIVED = 0.5
#: A limit that so few episodes keep is remarked upon.
_RARELY = 0.02
#: A limit converted from another unit may miss a whole number by its last digit.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Episodes:
    """A table with one line per episode, in the order of the data (E episodes, I costs).

    starts, stops: (E,) int64; the episode holds the rows starts[e] .. stops[e]-1.
    returns: (E,) float64; undiscounted sums of rewards.
    costs: (E, I) float64; undiscounted sums of each cost.
    terminated: (E,) bool; ended by a terminal (rather than by a timeout, or not at all).
    complete: (E,) bool; False only for a last episode whose end is not in the data.
    source: (E,) text, the name of the policy that took the actions of each episode; None if not recorded.
    stated_horizon: steps after which an episode times out; None if not known.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    returns: NDArray[np.float64]
    costs: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    complete: NDArray[np.bool_]
    source: NDArray[np.str_] | None = None
    stated_horizon: int | None = None

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
        starts = np.append(np.zeros(1, np.int64), stops)[: len(stops)]
        returns, sums = np.zeros(0), np.zeros((0, costs.shape[1]))
        if len(starts):
            returns = np.add.reduceat(rewards, starts, dtype=np.float64)
            sums = np.add.reduceat(costs, starts, axis=0, dtype=np.float64)
        ended, complete = np.asarray(terminals)[stops - 1], ends[stops - 1]
        named = None if source is None else np.asarray(source)[starts]
        return cls(starts, stops, returns, sums, ended, complete, named)

    def take(self, numbers: NDArray[np.integer]) -> Episodes:
        """The lines of the table with these numbers, in their order."""
        chosen: Any = {name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None}
        return replace(self, **{name: array[numbers] for name, array in chosen.items()})

    @classmethod
    def join(cls, parts: Sequence[Episodes]) -> Episodes:
        """Tables one after the other; a source is known only if it is in all of them."""
        joined: dict[str, Any] = {}
        for name in _COLUMNS:
            arrays = [getattr(part, name) for part in parts]
            joined[name] = None if any(a is None for a in arrays) else np.concatenate(arrays)
        return replace(parts[0], **joined)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of each episode, shape (E,)."""
        return self.stops - self.starts

    @property
    def horizon(self) -> int:
        """Steps of a full episode: as stated, or those of the longest episode here."""
        return self.stated_horizon or int(self.lengths.max(initial=1))

    @property
    def timed_out(self) -> NDArray[np.bool_]:
        """Which episodes were stopped at the horizon, shape (E,)."""
        return self.complete & ~self.terminated & (self.lengths >= self.horizon)

    @property
    def cut_off(self) -> NDArray[np.bool_]:
        """Which episodes neither ended nor timed out, shape (E,)."""
        return ~self.terminated & ~self.timed_out

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Which episodes say what an episode costs and returns, shape (E,); see the module's text."""
        long_enough = self.lengths >= LEAST_LIVED * self.horizon
        return self.complete & (~self.cut_off | long_enough)

    @property
    def returns_per_episode(self) -> NDArray[np.float64]:
        """Undiscounted returns, shape (E,): sums, or rate times horizon for episodes that were cut off."""
        return np.asarray(np.where(self.cut_off, self.returns * self._missing_share, self.returns))

    @property
    def costs_per_episode(self) -> NDArray[np.float64]:
        """Undiscounted costs, shape (E, I): sums, or rate times horizon for episodes that were cut off."""
        scaled = self.costs * self._missing_share[:, None]
        return np.asarray(np.where(self.cut_off[:, None], scaled, self.costs))

    @property
    def judged_sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns and costs per episode of the judged ones, shapes (J,) and (J, I)."""
        return self.returns_per_episode[self.judged], self.costs_per_episode[self.judged]

    @property
    def _missing_share(self) -> NDArray[np.float64]:
        return np.asarray(self.horizon / self.lengths)

    def within(self, limits: ArrayLike) -> NDArray[np.bool_]:
        """Which episodes are judged and keep every cost at most at its limit, shape (E,).

        `limits` are per episode and undiscounted, one number or shape (I,).
        """
        bounds = np.asarray(limits, dtype=np.float64)
        if bounds.ndim > 1 or (bounds.ndim == 1 and len(bounds) != self.costs.shape[1]):
            raise InputError(
                f"Give one limit or one for each of the {self.costs.shape[1]} costs, not {bounds.shape}."
            )
        kept: NDArray[np.bool_] = self.judged & np.all(self.costs_per_episode <= bounds, axis=1)
        return kept

    def keep(self, limits: Sequence[Limit], units: Units) -> NDArray[np.bool_]:
        """Which episodes are judged and keep these limits, one per cost, each in its own unit, shape (E,).

        A limit per step is on the cost per step that the episode lived; any other is converted to one per
        episode by `units`.
        """
        kept = [self.keep_one(index, limit, units) for index, limit in enumerate(limits)]
        return np.all([self.judged, *kept], axis=0)

    def keep_one(self, cost: int, limit: Limit, units: Units) -> NDArray[np.bool_]:
        """Which episodes are judged and keep the limit on one cost, by its number; else as `keep`."""
        if limit.unit == "step":
            kept = self.costs[:, cost] <= limit.value * self.lengths * (1 + _ROUNDING)
        else:
            kept = self.costs_per_episode[:, cost] <= units.episode(limit) * (1 + _ROUNDING)
        return np.asarray(self.judged & kept)

    def doubts(self, limits: Sequence[Limit], units: Units) -> list[str]:
        """A sentence for each limit that every judged episode keeps, or hardly one: often a mistaken unit."""
        sentences = []
        for index, limit in enumerate(limits):
            kept = self.keep_one(index, limit, units)[self.judged]
            if len(kept) and kept.all():
                sentences.append(f"every episode of the data keeps the limit {limit}: it may not bind.")
            elif len(kept) and not kept.any():
                sentences.append(f"no episode of the data keeps the limit {limit}.")
            elif len(kept) and kept.mean() <= _RARELY:
                sentences.append(
                    f"{kept.sum()} of {len(kept)} episodes of the data keep the limit {limit}: little is "
                    "known of how to keep it; is its unit the right one?"
                )
        return sentences

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
        for number in (picked.max(), picked.min()):
            if not 0 <= number < len(self):
                raise InputError(
                    f"Episode {number} does not exist; the data has episodes 0 to {len(self) - 1}."
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


_COLUMNS = tuple(field.name for field in fields(Episodes) if field.name != "stated_horizon")


class EpisodeCounter:
    """Builds the table of episodes from blocks of rows, wherever the blocks are cut."""

    def __init__(self, num_costs: int, horizon: int | None = None) -> None:
        self._size, self._num_costs, self._horizon = 0, num_costs, horizon
        self._pieces: list[Episodes] = []  # of a block each; the last episode of one may go on in the next

    def update(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take the next rows (the columns rewards, costs, terminals, timeouts, and source where known)."""
        block = Episodes.of_rows(
            rows["rewards"], rows["costs"], rows["terminals"], rows["timeouts"], rows.get("source")
        )
        self._pieces.append(replace(block, starts=block.starts + self._size, stops=block.stops + self._size))
        self._size += len(rows["rewards"])

    def finish(self) -> Episodes:
        """The table, with the incomplete last episode, if there is one, marked as such."""
        if not self._size:
            none = np.zeros(0, dtype=np.bool_)
            return Episodes.of_rows(np.zeros(0), np.zeros((0, self._num_costs)), none, none)
        pieces = Episodes.join(self._pieces)
        first = np.flatnonzero(np.append(True, pieces.complete[:-1]))
        return replace(
            pieces.take(np.append(first[1:], len(pieces)) - 1),
            starts=pieces.starts[first],
            returns=np.add.reduceat(pieces.returns, first),
            costs=np.add.reduceat(pieces.costs, first, axis=0),
            source=None if pieces.source is None else pieces.source[first],
            stated_horizon=self._horizon,
        )
