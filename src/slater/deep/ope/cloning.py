"""Many clones at once: policies that imitate the rows of a log that are theirs.

    maximise  E_{rows of p}[log pi_p(a|s)]      for policies p = 1..P

Where the log says how likely its actions were (propensities), a clone is also to agree with them,

    minimise  E_{rows of p}[huber(log pi_p(a|s) - log p(a|s))],

which is 0 for the policy that acted: that target has none of the noise which single actions have.

Whose rows are whose is said by numbers of rows, drawn beforehand: a row of weight w stands w times as often
in the list, so that a cohort's clone and an advantage-weighted policy are the same thing here. A policy is
kept as it was when the likelihood of its held-out rows was best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.compiled import jit_once
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.ope.base import Tick
from slater.deep.task import Task, scaled_actions

__all__ = ["CloneSettings", "clone_many", "drawn_rows", "log_densities", "log_likelihoods", "one_of"]

#: rows that judge a policy while it is trained
HELD_ROWS = 4096
#: range of the log standard deviation of a clone's actions before the tanh
CLONE_LOG_STD = (-5.0, 1.0)
#: weight of the agreement with propensities beside the likelihood
AGREEMENT = 5.0


@dataclass(frozen=True)
class CloneSettings:
    """How clones are trained; equal settings on equal rows give the same bits."""

    steps: int = 5_000
    """iterations"""
    chunk: int = 1_000
    """iterations between looks at the held-out likelihood"""
    batch_size: int = 128
    """rows per policy and iteration"""
    learning_rate: float = 3e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of a policy"""
    seed: int = 0
    """of the initial weights and the minibatches"""


def drawn_rows(
    rows: NDArray[Any], count: int, seed: int, weights: NDArray[Any] | None = None
) -> NDArray[np.int32]:
    """`count` of the given rows, each about as often as its weight says; every one where they are alike."""
    rng = np.random.default_rng(seed)
    if weights is None:
        whole = np.tile(rows, count // len(rows))
        rest = rng.choice(rows, count - len(whole), replace=False)
        return np.concatenate([whole, rest]).astype(np.int32)
    chance = np.asarray(weights, dtype=np.float64)
    # systematic resampling: a row of expected count m is taken floor(m) or ceil(m) times
    edges = np.cumsum(chance / chance.sum())
    places = (np.arange(count) + rng.random()) / count
    return rows[np.minimum(np.searchsorted(edges, places), len(rows) - 1)].astype(np.int32)


def clone_many(
    task: Task, obs: Array, actions: Array, rows: Array, held: Array, settings: CloneSettings,
    densities: Array | None = None, imitates: NDArray[np.bool_] | None = None, tick: Tick | None = None,
) -> tuple[PolicyNetwork, NDArray[np.float64]]:  # fmt: skip
    """P policies (leaves with an axis P first), and the best mean held-out log-likelihood of each, (P,).

    obs, actions: all rows in the task's units, on the device; rows: (P, n) numbers of the rows that train
    each policy; held: (P, m) of those that judge it; densities: (N,) log p(a|s) of the policy that acted, NaN
    where it is not known (`log_densities`); imitates: (P,) whether all of a policy's rows are of one policy
    that acted, whose densities it is to have.
    """
    count = rows.shape[0]
    if densities is None:
        densities = jnp.full(obs.shape[0], jnp.nan)
    shares = jnp.ones(count) if imitates is None else jnp.asarray(imitates, jnp.float32)
    key_start, key_run = jax.random.split(jax.random.key(settings.seed))
    make = jit_once(jax.vmap(lambda k: make_policy(task, settings.hidden, k, CLONE_LOG_STD)))
    policies: PolicyNetwork = make(jax.random.split(key_start, count))

    data, carry = (obs, actions, rows, held, densities, shares), (policies, _adam(settings).init(policies))
    best, kept = np.full(count, -np.inf), policies
    for first in range(0, settings.steps, settings.chunk):
        last = min(first + settings.chunk, settings.steps)
        carry, found = _advance(
            settings, actions_of(task), data, carry, key_run, jnp.asarray(first), jnp.asarray(last)
        )
        values = np.asarray(found, dtype=np.float64)
        gains = values > best
        kept = _better(jnp.asarray(gains), carry[0], kept)
        best = np.maximum(best, values)
        if tick is not None:
            tick("clones of the log's cohorts", last, settings.steps)
    return kept, best


def _better(gains: Array, new: PolicyNetwork, old: PolicyNetwork) -> PolicyNetwork:
    """The new policies where `gains`, (P,), is true, else the old ones."""
    found: PolicyNetwork = jax.tree.map(
        lambda n, o: jnp.where(gains.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old
    )
    return found


def _adam(settings: CloneSettings) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(settings.learning_rate, max(settings.steps, 1)))


def actions_of(task: Task) -> int | None:
    """The number of discrete actions; None if actions are vectors."""
    return task.action_dim if task.discrete else None


def _likelihood(policy: PolicyNetwork, actions_count: int | None, obs: Array, actions: Array) -> Array:
    a = actions if actions_count is None else jax.nn.one_hot(actions, actions_count)
    return policy.log_prob(obs, a)


@eqx.filter_jit
def _advance(
    settings: CloneSettings, discrete: int | None, data: tuple[Array, ...], carry: Any, key: Array,
    first: Array, last: Array,
) -> tuple[Any, Array]:  # fmt: skip
    """Iterations `first` to `last`, and the mean held-out likelihoods, (P,) after them."""
    obs, actions, rows, held, densities, shares = data
    adam = _adam(settings)

    def mean(policy: PolicyNetwork, own: Array) -> Array:
        return jnp.mean(_likelihood(policy, discrete, obs[own], actions[own]))

    def loss(policy: PolicyNetwork, own: Array, share: Array) -> Array:
        liked = _likelihood(policy, discrete, obs[own], actions[own])
        gap = liked - densities[own]
        known = jnp.isfinite(gap)
        agreement = jnp.where(known, optax.huber_loss(jnp.where(known, gap, 0.0)), 0.0)
        return jnp.mean(AGREEMENT * share * agreement - liked)

    def step(index: Array, carry: Any) -> Any:
        policies, opt = carry
        shape = (rows.shape[0], settings.batch_size)
        places = jax.random.randint(jax.random.fold_in(key, index), shape, 0, rows.shape[1])
        own = jnp.take_along_axis(rows, places, axis=1)
        grads = jax.vmap(jax.grad(loss))(policies, own, shares)
        updates, opt = adam.update(grads, opt)
        return optax.apply_updates(policies, updates), opt

    carry = jax.lax.fori_loop(first, last, step, carry)
    return carry, jax.vmap(mean)(carry[0], held)


def log_densities(dataset: Dataset, task: Task) -> NDArray[np.float32] | None:
    """Log-density log p(a|s) of the rows of `transitions` in the task's actions, (N,); None: not recorded.

    NaN for an action at a bound, where the density of a squashed Gaussian has no digits left.
    """
    if dataset.propensity is None:
        return None
    rows = np.flatnonzero(dataset.next_known)
    found = np.log(np.maximum(dataset.propensity[rows], 1e-300))
    if not task.discrete:
        assert task.action_low is not None
        assert task.action_high is not None
        found = found + np.log((task.action_high - task.action_low) / 2.0).sum()
        found[(np.abs(scaled_actions(dataset.actions[rows], task)) > 0.998).any(axis=1)] = np.nan
    return found.astype(np.float32)


def one_of(policies: PolicyNetwork, index: int) -> PolicyNetwork:
    """Policy `index` of many."""
    found: PolicyNetwork = jax.tree.map(lambda leaf: leaf[index], policies)
    return found


def log_likelihoods(task: Task, policies: PolicyNetwork, obs: Array, actions: Array) -> NDArray[np.float64]:
    """The log-likelihood log pi_p(a|s) of every row under every policy, shape (rows, P)."""
    size = 16_384
    parts = [
        _block(policies, actions_of(task), obs[i : i + size], actions[i : i + size])
        for i in range(0, len(obs), size)
    ]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


@eqx.filter_jit
def _block(policies: PolicyNetwork, discrete: int | None, obs: Array, actions: Array) -> Array:
    return jax.vmap(lambda policy: _likelihood(policy, discrete, obs, actions))(policies).T
