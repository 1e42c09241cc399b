"""Tier 2: verdicts from logged propensities, by importance weights.

With r_t = pi(a_t|s_t) / mu(a_t|s_t) and w_t = r_0 ... r_t, the per-decision sum of w_t c_t over an episode
has the policy's expected cost as its mean. Its upper bound is the trap: weights have no largest value, and
clipping them makes a cost look *smaller* than it is. So the complement is bet on instead,

    G = sum_t w_t (c_max - c_t)  >= 0,      E G = T c_max - J_C,

from below: no largest weight need be known, and what a missed heavy weight does is conservative. Where a
largest weight is stated, or follows from the propensities (`largest_weight`), two more strategies share the
stake with it: one that bets on the sum itself, and one on its doubly robust form (`doubly_robust`). Dividing
a stake among fair games is a fair game (Waudby-Smith and Ramdas 2023; Karampatziakis, Mineiro and Ramdas
2021; Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro 2022), so the bound holds at every number of
episodes if the propensities are right, which is tested by themselves (`checked_propensities`). A mixture
draws its member at the start of an episode: its weight is the mean of its members'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Above, Below, Interval, Strategy, lower_of, upper_of
from slater.certify.doubly_robust import controlled
from slater.certify.ranges import Known, Ranges, Stated
from slater.certify.verdict import (
    Certificate,
    Evidence,
    Gate,
    LimitVerdict,
    episode_limit,
    error_of_each,
    under_range,
    unit_notes,
)
from slater.certify.weights import Weights, checked_propensities, episode_weights, largest_weight, padded_rows
from slater.data import Dataset
from slater.errors import InputError
from slater.limits import Limits, resolve_limits
from slater.policy import parts_of

F64 = NDArray[np.float64]

#: below so many episodes that carry weight, and this share of all, weights are said to be the reason why
#: nothing is decided
FEWEST_EFFECTIVE, SMALLEST_SHARE = 50.0, 0.02
#: a largest product of weights above this many times an episode's cost bounds nothing
LARGEST_PRODUCT = 1e6


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
    largest: float | None = None,
) -> tuple[LimitVerdict, ...]:
    """Verdicts on limits per episode, from episodes logged with propensities.

    unlived: what a step counts that an episode does not live because it ended, one per cost; see
    `slater.certify.rollouts.Counted`. largest_step_cost: infinite where it is not known. largest: weight of
    a step that is stated.
    """
    T = horizon or data.horizon
    weights = episode_weights(data, policy, T)
    mixed = weights.mixed
    table = data.episodes
    cut = int((table.complete & ~table.terminated & (table.lengths < T)).sum())
    so = "." if cut == 0 else ", so that their costs are not known; state the horizon, or mark true ends."
    said = f"{cut} of {int(table.complete.sum())} episodes were cut off before {T} steps{so}"
    gates = [Gate("whole episodes", cut == 0, said), checked_propensities(data, weights.ratios)]
    R, _ = largest_weight(data, weights.ratios, largest)
    alive = np.arange(T)[None, :] < weights.lengths[:, None]
    rates = np.zeros(len(names)) if unlived is None else np.asarray(unlived, dtype=np.float64)
    most = np.maximum(np.asarray(largest_step_cost, dtype=np.float64), rates)
    seen = data.costs.max(axis=0).astype(np.float64)
    above = seen > np.asarray(largest_step_cost) * (1 + 1e-6)
    if above.any():
        i = int(above.argmax())
        raise InputError(
            f"a step costs {seen[i]:g} of {names[i]}, more than the stated largest {largest_step_cost[i]:g}."
        )
    finite = np.where(np.isfinite(most), most, np.maximum(seen, 1.0))
    robust = controlled(
        data, parts_of(policy), weights.cumulative, weights.chosen, T, finite, np.random.default_rng(0)
    )
    verdicts = []
    for i, (name, limit, rate) in enumerate(zip(names, limits, rates, strict=True)):
        column = data.costs[:, i].astype(np.float64)
        cost = np.where(alive, padded_rows(data, weights.chosen, column, T, 0.0), rate)
        # added to what sees the rows alone; its weights stay what they were at the end
        doubly = robust[:, i] + rate * (mixed * ~alive).sum(axis=1)
        interval, evidence = _interval(mixed, cost, doubly, float(most[i]), R, error)
        if not gates[1].passed:  # of wrong propensities no bound may be read
            interval, evidence = Interval(math.nan, 0.0, math.inf), []
        found = LimitVerdict.of(name, limit, interval, "propensities", gates, evidence)
        open_ = found.verdict == "abstain" and all(gate.passed for gate in gates)
        heavy = _weights_gate(weights, open_ and math.isfinite(most[i]))
        reason = found.reason if heavy.passed else heavy.reason
        verdicts.append(replace(found, gates=(*found.gates, heavy), reason=reason))
    return tuple(verdicts)


def _weights_gate(weights: Weights, undecided: bool) -> Gate:
    """Of a bound that decides nothing: whether that is because few episodes carry weight."""
    count, effective = len(weights.chosen), weights.effective
    needed = max(FEWEST_EFFECTIVE, SMALLEST_SHARE * count)
    thin = undecided and effective < needed
    reason = f"the weights of {count} episodes count like {effective:.1f}"
    return Gate("weights", not thin, reason + (f"; {needed:.0f} are needed." if thin else "."))


def _interval(
    mixed: F64, cost: F64, doubly: F64, most: float, R: float, error: float
) -> tuple[Interval, list[Evidence]]:
    """Bounds on the mean cost of an episode, each with the whole error, from (E, T) weights and costs."""
    T = cost.shape[1]
    weighted = (mixed * cost).sum(axis=1)
    lower_bets: list[Strategy] = [Above(weighted).capital]
    estimate = float(doubly.mean())
    if not math.isfinite(most):
        low = lower_of(lower_bets, float(weighted.max()), error)
        plain = Evidence("weighted costs", float(weighted.mean()), low, math.inf)
        return Interval(max(estimate, 0.0), low, math.inf), [plain]
    ceiling = T * most
    # after the end the weight stays what it was, so the complement goes on with the last one
    complement = Above((mixed * (most - cost)).sum(axis=1))

    def of_complement(v: F64, start: float) -> F64:
        return complement.capital(np.maximum(ceiling - v, 1e-12 * ceiling), start)

    upper_bets: list[Strategy] = [of_complement]
    steps = np.arange(T)
    with np.errstate(over="ignore"):
        products = R ** (steps + 1.0)  # of weights up to each step, at most; a lone member's and a mixture's
        heaviest = most * float(products.sum())
        highest = heaviest + float(((T - steps) * most * R**steps).sum())
        lowest = -float(((T - steps) * most * products).sum())
    if heaviest <= LARGEST_PRODUCT * ceiling:
        upper_bets += [Below(weighted, 0.0, heaviest).capital, Below(doubly, lowest, highest).capital]
        mirrored = Below(-doubly, -highest, -lowest)
        lower_bets.append(lambda v, start: mirrored.capital(-v, start))
    upper = upper_of(upper_bets, 0.0, ceiling, error)
    top = max(float(weighted.max()), 1e-12 * ceiling)
    lower = min(lower_of(lower_bets, top, error), ceiling)
    words = "complement of weighted costs" if len(upper_bets) == 1 else "weighted costs, doubly robust"
    return (
        Interval(min(max(estimate, lower), upper), lower, upper),
        [Evidence(words, float(weighted.mean()), lower, upper)],
    )


def certify_propensities(
    data: Dataset,
    policy: Any,
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int = 1,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    largest: float | None = None,
    known: Known = None,
    horizon: int | None = None,
    gamma: float | None = None,
    share: float = 1.0,
    name: str = "policy",
) -> Certificate:
    """The certificate of a policy from a log with propensities; arguments as for `certify_episodes`.

    largest: the most that pi(a|s) / mu(a|s) can be, if that is known. share: of the error, as in
    `slater.certify.verdict.error_of_each`.
    """
    resolved = resolve_limits(limits, data.cost_names)
    T = horizon or data.horizon
    per_episode = [episode_limit(limit, gamma, T) for limit in resolved]
    ranges = Ranges.of(data.cost_names, largest_step_cost, largest_episode_cost, known=known).over(
        horizon or data.metadata.horizon
    )
    ranges.check_steps(data.costs, data.episodes.starts)
    ranges.check_episodes(data.episodes.costs)
    error = error_of_each(confidence, len(per_episode), candidates, share)
    rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in resolved])
    steps = np.minimum(ranges.step, ranges.episode) if not ranges.endless else ranges.bounding
    found = judge_propensities(
        data, policy, data.cost_names, per_episode, steps.tolist(), error,
        unlived=rates.tolist(), horizon=T, largest=largest,
    )  # fmt: skip
    ceiling = ranges.largest(T, rates)
    verdicts = tuple(under_range(v.at_most(float(ceiling[i])), ranges, i, T) for i, v in enumerate(found))
    R, why = largest_weight(data, episode_weights(data, policy, T).ratios, largest)
    heavy = [f"an action is at most {R:g} times as likely as in the log ({why})."] if why else []
    assumptions = (
        "the propensities are those of the policies that acted, and episodes are independent.",
        *ranges.notes(),
        *heavy,
        *unit_notes(resolved, per_episode),
    )
    evidence = f"{int(data.episodes.complete.sum())} logged episodes with propensities."
    details = {"largest": ceiling.tolist()}
    return Certificate(name, confidence, verdicts, candidates, evidence, assumptions, details)
