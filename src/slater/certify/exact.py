"""Verdicts in the exact world: bounds on the costs of a policy from counted transitions.

The data say how often each transition was seen; the kernel P that made them is unknown. The bound is the
largest (or smallest) cost among the kernels that the data do not speak against,

    upper = max { J_C(pi; P) :  sum_x sum_s' N(x, s') log( Phat(s'|x) / P(s'|x) )  <=  log(1 / error) },

one likelihood ratio for all pairs x = (s, a) together, and not one for each: being wrong about fifty pairs at
once is as unlikely as the product. For a single pair with two outcomes this is Chernoff's bound, which holds
for every sample size; for many pairs it is empirical likelihood with the threshold log(1/error), which is
wider than the one that holds in the limit (half the squared normal quantile: 1.35 for 95%, where this is
3.0). How often it is wrong is measured (`slater reproduce verdicts`, docs/results-verdicts.md).

A pair without data may be worth anything: it costs the most for ever in the upper bound and nothing in the
lower one, and so does a start without data. Where the cost of a pair differs from visit to visit, its mean is
unknown too: the same budget pays for N(x) kl(chat(x) | c(x)), costs as shares of the largest, which is
Chernoff's bound for any costs between nothing and the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.certify.bounds import Interval
from slater.certify.verdict import Certificate, Evidence, LimitVerdict, error_of_each
from slater.errors import InputError
from slater.tabular import Counts, Mixture, evaluate

F64 = NDArray[np.float64]

#: sweeps of the fixed point for one multiplier, and multipliers tried
SWEEPS, TRIALS = 40, 30


class _Kernels:
    """J and its gradient for any kernel of the rows and any cost of them, for one mixture and one cost.

    The R rows are the pairs that matter: seen, and taken by a member. They are of two blocks of counts:
    (R, S + 1) of outcomes, and, where costs vary, (R, 2) of the largest cost `scale` and of none, as if every
    visit had been one of both.
    """

    def __init__(self, data: Counts, mixture: Mixture, cost: F64, unseen_value: float, scale: float) -> None:
        used = np.flatnonzero(mixture.weights)
        members, self.weights = mixture.members[used], mixture.weights[used]
        taken = data.seen & (members > 0).any(axis=0)
        state, action = np.nonzero(taken)
        counts = np.concatenate(
            [np.asarray(data.transitions)[state, action], data.ends[state, action][:, None]], axis=1
        )
        self.row_states = state  # (R,)
        # an end is a possible outcome only where the log has ends at all
        self.possible = np.append(np.ones(data.num_states, dtype=bool), bool(data.ends.any()))
        self.start, self.discount, self.states = data.start, data.discount, data.num_states
        self.chosen = members[:, state, action]  # (K, R)
        self.membership = (np.arange(data.num_states)[:, None] == state).astype(np.float64)  # (S, R)
        self.unseen = (members * ~data.seen).sum(axis=2) * unseen_value  # (K, S)
        self.cost, self.scale = cost[state, action], scale
        self.blocks = [counts]
        if data.costs_vary:
            visits = counts.sum(axis=1)
            share = np.clip(self.cost / scale, 0.0, 1.0)
            self.blocks.append(np.stack([visits * share, visits * (1.0 - share)], axis=1))

    def value(self, point: Sequence[F64]) -> tuple[float, list[F64]]:
        """J in J-units, and its gradient in every block, at probabilities `point` of their shapes."""
        K, S = len(self.chosen), self.states
        P = point[0]
        cost = self.cost if len(point) == 1 else self.scale * point[1][:, 0]
        utility = self.unseen + (self.chosen * cost) @ self.membership.T
        follow = (self.chosen[:, None, :] * self.membership) @ P[:, :S]
        system = np.eye(S) - self.discount * follow
        V = np.linalg.solve(system, utility[..., None])[..., 0]
        start = np.broadcast_to(self.start[:, None], (K, S, 1))
        visits = np.linalg.solve(system.transpose(0, 2, 1), start)[..., 0]
        weight = self.weights[:, None] * visits[:, self.row_states] * self.chosen  # (K, R)
        gradient = np.zeros_like(P)
        gradient[:, :S] = self.discount * np.einsum("kr,kt->rt", weight, V)
        gradients = [gradient]
        if len(point) > 1:
            gradients.append(np.stack([self.scale * weight.sum(axis=0), np.zeros(len(cost))], axis=1))
        return float(self.weights @ (V @ self.start)), gradients


def _tilted(counts: F64, gain: F64, multiplier: float) -> F64:
    """Argmax over the simplex of `gain . p + multiplier * counts . log p`, row by row, shape (R, S + 1).

    `p = multiplier counts / (mu - gain)` with mu such that p sums to 1; where even mu = max gain leaves
    mass over, it goes to the best outcome, which then has no count.
    """
    seen = counts > 0
    weight = multiplier * counts
    top = gain.max(axis=1)
    finite = np.where(seen, gain, 0.0)
    low = np.maximum(top, np.where(seen, gain + weight, -np.inf).max(axis=1))
    high = top + weight.sum(axis=1)
    for _ in range(40):
        mu = 0.5 * (low + high)
        over = np.where(seen, weight / np.maximum(mu[:, None] - finite, 1e-300), 0.0).sum(axis=1) > 1.0
        low, high = np.where(over, mu, low), np.where(over, high, mu)
    p = np.where(seen, weight / np.maximum(high[:, None] - finite, 1e-300), 0.0)
    rest = np.maximum(1.0 - p.sum(axis=1), 0.0)
    p[np.arange(len(p)), gain.argmax(axis=1)] += rest
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _extreme(kernels: _Kernels, sign: int, budget: float) -> float:
    """The largest (sign 1) or smallest (sign -1) J of a kernel and costs within the budget of likelihood."""
    blocks = kernels.blocks
    observed = [counts / counts.sum(axis=1, keepdims=True) for counts in blocks]
    impossible = np.where(kernels.possible, 0.0, -np.inf)

    def spent(point: Sequence[F64]) -> float:
        total = 0.0
        for counts, own, p in zip(blocks, observed, point, strict=True):
            ratio = np.where(counts > 0, own / np.maximum(p, 1e-300), 1.0)
            total += float((counts * np.log(ratio)).sum())
        return total

    def tilted(gradients: Sequence[F64], multiplier: float) -> list[F64]:
        gains = [sign * gradients[0] + impossible, *(sign * one for one in gradients[1:])]
        return [_tilted(counts, gain, multiplier) for counts, gain in zip(blocks, gains, strict=True)]

    def between(share: float, a: Sequence[F64], b: Sequence[F64]) -> list[F64]:
        return [(1.0 - share) * x + share * y for x, y in zip(a, b, strict=True)]

    J, gradients = kernels.value(observed)
    best = sign * J
    cheapest = observed  # that of the smallest multiplier so far that keeps the budget
    dearest: list[F64] | None = None
    # for many data J is nearly linear and the likelihood quadratic in P, so what is spent falls with the
    # square of the multiplier: start there and correct by the same law, inside a bracket
    variance = 0.0
    for counts, own, gradient in zip(blocks, observed, gradients, strict=True):
        mean = (own * gradient).sum(axis=1, keepdims=True)
        variance += float(((own * (gradient - mean) ** 2).sum(axis=1) / counts.sum(axis=1)).sum())
    multiplier = math.sqrt(max(variance, 1e-24 * max(abs(J), 1e-6) ** 2) / (2.0 * budget))
    low, high = 0.0, math.inf
    for _ in range(TRIALS):
        point = cheapest
        previous = -math.inf
        for _ in range(SWEEPS):
            point = tilted(gradients, multiplier)
            J, gradients = kernels.value(point)
            if spent(point) <= budget:
                best = max(best, sign * J)
            if abs(sign * J - previous) <= 1e-6 * (abs(J) + 1e-9):
                break
            previous = sign * J
        cost = spent(point)
        if cost <= budget:
            high, cheapest = multiplier, point
            if cost >= 0.99 * budget:
                break
        else:
            low, dearest = multiplier, point
        guess = multiplier * math.sqrt(max(cost, 1e-3 * budget) / budget) * 1.002
        if low > 0.0 and math.isfinite(high):
            if high / low < 1.05:
                break
            guess = guess if low * 1.001 < guess < high / 1.001 else math.sqrt(low * high)
        elif math.isfinite(high):
            guess = min(guess, 0.5 * high)
        else:
            guess = max(guess, 2.0 * low)
        multiplier = guess
    if dearest is not None:
        # J is not concave, so the multiplier may jump over the budget: spend what is left on the way across
        inside, outside = 0.0, 1.0
        for _ in range(30):
            share = 0.5 * (inside + outside)
            kept = spent(between(share, cheapest, dearest)) <= budget
            inside, outside = (share, outside) if kept else (inside, share)
        best = max(best, sign * kernels.value(between(inside, cheapest, dearest))[0])
    return sign * best


def cost_interval(
    data: Counts, policy: Mixture | F64, cost: int = 0, *, error: float, largest_cost: float | None = None
) -> Interval:
    """Estimate of `J_C` of a policy and bounds on it, J-units, each wrong with probability about `error`.

    `policy` is a mixture or an array `(S, A)`; it must not have been learned from `data`. `largest_cost`
    bounds a step's cost anywhere; unless given, the largest in the data (at least 1).
    """
    mixture = policy if isinstance(policy, Mixture) else Mixture.single(np.asarray(policy, dtype=np.float64))
    if mixture.members.shape[1:] != (data.num_states, data.num_actions):
        raise InputError(
            f"the policy has shape {mixture.members.shape[1:]}, but the data have {data.num_states} states "
            f"and {data.num_actions} actions."
        )
    seen = max(data.largest_cost, float(data.costs[:, data.seen].max(initial=0.0)))
    given: Any = max(seen, 1.0) if largest_cost is None else largest_cost
    if not (isinstance(given, Real) and math.isfinite(given)):
        raise InputError(f"the largest cost of a step is {given!r}; it must be a finite number.")
    if not float(given) >= seen * (1 - 1e-9):
        raise InputError(
            f"a step of the data costs {seen:g}, more than the stated largest cost of {given:g}."
        )
    step = max(float(given), 1e-12)
    most = step / (1.0 - data.discount)
    budget = math.log(1.0 / error)
    upper = min(_extreme(_Kernels(data, mixture, data.costs[cost], most, step), 1, budget), most)
    lower = _extreme(_Kernels(data, mixture, data.costs[cost], 0.0, step), -1, budget)
    used = np.flatnonzero(mixture.weights)
    # half-way between the fills of what was never seen
    ends = [evaluate(data, mixture.members[used], data.costs[[cost]], fill) for fill in ("low", "high")]
    estimate = min(max(0.5 * float(mixture.weights[used] @ (ends[0] + ends[1])[:, 0]), lower), upper)
    # of starts without data nothing is known: they cost nothing or the most
    known = 1.0 - data.starts_left_out
    rest = data.starts_left_out * most
    return Interval(known * estimate + 0.5 * rest, known * lower, known * upper + rest)


def certify_counts(
    data: Counts,
    policy: Mixture | F64,
    *,
    limits: ArrayLike | None = None,
    confidence: float = 0.95,
    candidates: int = 1,
    largest_cost: float | None = None,
    name: str = "policy",
    cost_names: Sequence[str] | None = None,
) -> Certificate:
    """The certificate of a tabular policy from data that did not train it.

    `limits` are discounted sums (J-units), shape `(I,)`, by default those of the data. `largest_cost`: what a
    step costs at most anywhere; without it, nothing passes.
    """
    tau = np.atleast_1d(np.asarray(data.limits if limits is None else limits, dtype=np.float64))
    if tau.shape != (data.num_costs,):
        raise InputError(f"{len(tau)} limits for {data.num_costs} costs; give one limit for each cost.")
    if not (np.isfinite(tau) & (tau >= 0)).all():
        raise InputError(f"limits must be finite and at least 0, not {tau.tolist()}.")
    names = list(cost_names) if cost_names is not None else [f"cost {i + 1}" for i in range(data.num_costs)]
    if len(names) != data.num_costs:
        raise InputError(f"{len(names)} names for {data.num_costs} costs; give one name for each cost.")
    error = error_of_each(confidence, len(tau), candidates)
    verdicts = []
    for i, limit in enumerate(tau):
        interval = cost_interval(data, policy, i, error=error, largest_cost=largest_cost)
        found = LimitVerdict.of(
            names[i], limit, interval, "exact", evidence=[Evidence("empirical likelihood", *interval)],
            unit="discounted",
            condition="" if largest_cost is None else f"no step costs more than {largest_cost:g}",
        )  # fmt: skip
        if found.verdict == "pass" and largest_cost is None:
            why = "what a step costs at most is not known: state it (largest_cost)."
            found = replace(found, verdict="abstain", reason=why)
        verdicts.append(found)
    how = "differ from visit to visit" if data.costs_vary else "are the same in every visit"
    taken = ["the policy was not learned from these transitions.", f"the costs of a state and action {how}."]
    if (out := data.starts_left_out) > 0:
        taken.append(f"{out:.1%} of episodes start where there are no data, and count as the most.")
    evidence = f"{data.size} logged transitions of a finite problem."
    return Certificate(name, confidence, tuple(verdicts), candidates, evidence, tuple(taken))
