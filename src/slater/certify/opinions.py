"""The estimators of Tier 3 at work: a model ensemble and fitted Q, from the certifying episodes alone.

Needs the neural half (JAX). The ensemble, the cohorts and the clones that check it are a *study* of the log
(`slater.deep.ope.study`), kept in the user's cache: the first certificate of a log fits it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
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
from slater.certify.verdict import Certificate, Gate, error_of_each
from slater.data import Dataset
from slater.deep.batches import transitions
from slater.deep.nets.mlp import MLP, polyak
from slater.deep.ope.closed_loop import judge
from slater.deep.ope.ensemble import careful, rollout_length
from slater.deep.ope.study import Study, StudySettings, study
from slater.deep.task import Task, normalised, state_task
from slater.errors import InputError
from slater.limits import Limit, Units, resolve_limits
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture

__all__ = ["certify_estimates", "fitted_q", "network_of", "opinions_of"]

F64 = NDArray[np.float64]

#: of fitted Q: networks (each on its own bootstrap of episodes), iterations, rows per iteration, layers
COPIES, STEPS, BATCH, HIDDEN = 4, 4_000, 128, (64, 64)


class _Network(eqx.Module):
    """A saved policy in JAX, over the task's normalised states, with the `choice` of a `PolicyNetwork`."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    mean: Array
    std: Array
    low: Array | None
    high: Array | None
    own_low: Array | None
    own_high: Array | None
    task_mean: Array
    task_std: Array
    log_std_range: tuple[float, float] = eqx.field(static=True)

    def choice(self, obs: Array, key: Array) -> Array:
        """An action in [-1, 1] of the task's bounds, or a distribution over discrete actions."""
        x = (obs * self.task_std + self.task_mean - self.mean) / self.std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.relu(x @ weight + bias)
        x = x @ self.weights[-1] + self.biases[-1]
        if self.own_low is None or self.own_high is None or self.low is None or self.high is None:
            return jax.nn.softmax(x)
        mean, log_std = jnp.split(x, 2, axis=-1)
        noise = jax.random.normal(key, mean.shape)
        squashed = jnp.tanh(mean + jnp.exp(jnp.clip(log_std, *self.log_std_range)) * noise)
        action = self.own_low + (squashed + 1.0) * 0.5 * (self.own_high - self.own_low)
        return jnp.clip(2.0 * (action - self.low) / (self.high - self.low) - 1.0, -1.0, 1.0)


def network_of(policy: Any, task: Task) -> Any:
    """A saved Gaussian or categorical policy as a network that the estimators can roll out."""
    if not isinstance(policy, GaussianPolicy | CategoricalPolicy):
        raise InputError(
            f"a {type(policy).__name__} cannot be judged from the log alone, which needs a network without "
            "memory; run it in a simulator or give its own logged episodes."
        )
    if policy.obs_mean.shape[0] != task.obs_dim:
        raise InputError(
            f"the policy takes observations of {policy.obs_mean.shape[0]} entries, but the data have "
            f"{task.obs_dim}."
        )
    gaussian = isinstance(policy, GaussianPolicy)
    if gaussian == task.discrete:
        raise InputError("the policy and the data disagree on whether actions are discrete.")
    as_array = jnp.asarray
    return _Network(
        tuple(map(as_array, policy.weights)), tuple(map(as_array, policy.biases)),
        as_array(policy.obs_mean), as_array(policy.obs_std),
        None if task.action_low is None else as_array(task.action_low),
        None if task.action_high is None else as_array(task.action_high),
        as_array(policy.low) if isinstance(policy, GaussianPolicy) else None,
        as_array(policy.high) if isinstance(policy, GaussianPolicy) else None,
        as_array(task.obs_mean), as_array(task.obs_std),
        policy.log_std_range if isinstance(policy, GaussianPolicy) else (0.0, 0.0),
    )  # fmt: skip


def fitted_q(data: Dataset, task: Task, policy: Any, *, steps: int = STEPS, seed: int = 0) -> F64:
    """J of every cost (scaled, discounted), shape (COPIES, I), each copy on its own bootstrap of episodes."""
    columns = transitions(data, task)
    known = np.flatnonzero(data.next_known)
    episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)[known]
    rng = np.random.default_rng(seed)
    by_episode = [np.flatnonzero(episode == e) for e in range(len(data.episodes))]
    by_episode = [rows for rows in by_episode if len(rows)]
    rows = []
    for _ in range(COPIES):
        drawn = rng.integers(len(by_episode), size=len(by_episode))
        own = np.concatenate([by_episode[e] for e in drawn])
        rows.append(rng.choice(own, len(known)))
    device = {k: jnp.asarray(columns[k]) for k in ("obs", "actions", "utilities", "discount", "next_obs")}
    first = jnp.asarray(normalised(data.initial_observations, task))
    sizes = [task.obs_dim + task.action_dim, *HIDDEN, task.costs]
    keys = jax.random.split(jax.random.key(seed), COPIES)
    networks: MLP = jax.vmap(lambda key: MLP(sizes, key))(keys)
    low, high = jnp.asarray(task.value_low[1:]), jnp.asarray(task.value_high[1:])
    adam = optax.adam(1e-3)

    @eqx.filter_jit
    def run(constants: tuple[dict[str, Array], Any, Array, Array], networks: MLP) -> Array:
        device, policy, rows, first = constants

        def loss(network: MLP, target: MLP, own: Array, key: Array) -> Array:
            a = device["actions"][own]
            if task.discrete:
                a = jax.nn.one_hot(a, task.action_dim)
            following = device["next_obs"][own]
            then = target(jnp.concatenate([following, policy.choice(following, key)], axis=-1))
            goal = device["utilities"][own][:, 1:] + device["discount"][own][:, None] * jnp.clip(
                then, low, high
            )
            said = network(jnp.concatenate([device["obs"][own], a], axis=-1))
            # in units of the horizon, so that one learning rate serves all discounts
            return jnp.mean(((said - jax.lax.stop_gradient(goal)) * (1.0 - task.gamma)) ** 2) * 100.0

        def step(index: Array, carry: tuple[MLP, MLP, Any, Array]) -> tuple[MLP, MLP, Any, Array]:
            networks, targets, state, total = carry
            key = jax.random.fold_in(jax.random.key(seed + 1), index)
            places = jax.random.randint(key, (COPIES, BATCH), 0, rows.shape[1])
            own = jnp.take_along_axis(rows, places, axis=1)
            noise = jax.random.split(key, COPIES)
            grads = jax.vmap(jax.grad(loss))(networks, targets, own, noise)
            updates, state = adam.update(grads, state)
            networks = optax.apply_updates(networks, updates)
            targets = jax.vmap(lambda t, n: polyak(t, n, 0.01))(targets, networks)
            begin = jnp.concatenate([first, policy.choice(first, key)], axis=-1)
            values = jax.vmap(lambda t: jnp.mean(jnp.clip(t(begin), low, high), axis=0))(targets)
            return networks, targets, state, total + jnp.where(index >= steps - steps // 4, values, 0.0)

        start = (networks, networks, adam.init(networks), jnp.zeros((COPIES, task.costs)))
        ended = jax.lax.fori_loop(0, steps, step, start)
        return ended[3] / max(steps // 4, 1)

    return np.asarray(run((device, policy, jnp.asarray(np.stack(rows)), first), networks), dtype=np.float64)


def _visited(found: Study, policy: Any, key: Array, rollouts: int = 32) -> F64:
    """States of rollouts in the ensemble's first network, normalised, shape (n, obs_dim)."""
    task = found.task
    starts = normalised(found.initial, task)
    first = jnp.asarray(starts[np.random.default_rng(0).integers(len(starts), size=rollouts)])
    network = jax.tree.map(lambda leaf: leaf[0], (found.ensemble.dynamics, found.ensemble.outcomes))

    @eqx.filter_jit
    def run(ensemble: Any, policy: Any, first: Array) -> Array:
        def step(s: Array, t: Array) -> tuple[Array, Array]:
            one, two, three = jax.random.split(jax.random.fold_in(key, t), 3)
            a = policy.choice(s, one)
            if task.discrete:
                a = jax.nn.one_hot(jax.random.categorical(two, jnp.log(a + 1e-30)), a.shape[-1])
            return ensemble.step(network, s, a, three)[0], s

        return jax.lax.scan(step, first, jnp.arange(rollout_length(task)))[1]

    states = np.asarray(run(found.ensemble, policy, first), dtype=np.float64)
    return states.reshape(-1, task.obs_dim)


def _outside(logged: F64, visited: F64) -> float:
    """Share of visited states that are farther from the log than 99% of the log's states are from it."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(0)
    some = logged[rng.permutation(len(logged))[:6000]]
    half = len(some) // 2
    tree = cKDTree(some[:half])
    usual = np.quantile(tree.query(some[half:])[0], 0.99)
    far = tree.query(visited[rng.permutation(len(visited))[:2000]])[0] > 1.5 * usual + 1e-9
    return float(far.mean())


def opinions_of(
    data: Dataset, task: Task, found: Study, policy: Any, *, fqe_steps: int = STEPS
) -> tuple[list[Opinion], float, dict[str, Any]]:
    """Both estimators on one policy, the share of its states outside the log, and points to draw."""
    members = (
        [(float(w), m) for w, m in zip(policy.weights, policy.members, strict=True) if w > 0]
        if isinstance(policy, Mixture)
        else [(1.0, policy)]
    )
    horizon = task.units.horizon
    assert horizon is not None
    to_episode = horizon * (1.0 - task.gamma) / task.scale[1:]
    values = careful(task, found.ensemble, found.initial)
    by_model: F64 = np.zeros((found.ensemble.copies, task.costs))
    by_q: F64 = np.zeros((COPIES, task.costs))
    visited = []
    for number, (share, member) in enumerate(members):
        network = network_of(member, task)
        key = jax.random.key(number)
        by_model += share * np.asarray(values(network, key).mean, np.float64)[:, 1:-1] * to_episode
        by_q += share * fitted_q(data, task, network, steps=fqe_steps, seed=number) * to_episode
        visited.append(_visited(found, network, key))
    opinions = [
        Opinion(name, tuple(copies.mean(axis=0).tolist()), tuple(copies.std(axis=0, ddof=1).tolist()))
        for name, copies in (("model ensemble", by_model), ("fitted Q", by_q))
    ]
    states = np.concatenate(visited)
    logged = np.asarray(normalised(data.observations, task), dtype=np.float64)
    return opinions, _outside(logged, states), _plane(logged, states)


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


def certify_estimates(
    data: Dataset,
    policy: Any,
    *,
    limits: Iterable[Limit | str | float],
    confidence: float = 0.95,
    candidates: int = 1,
    gamma: float = 0.99,
    name: str = "policy",
    settings: StudySettings | None = None,
    cache: Path | None = None,
    calibration: Calibration | None = None,
    fqe_steps: int = STEPS,
    fit: bool = True,
) -> Certificate:
    """The certificate of a network policy (or a mixture of such) from episodes that did not train it.

    cache: folder of studies (`slater.deep.ope.study.cache_folder`), or None to fit anew and keep nothing.
    calibration: by default the one that comes with the package, if any. fit: whether to fit estimators; if
    not, the certificate says what keeps this tier from a verdict, without estimates.
    """
    resolved = resolve_limits(limits, data.cost_names)
    per_episode = Units(gamma, data.horizon).thresholds(resolved, "episode")
    error = error_of_each(confidence, len(per_episode), candidates)
    complete = int(data.episodes.complete.sum())
    stated = tuple(
        Limit.episode(float(value), cost) for value, cost in zip(per_episode, data.cost_names, strict=True)
    )
    calibration = calibration or shipped_calibration(1.0 - error)
    if complete < FEWEST_EPISODES or not fit:
        few = f"{complete} complete episodes are too few for estimators; {FEWEST_EPISODES} are needed."
        gate = (
            Gate("episodes", False, few) if complete < FEWEST_EPISODES
            else Gate("calibration", False, NO_CALIBRATION) if calibration is None
            else Gate("estimators", False, "no estimators were fitted; certify the run to fit them.")
        )  # fmt: skip
        unknown = tuple(float("nan") for _ in per_episode)
        opinions = [Opinion(x, unknown, unknown) for x in ("model ensemble", "fitted Q")]
        verdicts = judge_estimates(opinions, data.cost_names, per_episode.tolist(), error, gates=[gate])
        return Certificate(name, confidence, verdicts, candidates, f"{complete} logged episodes.")
    task = state_task(data, stated, gamma)
    found = study(data, task, settings, cache)
    clones = [found.policy(k) for k in range(len(found.cohorts))]
    check = judge(
        task, found.cohorts, found.sums, "model ensemble", found.estimates(clones, jax.random.key(7))
    )
    opinions, outside, plane = opinions_of(data, task, found, policy, fqe_steps=fqe_steps)
    gates = [
        Gate("episodes", True, f"{complete} complete episodes."),
        Gate(
            "closed-loop check", check.passes,
            f"over {len(found.cohorts)} cohorts of the log the model's error is {check.score:.0%}"
            + ("." if check.passes else ", and at least one cohort is beyond what is allowed."),
        ),
        Gate(
            "distance from the data", outside <= LARGEST_SHARE_OUTSIDE,
            f"{outside:.0%} of the states that the policy visits in the model have nothing alike in the log; "
            f"at most {LARGEST_SHARE_OUTSIDE:.0%} may.",
        ),
    ]  # fmt: skip
    verdicts = judge_estimates(
        opinions, data.cost_names, per_episode.tolist(), error, gates=gates,
        calibration=calibration,
    )  # fmt: skip
    rows = [
        {"cohort": row["cohort"], **{f"{kind} {key}": value for kind in ("logged", "estimated")
                                     for key, value in row[kind].items()}}
        for row in check.describe(task, found.cohorts)["cohorts"]
    ]  # fmt: skip
    return Certificate(
        name, confidence, verdicts, candidates, f"{complete} logged episodes, by estimators fitted to them.",
        ("this is an estimate, not a guarantee; its rate of error is that of its calibration.",),
        {"coverage": plane, "cohorts": rows},
    )  # fmt: skip
