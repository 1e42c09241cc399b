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

Such critics value what the log's policies did after a row. With an `expectile`, critics of each multiplier's
own objective U = R / sigma_R - lambda sum_i C_i / sigma_Ci value what could be done after it by actions of
the log, the in-sample critics of implicit Q-learning (and of CAPS) for sums up to the horizon:

    V(s, t)     the expectile of Q(s, a, t) over the log's actions
    Q(s, a, t)  regressed on U of the next `lookahead` rows and V after them
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
from slater.deep.candidates.in_sample import MOST_WEIGHT
from slater.deep.nets.mlp import MLP
from slater.deep.task import Task, counts_episodes, raw_utilities, rollout_length

__all__ = ["InSampleSettings", "gains", "row_weights"]

F64 = NDArray[np.float64]
#: rate of the target network of Q, per iteration
POLYAK = 0.01


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
    expectile: float | None = None
    """of Q that V is, in (0, 1); None: both are regressed on what followed"""
    lookahead: int = 20
    """rows from which Q with an expectile looks at V; fewer see less far in the same iterations"""


def to_go(dataset: Dataset, task: Task) -> tuple[F64, F64]:
    """Sums of scaled utilities over the rest of each row's episode, (N, 1+I), and its time in [0, 1], (N,).

    Over whole episodes where limits count them, else discounted; for the rows of `transitions`.
    """
    gamma = 1.0 if counts_episodes(task) else task.gamma
    sums, time = _summed(dataset, raw_utilities(dataset) * task.scale, gamma), _steps(dataset)
    known = np.flatnonzero(dataset.next_known)
    return sums[known], time[known] / max(rollout_length(task), 1)


def _summed(dataset: Dataset, values: F64, gamma: float) -> F64:
    """Of every row, the discounted sum of `values`, (rows, n), over the rest of its episode."""
    from scipy.signal import lfilter

    sums, table = np.empty_like(values), dataset.episodes
    for start, stop in zip(table.starts, table.stops, strict=True):
        sums[start:stop] = lfilter([1.0], [1.0, -gamma], values[start:stop][::-1], axis=0)[::-1]
    return sums


def _steps(dataset: Dataset) -> NDArray[np.int64]:
    """The place of every row in its episode, from 0."""
    table = dataset.episodes
    return np.asarray(np.arange(int(table.lengths.sum())) - np.repeat(table.starts, table.lengths))


def gains(dataset: Dataset, task: Task, train: NDArray[Any], settings: InSampleSettings) -> F64:
    """What each row's action gains over the log's mean one, for every multiplier, (N, L), of unit size.

    train: (N,) whether the row may train the critics.
    """
    inputs = _inputs(dataset, task)
    rows = jnp.asarray(np.flatnonzero(train))
    if settings.expectile is not None:
        return _in_units(_differences(*_expectile_critics(dataset, task, inputs, rows, settings), inputs))
    found = _in_units(_differences(*_regressed_critics(dataset, task, inputs, rows, settings), inputs))
    return np.stack([_weighed(found, multiplier) for multiplier in settings.multipliers], axis=1)


def row_weights(found: F64, temperature: float) -> F64:
    """Weights of the rows, (N,), at most 20, from their `gains` for one multiplier, (N,)."""
    return np.exp(np.minimum(found / temperature, np.log(MOST_WEIGHT)))


def _weighed(utilities: F64, multiplier: float) -> F64:
    """R - lambda sum_i C_i of rows, (N,), from (N, 1+I); an infinite multiplier: costs alone."""
    costs = utilities[:, 1:].sum(axis=1)
    return -costs if np.isinf(multiplier) else (utilities[:, 0] - multiplier * costs) / (1.0 + multiplier)


def _inputs(dataset: Dataset, task: Task) -> tuple[Array, Array]:
    """What V and Q see of every row of `transitions`: (N, s + 1) with the time, (N, s + 1 + a)."""
    columns, (_, time) = transitions(dataset, task), to_go(dataset, task)
    actions = columns["actions"]
    if task.discrete:
        actions = np.eye(task.action_dim, dtype=np.float32)[actions]
    state = jnp.asarray(np.concatenate([columns["obs"], 2.0 * time[:, None] - 1.0], axis=1), jnp.float32)
    return state, jnp.concatenate([state, jnp.asarray(actions, jnp.float32)], axis=1)


def _start(settings: InSampleSettings, inputs: tuple[Array, Array], outputs: int) -> Any:
    """Networks (Q, V) at random, the key of the minibatches, and Adam."""
    key_q, key_v, key_run = jax.random.split(jax.random.key(settings.seed), 3)
    state, both = inputs
    layers = [*settings.hidden, outputs]
    networks = (MLP([both.shape[1], *layers], key_q), MLP([state.shape[1], *layers], key_v))
    adam = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, max(settings.steps, 1)))
    return networks, key_run, adam


def _drawn(rows: Array, key: Array, index: Array, settings: InSampleSettings) -> Array:
    return rows[jax.random.randint(jax.random.fold_in(key, index), (settings.batch_size,), 0, len(rows))]


def _regressed_critics(
    dataset: Dataset, task: Task, inputs: tuple[Array, Array], rows: Array, settings: InSampleSettings
) -> tuple[MLP, MLP]:
    """Q and V of every utility, by what followed in the log."""
    sums, _ = to_go(dataset, task)
    goals = jnp.asarray((sums - sums.mean(axis=0)) / np.maximum(sums.std(axis=0), 1e-9), jnp.float32)
    start, key_run, adam = _start(settings, inputs, 1 + task.costs)

    @eqx.filter_jit
    def fitted(data: tuple[Array, ...]) -> tuple[MLP, MLP]:
        state, both, goals, rows = data

        def loss(critics: tuple[MLP, MLP], own: Array) -> Array:
            errors = (critics[0](both[own]) - goals[own], critics[1](state[own]) - goals[own])
            return jnp.mean(errors[0] ** 2) + jnp.mean(errors[1] ** 2)

        def step(index: Array, carry: Any) -> Any:
            critics, opt = carry
            own = _drawn(rows, key_run, index, settings)
            updates, opt = adam.update(jax.grad(loss)(critics, own), opt)
            return optax.apply_updates(critics, updates), opt

        end: tuple[MLP, MLP] = jax.lax.fori_loop(0, settings.steps, step, (start, adam.init(start)))[0]
        return end

    return fitted((*inputs, goals, rows))


def _ahead(dataset: Dataset, task: Task, settings: InSampleSettings) -> tuple[F64, NDArray[np.float32], F64]:
    """Of every row of `transitions`: U of the next `lookahead` rows for each multiplier, (N, L); what V sees
    after them, (N, s + 1); and its discount there, (N,), 0 where the episode is over.
    """
    sums, _ = to_go(dataset, task)
    units = raw_utilities(dataset) * task.scale / np.maximum(sums.std(axis=0), 1e-9)
    values = np.stack([_weighed(units, multiplier) for multiplier in settings.multipliers], axis=1)
    whole, table = counts_episodes(task), dataset.episodes
    gamma = 1.0 if whole else task.gamma
    stop = np.repeat(table.stops, table.lengths)
    last = np.minimum(np.arange(len(values)) + settings.lookahead, stop) - 1
    # sums over windows as differences of sums to go
    rest = np.concatenate([_summed(dataset, values, gamma), np.zeros((1, values.shape[1]))])
    steps = last + 1 - np.arange(len(values))
    beyond = np.where((last + 1 < stop)[:, None], rest[last + 1], 0.0)
    known = np.flatnonzero(dataset.next_known)
    of_row = np.full(len(values), -1)
    of_row[known] = np.arange(len(known))
    goes_on = dataset.next_known[last] & ~dataset.terminals[last] & ~((last + 1 == stop) & whole)
    after = transitions(dataset, task)["next_obs"][of_row[np.where(goes_on, last, known[0])]]
    time = 2.0 * (_steps(dataset) + steps) / max(rollout_length(task), 1) - 1.0
    seen = np.concatenate([after, time[:, None]], axis=1).astype(np.float32)
    discount = np.where(goes_on, gamma**steps, 0.0)
    return (rest[:-1] - (gamma**steps)[:, None] * beyond)[known], seen[known], discount[known]


def _expectile_critics(
    dataset: Dataset, task: Task, inputs: tuple[Array, Array], rows: Array, settings: InSampleSettings
) -> tuple[MLP, MLP]:
    """Q and V of every multiplier's objective, by what actions of the log could do."""
    assert settings.expectile is not None
    high = settings.expectile
    ahead = tuple(jnp.asarray(x, jnp.float32) for x in _ahead(dataset, task, settings))
    start, key_run, adam = _start(settings, inputs, len(settings.multipliers))

    @eqx.filter_jit
    def fitted(data: tuple[Array, ...]) -> tuple[MLP, MLP]:
        state, both, near, after, discount, rows = data

        def loss(critics: tuple[MLP, MLP], target: MLP, own: Array) -> Array:
            q, v = critics
            goal = near[own] + discount[own, None] * v(after[own])
            above = target(both[own]) - v(state[own])
            share = jnp.where(above > 0, high, 1.0 - high)
            return jnp.mean((q(both[own]) - jax.lax.stop_gradient(goal)) ** 2) + jnp.mean(share * above**2)

        def step(index: Array, carry: Any) -> Any:
            critics, target, opt = carry
            own = _drawn(rows, key_run, index, settings)
            updates, opt = adam.update(jax.grad(loss)(critics, target, own), opt)
            critics = optax.apply_updates(critics, updates)
            return critics, optax.incremental_update(critics[0], target, POLYAK), opt

        carry = (start, start[0], adam.init(start))
        end: tuple[MLP, MLP] = jax.lax.fori_loop(0, settings.steps, step, carry)[0]
        return end

    return fitted((*inputs, *ahead, rows))


def _differences(q: MLP, v: MLP, inputs: tuple[Array, Array]) -> F64:
    """Q - V of every row."""
    (state, both), size = inputs, 16_384
    parts = [
        np.asarray(q(both[i : i + size]) - v(state[i : i + size]), np.float64)
        for i in range(0, len(both), size)
    ]
    return np.concatenate(parts)


def _in_units(found: F64) -> F64:
    """Columns divided by their root mean squares."""
    return np.asarray(found / np.maximum(np.sqrt(np.mean(found**2, axis=0)), 1e-9))
