"""Tier 1: verdicts from episodes of the policy itself, in a simulator or in a staged deployment.

Episodes are independent draws of the cost, each at most the steps of an episode times the largest cost of a
step, so the betting bound applies at any number of them. With `at_most` the policy runs until every limit is
decided, which the bound allows: it holds at all numbers of episodes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.certify.bounds import Interval, betting_lower, betting_upper, share_upper
from slater.certify.verdict import (
    Certificate,
    Evidence,
    Gate,
    LimitVerdict,
    decide,
    error_of_each,
    unit_notes,
)
from slater.data import Dataset
from slater.envs.episode import Episode, RunSettings, run_episode
from slater.envs.evaluation import is_scalar_cost, rollout
from slater.envs.making import make
from slater.envs.workers import Workers
from slater.errors import InputError
from slater.limits import Limit, Limits, Units, limit_list, resolve_limits
from slater.policy import Policy

__all__ = ["Counted", "FunctionPolicy", "certify_episodes", "certify_rollouts", "judge_episodes"]

F64 = NDArray[np.float64]

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
    """Verdicts from costs per episode, shape `(E, I)`, of which none exceeds `largest` `(I,)`.

    `error` is that of one statement; with `stopping` the number of episodes may depend on the costs. Where
    the cost of an episode is not fully known, `costs` is what it is at least and `at_most` (E, I) the rest.
    """
    verdicts = []
    highest = costs if at_most is None else at_most
    for i, (name, limit, most) in enumerate(zip(names, limits, largest, strict=True)):
        low, high = costs[:, i], highest[:, i]
        interval = Interval(
            float(low.mean() + high.mean()) / 2,
            betting_lower(low, 0.0, most, error, stopping=stopping),
            betting_upper(high, 0.0, most, error, stopping=stopping),
        )
        verdict, reason = decide(interval, limit, gates)
        # a share that was looked at after every episode has no Clopper-Pearson bound
        share = None if stopping else share_upper(int((high > limit).sum()), len(high), error)
        evidence = Evidence("episodes of the policy", interval.estimate, interval.lower, interval.upper)
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, interval.estimate, interval.lower,
                interval.upper, "rollouts", reason, tuple(gates), (evidence,), share,
            )
        )  # fmt: skip
    return tuple(verdicts)


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
        cls,
        costs: F64,
        lengths: NDArray[np.int64],
        terminated: NDArray[np.bool_],
        limits: Sequence[Limit],
        horizon: int,
        largest_step_cost: ArrayLike,
    ) -> Counted:
        """costs: (E, I) sums; lengths, terminated: (E,); horizon: steps of an episode that does not end."""
        steps = np.broadcast_to(np.asarray(largest_step_cost, dtype=np.float64), (len(limits),))
        if not np.isfinite(steps).all() or (steps <= 0).any():
            raise InputError(
                f"the largest cost of a step is {steps.tolist()}; it must be positive and finite."
            )
        if lengths.max() > horizon:
            raise InputError(
                f"an episode has {int(lengths.max())} steps, more than the horizon of {horizon}; "
                "the limits are about other episodes."
            )
        rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in limits])
        left = (horizon - lengths)[:, None].astype(np.float64)
        cut = ~np.asarray(terminated)[:, None]
        worst = np.maximum(steps, rates)
        words = (
            f"of {len(costs)} episodes {int((cut & (left > 0)).sum())} were cut off before {horizon} steps: "
        )
        words += "what they would have cost besides is between nothing and the most."
        return cls(
            costs + left * np.where(cut, 0.0, rates), costs + left * np.where(cut, worst, rates),
            horizon * worst, (words,) if (cut & (left > 0)).any() else (),
        )  # fmt: skip


def certify_episodes(
    episodes: Dataset,
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int = 1,
    largest_step_cost: float | Sequence[float] | None = None,
    gamma: float = 0.99,
    name: str = "policy",
) -> Certificate:
    """The certificate from logged episodes of the policy itself, as a staged deployment gives them.

    `largest_step_cost` bounds the cost of a step, one number or one per cost; unless given, the largest in
    the log (at least 1), which becomes an assumption of the certificate. `gamma` converts limits that are
    given as discounted sums.
    """
    complete = episodes.episodes.complete
    if not complete.any():
        raise InputError("no episode of the data is complete, so nothing is known about costs per episode.")
    resolved = resolve_limits(limits, episodes.cost_names)
    per_episode = Units(gamma, episodes.horizon).thresholds(resolved, "episode")
    seen = np.maximum(episodes.costs.max(axis=0).astype(np.float64), 1.0)
    most = seen if largest_step_cost is None else largest_step_cost
    table = episodes.episodes
    costs, lengths = table.costs[complete], table.lengths[complete]
    counted = Counted.of(costs, lengths, table.terminated[complete], resolved, episodes.horizon, most)
    error = error_of_each(confidence, len(per_episode), candidates)
    assumptions = [
        "the episodes are of this policy, independent, and start as they will in deployment.",
        f"an episode has at most {episodes.horizon} steps and costs at most "
        + ", ".join(f"{x:g}" for x in counted.largest)
        + (" (the largest step cost of the log)." if largest_step_cost is None else "."),
        *counted.cut,
        *unit_notes(resolved, per_episode.tolist()),
    ]
    verdicts = judge_episodes(
        counted.at_least, episodes.cost_names, per_episode.tolist(), counted.largest.tolist(), error,
        at_most=counted.at_most,
    )  # fmt: skip
    evidence = f"{len(costs)} logged episodes of the policy itself."
    return Certificate(
        name, confidence, verdicts, candidates, evidence, tuple(assumptions),
        {"episode_costs": costs.tolist(), "episode_returns": episodes.episodes.returns[complete].tolist()},
    )  # fmt: skip


def _each(
    policy: Policy, env_id: str, options: dict[str, Any], settings: RunSettings, count: int, workers: int,
    env: Any,
) -> Iterator[Episode]:  # fmt: skip
    """Episodes 0, 1, ... in their order, so that where one stops does not depend on the workers."""
    if workers == 1:
        for index in range(count):
            yield run_episode(policy, env, index, settings)
        return
    with Workers(workers) as pool:
        pool.prepare((policy, env_id, options, settings))
        early: dict[int, Episode] = {}
        wanted = 0
        for episode in pool.episodes(range(count)):
            early[episode.index] = episode
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1


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
    largest_step_cost: float | Sequence[float] = 1.0,
    gamma: float = 0.99,
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
    `horizon` is the number of steps of an episode where the environment does not state it. `workers`
    processes run episodes side by side; the certificate is the same for any number of them.
    """
    acting: Any = policy if isinstance(policy, Policy) else FunctionPolicy(policy)
    if at_most is not None and at_most < 1:
        raise InputError(f"at most {at_most} episodes can decide nothing; give at least 1.")
    options = dict(env_options or {})
    env = make(env_id, **options)
    try:
        known = tuple(env.cost_names)
        names = tuple(cost_names) if cost_names is not None else known
        given = limit_list(limits)
        if cost_names is None and len(given) == 1 and len(known) != 1:
            names = ("cost",)
        resolved = resolve_limits(given, names)
        scalar = is_scalar_cost(names, known)
        columns = [] if scalar else [known.index(x) for x in names]
        steps = horizon or (env.spec.max_episode_steps if env.spec is not None else None)
        error = error_of_each(confidence, len(names), candidates)
        settings = RunSettings(seed=seed, deterministic=deterministic, discount=1.0)
        notes: list[str] = []

        def of(episode: Episode) -> list[float]:
            return [episode.cost] if scalar else [float(episode.costs[c]) for c in columns]

        def judged(
            costs: F64, lengths: ArrayLike, terminated: ArrayLike, horizon: int, *, stopping: bool
        ) -> tuple[LimitVerdict, ...]:
            per_episode = Units(gamma, horizon).thresholds(resolved, "episode").tolist()
            counted = Counted.of(
                costs, np.asarray(lengths), np.asarray(terminated), resolved, horizon, largest_step_cost
            )
            notes[:] = [
                f"an episode has at most {horizon} steps and costs at most "
                + f"{', '.join(f'{x:g}' for x in counted.largest)}.",
                *counted.cut,
                *unit_notes(resolved, per_episode),
            ]
            return judge_episodes(
                counted.at_least, names, per_episode, counted.largest.tolist(), error,
                at_most=counted.at_most, stopping=stopping,
            )  # fmt: skip

        if at_most is None:
            ran = rollout(
                acting, env_id, episodes, seed, workers, deterministic, discount=1.0,
                env_options=options, progress=progress,
            )  # fmt: skip
            costs = ran.cost[:, None] if scalar else ran.costs[:, columns]
            returns, lengths = ran.returns, ran.lengths
            steps = steps or int(lengths.max())
            verdicts = judged(costs, lengths, ran.terminated, steps, stopping=False)
            evidence = f"{len(costs)} episodes in {env_id}, seed {seed}."
        else:
            if steps is None:
                raise InputError(
                    f"{env_id} does not say how long an episode is; give the horizon to run until decided."
                )
            rows: list[list[float]] = []
            ran_episodes: list[Episode] = []
            verdicts = ()
            for episode in _each(acting, env_id, options, settings, at_most, workers, env):
                rows.append(of(episode))
                ran_episodes.append(episode)
                if progress is not None:
                    progress(episode)
                if len(rows) % LOOK_EVERY and len(rows) < at_most:
                    continue
                verdicts = judged(
                    np.array(rows), [one.length for one in ran_episodes],
                    [one.terminated for one in ran_episodes], steps, stopping=True,
                )  # fmt: skip
                if all(verdict.verdict != "abstain" for verdict in verdicts):
                    break
            costs, returns = np.array(rows), np.array([one.total_return for one in ran_episodes])
            evidence = (
                f"{len(rows)} of at most {at_most} episodes in {env_id}, seed {seed}, stopped when decided."
            )
    finally:
        env.close()
    acts = ["the policy acts with the likeliest action, in deployment too."] if deterministic else []
    assumptions = (f"{env_id} behaves as the deployment will.", *acts, *notes)
    details = {"episode_costs": costs.tolist(), "episode_returns": returns.tolist()}
    return Certificate(name, confidence, verdicts, candidates, evidence, assumptions, details)
