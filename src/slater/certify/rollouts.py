"""Tier 1: verdicts from episodes of the policy itself, in a simulator or in a staged deployment.

Episodes are independent draws of the cost, each at most the steps of an episode times the largest cost of a
step, so the betting bound applies at any number of them. With `at_most` the policy runs until every limit is
decided, which the bound allows: it holds at all numbers of episodes together. Where nothing says how large a
cost can be (`slater.certify.ranges`), a policy can fail but not pass.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.certify.bounds import Interval, betting_lower, betting_upper, share_upper
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
from slater.data import Dataset
from slater.envs.episode import Episode, RunSettings, is_scalar_cost, run_episode
from slater.envs.making import make
from slater.envs.workers import Workers
from slater.errors import InputError
from slater.limits import Limit, Limits, limit_list, resolve_limits
from slater.policy import Policy

F64 = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: share of the error that goes to the bound on the share of episodes over the limit; the rest to the verdict
SHARE_OF_ERROR = 0.1
#: episodes between two looks while a policy runs until it is decided
LOOK_EVERY = 5


@dataclass(frozen=True)
class FunctionPolicy:
    """A user's function from observations `(batch, obs_dim)` to actions, as a policy."""

    function: Callable[[NDArray[Any]], ArrayLike]

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """What the function says; it has no randomness that Slater could seed."""
        return np.asarray(self.function(observations))

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Any:
        """An episode without memory."""
        from slater.policy import MemorylessActor

        return MemorylessActor(self, rng, deterministic)


def judge_episodes(
    costs: F64,
    names: Sequence[str],
    limits: Sequence[float],
    largest: Sequence[float],
    error: float,
    *,
    at_most: F64 | None = None,
    stopping: bool = False,
    gates: Sequence[Gate] = (),
) -> tuple[LimitVerdict, ...]:
    """Verdicts from costs per episode, shape `(E, I)`, of which none exceeds `largest` `(I,)`; if that is
    infinite, there is no upper bound.

    `error` is that of one limit; with `stopping` the number of episodes may depend on the costs. Where
    the cost of an episode is not fully known, `costs` is what it is at least and `at_most` (E, I) the rest.
    """
    verdicts = []
    highest = costs if at_most is None else at_most
    # a share that was looked at after every episode has no Clopper-Pearson bound
    of_mean = error if stopping else (1.0 - SHARE_OF_ERROR) * error
    for i, (name, limit, most) in enumerate(zip(names, limits, largest, strict=True)):
        low, high = costs[:, i], highest[:, i]
        if most == 0.0:  # nothing can cost anything
            interval = Interval(0.0, 0.0, 0.0)
        else:
            known = math.isfinite(most)
            interval = Interval(
                float(low.mean() + high.mean()) / 2 if known else float(low.mean()),
                betting_lower(low, 0.0, most, of_mean, stopping=stopping),
                betting_upper(high, 0.0, most, of_mean, stopping=stopping) if known else math.inf,
            )
        told = _told(low, high, interval)
        over = int((high > limit).sum())
        share = None if stopping else share_upper(over, len(high), SHARE_OF_ERROR * error)
        evidence = [Evidence("episodes of the policy", *interval)]
        met = [*gates, *told]
        verdicts.append(LimitVerdict.of(name, limit, interval, "rollouts", met, evidence, share_over=share))
    return tuple(verdicts)


def _told(low: F64, high: F64, interval: Interval) -> tuple[Gate, ...]:
    """A closed gate where what episodes cost on average is not between the bounds, which rest on an order of
    episodes that does not matter: the first ones were others than the last.
    """
    slack = 1e-6 * max(float(high.max()), 1e-300)
    if interval.lower <= low.mean() + slack and high.mean() <= interval.upper + slack:
        return ()
    why = (
        f"episodes cost {interval.estimate:.4g} on average, and the first ones something else, so that they "
        "do not say what the next ones cost: the policy or its surroundings changed on the way."
    )
    return (Gate("one kind of episodes", False, why),)


@dataclass(frozen=True)
class Counted:
    """What episodes count for limits per episode: at least and at most, (E, I), and the most there is, (I,).

    A limit per step is on the steps lived, E[cost] <= limit * E[steps]: a step that an episode did not live
    because it ended counts as the limit itself, and the sum is compared with limit * horizon. What an episode
    would have cost that was cut off is between nothing and the largest cost of a step.
    """

    at_least: F64
    at_most: F64
    largest: F64
    #: words on episodes that were cut off, if any
    cut: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, costs: F64, lengths: Int, terminated: Bool, limits: Sequence[Limit], horizon: int, ranges: Ranges
    ) -> Counted:
        """costs: (E, I) sums; lengths, terminated: (E,); horizon: steps of an episode that does not end."""
        if lengths.max() > horizon:
            raise InputError(
                f"an episode has {int(lengths.max())} steps, more than the horizon of {horizon}; "
                "the limits are about other episodes."
            )
        ranges.check_episodes(costs)
        rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in limits])
        left = (horizon - lengths)[:, None].astype(np.float64)
        cut = ~np.asarray(terminated)[:, None] & (left > 0)
        most = ranges.largest(horizon, rates)
        lived = costs + left * np.where(cut, 0.0, rates)
        worst = np.where(cut, np.maximum(ranges.bounding, rates), 0.0)
        ceiling = np.where(np.isfinite(worst), worst, 0.0) * left + np.where(np.isinf(worst), most, 0.0)
        words = f"of {len(costs)} episodes {int(cut.sum())} were cut off before {horizon} steps: "
        words += "what they would have cost besides is between nothing and the most."
        highest = np.minimum(lived + ceiling, np.maximum(most, lived))
        return cls(lived, highest, most, (words,) if cut.any() else ())


def _verdicts(
    costs: F64,
    lengths: Int,
    terminated: Bool,
    limits: Sequence[Limit],
    horizon: int,
    ranges: Ranges,
    error: float,
    gamma: float | None,
    *,
    stopping: bool = False,
) -> tuple[tuple[LimitVerdict, ...], list[str], list[float]]:
    """Verdicts with the conditions that they are under, what is taken for granted, and the largest costs."""
    per_episode = [episode_limit(limit, gamma, horizon) for limit in limits]
    counted = Counted.of(costs, lengths, terminated, limits, horizon, ranges)
    found = judge_episodes(
        counted.at_least, ranges.names, per_episode, counted.largest.tolist(), error,
        at_most=counted.at_most, stopping=stopping,
    )  # fmt: skip
    verdicts = tuple(under_range(one, ranges, i, horizon) for i, one in enumerate(found))
    notes = [*ranges.notes(), *counted.cut, *unit_notes(limits, per_episode)]
    return verdicts, notes, counted.largest.tolist()


def certify_episodes(
    episodes: Dataset,
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int = 1,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    known: Known = None,
    horizon: int | None = None,
    gamma: float | None = None,
    stopping: bool = False,
    name: str = "policy",
) -> Certificate:
    """The certificate from logged episodes of the policy itself, as a staged deployment gives them.

    `largest_step_cost` and `largest_episode_cost` bound the cost of a step and of an episode, by name or for
    all; without them, what is `known` (`slater.certify.ranges.Ranges.of`). `horizon`: steps of an episode, by
    default as the log states; that of its longest bounds nothing. `gamma` converts limits on discounted sums.
    With `stopping` the log may be looked at again and again as it grows, and be ended when it is decided.
    """
    table = episodes.episodes
    if not table.complete.any():
        raise InputError("no episode of the data is complete, so nothing is known about costs per episode.")
    steps = horizon or episodes.horizon
    resolved = resolve_limits(limits, episodes.cost_names)
    ranges = Ranges.of(episodes.cost_names, largest_step_cost, largest_episode_cost, known=known).over(
        horizon or episodes.metadata.horizon
    )
    ranges.check_steps(episodes.costs, table.starts)
    # the last one may be under way, or have been ended because of what it cost: it counts, as one cut off
    costs = table.costs
    error = error_of_each(confidence, len(resolved), candidates)
    verdicts, notes, largest = _verdicts(
        costs, table.lengths, table.terminated & table.complete, resolved, steps, ranges, error, gamma,
        stopping=stopping,
    )  # fmt: skip
    evidence = f"{len(costs)} logged episodes of the policy itself."
    taken = "the episodes are of this policy, independent, and start as they will in deployment."
    details = {"episode_costs": costs.tolist(), "episode_returns": table.returns.tolist(), "largest": largest}
    return Certificate(name, confidence, verdicts, candidates, evidence, (taken, *notes), details)


def _each(
    prepared: tuple[Policy, str, dict[str, Any], RunSettings], count: int, workers: int, env: Any
) -> Iterator[Episode]:
    """Episodes 0, 1, ... in their order, so that where one stops does not depend on the workers."""
    policy, _, _, settings = prepared
    if workers == 1:
        yield from (run_episode(policy, env, index, settings) for index in range(count))
        return
    with Workers(workers) as pool:
        pool.prepare(prepared)
        early: dict[int, Episode] = {}
        wanted = 0
        for episode in pool.episodes(range(count)):
            early[episode.index] = episode
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1


def _says(env: Any, names: Sequence[str]) -> dict[str, tuple[float, str]]:
    """What a step costs at most by name, where the environment has `largest_step_cost`: one or by name."""
    try:
        found = env.get_wrapper_attr("largest_step_cost")
    except AttributeError:
        return {}
    each: Mapping[str, Any] = found if isinstance(found, Mapping) else dict.fromkeys(names, found)
    if not all(isinstance(most, Real) and float(most) > 0 for most in each.values()):
        raise InputError(
            f"the environment's largest_step_cost is {found!r}; it must be positive, or by name."
        )
    # infinite: it says that it does not know
    return {str(k): (float(most), "the environment") for k, most in each.items() if math.isfinite(most)}


def _steps_of(env: Any) -> int | None:
    """How many steps an episode has at most, where the environment is registered or made with a limit."""
    if env.spec is not None:
        return env.spec.max_episode_steps
    try:
        return int(env.get_wrapper_attr("_max_episode_steps"))  # of gymnasium's TimeLimit
    except AttributeError:
        return None


def certify_rollouts(
    policy: Policy | Callable[[NDArray[Any]], ArrayLike],
    env_id: str,
    *,
    limits: Limits,
    cost_names: Sequence[str] | None = None,
    episodes: int = 100,
    at_most: int | None = None,
    confidence: float = 0.95,
    candidates: int = 1,
    horizon: int | None = None,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    known: Known = None,
    gamma: float | None = None,
    seed: int = 0,
    workers: int = 1,
    deterministic: bool = False,
    env_options: Mapping[str, Any] | None = None,
    name: str = "policy",
    progress: Callable[[Episode], None] | None = None,
) -> Certificate:
    """The certificate from running the policy in `env_id`.

    Runs `episodes` episodes, or, with `at_most`, until every limit is decided and never more than that.
    `cost_names` are those that limits refer to (of the run or data); by default the environment's.
    `horizon` is the number of steps of an episode where the environment does not state it. Ranges as in
    `certify_episodes`; an environment with `largest_step_cost` says them itself. `workers` processes run
    episodes side by side; the certificate is the same for any number of them.
    """
    acting: Any = policy if isinstance(policy, Policy) else FunctionPolicy(policy)
    count = episodes if at_most is None else at_most
    if count < 1:
        few = f"{count} episodes" if at_most is None else f"at most {count} episodes"
        raise InputError(f"{few} can decide nothing; give at least 1.")
    if seed < 0:
        raise InputError(f"the seed is {seed}; it must be at least 0.")
    options = dict(env_options or {})
    env = make(env_id, **options)
    try:
        there = tuple(env.cost_names)
        names = tuple(cost_names) if cost_names is not None else there
        given = limit_list(limits)
        named = tuple(limit.cost for limit in given if limit.cost is not None)
        if cost_names is None and len(named) == len(given) and set(named) <= set(there):
            names = named  # what has no limit costs what it likes
        elif cost_names is None and len(given) == 1 and len(there) != 1:
            names = ("cost",)
        resolved = resolve_limits(given, names)
        # the scalar cost comes first in what an episode says of its steps
        columns = [0] if is_scalar_cost(names, there) else [1 + there.index(x) for x in names]
        both = [known or {}, _says(env, names)]
        most = {x: max(one[x] for one in both if x in one) for x in names if any(x in one for one in both)}
        steps = horizon or _steps_of(env)
        ranges = Ranges.of(names, largest_step_cost, largest_episode_cost, known=most).over(steps)
        if at_most is not None and steps is None:
            raise InputError(
                f"{env_id} does not say how long an episode is; give the horizon to run until decided."
            )
        error = error_of_each(confidence, len(names), candidates)
        # other episodes than those of `slater evaluate` with this seed
        own = int.from_bytes(hashlib.sha256(f"certificate {seed}".encode()).digest()[:7], "big")
        settings = RunSettings(seed=own, deterministic=deterministic, discount=1.0)
        ran: list[Episode] = []
        verdicts: tuple[LimitVerdict, ...] = ()
        notes: list[str] = []
        for episode in _each((acting, env_id, options, settings), count, workers, env):
            ran.append(episode)
            for i, c in enumerate(columns):
                where = f"step {episode.highest_at[c]} of episode {episode.index}"
                ranges.check_step(i, float(episode.highest[c]), where)
                ranges.check_step(i, float(episode.lowest[c]), f"a step of episode {episode.index}")
            if progress is not None:
                progress(episode)
            if len(ran) < count and (at_most is None or len(ran) % LOOK_EVERY):
                continue
            costs = np.array([np.append(one.cost, one.costs)[columns] for one in ran])
            verdicts, notes, largest = _verdicts(
                costs, np.array([one.length for one in ran]), np.array([one.terminated for one in ran]),
                resolved, steps or max(one.length for one in ran), ranges, error, gamma,
                stopping=at_most is not None,
            )  # fmt: skip
            if all(verdict.verdict != "abstain" for verdict in verdicts):
                break
    finally:
        env.close()
    many, end = (
        (f"{len(ran)}", ".")
        if at_most is None
        else (f"{len(ran)} of at most {at_most}", ", stopped when decided.")
    )
    evidence = f"{many} episodes in {env_id}, seed {seed} of certificates{end}"
    acts = ["the policy acts with the likeliest action, in deployment too."] if deterministic else []
    returns = [one.total_return for one in ran]
    details = {"episode_costs": costs.tolist(), "episode_returns": returns, "largest": largest}
    assumptions = (f"{env_id} behaves as the deployment will.", *acts, *notes)
    return Certificate(name, confidence, verdicts, candidates, evidence, assumptions, details)
