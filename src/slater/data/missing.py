"""Rows with missing values, by choice: dropped, or filled with the value before; counted either way.

A log of sensors has holes. By default a hole is an error with its column and row. *Drop* leaves the rows
out: a transition into a row whose observation is missing is then no transition, and an episode whose last
row is dropped ends, as if cut off, at the last row that stays. *Forward* puts the value of the row before,
in the same episode, into the hole; rows at the start of an episode that have no row before them are
dropped. Missing propensities, flags and labels are never made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from slater.data.findings import Findings
from slater.data.order import EpisodeBegins

Missing = Literal["refuse", "drop", "forward"]
CHOICES: tuple[str, ...] = get_args(Missing)

_NUMBERS = ("observations", "actions", "rewards", "costs")
Block = Mapping[str, NDArray[Any]]


def _holes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are missing, shape (N, width)."""
    table = np.asarray(values).reshape(len(values), -1)
    return np.isnan(table) if table.dtype.kind == "f" else np.zeros(table.shape, dtype=np.bool_)


class MissingValues:
    """Between raw columns and rows: fills or marks holes in the one, leaves marked rows out of the other."""

    def __init__(self, choice: Missing, findings: Findings) -> None:
        self._choice = choice
        self._findings = findings
        self._offset = 0
        self._marked: list[tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]] = []
        self._last: dict[str, NDArray[Any]] = {}  # the row before the block, after filling
        self._starts = EpisodeBegins()
        self._dropped: list[int] = []

    def in_the_file(self, rows: NDArray[np.integer]) -> NDArray[np.integer]:
        """Rows among those that stay, by their numbers in the file, where others stand between them."""
        dropped = np.asarray(self._dropped, dtype=np.int64)
        return rows + np.searchsorted(dropped - np.arange(len(dropped)), rows, side="right")

    def raw(self, blocks: Iterable[Block]) -> Iterator[dict[str, NDArray[Any]]]:
        """The blocks with no holes left in them; rows that must go are marked for `rows`."""
        for block in blocks:
            size = len(block["observations"])
            if size == 0:
                continue
            filled = dict(block)
            holes = {name: _holes(block[name]) for name in _NUMBERS if name in block}
            if self._choice == "forward":
                self._fill(filled, holes)
            gone = np.zeros(size, dtype=np.bool_)
            for name, hole in holes.items():
                gone |= hole.any(axis=1)
                if hole.any():
                    filled[name] = np.where(hole.reshape(np.shape(filled[name])), 0, filled[name])
            unseen = np.asarray(holes["observations"].any(axis=1))
            unknown = np.zeros(size, dtype=np.bool_)
            if "next_observations" in block:
                after = np.asarray(block["next_observations"])
                unknown = np.asarray(_holes(after).any(axis=1))
                own = np.reshape(filled["observations"], after.shape)
                filled["next_observations"] = np.where(unknown.reshape(-1, *[1] * (own.ndim - 1)), own, after)
            message = "is missing here; the row is left out"
            self._findings.add("warning", "rows", message, self._offset + np.flatnonzero(gone))
            self._dropped += (self._offset + np.flatnonzero(gone)).tolist()
            self._marked.append((gone, unseen, unknown))
            self._offset += size
            yield filled

    def _fill(self, block: dict[str, NDArray[Any]], holes: dict[str, NDArray[np.bool_]]) -> None:
        """Fill holes of a block from the rows before them; what is filled is no hole any more."""
        size = len(block["observations"])
        begins = self._starts.of(block)
        # the row that each row's episode begins with; numbered from 1, behind the last row before the block
        first = np.maximum.accumulate(np.where(begins, np.arange(1, size + 1), 0))
        for name, hole in holes.items():
            rows = np.array(block[name], dtype=np.float64).reshape(size, -1)
            before = self._last.get(name, np.full(rows.shape[1], np.nan))
            values = np.concatenate([before[None], rows])
            known = np.where(np.isnan(values), 0, np.arange(size + 1)[:, None])
            source = np.maximum.accumulate(known, axis=0)[1:]
            found = np.take_along_axis(values, source, axis=0)
            usable = hole & (source >= first[:, None]) & ~np.isnan(found)
            values[1:][usable] = found[usable]
            message = "was missing and has the value of the row before"
            self._findings.add("warning", name, message, self._offset + np.flatnonzero(usable.any(axis=1)))
            holes[name] = hole & ~usable
            if hole.any():
                block[name] = values[1:].reshape(np.shape(block[name]))
            self._last[name] = values[-1]

    def rows(
        self, blocks: Iterable[tuple[dict[str, NDArray[Any]], NDArray[np.float32] | None]], *, derived: bool
    ) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.float32] | None]]:
        """The rows that stay, with the first observation after each block, as `stream_rows` gives them."""
        held: dict[str, NDArray[Any]] | None = None
        for rows, _ in blocks:
            gone, unseen, unknown = self._marked.pop(0)
            ends = rows["terminals"] | rows["timeouts"]
            known = rows["next_known"] & ~unknown
            if derived:  # a next observation that was made from a hole
                known[:-1] &= ~unseen[1:] | ends[:-1]
                if held is not None and unseen[0] and not (held["terminals"] | held["timeouts"])[-1]:
                    held["next_known"] = held["next_known"].copy()
                    held["next_known"][-1] = False
            timeouts = rows["timeouts"].copy()
            for place in np.flatnonzero(gone & ends):
                kept = np.flatnonzero(~gone[:place])
                stop = np.flatnonzero(ends[:place])
                if len(kept) and (len(stop) == 0 or kept[-1] > stop[-1]):
                    timeouts[kept[-1]] = True
                elif not len(kept) and not len(stop) and held is not None and not held["terminals"][-1]:
                    held["timeouts"] = held["timeouts"].copy()
                    held["timeouts"][-1] = True
            changed = {**rows, "timeouts": timeouts, "next_known": known}
            stays = {name: array[~gone] for name, array in changed.items()}
            if len(stays["rewards"]) == 0:
                continue
            if held is not None:
                yield held, stays["observations"][0]
            held = stays
        if held is not None:
            yield held, None
