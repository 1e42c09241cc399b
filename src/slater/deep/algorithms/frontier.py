"""Return against cost over the episodes of a dataset: the frontier, and episodes relabelled beyond it.

The frontier is a staircase taken from the data, PF(c) = the largest return of a complete episode whose
costs all stay within c; no polynomial, no degree to choose, any number of costs.

A model that is asked for a return and a cost that no episode has must know which of the two to give up.
Augmentation teaches it to keep the cost: a target (R, C) beyond the frontier, R > PF(C), is attached to an
episode with costs <= C and a return near PF(C). The label may be richer than the episode, never cheaper:
each target draws its own episode among those within its cost. (Released code draws a list of episodes and
pairs it with the targets afterwards, so that an episode can get a target below its own cost.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def frontier(returns: F64, costs: F64, at: F64) -> F64:
    """PF at the cost vectors `at` (n, I), shape (n,), of returns (E,) and costs (E, I); -inf within none."""
    within = np.all(costs[None] <= at[:, None] + 1e-9, axis=-1)
    return np.asarray(np.max(np.where(within, returns, -np.inf), axis=1))


class Relabelled(NamedTuple):
    """Episode `episode[k]` with `shift[k]` (1+I) added to its return and costs to go, at every step."""

    episode: NDArray[np.int64]
    shift: F64


def relabel(
    returns: F64, costs: F64, *, share: float, headroom: float, decrease: float, rng: np.random.Generator
) -> Relabelled:
    """About `share` * E targets beyond the frontier, each with an episode within its cost.

    Target costs are those of episodes, evenly spaced in their order by cost; target returns are uniform
    from PF(C) to `headroom` above the best return of all. An episode may stand in if its return is at
    most `decrease` under PF(C); nearer ones are likelier. Both are shares of the range of returns.
    """
    count = int(share * len(returns))
    span = max(float(np.ptp(returns)), 1e-9)
    sizes = np.maximum(np.ptp(costs, axis=0), 1e-9)
    order = np.argsort(np.sum(costs / sizes, axis=1), kind="stable")
    spaced = order[np.linspace(0, len(order) - 1, count).round().astype(int)] if count else order[:0]
    target_costs = costs[spaced]
    best = frontier(returns, costs, target_costs)
    target_returns = rng.uniform(best, returns.max() + headroom * span)
    chosen = np.empty(count, dtype=np.int64)
    for k in range(count):
        near = returns >= best[k] - decrease * span
        able = np.flatnonzero(np.all(costs <= target_costs[k], axis=1) & near)
        cheaper = np.max((target_costs[k] - costs[able]) / sizes, axis=1)
        nearness = 1.0 / (np.abs(returns[able] - best[k]) / span + cheaper + 0.05)
        chosen[k] = rng.choice(able, p=nearness / nearness.sum())
    richer = (target_returns - returns[chosen])[:, None]
    return Relabelled(chosen, np.concatenate([richer, target_costs - costs[chosen]], axis=1))


def sampling_weights(costs: F64, strength: float, cap: float | None) -> F64:
    """Weight of each episode, shape (E,), sum 1: cheaper episodes are drawn more often.

    1 - strength * (cost / largest cost), of the worst of its costs; with a `cap`, in raw cost per episode,
    max(0, cap - cost) instead, as released (which never draws an episode beyond the cap).
    """
    if cap is not None:
        weights = np.maximum(0.0, cap - costs.max(axis=1))
    else:
        largest = np.maximum(costs.max(axis=0), 1e-9)
        weights = 1.0 - strength * np.clip(np.max(costs / largest, axis=1), 0.0, 1.0)
    return np.asarray(weights / weights.sum())
