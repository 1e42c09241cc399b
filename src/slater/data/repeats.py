"""What a log holds twice: rows that repeat the row before, stretches that were copied, whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.findings import Findings

#: So many rows in a row that stand earlier in the same episode, in the same order, are a copy.
_STRETCH = 3
_NUMBERS = ("observations", "actions", "rewards", "costs")
Block = Mapping[str, NDArray[Any]]


class Repeats:
    """Takes blocks of rows in order; memory grows with the number of episodes only."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._before: np.uint64 | None = None  # the last row, if its episode goes on
        self._content = blake2b(digest_size=16)  # of the episode so far
        self._contents: set[bytes] = set()

    def update(self, rows: Block, offset: int) -> None:
        """Look at the rows from number `offset` on."""
        ends = rows["terminals"] | rows["timeouts"]
        if rows["actions"].ndim == 2:  # a discrete world may well stand still, or go in circles
            self._rows(_codes(rows), ends, offset)
        self._episodes(rows, ends, offset)

    def _rows(self, codes: NDArray[np.uint64], ends: NDArray[np.bool_], offset: int) -> None:
        same = np.zeros(len(ends), dtype=np.bool_)
        same[1:] = (codes[1:] == codes[:-1]) & ~ends[:-1]
        same[0] = self._before is not None and bool(codes[0] == self._before)
        message = "repeats the row before it in every number; was it logged twice?"
        self._findings.add("warning", "rows", message, offset + np.flatnonzero(same))
        self._before = None if ends[-1] else codes[-1]
        # the row before with the same content, in the same episode, and how far back it stands
        order = np.argsort(codes, kind="stable")
        again = codes[order[1:]] == codes[order[:-1]]
        lag = np.zeros(len(codes), dtype=np.int64)
        lag[order[1:][again]] = (order[1:] - order[:-1])[again]
        episode = np.concatenate([[0], np.cumsum(ends[:-1])])
        lag[(lag < 2) | (episode[np.arange(len(codes)) - lag] != episode)] = 0
        starts = np.flatnonzero(np.diff(lag, prepend=0))
        lengths = np.diff(starts, append=len(lag))
        copied = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True) if lag[s] and n >= _STRETCH]
            or [np.zeros(0, np.int64)]
        )
        message = "stands earlier in the same episode, like the rows around it; were they copied?"
        self._findings.add("warning", "rows", message, offset + copied)

    def _episodes(self, rows: Block, ends: NDArray[np.bool_], offset: int) -> None:
        start, copies = 0, []
        columns = [np.ascontiguousarray(rows[name]) for name in ("observations", "actions", "rewards")]
        for stop in [*(np.flatnonzero(ends) + 1).tolist(), len(ends)]:
            for values in columns:
                self._content.update(values[start:stop].tobytes())
            if stop > start and ends[stop - 1]:
                digest = self._content.digest()
                if digest in self._contents:
                    copies.append(stop - 1)
                self._contents.add(digest)
                self._content = blake2b(digest_size=16)
            start = stop
        message = "an episode that ends here is a copy of an earlier one"
        self._findings.add("warning", "rows", message, offset + np.array(copies, dtype=np.int64))


def _codes(rows: Block) -> NDArray[np.uint64]:
    """A number for the content of each row, (N,), equal where all its numbers are (0 and -0 too)."""
    table = np.concatenate([rows[name].reshape(len(rows["rewards"]), -1) for name in _NUMBERS], axis=1)
    words = (np.ascontiguousarray(table, np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)
    keys = np.random.default_rng(0).integers(2**63, size=words.shape[1], dtype=np.uint64) | np.uint64(1)
    return np.asarray(((words + np.uint64(1)) * keys).sum(axis=1, dtype=np.uint64))
