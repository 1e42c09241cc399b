"""Policies that stay with the data: advantage-weighted clones over a grid of multipliers.

    Q_U(s, a, t) and V_U(s, t)  regressed on what followed each row in its episode, U = reward, costs
    weight of a row             exp((A_R / sigma_R - lambda sum_i A_Ci / sigma_Ci) / temperature), at most 20

with A = Q - V, and sigma the root mean square of A over the rows. No network is asked about actions that
nobody took. The advantages are *regressed*: what followed a single row is partly luck, and a filter on
realised costs keeps the rows that were lucky (`slater.deep.algorithms.pdca.fallback`); the mean over rows
alike is not. Sums are over the rest of the episode, as far as the limit looks, with the time as an input;
after an early end the rest is 0, which the critics know from its state and do not take for safety before
it. Each multiplier gives one policy, from the best reward (0) to the least cost (infinity): cheap columns
for the linear program that no limit has shaped, so one training serves all limits.
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
from slater.deep.batches import transitions
from slater.deep.game.primal import MOST_WEIGHT
from slater.deep.nets.mlp import MLP
from slater.deep.ope.ensemble import rollout_length
from slater.deep.ope.model import counts_episodes
from slater.deep.task import Task, raw_utilities

__all__ = ["InSampleSettings", "advantages", "row_weights"]

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class InSampleSettings:
    """How the critics are regressed, and which policies are made of them."""

    multipliers: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, float("inf"))
    """lambda of each policy, between advantages of unit size"""
    temperature: float = 0.5
    """of the weights"""
    steps: int = 3_000
    """iterations of the critics' regression"""
    batch_size: int = 256
    """rows per iteration"""
    learning_rate: float = 1e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of a critic"""
    seed: int = 0
    """of weights and minibatches"""


def to_go(dataset: Dataset, task: Task) -> tuple[F64, F64]:
    """Sums of scaled utilities over the rest of each row's episode, (N, 1+I), and its time in [0, 1], (N,).

    Over whole episodes where limits count them, else discounted; for the rows of `transitions`.
    """
    from scipy.signal import lfilter

    gamma = 1.0 if counts_episodes(task) else task.gamma
    utilities, table = raw_utilities(dataset) * task.scale, dataset.episodes
    sums, time = np.empty_like(utilities), np.empty(len(utilities))
    for start, stop in zip(table.starts, table.stops, strict=True):
        sums[start:stop] = lfilter([1.0], [1.0, -gamma], utilities[start:stop][::-1], axis=0)[::-1]
        time[start:stop] = np.arange(stop - start)
    known = np.flatnonzero(dataset.next_known)
    return sums[known], time[known] / max(rollout_length(task), 1)


def advantages(dataset: Dataset, task: Task, train: NDArray[Any], settings: InSampleSettings) -> F64:
    """A_U(s, a) = Q_U - V_U of every row, (N, 1+I), in units of its own root mean square over the rows.

    train: (N,) whether the row may train the critics.
    """
    columns = transitions(dataset, task)
    sums, time = to_go(dataset, task)
    goals = jnp.asarray((sums - sums.mean(axis=0)) / np.maximum(sums.std(axis=0), 1e-9), jnp.float32)
    actions = columns["actions"]
    if task.discrete:
        actions = np.eye(task.action_dim, dtype=np.float32)[actions]
    state = jnp.asarray(np.concatenate([columns["obs"], 2.0 * time[:, None] - 1.0], axis=1), jnp.float32)
    both = jnp.concatenate([state, jnp.asarray(actions, jnp.float32)], axis=1)
    rows = jnp.asarray(np.flatnonzero(train))
    key_q, key_v, key_run = jax.random.split(jax.random.key(settings.seed), 3)
    layers = [*settings.hidden, 1 + task.costs]
    start = (MLP([both.shape[1], *layers], key_q), MLP([state.shape[1], *layers], key_v))
    adam = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, max(settings.steps, 1)))

    @eqx.filter_jit
    def fitted(data: tuple[Array, ...]) -> tuple[MLP, MLP]:
        state, both, goals, rows = data

        def loss(critics: tuple[MLP, MLP], own: Array) -> Array:
            errors = (critics[0](both[own]) - goals[own], critics[1](state[own]) - goals[own])
            return jnp.mean(errors[0] ** 2) + jnp.mean(errors[1] ** 2)

        def step(index: Array, carry: Any) -> Any:
            critics, opt = carry
            own = rows[
                jax.random.randint(jax.random.fold_in(key_run, index), (settings.batch_size,), 0, len(rows))
            ]
            updates, opt = adam.update(jax.grad(loss)(critics, own), opt)
            return optax.apply_updates(critics, updates), opt

        end: tuple[MLP, MLP] = jax.lax.fori_loop(0, settings.steps, step, (start, adam.init(start)))[0]
        return end

    q, v = fitted((state, both, goals, rows))
    size = 16_384
    parts = [
        np.asarray(q(both[i : i + size]) - v(state[i : i + size]), np.float64)
        for i in range(0, len(both), size)
    ]
    found = np.concatenate(parts)
    return np.asarray(found / np.maximum(np.sqrt(np.mean(found**2, axis=0)), 1e-9))


def row_weights(found: F64, multiplier: float, temperature: float) -> F64:
    """Weights of the rows, (N,), at most 20, from their `advantages`; an infinite multiplier: costs alone."""
    costs = found[:, 1:].sum(axis=1)
    gain = -costs if np.isinf(multiplier) else (found[:, 0] - multiplier * costs) / (1.0 + multiplier)
    return np.exp(np.minimum(gain / temperature, np.log(MOST_WEIGHT)))
