"""How far what a policy does in the states that it visits is from what the log has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["outside_of", "plane_of"]

F64 = NDArray[np.float64]


def outside_of(logged: F64) -> Callable[[F64], float]:
    """Of points (n, m), the share that is farther from the log's than 99% of those are from each other.

    Half of some of the log's points judge the other half: that is how near the nearest one usually is.
    """
    from scipy.spatial import cKDTree

    some = logged[np.random.default_rng(0).permutation(len(logged))[:6000]]
    half = len(some) // 2
    tree = cKDTree(some[:half])
    usual = np.quantile(tree.query(some[half:])[0], 0.99)

    def share(visited: F64) -> float:
        return float((tree.query(visited)[0] > 1.5 * usual + 1e-9).mean())

    return share


def plane_of(logged: F64, points: int = 300) -> Callable[[F64], dict[str, Any]]:
    """Some of the log's states and of visited ones, in the plane of the log's two main directions."""
    rng = np.random.default_rng(0)
    mean = logged.mean(axis=0)
    axes = np.linalg.svd(logged[rng.permutation(len(logged))[:2000]] - mean, full_matrices=False)[2][:2]
    if len(axes) < 2:
        axes = np.concatenate([axes, np.zeros_like(axes)])[:2]

    def drawn(states: F64) -> list[list[float]]:
        some = states[np.random.default_rng(1).permutation(len(states))[:points]]
        return list(np.round((some - mean) @ axes.T, 3).tolist())

    of_log = drawn(logged)
    return lambda visited: {"logged": of_log, "visited": drawn(visited)}
