"""Tier 2: verdicts from logged propensities, by importance weights.

With r_t = pi(a_t|s_t) / mu(a_t|s_t) and w_t = r_0 ... r_t, the per-decision sum of w_t c_t over an episode
has the policy's expected cost as its mean. Its upper bound is the trap: weights have no largest value, and
clipping them makes a cost look *smaller* than it is. So the complement is bounded instead,

    G = sum_t w_t (c_max - c_t)  >= 0,      E G = T c_max - J_C,

from below, by betting: no largest weight need be known, and what a missed heavy weight does is conservative.
J_C is then at most T c_max minus that bound. This holds at every sample size if the propensities are right.

A doubly robust estimate (a linear fitted Q of the other half of the episodes as control) is narrower; its
bound is Student's, which is right only while many episodes carry weight, so it is heard behind gates: the
effective sample size, and a mean weight that is 1 within its error. Each of the two bounds has half
the error. A mixture draws its member at the start of an episode: its weight is the mean of its members'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Interval, betting_lower
from slater.certify.ranges import Ranges, Stated
from slater.certify.verdict import (
    Certificate,
    Evidence,
    Gate,
    LimitVerdict,
    decide,
    episode_limit,
    error_of_each,
    under_range,
    unit_notes,
)
from slater.data import Dataset
from slater.errors import InputError
from slater.limits import Limits, resolve_limits
from slater.policy import Mixture

__all__ = ["Weights", "certify_propensities", "episode_weights", "judge_propensities"]

F64 = NDArray[np.float64]

#: fewest episodes that must carry weight, and the fewest as a share of all
FEWEST_EFFECTIVE, SMALLEST_SHARE = 50.0, 0.02

#: by how many standard errors the mean weight may differ from 1
MEAN_WEIGHT_ERRORS = 3.0


def _members(policy: Any) -> list[tuple[float, Any]]:
    if isinstance(policy, Mixture):
        return [(float(w), m) for w, m in zip(policy.weights, policy.members, strict=True) if w > 0]
    return [(1.0, policy)]


@dataclass(frozen=True)
class Weights:
    """Weights of E episodes padded to T steps, for K members: w_t includes the action of step t.

    members: (K,) probabilities; cumulative: (K, E, T); a step after the end keeps the last weight.
    ratios: (K, E, T), 1 after the end. lengths: (E,) steps.
    """

    members: F64
    cumulative: F64
    ratios: F64
    lengths: NDArray[np.int64]

    @property
    def mixed(self) -> F64:
        """Weights of the mixture, shape (E, T)."""
        return np.asarray(np.einsum("k,ket->et", self.members, self.cumulative))

    @property
    def effective(self) -> float:
        """Effective number of episodes, (sum w)^2 / sum w^2, at the last step."""
        last = self.mixed[:, -1]
        total = float((last**2).sum())
        return float(last.sum()) ** 2 / total if total > 0 else 0.0


def episode_weights(data: Dataset, policy: Any, horizon: int | None = None) -> Weights:
    """The weights of every complete episode of `data` under `policy`.

    A policy must say how likely an action is: `log_probability(observations, actions)` of shape `(batch,)`,
    as the network policies of Slater do.
    """
    if data.propensity is None:
        raise InputError(
            "the data have no propensities; add a column `propensity`, or judge by another tier."
        )
    bad = ~(np.isfinite(data.propensity) & (data.propensity > 0))
    if data.discrete:
        bad |= data.propensity > 1 + 1e-6
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        range_text = "above 0 and at most 1" if data.discrete else "a density above 0"
        raise InputError(f"the propensity of row {row} is {data.propensity[row]:g}; it must be {range_text}.")
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    T = horizon or data.horizon
    if len(chosen) == 0 or int(table.lengths[chosen].max()) > T:
        longest = int(table.lengths[chosen].max()) if len(chosen) else 0
        raise InputError(f"the longest complete episode has {longest} steps, but the horizon is {T}.")
    members = _members(policy)
    ratios = np.ones((len(members), len(chosen), T))
    logged = np.log(data.propensity)
    for k, (_, member) in enumerate(members):
        says = getattr(member, "log_probability", None)
        if says is None:
            raise InputError(
                f"a {type(member).__name__} does not say how likely an action is (log_probability), so "
                "propensities cannot judge it; run it instead."
            )
        ratio = np.exp(np.clip(np.asarray(says(data.observations, data.actions)) - logged, -700.0, 700.0))
        for e, number in enumerate(chosen):
            rows = slice(int(table.starts[number]), int(table.stops[number]))
            ratios[k, e, : rows.stop - rows.start] = ratio[rows]
    cumulative = np.exp(np.clip(np.cumsum(np.log(np.maximum(ratios, 1e-300)), axis=2), -700.0, 600.0))
    return Weights(np.array([w for w, _ in members]), cumulative, ratios, table.lengths[chosen])


def _padded(data: Dataset, column: F64, horizon: int) -> F64:
    """One number per row as (E, T), zero after the end."""
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    padded = np.zeros((len(chosen), horizon))
    for e, number in enumerate(chosen):
        rows = slice(int(table.starts[number]), int(table.stops[number]))
        padded[e, : rows.stop - rows.start] = column[rows]
    return padded


def _whole(data: Dataset, horizon: int) -> Gate:
    """Whether every episode ended or reached the horizon: the cost of one that was cut off is not known."""
    table = data.episodes
    cut = int((table.complete & ~table.terminated & (table.lengths < horizon)).sum())
    return Gate(
        "whole episodes", cut == 0,
        f"{cut} of {int(table.complete.sum())} episodes were cut off before {horizon} steps"
        + ("." if cut == 0 else ", so that their costs are not known; state the horizon, or mark true ends."),
    )  # fmt: skip


def _gates(weights: Weights) -> list[Gate]:
    last = weights.mixed[:, -1]
    count = len(last)
    effective = weights.effective
    needed = max(FEWEST_EFFECTIVE, SMALLEST_SHARE * count)
    mean = float(last.mean())
    error = float(last.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf
    near = abs(mean - 1.0) <= MEAN_WEIGHT_ERRORS * error + 0.01
    return [
        Gate(
            "effective sample size", effective >= needed,
            f"the weights of {count} episodes count like {effective:.1f}; {needed:.0f} are needed.",
        ),
        Gate(
            "mean weight", near,
            f"the mean weight is {mean:.3g} +- {error:.2g} and should be 1: "
            + ("it is." if near else "the propensities are wrong or too few episodes carry the weight."),
        ),
    ]  # fmt: skip


class _LinearQ:
    """Fitted Q by least squares (LSTD) on features of state, action and time: a control variate only."""

    def __init__(self, data: Dataset, horizon: int) -> None:
        self.mean = data.observations.mean(axis=0, dtype=np.float64)
        self.scale = np.maximum(data.observations.std(axis=0, dtype=np.float64), 1e-6)
        self.discrete = data.discrete
        self.actions = data.num_actions if data.discrete else 0
        self.horizon = horizon

    def features(self, observations: NDArray[Any], actions: NDArray[Any], time: F64) -> F64:
        """Shape (n, features)."""
        s = np.clip((observations - self.mean) / self.scale, -5.0, 5.0)
        left = (self.horizon - time[:, None]) / self.horizon
        state = np.concatenate([np.ones_like(left), s, s**2], axis=1)
        if self.discrete:
            one = np.eye(self.actions)[np.asarray(actions, dtype=np.int64)]
            parts = (one[:, :, None] * state[:, None, :]).reshape(len(s), -1)
        else:
            a = np.asarray(actions, dtype=np.float64).reshape(len(s), -1)
            cross = (a[:, :, None] * s[:, None, :]).reshape(len(s), -1)
            parts = np.concatenate([state, a, a**2, cross], axis=1)
        # nothing can be earned once no step is left
        return np.asarray(np.concatenate([parts * left, state * left**2], axis=1))


def _doubly_robust(
    data: Dataset, policy: Any, weights: Weights, horizon: int, rng: np.random.Generator
) -> F64:
    """One unbiased value per episode and cost, shape (E, I); Q comes from the other half of the episodes."""
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    E, costs = len(chosen), data.costs.shape[1]
    spans = [np.arange(table.starts[number], table.stops[number]) for number in chosen]
    fold = rng.permutation(E) % 2
    owner = np.concatenate([np.full(len(span), e) for e, span in enumerate(spans)])
    rows = np.concatenate(spans)
    time = np.concatenate([np.arange(len(span), dtype=np.float64) for span in spans])
    last = np.concatenate([np.arange(len(span)) == len(span) - 1 for span in spans])
    values = np.zeros((E, costs))
    q = _LinearQ(data, horizon)
    now = q.features(data.observations[rows], data.actions[rows], time)
    for k, (share, member) in enumerate(_members(policy)):
        own = np.asarray(member.act(data.observations[rows], rng=rng))
        # V(s) = E_pi Q(s, a): a sum where there are probabilities, else one draw of the policy, whose noise
        # has mean zero; either keeps the estimate unbiased for any Q
        state_value = _state_features(q, member, data.observations[rows], time, own)
        following = np.zeros_like(now)
        following[:-1] = state_value[1:]
        following[last] = 0.0
        for f in (0, 1):
            fit, use = fold[owner] != f, fold[owner] == f
            A = now[fit].T @ (now[fit] - following[fit])
            theta = np.linalg.lstsq(
                A + 1e-3 * len(now[fit]) / 100 * np.eye(A.shape[1]),
                now[fit].T @ data.costs[rows][fit],
                rcond=None,
            )[0]
            weight = weights.cumulative[k][owner[use], time[use].astype(np.int64)]
            step = time[use].astype(np.int64)
            earlier = np.where(step > 0, weights.cumulative[k][owner[use], np.maximum(step - 1, 0)], 1.0)
            # sum_t w_t (c_t - Q_t) + w_{t-1} V_t
            terms = weight[:, None] * (data.costs[rows][use] - now[use] @ theta)
            terms = terms + earlier[:, None] * (state_value[use] @ theta)
            np.add.at(values, owner[use], share * terms)
    return values


def _state_features(
    q: _LinearQ, member: Any, observations: NDArray[Any], time: F64, own: NDArray[Any]
) -> F64:
    """E_pi of the features: exact for discrete actions that have probabilities, one draw otherwise."""
    probabilities = getattr(member, "probabilities", None)
    if q.discrete and probabilities is not None:
        p = np.asarray(probabilities(observations), dtype=np.float64)
        parts = [
            p[:, [a]] * q.features(observations, np.full(len(observations), a), time)
            for a in range(q.actions)
        ]
        return np.asarray(sum(parts))
    return q.features(observations, own, time)


def _marginalised(data: Dataset, weights: Weights, horizon: int) -> F64:
    """Costs with weights E[w_{t-1} | s_t] r_t, regressed on the state, shape (E, I): a second opinion."""
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    mixed = weights.mixed
    first = np.concatenate([np.ones((len(chosen), 1)), mixed[:, :-1]], axis=1)
    ratio = mixed / np.maximum(first, 1e-300)
    sums = np.zeros((len(chosen), data.costs.shape[1]))
    mean = data.observations.mean(axis=0, dtype=np.float64)
    scale = np.maximum(data.observations.std(axis=0, dtype=np.float64), 1e-6)
    for t in range(horizon):
        alive = np.flatnonzero(weights.lengths > t)
        if len(alive) == 0:
            break
        rows = table.starts[chosen[alive]] + t
        s = np.clip((data.observations[rows] - mean) / scale, -5.0, 5.0)
        x = np.concatenate([np.ones((len(alive), 1)), s], axis=1)
        ridge = 0.05 * len(alive) * np.eye(x.shape[1])
        ridge[0, 0] = 0.0
        theta = np.linalg.solve(x.T @ x + ridge + 1e-9 * np.eye(len(ridge)), x.T @ first[alive, t])
        sums[alive] += (np.maximum(x @ theta, 0.0) * ratio[alive, t])[:, None] * data.costs[rows]
    return sums


def judge_propensities(
    data: Dataset,
    policy: Any,
    names: Sequence[str],
    limits: Sequence[float],
    largest_step_cost: Sequence[float],
    error: float,
    *,
    unlived: Sequence[float] | None = None,
    horizon: int | None = None,
    seed: int = 0,
) -> tuple[LimitVerdict, ...]:
    """Verdicts on limits per episode, from episodes logged with propensities.

    unlived: what a step counts that an episode does not live because it ended, one per cost; see
    `slater.certify.rollouts.Counted`.
    """
    from scipy.special import stdtrit

    T = horizon or data.horizon
    weights = episode_weights(data, policy, T)
    mixed, gates = weights.mixed, [_whole(data, T), *_gates(weights)]
    count, effective = len(mixed), weights.effective
    robust = _doubly_robust(data, policy, weights, T, np.random.default_rng(seed))
    marginal = _marginalised(data, weights, T)
    alive = np.arange(T)[None, :] < weights.lengths[:, None]
    rates = [0.0] * len(names) if unlived is None else unlived
    verdicts = []
    for i, (name, limit, stated, rate) in enumerate(
        zip(names, limits, largest_step_cost, rates, strict=True)
    ):
        cost, most = _padded(data, data.costs[:, i].astype(np.float64), T), max(stated, rate)
        if cost.max() > stated * (1 + 1e-6):
            raise InputError(
                f"a step costs {cost.max():g} of {name}, more than the stated largest {stated:g}."
            )
        cost = np.where(alive, cost, rate)
        after = rate * (mixed * ~alive).sum(axis=1)  # added to estimates that see the rows alone
        weighted = (mixed * cost).sum(axis=1)
        # after the end the weight stays what it was, so the complement goes on with the last one
        complement = (mixed * (most - cost)).sum(axis=1) / (T * most)
        upper = T * most * (1.0 - betting_lower(complement, 0.0, math.inf, error / 2))
        unit = max(limit, 1e-3 * T * most)
        lower = unit * betting_lower(weighted / unit, 0.0, math.inf, error / 2)
        evidence = [Evidence("per decision, complement bound", float(weighted.mean()), lower, upper)]
        if count > 1:
            for label, values in (
                ("doubly robust", robust[:, i] + after),
                ("marginalised", marginal[:, i] + after),
            ):
                spread = float(values.std(ddof=1)) / math.sqrt(count)
                # as many degrees of freedom as episodes that carry weight
                half = spread * float(stdtrit(max(effective - 1.0, 1.0), 1.0 - error / 2))
                mean = float(values.mean())
                evidence.append(Evidence(label, mean, mean - half, mean + half))
        estimate = evidence[1].estimate if count > 1 else evidence[0].estimate
        if all(gate.passed for gate in gates) and count > 1:
            upper, lower = min(upper, evidence[1].upper), max(lower, evidence[1].lower)
        interval = Interval(estimate, max(lower, 0.0), max(min(upper, T * most), 0.0))
        verdict, reason = decide(interval, limit, gates)
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, estimate, interval.lower, interval.upper,
                "propensities", reason, tuple(gates), tuple(evidence),
            )
        )  # fmt: skip
    return tuple(verdicts)


def certify_propensities(
    data: Dataset,
    policy: Any,
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int = 1,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    known: Mapping[str, tuple[float, str]] | None = None,
    horizon: int | None = None,
    gamma: float | None = None,
    name: str = "policy",
) -> Certificate:
    """The certificate of a policy from a log with propensities; arguments as for `certify_episodes`."""
    resolved = resolve_limits(limits, data.cost_names)
    T = horizon or data.horizon
    per_episode = [episode_limit(limit, gamma, T) for limit in resolved]
    ranges = Ranges.of(data.cost_names, largest_step_cost, largest_episode_cost, known=known)
    ranges.check_steps(data.costs, data.episodes.starts)
    ranges.check_episodes(data.episodes.costs)
    seen = np.maximum(data.costs.max(axis=0).astype(np.float64), 1.0)
    most = np.where(np.isfinite(ranges.step), ranges.step, seen)
    error = error_of_each(confidence, len(per_episode), candidates)
    rates = [limit.value if limit.unit == "step" else 0.0 for limit in resolved]
    found = judge_propensities(
        data, policy, data.cost_names, per_episode, most.tolist(), error, unlived=rates, horizon=T
    )
    verdicts = tuple(
        under_range(one, ranges, i, T, float(data.costs[:, i].max())) for i, one in enumerate(found)
    )
    assumptions = (
        "the propensities are those of the policies that acted, and episodes are independent.",
        *ranges.notes(),
        *unit_notes(resolved, per_episode),
    )
    evidence = f"{int(data.episodes.complete.sum())} logged episodes with propensities."
    return Certificate(name, confidence, verdicts, candidates, evidence, assumptions)
