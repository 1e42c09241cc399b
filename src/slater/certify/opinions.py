"""The estimators of Tier 3 at work: a model ensemble and fitted Q, from the certifying episodes alone.

Needs the neural half (JAX). The ensemble, the cohorts and the clones that check it are a *study* of the log
(`slater.deep.ope.study`), kept in the user's cache: the first certificate of a log fits it. `Estimators` is
what a log's certificates share; every policy that chooses from what it sees now can be asked about, since
the model steps in JAX and the policy acts in NumPy between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.certify.estimates import (
    FEWEST_EPISODES,
    LARGEST_SHARE_OUTSIDE,
    NO_CALIBRATION,
    Calibration,
    Opinion,
    judge_estimates,
    shipped_calibration,
)
from slater.certify.fitted_q import FittedQ, fitted_q_of
from slater.certify.verdict import Certificate, Gate, error_of_each
from slater.data import Dataset
from slater.deep.ope.cloning import CloneSettings
from slater.deep.ope.closed_loop import ClosedLoop, Judged, judge
from slater.deep.ope.ensemble import Ensemble, EnsembleSettings
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.study import Study, StudySettings, study
from slater.deep.task import Task, normalised, scaled_actions, state_task
from slater.errors import InputError
from slater.limits import Limit, Units, resolve_limits
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture

__all__ = ["CERTIFYING", "Estimators", "acting", "certify_candidates", "certify_estimates", "parts_of"]

F64 = NDArray[np.float64]
#: raw observations (n, obs_dim) -> actions of the data's kind, (n, action_dim) or (n,) numbers
Act = Callable[[NDArray[Any]], NDArray[Any]]

#: how a log is studied to certify by it: what judges and nothing that is chosen from (one in-sample column,
#: the least that a study has, and it is not used)
CERTIFYING = StudySettings(
    cohorts=6, ensemble=EnsembleSettings(steps=3_000, hidden=(96, 96)),
    clones=CloneSettings(steps=1_200, chunk=400, hidden=(64, 64)),
    in_sample=InSampleSettings(multipliers=(0.0,), steps=1, hidden=(8,)),
)  # fmt: skip
#: rollouts of a policy in every network of the ensemble
ROLLOUTS = 128


def parts_of(policy: Any) -> list[tuple[float, Any]]:
    """The memoryless policies that a policy draws one of in every episode, with their shares."""
    if isinstance(policy, Mixture):
        shares = zip(policy.weights, policy.members, strict=True)
        return [(float(weight), member) for weight, member in shares if weight > 0]
    own = getattr(policy, "parts", None)  # an ONNX file that Slater wrote knows its members
    return list(own()) if callable(own) else [(1.0, policy)]


def acting(policy: Any, task: Task, rng: np.random.Generator) -> Act:
    """How a policy acts on raw observations; refused in a sentence where it cannot without an episode."""
    if isinstance(policy, GaussianPolicy | CategoricalPolicy):
        if policy.obs_mean.shape[0] != task.obs_dim:
            raise InputError(
                f"the policy takes observations of {policy.obs_mean.shape[0]} entries, but the data have "
                f"{task.obs_dim}."
            )
        if isinstance(policy, GaussianPolicy) == task.discrete:
            raise InputError("the policy and the data disagree on whether actions are discrete.")
    if type(policy).__name__ in ("SequencePolicy", "TableMixture"):
        raise InputError(
            f"a {type(policy).__name__} cannot be judged from the log alone, which needs a policy without "
            "memory over the data's observations; run it in a simulator or give its own logged episodes."
        )
    act = getattr(policy, "act", None)

    def act_checked(observations: NDArray[Any]) -> NDArray[Any]:
        actions = np.asarray(policy(observations) if act is None else act(observations, rng=rng))
        wanted = (len(observations),) if task.discrete else (len(observations), task.action_dim)
        if actions.shape != wanted:
            raise InputError(
                f"for {len(observations)} observations the policy gave actions of shape {actions.shape}; "
                f"the data's would be {wanted}."
            )
        if not np.isfinite(actions).all():
            raise InputError("the policy gave an action that is not a number.")
        return actions

    return act_checked


@eqx.filter_jit
def _step(ensemble: Ensemble, states: Array, actions: Array, key: Array) -> tuple[Array, Array, Array]:
    """One step of (copies, n) rollouts, each copy in its own network."""
    keys = jax.random.split(key, ensemble.copies)
    return jax.vmap(ensemble.step)((ensemble.dynamics, ensemble.outcomes), states, actions, keys)


class Said(NamedTuple):
    """What both estimators say of one policy.

    reward, reward_spread: per episode, by the model ensemble; outside: share of its states that have nothing
    alike in the log; plane: points to draw.
    """

    opinions: list[Opinion]
    reward: float
    reward_spread: float
    outside: float
    plane: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Estimators:
    """Both estimators of a log, fitted; `task` has the certificate's limits, per episode."""

    data: Dataset
    task: Task
    study: Study

    @property
    def horizon(self) -> int:
        """T."""
        horizon = self.task.units.horizon
        assert horizon is not None
        return horizon

    def _chosen(self, act: Act) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
        """`act` from the task's normalised states to the networks' actions."""
        task = self.task

        def choose(states: NDArray[Any]) -> NDArray[np.float32]:
            actions = act(np.asarray(states * task.obs_std + task.obs_mean, np.float32))
            if task.discrete:
                return np.eye(task.action_dim, dtype=np.float32)[actions.astype(np.int64)]
            return np.clip(scaled_actions(actions, task), -1.0, 1.0).astype(np.float32)

        return choose

    @cached_property
    def fitted_q(self) -> FittedQ:
        """What fitted Q of every policy shares."""
        task, data = self.task, self.data
        rows = np.flatnonzero(data.next_known)
        actions = scaled_actions(data.actions[rows], task)
        if task.discrete:
            actions = np.eye(task.action_dim, dtype=np.float32)[actions]
        episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)[rows]
        return fitted_q_of(
            normalised(data.observations[rows], task), actions, data.costs[rows],
            1.0 - data.terminals[rows], normalised(data.next_observations[rows], task), episode,
            normalised(data.initial_observations, task), self.horizon,
        )  # fmt: skip

    def modelled(self, act: Act, seed: int) -> tuple[F64, F64]:
        """Sums over an episode by every network, (copies, n, 2+I): reward, costs, length; states visited.

        The states are those in the first network, normalised, (n', obs_dim).
        """
        task, ensemble = self.task, self.study.ensemble
        choose = self._chosen(act)
        starts = normalised(self.study.initial, task)
        rows = np.random.default_rng(seed).integers(len(starts), size=(ensemble.copies, ROLLOUTS))
        states = np.asarray(starts[rows], np.float32)
        alive = np.ones(rows.shape)
        total = np.zeros((*rows.shape, 2 + task.costs))
        visited = []
        key = jax.random.key(seed)
        for step in range(self.horizon):
            actions = choose(states.reshape(-1, task.obs_dim)).reshape(*rows.shape, -1)
            if step % max(self.horizon // 100, 1) == 0:
                visited.append(states[0][alive[0] > 0.5])
            following, utilities, end = _step(
                ensemble, jnp.asarray(states), jnp.asarray(actions), jax.random.fold_in(key, step)
            )
            total[..., :-1] += alive[..., None] * np.asarray(utilities, np.float64)
            total[..., -1] += alive
            alive = alive * (1.0 - np.asarray(end, np.float64))
            states = np.array(following)
        total[..., :-1] /= task.scale
        return total, np.concatenate(visited).astype(np.float64)

    @cached_property
    def _of_clones(self) -> Judged:
        """What the ensemble says of the cohorts' clones."""
        parts = []
        size = np.append(self.task.scale / (self.horizon * (1.0 - self.task.gamma)), 1.0)  # to J-units
        for cohort in range(len(self.study.cohorts)):
            clone = self.study.policy(cohort).export(self.task)
            act = acting(clone, self.task, np.random.default_rng(cohort))
            parts.append(self.modelled(act, 1000 + cohort)[0] * size)
        copies = [part.mean(axis=1) for part in parts]
        error = [
            np.sqrt(np.mean(part.var(axis=1), axis=0) / (part.shape[0] * part.shape[1])) for part in parts
        ]
        return Judged(
            np.array([c.mean(axis=0) for c in copies]), np.array([c.std(axis=0, ddof=1) for c in copies]),
            np.array(error),
        )  # fmt: skip

    @cached_property
    def _replays(self) -> F64:
        return self.study.replays(self.data)

    def check(self, task: Task | None = None) -> ClosedLoop:
        """The model's errors over the log's cohorts, by the limits of `task`."""
        return judge(
            task or self.task, self.study.cohorts, self.study.sums, "model ensemble", self._of_clones,
            self._replays,
        )  # fmt: skip

    @cached_property
    def logged(self) -> F64:
        """The log's states, normalised, (N, obs_dim)."""
        return np.asarray(normalised(self.data.observations, self.task), dtype=np.float64)

    def judged(self, policy: Any, seed: int = 0) -> Said:
        """Both estimators on one policy."""
        by_model: Any = 0.0
        by_q: Any = 0.0
        visited = []
        for number, (share, member) in enumerate(parts_of(policy)):
            act = acting(member, self.task, np.random.default_rng(seed + number))
            total, states = self.modelled(act, seed + number)
            by_model = by_model + share * total.mean(axis=1)[:, :-1]
            by_q = by_q + share * self.fitted_q.values(self._chosen(act))
            visited.append(states[:: max(len(states) // 4000, 1)])
        opinions = [
            Opinion(name, tuple(copies.mean(axis=0).tolist()), tuple(copies.std(axis=0, ddof=1).tolist()))
            for name, copies in (("model ensemble", by_model[:, 1:]), ("fitted Q", by_q))
        ]
        states = np.concatenate(visited)
        reward = by_model[:, 0]
        return Said(
            opinions, float(reward.mean()), float(reward.std(ddof=1)), self._outside(states),
            _plane(self.logged, states),
        )  # fmt: skip

    @cached_property
    def _outside(self) -> Callable[[F64], float]:
        return outside_of(self.logged)


def outside_of(logged: F64) -> Callable[[F64], float]:
    """Of visited states, the share that is farther from the log than 99% of its states are from it."""
    from scipy.spatial import cKDTree

    some = logged[np.random.default_rng(0).permutation(len(logged))[:6000]]
    half = len(some) // 2
    tree = cKDTree(some[:half])
    usual = np.quantile(tree.query(some[half:])[0], 0.99)

    def share(visited: F64) -> float:
        drawn = visited[np.random.default_rng(0).permutation(len(visited))[:1000]]
        return float((tree.query(drawn)[0] > 1.5 * usual + 1e-9).mean())

    return share


def _plane(logged: F64, visited: F64, points: int = 300) -> dict[str, Any]:
    """Some states in the plane of the log's two main directions, for a picture."""
    rng = np.random.default_rng(0)
    mean = logged.mean(axis=0)
    axes = np.linalg.svd(logged[rng.permutation(len(logged))[:2000]] - mean, full_matrices=False)[2][:2]
    if len(axes) < 2:
        axes = np.concatenate([axes, np.zeros_like(axes)])[:2]
    parts = {"logged": logged, "visited": visited}
    return {
        name: np.round((x[rng.permutation(len(x))[:points]] - mean) @ axes.T, 3).tolist()
        for name, x in parts.items()
    }


def estimators_of(
    data: Dataset, limits: Sequence[Limit], gamma: float, settings: StudySettings | None, cache: Path | None
) -> Estimators:
    """The estimators of a log, from the cache where they are there; limits per episode."""
    task = state_task(data, tuple(limits), gamma)
    return Estimators(data, task, study(data, task, settings or CERTIFYING, cache))


def gates_of(check: ClosedLoop, cohorts: int, outside: float) -> list[Gate]:
    """The conditions that an estimate from the log alone is under, besides agreement and calibration."""
    return [
        Gate(
            "closed-loop check", check.passes,
            f"over {cohorts} cohorts of the log the model's error is {check.score:.0%}"
            + ("." if check.passes else ", and at least one cohort is beyond what is allowed."),
        ),
        Gate(
            "distance from the data", outside <= LARGEST_SHARE_OUTSIDE,
            f"{outside:.0%} of the states that the policy visits in the model have nothing alike in the log; "
            f"at most {LARGEST_SHARE_OUTSIDE:.0%} may.",
        ),
    ]  # fmt: skip


def certify_estimates(
    data: Dataset,
    policy: Any,
    *,
    limits: Iterable[Limit | str | float],
    confidence: float = 0.95,
    candidates: int = 1,
    name: str = "policy",
    **options: Any,
) -> Certificate:
    """The certificate of a policy without memory (or a mixture of such); options of `certify_candidates`."""
    found = certify_candidates(
        data, {name: policy}, limits=limits, confidence=confidence, candidates=candidates, **options
    )
    return found[0]


def certify_candidates(
    data: Dataset,
    policies: dict[str, Any],
    *,
    limits: Iterable[Limit | str | float],
    confidence: float = 0.95,
    candidates: int | None = None,
    gamma: float = 0.99,
    settings: StudySettings | None = None,
    cache: Path | None = None,
    calibration: Calibration | None = None,
    fit: bool = True,
) -> list[Certificate]:
    """Certificates of policies by name, from episodes that trained none of them, with one fit for all.

    candidates: how many share the error, by default all of `policies`. cache: folder of studies
    (`slater.deep.ope.study.cache_folder`), or None to fit anew and keep nothing. calibration: by default the
    one that comes with the package. fit: whether to fit estimators; if not, the certificates say what keeps
    this tier from a verdict, without estimates.
    """
    candidates = candidates or len(policies)
    resolved = resolve_limits(limits, data.cost_names)
    if data.horizon is None:
        raise InputError("the data do not say how long an episode is; name the horizon.")
    per_episode = Units(gamma, data.horizon).thresholds(resolved, "episode")
    error = error_of_each(confidence, len(per_episode), candidates)
    # an episode that was cut off before the horizon says nothing of the sum that the limit is about
    table = data.episodes
    complete = int((table.timed_out | (table.complete & table.terminated)).sum())
    stated = [
        Limit.episode(float(value), cost) for value, cost in zip(per_episode, data.cost_names, strict=True)
    ]
    calibration = calibration or shipped_calibration(1.0 - error)
    enough = complete >= FEWEST_EPISODES
    if not enough or not fit:
        few = f"{complete} complete episodes are too few for estimators; {FEWEST_EPISODES} are needed."
        gate = (
            Gate("episodes", False, few) if not enough
            else Gate("calibration", False, NO_CALIBRATION) if calibration is None
            else Gate("estimators", False, "no estimators were fitted; certify the run to fit them.")
        )  # fmt: skip
        unknown = tuple(float("nan") for _ in per_episode)
        opinions = [Opinion(x, unknown, unknown) for x in ("model ensemble", "fitted Q")]
        verdicts = judge_estimates(opinions, data.cost_names, per_episode.tolist(), error, gates=[gate])
        evidence = f"{complete} logged episodes."
        return [Certificate(name, confidence, verdicts, candidates, evidence) for name in policies]
    estimators = estimators_of(data, stated, gamma, settings, cache)
    check = estimators.check()
    described = check.describe(estimators.task, estimators.study.cohorts)
    rows = [
        {"cohort": row["cohort"], **{f"{kind} {key}": value for kind in ("logged", "estimated")
                                     for key, value in row[kind].items()}}
        for row in described["cohorts"]
    ]  # fmt: skip
    found = []
    for name, policy in policies.items():
        said = estimators.judged(policy)
        gates = [
            Gate("episodes", True, f"{complete} complete episodes."),
            *gates_of(check, len(estimators.study.cohorts), said.outside),
        ]
        verdicts = judge_estimates(
            said.opinions, data.cost_names, per_episode.tolist(), error, gates=gates, calibration=calibration
        )
        found.append(
            Certificate(
                name, confidence, verdicts, candidates,
                f"{complete} logged episodes, by estimators fitted to them.",
                ("this is an estimate, not a guarantee; its rate of error is that of its calibration.",),
                {"coverage": said.plane, "cohorts": rows},
            )
        )  # fmt: skip
    return found


def with_limits(estimators: Estimators, limits: Sequence[Limit]) -> Task:
    """The task of the estimators with other limits, for their check."""
    own = estimators.task
    return replace(state_task(estimators.data, tuple(limits), own.gamma), scale=own.scale)
