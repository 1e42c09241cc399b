"""Indices or amounts? What is said where nobody told, and the numbers leave it open."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.metadata import MOST_ACTIONS

__all__ = ["WholeActions"]


class WholeActions:
    """Are actions whole numbers, one per row, all of them or nearly? Then nobody said what they are."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._odd: list[int] = []
        self._size = 0

    def update(self, actions: NDArray[Any], offset: int) -> None:
        """Take the actions from row `offset` on, (N,) or (N, a)."""
        if actions.ndim == 2 and actions.shape[1] != 1:
            return
        values = actions.reshape(-1)
        whole = np.isfinite(values) & (values == np.floor(values)) & (values >= 0) & (values < MOST_ACTIONS)
        self._size += len(values)
        if len(self._odd) <= self._size // 100 + 3:
            self._odd += (offset + np.flatnonzero(~whole)).tolist()
        if len(self._seen) <= MOST_ACTIONS:
            self._seen.update(np.unique(values[whole]).astype(int).tolist())

    def remark(self, note: Any, *, discrete: bool) -> None:
        """Say what was assumed where it may be wrong."""
        largest = max(self._seen, default=0)
        if discrete and len(self._seen) <= largest:
            message = (
                f"the whole numbers are taken for {largest + 1} discrete actions, of which "
                f"{len(self._seen)} occur; if they are amounts, say that actions are not discrete, "
                "else state the number of actions"
            )
            note("warning", "actions", message)
        if discrete or not 1 <= largest < 50 or len(self._odd) > max(self._size // 100, 1):
            return
        amounts = "they are taken for amounts; if they are choices, say that actions are discrete"
        if not self._odd and len(self._seen) == largest + 1:
            note(
                "warning",
                "actions",
                f"all are whole numbers from 0 to {largest}, with a decimal point: {amounts}",
            )
        elif self._odd:
            message = (
                f"all but {len(self._odd)} are whole numbers from 0 to {largest}: {amounts} and correct this"
            )
            note("warning", "actions", message, np.array(self._odd))
