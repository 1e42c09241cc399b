"""Many clones at once: policies that imitate rows of a log, each row as often as its weight says.

    maximise  E_{rows of p}[log pi_p(a|s)]      for policies p = 1..P

A behaviour's clone has the rows of its episodes alike; an advantage-weighted policy has all rows by weight. A
policy is kept as it was when the likelihood of its held-out rows was best. Continuous actions are drawn from
a mixture of Gaussians: where operators act in two modes, their mean may be what nobody does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.compiled import quick_key
from slater.deep.log_model.dynamics import better_of, cosine
from slater.deep.nets.mlp import stacked
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task

__all__ = ["CLONE_LOG_STD", "CloneSettings", "clone_many", "drawn_rows", "log_likelihoods", "one_of"]

Tick = Callable[[str, int, int], None]
#: range of the log standard deviation of a clone's actions before the tanh
CLONE_LOG_STD = (-5.0, 1.0)
#: rows that stop a policy's training
HELD_ROWS = 4_096
#: looks at held-out rows during training
LOOKS = 8


@dataclass(frozen=True)
class CloneSettings:
    """How clones are trained; equal settings on equal rows give the same bits."""

    epochs: float = 40.0
    """times that every row is seen, within `steps`"""
    steps: tuple[int, int] = (1_000, 2_400)
    """iterations at least and at most"""
    batch_size: int = 128
    """rows per policy and iteration"""
    learning_rate: float = 2e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of a policy"""
    components: int = 5
    """Gaussians that continuous actions are drawn from"""
    seed: int = 0
    """of the initial weights and the minibatches"""


def drawn_rows(
    rows: NDArray[Any], count: int, seed: int, weights: NDArray[Any] | None = None
) -> NDArray[np.int32]:
    """`count` of the given rows, each about as often as its weight says."""
    rng = np.random.default_rng(seed)
    chance = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    # systematic resampling: a row of expected count m is taken floor(m) or ceil(m) times
    edges = np.cumsum(chance / chance.sum())
    places = (np.arange(count) + rng.random()) / count
    order = rng.permutation(len(rows)) if weights is None else np.arange(len(rows))
    return rows[order[np.minimum(np.searchsorted(edges, places), len(rows) - 1)]].astype(np.int32)


def clone_many(
    task: Task, obs: Array, actions: Array, rows: Array, held: Array, settings: CloneSettings,
    tick: Tick | None = None,
) -> tuple[PolicyNetwork, NDArray[np.float64]]:  # fmt: skip
    """P policies (leaves with an axis P first), and the best mean held-out log-likelihood of each, (P,).

    obs, actions: all rows in the task's units, actions one-hot if discrete; rows: (P, n) numbers of the rows
    that train each policy; held: (P, m) of those that stop it
    """
    count = rows.shape[0]
    steps = int(np.clip(settings.epochs * rows.shape[1] / settings.batch_size, *settings.steps))
    stretch = -(-steps // LOOKS)
    policies, key_run = random_policies(task, settings, count), quick_key(settings.seed)
    carry, kept, best = (policies, optax.scale_by_adam().init(policies)), policies, np.full(count, -np.inf)
    for look in range(LOOKS):
        places = jnp.asarray([look * stretch, (look + 1) * stretch, LOOKS * stretch])
        carry, found = _advance(
            settings.batch_size, settings.learning_rate, (obs, actions, rows, held), carry, key_run, places
        )
        values = np.nan_to_num(np.asarray(found, np.float64), nan=-np.inf)
        gains = jnp.asarray(values > best)
        kept = better_of(gains, carry[0], kept)
        best = np.maximum(best, values)
        if tick is not None:
            tick("imitations of the log", (look + 1) * stretch, LOOKS * stretch)
    return kept, best


def random_policies(task: Task, settings: CloneSettings, count: int) -> PolicyNetwork:
    """`count` policies at random, leaves with an axis first."""
    hidden, components = settings.hidden, settings.components
    return stacked(
        lambda rng: make_policy(task, hidden, rng, CLONE_LOG_STD, components), count, settings.seed
    )


@eqx.filter_jit
def _advance(
    batch_size: int, learning_rate: float, data: tuple[Array, ...], carry: Any, key: Array, places: Array
) -> tuple[Any, Array]:
    """Iterations places[0] to places[1] of places[2], and the mean held-out log-likelihood after them, (P,).

    Of the settings only what the code depends on: clones of another seed are not compiled again.
    """
    obs, actions, rows, held = data
    adam = optax.scale_by_adam()

    def gradient(policy: PolicyNetwork, own: Array) -> PolicyNetwork:
        return jax.grad(lambda p: -jnp.mean(p.log_prob(obs[own], actions[own])))(policy)

    def step(index: Array, carry: Any) -> Any:
        policies, opt = carry
        shape = (rows.shape[0], batch_size)
        drawn = jax.random.randint(jax.random.fold_in(key, index), shape, 0, rows.shape[1])
        grads = jax.vmap(gradient)(policies, jnp.take_along_axis(rows, drawn, axis=1))
        updates, opt = adam.update(grads, opt)
        rate = -learning_rate * cosine(index, places[2])
        return jax.tree.map(lambda p, u: p + rate * u, policies, updates), opt

    carry = jax.lax.fori_loop(places[0], places[1], step, carry)
    return carry, jax.vmap(lambda p, own: jnp.mean(p.log_prob(obs[own], actions[own])))(carry[0], held)


def one_of(policies: PolicyNetwork, index: int) -> PolicyNetwork:
    """Policy `index` of many."""
    found: PolicyNetwork = jax.tree.map(lambda leaf: leaf[index], policies)
    return found


def log_likelihoods(policies: PolicyNetwork, obs: Array, actions: Array) -> NDArray[np.float64]:
    """The log-likelihood log pi_p(a|s) of every row under every policy, (rows, P)."""
    size = 16_384
    parts = [_block(policies, obs[i : i + size], actions[i : i + size]) for i in range(0, len(obs), size)]
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


@eqx.filter_jit
def _block(policies: PolicyNetwork, obs: Array, actions: Array) -> Array:
    found: Array = jax.vmap(lambda policy: policy.log_prob(obs, actions))(policies)
    return found.T
