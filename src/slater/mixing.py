"""Weights over policies: the best mixture within the limits, by one linear program for both halves.

    max_w sum_k w_k J_R(pi_k)   s.t.  sum_k w_k J_Ci(pi_k) <= tau_i for all i,  w in the simplex

A mixture's discounted sums are the weighted sums of its members', so oscillating iterates are good
columns: a reckless and an idle policy mix to the limit. At most 1 + I members get weight. It is the master
program of Dantzig and Wolfe, and its multipliers are the prices of the limits: what reward one more unit of
a limit would buy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from slater.cones import Block, cone_program

__all__ = ["BestMixture", "best_mixture", "lp_weights", "robust_mixture"]

F64 = NDArray[np.float64]

#: relative excess of a limit that is none, but a solver's rounding
SOLVED = 1e-7
#: by how much the least excess is rounded up, so that the second program is feasible in floating point
ROUNDING = 1e-9


class BestMixture(NamedTuple):
    """What the linear program answers.

    weights: of the members, shape (K,), a vertex of the program: at most 1 + I of them are above zero.
    prices: multipliers of the limits, shape (I,), at least 0: the reward that one more unit of limit i would
        buy, in units of reward per unit of cost i; zero for a limit that does not bind. Where `excess` is
        positive there is no such price; they are then what one unit of each limit would take off the excess.
    excess: by how many `unit`s the worst limit is exceeded; 0 if every limit is kept.
    """

    weights: F64
    prices: F64
    excess: float


def best_mixture(
    reward: F64,
    costs: F64,
    limits: F64,
    *,
    unit: F64 | None = None,
    slack: float = 0.0,
    least_weight: float = 0.0,
) -> BestMixture:
    """The mixture of most reward within the limits.

    reward: (K,), costs: (K, I), limits: (I,), all sums of one kind (discounted, say). Where no mixture keeps
    all limits: the one with the smallest worst excess, counted in `unit` (I,) (of 1 unless given), and among
    those the best reward: safe first. slack: by how many units a limit may be exceeded without a word.
    least_weight: members with less get nothing.
    """
    members, num_costs = costs.shape
    unit = np.ones(num_costs) if unit is None else unit
    rows, room = costs.T / unit[:, None], limits / unit

    def richest(room: F64) -> Any:
        bounded = {"A_ub": rows, "b_ub": room} if num_costs else {}
        return linprog(-reward, **bounded, A_eq=np.ones((1, members)), b_eq=[1.0], method="highs")

    best = richest(room + slack)
    if best.status == 0:
        marginals = -best.ineqlin.marginals if num_costs else np.zeros(0)
        return BestMixture(_normalised(best.x, least_weight), np.maximum(marginals, 0.0) / unit, 0.0)
    # first the least excess t, then the reward, with the excess held at that
    least = linprog(
        np.append(np.zeros(members), 1.0), np.hstack([rows, -np.ones((num_costs, 1))]), room,
        np.append(np.ones(members), 0.0)[None], [1.0], method="highs",
    )  # fmt: skip
    assert least.x is not None, least.message  # the least excess exists: weights are bounded, t is not
    excess = max(float(least.x[-1]), 0.0)
    best = richest(room + excess * (1 + ROUNDING) + ROUNDING)
    # rounding may make this program infeasible by a hair; the first one's answer is then as safe
    weights = least.x[:-1] if best.x is None else best.x
    return BestMixture(
        _normalised(weights, least_weight), np.maximum(-least.ineqlin.marginals, 0.0) / unit, excess
    )


def robust_mixture(
    mean: F64, covariance: F64, limits: F64, deviations: tuple[float, float], least_weight: float = 1e-3
) -> BestMixture:
    """The best mixture where J is known up to a joint error: a second-order cone program.

        max_w  w.mu_R - k_R sqrt(w' S_R w)   s.t.  w.mu_i + k_C sqrt(w' S_i w) <= tau_i for all i,  w in the
        simplex

    mean: (K, 1+I), covariance: (1+I, K, K), reward first; limits: (I,); deviations: k_R and k_C. Errors that
    policies share do not average out, and what is best by luck of its estimate has a wide one. Where no
    mixture keeps all bounds, as many deviations are kept as can be: the surest mixture. Where no mixture
    keeps the limits by its mean, the one with the least worst excess, relative to the limits' size, and among
    those the best. prices: what one more unit of each limit would add to the objective; excess: of the bounds
    of k_C deviations, relative, 0 if none.
    """
    widest = np.sqrt(np.maximum(np.einsum("ukk->uk", covariance)[1:].max(axis=1), 0.0))
    size = np.maximum(np.abs(mean[:, 1:]).max(axis=0), widest)
    size = np.maximum(np.abs(limits), 1e-3 * np.maximum(size, 1e-12))
    factors = [_factor(part) for part in covariance]

    def excess_of(k: float) -> float:
        return max(_cone(mean, factors, limits, size, (deviations[0], k), None)[0][-1], 0.0)

    excess = left = excess_of(most := deviations[1])
    if excess > SOLVED:
        left, surest, beyond = excess_of(0.0), 0.0, most
        while left <= SOLVED and beyond - surest > 0.01 * most:
            middle = (surest + beyond) / 2
            surest, beyond = (middle, beyond) if excess_of(middle) <= SOLVED else (surest, middle)
        most = surest
    room = limits + size * (left * (1 + 1e-3) + 1e-6 if left > SOLVED else 0.0)
    best, prices = _cone(mean, factors, room, size, (deviations[0], most), 0.0)
    kept = np.flatnonzero(best[:-1] >= least_weight)
    weights = np.zeros(len(mean))
    weights[kept] = best[kept] / best[kept].sum()
    return BestMixture(weights, prices, excess if excess > 1e-6 else 0.0)


def _factor(covariance: F64) -> F64:
    """F with F F' the covariance, (K, rank)."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    kept = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _cone(
    mean: F64, factors: list[F64], limits: F64, size: F64, deviations: tuple[float, float], aim: float | None
) -> tuple[F64, F64]:
    """Weights and the excess, (K + 1,), and the limits' prices, (I,): of the least excess, or of the best
    reward within an excess of `aim`.
    """
    members, (k_r, k_c) = len(mean), deviations
    width = members + 2  # weights, deviation of the reward, excess
    cost = np.zeros(width)
    unit = max(float(np.abs(factors[0]).max()), 1e-12) if factors[0].size else 1.0
    if aim is None:
        cost[-1] = 1.0
    else:
        reward = max(float(np.abs(mean[:, 0]).max()), k_r * unit, 1e-12)
        cost[:members], cost[members] = -mean[:, 0] / reward, k_r / reward

    def spread(head: F64, factor: F64) -> F64:
        """Rows of a second-order cone: what bounds it, and the deviations of a factor (K, rank)."""
        return np.vstack([head, np.hstack([-factor.T, np.zeros((factor.shape[1], 2))])])

    blocks: list[Block] = [
        (np.append(np.ones(members), [0.0, 0.0])[None], np.ones(1), "zero"),
        (-np.eye(width), np.zeros(width), "nonnegative"),
    ]
    if aim is not None:
        blocks.append((np.eye(width)[-1:], np.array([aim]), "nonnegative"))
    rows = spread(-np.eye(width)[members] / unit, factors[0] / unit)
    blocks.append((rows, np.zeros(len(rows)), "second-order"))
    places, row = [], sum(len(right) for _, right, _ in blocks)
    for i, limit in enumerate(limits):
        head = np.append(mean[:, 1 + i], [0.0, -size[i]]) / size[i]
        rows = spread(head, k_c * factors[1 + i] / size[i])
        blocks.append((rows, np.append(limit / size[i], np.zeros(len(rows) - 1)), "second-order"))
        places.append(row)
        row += len(rows)
    x, multipliers, _ = cone_program(np.zeros((width, width)), cost, blocks)
    prices = np.maximum(multipliers[places], 0.0) / size if places else np.zeros(0)
    if aim is not None:
        prices = prices * reward
    return np.append(np.maximum(x[:members], 0.0), x[-1]), prices


def _normalised(weights: F64, least_weight: float) -> F64:
    """On the simplex, without the rounding of a solver."""
    weights = np.maximum(weights, 0.0)
    weights[weights < least_weight] = 0.0
    return np.asarray(weights / weights.sum())


def lp_weights(estimates: F64, tau: F64) -> F64:
    """Weights, shape (K,), from estimates of shape (K, 1+I), reward first, and limits (I,).

    An excess counts relative to the limit's size; members with less than a millionth get nothing.
    """
    reward, costs = estimates[:, 0], estimates[:, 1:]
    size = np.maximum(tau, 1e-3 * np.maximum(np.abs(costs).max(axis=0), 1e-12))
    return best_mixture(reward, costs, tau, unit=size, slack=ROUNDING, least_weight=1e-6).weights
