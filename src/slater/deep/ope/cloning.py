"""Many clones at once: policies that imitate the rows of a log that are theirs.

    maximise  E_{rows of p}[log pi_p(a|s)]      for policies p = 1..P

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

from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task

__all__ = ["CloneSettings", "clone_many", "drawn_rows", "log_likelihoods", "one_of"]

#: rows that judge a policy while it is trained
HELD_ROWS = 4096
#: range of the log standard deviation of a clone's actions before the tanh
CLONE_LOG_STD = (-5.0, -0.5)


@dataclass(frozen=True)
class CloneSettings:
    """How clones are trained; equal settings on equal rows give the same bits."""

    steps: int = 8_000
    """iterations"""
    chunk: int = 1_000
    """iterations between looks at the held-out likelihood"""
    batch_size: int = 128
    """rows per policy and iteration"""
    learning_rate: float = 1e-3
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
    task: Task, obs: Array, actions: Array, rows: Array, held: Array, settings: CloneSettings
) -> tuple[PolicyNetwork, NDArray[np.float64]]:
    """P policies (leaves with an axis P first), and the best mean held-out log-likelihood of each, (P,).

    obs, actions: all rows in the task's units, on the device; rows: (P, n) numbers of the rows that train
    each policy; held: (P, m) of those that judge it.
    """
    count = rows.shape[0]
    key_start, key_run = jax.random.split(jax.random.key(settings.seed))
    policies = jax.vmap(lambda k: make_policy(task, settings.hidden, k, CLONE_LOG_STD))(
        jax.random.split(key_start, count)
    )

    data, carry = (obs, actions, rows, held), (policies, _adam(settings).init(policies))
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
    obs, actions, rows, held = data
    adam = _adam(settings)

    def mean(policy: PolicyNetwork, own: Array) -> Array:
        return jnp.mean(_likelihood(policy, discrete, obs[own], actions[own]))

    def step(index: Array, carry: Any) -> Any:
        policies, opt = carry
        shape = (rows.shape[0], settings.batch_size)
        places = jax.random.randint(jax.random.fold_in(key, index), shape, 0, rows.shape[1])
        own = jnp.take_along_axis(rows, places, axis=1)
        grads = jax.vmap(jax.grad(lambda policy, own: -mean(policy, own)))(policies, own)
        updates, opt = adam.update(grads, opt)
        return optax.apply_updates(policies, updates), opt

    carry = jax.lax.fori_loop(first, last, step, carry)
    return carry, jax.vmap(mean)(carry[0], held)


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
