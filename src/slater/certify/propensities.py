"""Tier 2: verdicts from logged propensities, by importance weights.

With r_t = pi(a_t|s_t) / mu(a_t|s_t) and w_t = r_0 ... r_t, the per-decision sum of w_t c_t over an episode
has the policy's expected cost as its mean. Its upper bound is the trap: weights have no largest value, and
clipping them makes a cost look *smaller* than it is. So the complement is bet on instead,

    G = sum_t w_t (c_max - c_t)  >= 0,      E G = T c_max - J_C,

from below: no largest weight need be known, and what a missed heavy weight does is conservative. Where a
largest weight is stated, or follows from the propensities (`largest_weight`), three more strategies share the
stake with it: two that bet on the sum itself, and one on its doubly robust form (`doubly_robust`). Dividing a
stake among fair games is a fair game (Waudby-Smith and Ramdas 2023; Karampatziakis, Mineiro and Ramdas 2021;
Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro 2022), so the bound holds at every number of episodes if
the propensities are right, which is tested by themselves (`checked_propensities`). A mixture draws its member
at the start of an episode: its weight is the mean of its members'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Above, Below, Interval, betting_lower, lower_of, together, upper_of
from slater.certify.doubly_robust import controlled
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

__all__ = [
    "Weights",
    "certify_propensities",
    "checked_propensities",
    "episode_weights",
    "judge_propensities",
    "largest_weight",
]

F64 = NDArray[np.float64]

#: below so many episodes that carry weight, and this share of all, weights are said to be the reason why
#: nothing is decided
FEWEST_EFFECTIVE, SMALLEST_SHARE = 50.0, 0.02
#: how often right propensities may be taken for wrong ones
FALSE_ALARM = 0.001
#: a largest product of weights above this many times an episode's cost bounds nothing
LARGEST_PRODUCT = 1e6


def _members(policy: Any) -> list[tuple[float, Any]]:
    if isinstance(policy, Mixture):
        return [(float(w), m) for w, m in zip(policy.weights, policy.members, strict=True) if w > 0]
    return [(1.0, policy)]


@dataclass(frozen=True)
class Weights:
    """Weights of E episodes padded to T steps, for K members: w_t includes the action of step t.

    members: (K,) probabilities; cumulative: (K, E, T); a step after the end keeps the last weight.
    ratios: (K, N) of every row of the data. lengths: (E,) steps; chosen: (E,) numbers of the episodes.
    """

    members: F64
    cumulative: F64
    ratios: F64
    lengths: NDArray[np.int64]
    chosen: NDArray[np.int64]

    @property
    def mixed(self) -> F64:
        """Weights of the mixture, shape (E, T)."""
        return np.asarray(np.einsum("k,ket->et", self.members, self.cumulative))

    @property
    def effective(self) -> float:
        """Effective number of episodes, (sum w)^2 / sum w^2, at the last step."""
        last = self.mixed[:, -1]
        share = last / max(float(last.max()), 1e-300)  # squares of the largest weights would overflow
        total = float((share**2).sum())
        return float(share.sum()) ** 2 / total if total > 0 else 0.0


def _propensities(data: Dataset) -> F64:
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
    return data.propensity


def episode_weights(data: Dataset, policy: Any, horizon: int | None = None) -> Weights:
    """The weights of every complete episode of `data` under `policy`.

    A policy must say how likely an action is: `log_probability(observations, actions)` of shape `(batch,)`,
    as the network policies of Slater do.
    """
    logged = np.log(_propensities(data))
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    T = horizon or data.horizon
    if len(chosen) == 0 or int(table.lengths[chosen].max()) > T:
        longest = int(table.lengths[chosen].max()) if len(chosen) else 0
        raise InputError(f"the longest complete episode has {longest} steps, but the horizon is {T}.")
    members = _members(policy)
    padded = np.ones((len(members), len(chosen), T))
    ratios = np.ones((len(members), data.size))
    for k, (_, member) in enumerate(members):
        says = getattr(member, "log_probability", None)
        if says is None:
            raise InputError(
                f"a {type(member).__name__} does not say how likely an action is (log_probability), so "
                "propensities cannot judge it; run it instead."
            )
        said = _likelihood(says(data.observations, data.actions), type(member).__name__, data)
        ratios[k] = np.exp(np.clip(said - logged, -700.0, 700.0))
        padded[k] = _padded(data, chosen, ratios[k], T, 1.0)
    cumulative = np.exp(np.clip(np.cumsum(np.log(np.maximum(padded, 1e-300)), axis=2), -700.0, 600.0))
    return Weights(np.array([w for w, _ in members]), cumulative, ratios, table.lengths[chosen], chosen)


def _likelihood(said: Any, kind: str, data: Dataset) -> F64:
    """What `log_probability` gave, (N,); an InputError if it is none."""
    try:
        found = np.asarray(said, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    wrong = ""
    if found.shape != (data.size,):
        wrong = f"an array of shape {found.shape} for {data.size} rows"
    elif np.isnan(found).any() or (found == np.inf).any():
        wrong = "a value that is not a number, or infinity"
    elif data.discrete and (found > 1e-6).any():
        wrong = f"{found.max():.4g}, a probability above 1"
    if wrong:
        raise InputError(
            f"the log_probability of a {kind} gave {wrong}; it must give the logarithm of the "
            "probability (or density) of every row's action, of shape (batch,)."
        )
    return found


def _padded(data: Dataset, chosen: NDArray[np.int64], column: F64, horizon: int, after: float) -> F64:
    """One number per row as (E, T), `after` where an episode has ended."""
    table = data.episodes
    padded = np.full((len(chosen), horizon), after)
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


def checked_propensities(data: Dataset, ratios: F64) -> Gate:
    """Whether the propensities can be right; by themselves, whatever the policy, and for it.

    1{a = k} / mu(a|s) has a mean of at most 1 for every action k, and for a box of continuous actions divided
    by its volume, so has pi(a|s) / mu(a|s), `ratios` (K, N), given all that went before. Propensities that
    are too small make such a mean larger, and costs look smaller. Too large ones err on the safe side.
    """
    mu = _propensities(data)
    tests: dict[str, F64] = {f"the weight of a step by member {k + 1}": one for k, one in enumerate(ratios)}
    half = data.size // 2
    later = np.arange(data.size) >= half
    if data.discrete:
        tests["1 / (number of actions x propensity)"] = 1.0 / (data.num_actions * mu)
        often = np.bincount(data.actions, minlength=data.num_actions).argsort()[::-1][:20]
        for action in often:
            tests[f"1 / propensity of action {action}"] = np.where(data.actions == action, 1.0, 0.0) / mu
        # where an observation's entry is high, and where it is low, by what the first half of the rows has
        for entry in range(min(data.observation_dim, 4)):
            middle = np.median(data.observations[: max(half, 1), entry])
            for side, rows in (("high", data.observations[:, entry] > middle),
                               ("low", data.observations[:, entry] <= middle)):  # fmt: skip
                for action in often[:4]:
                    taken = (data.actions == action) & rows
                    name = f"1 / propensity of action {action} where observation {entry} is {side}"
                    tests[name] = np.where(rows, np.where(taken, 1.0, 0.0) / mu, 1.0)[later]
    else:
        # not their tails, where one over a density is large and seldom
        low, high = np.quantile(data.actions[: max(half, 1)], [0.05, 0.95], axis=0)
        if (high > low).all():
            inside = ((data.actions >= low) & (data.actions <= high)).all(axis=1)
            volume = float(np.prod((high - low).astype(np.float64)))
            tests["1 / density over the range of actions"] = (np.where(inside, 1.0, 0.0) / mu / volume)[later]
            for entry in range(data.action_dim):
                middle = np.median(data.actions[: max(half, 1), entry])
                if not low[entry] < middle < high[entry]:
                    continue
                for side, rows, share in (
                    ("lower", data.actions[:, entry] <= middle, middle - low[entry]),
                    ("upper", data.actions[:, entry] > middle, high[entry] - middle),
                ):
                    part = volume * float(share) / float(high[entry] - low[entry])
                    name = f"1 / density over the {side} half of action {entry}"
                    tests[name] = (np.where(inside & rows, 1.0, 0.0) / mu / part)[later]
    for name, values in tests.items():
        error = FALSE_ALARM / len(tests)
        if Above(values, error).log_wealth(1.0 + 1e-6).max() >= math.log(1.0 / error):
            least = betting_lower(values, 0.0, math.inf, error)
            return Gate(
                "propensities", False,
                f"the propensities are wrong: {name} has a mean of {values.mean():.3g}, at least "
                f"{least:.3g}, where it is at most 1 if they are right.",
            )  # fmt: skip
    return Gate("propensities", True, f"in none of {len(tests)} tests were they found to be too small.")


def largest_weight(data: Dataset, ratios: F64, stated: float | None) -> tuple[float, str]:
    """What pi(a|s) / mu(a|s) is at most, infinite if that is not known, and why.

    Stated; or, of discrete actions, one over the smallest probability of an action, where every action was
    always logged with the same one and these add up to 1: then all of the logging policy is known.
    """
    seen = float(ratios.max())
    if stated is not None:
        given: Any = stated
        if not (isinstance(given, Real) and math.isfinite(given) and float(given) >= 1):
            raise InputError(
                f"the largest weight is {given}; it must be finite and at least 1, as weights are on average."
            )
        if seen > stated * (1 + 1e-6):
            raise InputError(f"a step of the data weighs {seen:g}, more than the stated largest {stated:g}.")
        return stated, "as stated"
    if data.discrete:
        mu = _propensities(data)
        least, most = np.full(data.num_actions, np.inf), np.zeros(data.num_actions)
        np.minimum.at(least, data.actions, mu)
        np.maximum.at(most, data.actions, mu)
        if (most - least <= 1e-6 * most).all() and abs(most.sum() - 1.0) < 1e-3:
            return 1.0 / float(least.min()), "every action was always logged with the same probability"
    return math.inf, ""


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
    seed: int = 0,
) -> tuple[LimitVerdict, ...]:
    """Verdicts on limits per episode, from episodes logged with propensities.

    unlived: what a step counts that an episode does not live because it ended, one per cost; see
    `slater.certify.rollouts.Counted`. largest_step_cost: infinite where it is not known. largest: weight of
    a step that is stated.
    """
    T = horizon or data.horizon
    weights = episode_weights(data, policy, T)
    mixed = weights.mixed
    gates = [_whole(data, T), checked_propensities(data, weights.ratios)]
    R, _ = largest_weight(data, weights.ratios, largest)
    alive = np.arange(T)[None, :] < weights.lengths[:, None]
    rates = np.zeros(len(names)) if unlived is None else np.asarray(unlived, dtype=np.float64)
    most = np.maximum(np.asarray(largest_step_cost, dtype=np.float64), rates)
    seen = data.costs.max(axis=0).astype(np.float64)
    if (seen > np.asarray(largest_step_cost) * (1 + 1e-6)).any():
        i = int((seen > np.asarray(largest_step_cost) * (1 + 1e-6)).argmax())
        raise InputError(
            f"a step costs {seen[i]:g} of {names[i]}, more than the stated largest {largest_step_cost[i]:g}."
        )
    finite = np.where(np.isfinite(most), most, np.maximum(seen, 1.0))
    robust = controlled(
        data, _members(policy), weights.cumulative, weights.chosen, T, finite, np.random.default_rng(seed)
    )
    verdicts = []
    for i, (name, limit, rate) in enumerate(zip(names, limits, rates, strict=True)):
        column = data.costs[:, i].astype(np.float64)
        cost = np.where(alive, _padded(data, weights.chosen, column, T, 0.0), rate)
        # added to what sees the rows alone; its weights stay what they were at the end
        doubly = robust[:, i] + rate * (mixed * ~alive).sum(axis=1)
        interval, evidence = _interval(mixed, cost, doubly, float(most[i]), R, error)
        if not gates[1].passed:  # of wrong propensities no bound may be read
            interval, evidence = Interval(math.nan, 0.0, math.inf), []
        verdict, reason = decide(interval, limit, gates)
        open_ = verdict == "abstain" and all(gate.passed for gate in gates) and math.isfinite(most[i])
        every = [*gates, _weights_gate(weights, open_)]
        reason = reason if every[-1].passed else every[-1].reason
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, interval.estimate, interval.lower,
                interval.upper, "propensities", reason, tuple(every), tuple(evidence),
            )
        )  # fmt: skip
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
    lower_bets: list[Callable[[float], F64]] = [Above(weighted, error).log_wealth]
    estimate = float(doubly.mean())
    if not math.isfinite(most):
        low = lower_of(lower_bets[0], float(weighted.max()), error)
        plain = Evidence("weighted costs", float(weighted.mean()), low, math.inf)
        return Interval(max(estimate, 0.0), low, math.inf), [plain]
    ceiling = T * most
    # after the end the weight stays what it was, so the complement goes on with the last one
    complement = Above((mixed * (most - cost)).sum(axis=1), error)

    def of_complement(v: float) -> F64:
        return complement.log_wealth(max(ceiling - v, 1e-12 * ceiling))

    upper_bets: list[Callable[[float], F64]] = [of_complement]
    steps = np.arange(T)
    with np.errstate(over="ignore"):
        products = R ** (steps + 1.0)  # of weights up to each step, at most; a lone member's and a mixture's
        heaviest = most * float(products.sum())
        highest = heaviest + float(((T - steps) * most * R**steps).sum())
        lowest = -float(((T - steps) * most * products).sum())
    if heaviest <= LARGEST_PRODUCT * ceiling:
        direct = [Below(weighted, 0.0, heaviest, error, bold=bold) for bold in (False, True)]
        controlled_bets = Below(doubly, lowest, highest, error)
        upper_bets += [bet.log_wealth for bet in (*direct, controlled_bets)]
        mirrored = Below(-doubly, -highest, -lowest, error)
        lower_bets.append(lambda v: mirrored.log_wealth(-v))
    upper = upper_of(lambda v: together([bet(v) for bet in upper_bets]), 0.0, ceiling, error)
    top = max(float(weighted.max()), 1e-12 * ceiling)
    lower = min(lower_of(lambda v: together([bet(v) for bet in lower_bets]), top, error), ceiling)
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
    known: Mapping[str, tuple[float, str]] | None = None,
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
    ranges = Ranges.of(data.cost_names, largest_step_cost, largest_episode_cost, known=known)
    ranges.check_steps(data.costs, data.episodes.starts)
    ranges.check_episodes(data.episodes.costs)
    error = error_of_each(confidence, len(per_episode), candidates, share)
    rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in resolved])
    found = judge_propensities(
        data, policy, data.cost_names, per_episode, np.minimum(ranges.step, ranges.episode).tolist(), error,
        unlived=rates.tolist(), horizon=T, largest=largest,
    )  # fmt: skip
    ceiling = ranges.largest(T, rates)
    verdicts = []
    for i, one in enumerate(found):
        seen = float(data.costs[:, i].max())
        verdicts.append(under_range(one.at_most(float(ceiling[i])), ranges, i, T, seen))
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
    return Certificate(name, confidence, tuple(verdicts), candidates, evidence, assumptions, details)
