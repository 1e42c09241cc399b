"""Weights over kept policies: the best mixture within the limits, by a linear program.

    max_w sum_k w_k J_R(pi_k)   s.t.  sum_k w_k J_Ci(pi_k) <= tau_i for all i,  w in the simplex

A mixture's discounted sums are the weighted sums of its members', so oscillating iterates are good
columns: a reckless and an idle policy mix to the limit. At most 1 + I members get weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

__all__ = ["lp_weights", "select"]

F64 = NDArray[np.float64]


def lp_weights(estimates: F64, tau: F64) -> F64:
    """Weights, shape (K,), from estimates of shape (K, 1+I), reward first, and limits (I,).

    Where no mixture keeps all limits, the one with the smallest worst excess (relative to the limit's
    size), and among those the best reward: safe first.
    """
    members, costs = len(estimates), estimates.shape[1] - 1
    size = np.maximum(tau, 1e-3 * np.maximum(np.abs(estimates[:, 1:]).max(axis=0), 1e-12))
    # first the least excess t, then the reward, with the excess held at that
    rows = np.concatenate([estimates[:, 1:].T / size[:, None], -np.ones((costs, 1))], axis=1)
    simplex = np.append(np.ones(members), 0.0)[None]
    bounds = [(0, None)] * (members + 1)
    least = linprog(
        np.append(np.zeros(members), 1.0), rows, tau / size, simplex, [1.0], bounds, method="highs"
    )
    assert least.x is not None, least.message  # the least excess exists: weights are bounded, t is not
    excess = max(float(least.x[-1]), 0.0)
    best = linprog(
        -estimates[:, 0], rows[:, :-1], tau / size + excess * (1 + 1e-9) + 1e-9, simplex[:, :-1], [1.0],
        bounds[:-1], method="highs",
    )  # fmt: skip
    # rounding may make the second program infeasible by a hair; the first one's answer is then as safe
    weights = np.maximum(least.x[:-1] if best.x is None else best.x, 0.0)
    weights[weights < 1e-6] = 0.0
    return np.asarray(weights / weights.sum())


def select(estimates: F64, tau: F64, refine: Callable[[int], F64], limit: int) -> tuple[F64, F64, list[int]]:
    """Weights from careful estimates only.

    estimates: (K, 1+I) quick estimates, which say where care pays: first for members to which the program
    gives weight, then for the others that look safe, richest first, then for the rest, safest first; until
    all are refined by `refine(member)`, shape (1+I,), or `limit` of them are. Returns weights (K,), zero
    for members without a careful estimate, the estimates used, and the refined members in order.
    """
    estimates = np.array(estimates, dtype=np.float64)
    refined: list[int] = []
    while len(refined) < min(max(limit, 1), len(estimates)):
        weights = lp_weights(estimates, tau)
        excess = np.max(estimates[:, 1:] / np.maximum(tau, 1e-9), axis=1)
        looks_safe = excess <= 1.5

        value = np.where(looks_safe, estimates[:, 0], -excess)
        order = np.lexsort((value, looks_safe, weights > 0))[::-1]  # the last key counts first
        member = next(int(k) for k in order if k not in refined)
        estimates[member] = refine(member)
        refined.append(member)
    final = np.zeros(len(estimates))
    final[refined] = lp_weights(estimates[refined], tau)
    return final, estimates, refined
