"""Thin coverage: what the number of visits of each pair says about the estimates that rest on it.

Real logs see most pairs never and many once or twice. Such a pair has a row `Phat(. | s, a)` that is one
draw, and whoever maximises over many of them finds the luckiest. The counts say how far to trust each:
with V the behaviour policy's values on the empirical model, what follows a pair, `discount Phat V`, is off by

    error(x) = discount sqrt(variance(x) / N(x))                                       one standard error

`pessimistic` takes a multiple of it off the reward and adds it to each cost, pair by pair: every estimate,
critic and program on that data is then pessimistic where the data are thin, whichever algorithm runs. The
theory's multiples are several times what limits leave room for on such logs; `affordable` is the largest with
which the limits can still be met.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from slater.errors import InputError
from slater.tabular._check import Float
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.pooling import pooled

#: standard errors a pair on large problems, where the limits leave room for them (seeds 0 to 2 of ICU-Sepsis)
STRENGTH = 0.2

#: a pair with fewer visits than this is called rarely visited, and its variance leans on that of the others
RARE = 10

#: halvings of the interval in which `affordable` looks
HALVINGS = 5


def pair_errors(data: Counts, utilities: Float) -> Float:
    """Standard errors of `discount Phat V`, shape `(m, S, A)`, J-units, for utilities `(m, S, A)`.

    The variance of a row is its own and, as one more draw, the mean variance of the rows with at least
    two visits; a row that was seen once has that mean. Rows that borrowed visits from their state
    (`pooling`) have the standard deviation of their posterior. Zero where there are no data.
    """
    N, rows = np.where(data.seen, data.pair_counts, 1.0), data.successors.rows
    errors = []
    for utility in utilities:
        policy, U_pi = data.behaviour * data.seen, np.einsum("sa,sa->s", data.behaviour * data.seen, utility)
        # nothing follows a state without data; episodes that end have value 0
        V = data.successors.values(policy, U_pi, data.discount)
        variance = np.maximum((rows @ V**2).reshape(N.shape) - (rows @ V).reshape(N.shape) ** 2, 0.0)
        if data.borrowed:
            errors.append(data.discount * np.sqrt(variance / (N + data.borrowed + 1.0)))
            continue
        many = data.pair_counts >= 2
        weights = np.where(many, np.minimum(data.pair_counts - 1.0, RARE), 0.0)
        unbiased = variance * N / np.maximum(N - 1.0, 1.0)
        pooled = float(np.sum(weights * unbiased) / max(float(weights.sum()), 1.0))
        errors.append(data.discount * np.sqrt((pooled + N * variance) / N / N))
    return np.where(data.seen, np.array(errors), 0.0)


def pessimistic(data: Counts, strength: float) -> Counts:
    """The data with `strength` standard errors of each pair off its reward and on each of its costs."""
    if not strength >= 0.0 or not np.isfinite(strength):
        raise InputError(f"the pessimism is {strength:g} standard errors, but it must not be negative.")
    if strength == 0.0:
        return data
    errors = strength * pair_errors(data, np.concatenate([data.reward[None], data.costs]))
    return dataclasses.replace(data, reward=data.reward - errors[0], costs=data.costs + errors[1:])


def affordable(data: Counts, limits: Float, most: float) -> float:
    """The largest pessimism up to `most` at which a policy of the empirical model meets `limits` `(I,)`.

    To one part in 2^5 of `most`; zero if the limits are out of reach without any.
    """

    def reachable(strength: float) -> bool:
        model = pessimistic(data, strength).model("pessimistic", limits)
        return model.closest(enough=0.0)[0] <= 0.0

    if data.num_costs == 0 or reachable(most):
        return most
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if reachable(middle) else (low, middle)
    return low


def for_thin_coverage(
    data: Counts, borrowed: float | None = None, strength: float | None = None
) -> tuple[Counts, tuple[str, ...]]:
    """A log of a large problem as algorithms should see it, and a note on what was done to it.

    Rows of rare pairs lean on their state (`pooling`), then each pair is penalised by its standard errors:
    `strength` of them, or without one `STRENGTH`, but at most half of what the limits can bear: at the edge
    of it only the policy of the least cost is left.
    """
    if borrowed == strength == 0.0:
        return data, ()
    leaning = pooled(data, borrowed)
    allowed = affordable(leaning, data.limits, 2 * STRENGTH) / 2 if strength is None else strength
    note = f"each pair borrows {leaning.borrowed:g} visits from its state"
    note += f" and has {allowed:.3g} standard errors of pessimism, for thin coverage"
    if strength is None and allowed < STRENGTH:
        note += " (half of the most with which the limits can be met)"
    return pessimistic(leaning, allowed), (note,)


def rare_share(data: Counts, mixture: Mixture, fewer_than: float = RARE) -> float:
    """Share of the mixture's decisions, on the empirical model, in pairs with fewer visits than this.

    Discounted, between 0 and 1; pairs without data count, and what follows them is not known and does not.
    Decisions in states that only lead to themselves (where an episode has ended) are left out.
    """
    model = data.model("pessimistic")
    S = data.num_states
    occupancy = mixture.extended(model.num_states).occupancy(model)[:S]
    diagonal = data.transition_counts[
        np.arange(S * data.num_actions), np.repeat(np.arange(S), data.num_actions)
    ]
    stays = np.asarray(diagonal).reshape(data.pair_counts.shape) == data.pair_counts
    occupancy[np.all(stays | ~data.seen, axis=1) & data.seen.any(axis=1)] = 0.0
    total = float(occupancy.sum())
    return float(occupancy[data.pair_counts < fewer_than].sum() / total) if total > 0 else 0.0
