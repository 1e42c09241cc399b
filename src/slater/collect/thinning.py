"""Fewer episodes that still cover the trade-off: at most so many per cell of a (return, cost) grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["thin"]

CELLS = 20


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
