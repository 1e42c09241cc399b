"""Policies that stay with the data: advantage-weighted clones over directions of reward and costs.

A direction w gives the objective U = w_0 R / sigma_R - sum_i w_i C_i / sigma_Ci. Its in-sample critics are
those of implicit Q-learning (and of CAPS) for sums up to the horizon, with the time as an input:

    V(s, t)         the expectile of Q(s, a, t) over the log's actions
    Q(s, a, t)      regressed on U of the next `lookahead` rows and V after them
    weight of a row exp(A / temperature), A = Q - V in units of its root mean square, at most 20

No network is asked about actions that nobody took. U is what the log model expects at each row, not what
happened: the luck of single rows, in which rare costs drown, is no reason to repeat an action. The weighted
clones are trained beside those of the behaviours; none of it knows a limit.
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

from slater.deep.compiled import quick_key
from slater.deep.nets.mlp import MLP

__all__ = ["InSampleSettings", "advantages", "directions", "row_weights"]

F64 = NDArray[np.float64]
#: rate of the target network of Q, per iteration
POLYAK = 0.01
#: largest weight of a row
MOST_WEIGHT = 20.0


@dataclass(frozen=True)
class InSampleSettings:
    """How critics are regressed."""

    epochs: float = 40.0
    """times that every row is seen, within `steps`"""
    steps: tuple[int, int] = (1_000, 2_000)
    """iterations at least and at most"""
    batch_size: int = 256
    """rows per iteration"""
    learning_rate: float = 2e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of a critic"""
    expectile: float = 0.8
    """of Q that V is"""
    lookahead: int = 20
    """rows from which Q looks at V; fewer see less far in the same iterations"""
    seed: int = 0
    """of weights and minibatches"""


def directions(costs: int) -> F64:
    """Directions (L, 1+I) of reward and costs: reward alone; reward and costs; costs alone; each row sums to
    1.
    """
    mixes = [np.eye(costs)[i] for i in range(costs)] + ([np.full(costs, 1.0 / costs)] if costs > 1 else [])
    found = [np.append(1.0, np.zeros(costs))]
    for multiplier in (0.5, 1.0, 2.0):
        found += [np.append(1.0, multiplier * mix) / (1.0 + multiplier) for mix in mixes]
    found += [np.append(0.0, mix) for mix in mixes]
    return np.array(found)


def row_weights(advantage: F64, temperature: float) -> F64:
    """Weights of the rows, (N,), at most 20 times the mean advantage's, from advantages of unit size,
    (N,).
    """
    return np.asarray(np.exp(np.minimum(advantage / temperature, np.log(MOST_WEIGHT))))


def advantages(
    obs: NDArray[Any], actions: NDArray[Any], utilities: F64, lengths: NDArray[np.int64], horizon: int,
    goes_on: NDArray[np.bool_], next_obs: NDArray[Any], train: NDArray[np.bool_], ways: F64,
    settings: InSampleSettings, gamma: float = 1.0,
) -> F64:  # fmt: skip
    """A of every row for every direction, (N, L), of unit size.

    Rows are grouped in episodes of `lengths`; utilities: (N, 1+I) as expected; goes_on: (N,) whether what
    follows the row counts though it is not in the log; ways: (L, 1+I) directions; train: (N,)
    """
    time = np.arange(len(obs)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rest = _to_go(utilities, lengths, gamma)
    size = np.maximum(rest.std(axis=0), 1e-9)
    sign = np.append(1.0, -np.ones(utilities.shape[1] - 1))
    values = utilities / size * sign @ ways.T
    near, after, discount, spent = _ahead(values, lengths, goes_on, settings.lookahead, gamma)

    def phase(time: NDArray[np.int64]) -> F64:
        return np.asarray(2.0 * time / max(horizon, 1) - 1.0)[:, None]

    state = jnp.asarray(np.concatenate([obs, phase(time)], axis=1), jnp.float32)
    both = jnp.concatenate([state, jnp.asarray(actions, jnp.float32)], axis=1)
    seen = jnp.asarray(np.concatenate([next_obs[after], phase(time + spent)], axis=1), jnp.float32)
    steps = int(np.clip(settings.epochs * train.sum() / settings.batch_size, *settings.steps))
    rows = jnp.asarray(np.flatnonzero(train))
    arrays = (jnp.asarray(near, jnp.float32), seen, jnp.asarray(discount, jnp.float32), rows)
    q, v = _critics((state, both, *arrays), len(ways), steps, settings)
    block = 16_384
    parts = [
        np.asarray(q(both[i : i + block]) - v(state[i : i + block]), np.float64)
        for i in range(0, len(obs), block)
    ]
    found = np.concatenate(parts)
    return np.asarray(found / np.maximum(np.sqrt(np.mean(found**2, axis=0)), 1e-9))


def _to_go(values: F64, lengths: NDArray[np.int64], gamma: float) -> F64:
    """Of every row, the discounted sum of `values`, (rows, n), over the rest of its episode."""
    from scipy.signal import lfilter

    sums, start = np.empty_like(values), 0
    for length in lengths:
        part = values[start : start + length]
        sums[start : start + length] = lfilter([1.0], [1.0, -gamma], part[::-1], axis=0)[::-1]
        start += length
    return sums


def _ahead(
    values: F64, lengths: NDArray[np.int64], goes_on: NDArray[np.bool_], lookahead: int, gamma: float
) -> tuple[F64, NDArray[np.int64], F64, NDArray[np.int64]]:
    """Of every row: the sum of `values` over the next rows, (N, L); the last of them, (N,), after which V
    looks on; its discount there, (N,), 0 where the episode is over; how many rows they are, (N,).
    """
    stop = np.repeat(np.cumsum(lengths), lengths)
    last = np.minimum(np.arange(len(values)) + lookahead, stop) - 1
    rest = np.concatenate([_to_go(values, lengths, gamma), np.zeros((1, values.shape[1]))])
    spent = last + 1 - np.arange(len(values))
    inside = last + 1 < stop
    beyond = np.where(inside[:, None], rest[last + 1], 0.0)
    discount = np.where(inside | goes_on[last], gamma**spent, 0.0)
    return rest[:-1] - (gamma**spent)[:, None] * beyond, last, discount, spent


def _critics(
    data: tuple[Array, ...], outputs: int, steps: int, settings: InSampleSettings
) -> tuple[MLP, MLP]:
    key_run, rng = quick_key(settings.seed), np.random.default_rng(settings.seed)
    state, both = data[0], data[1]
    layers = [*settings.hidden, outputs]
    start = (MLP([both.shape[1], *layers], rng), MLP([state.shape[1], *layers], rng))
    adam = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, steps))

    @eqx.filter_jit
    def fitted(data: tuple[Array, ...], start: Any) -> tuple[MLP, MLP]:
        state, both, near, after, discount, rows = data

        def loss(critics: tuple[MLP, MLP], target: MLP, own: Array) -> Array:
            q, v = critics
            goal = near[own] + discount[own, None] * v(after[own])
            above = target(both[own]) - v(state[own])
            share = jnp.where(above > 0, settings.expectile, 1.0 - settings.expectile)
            return jnp.mean((q(both[own]) - jax.lax.stop_gradient(goal)) ** 2) + jnp.mean(share * above**2)

        def step(index: Array, carry: Any) -> Any:
            critics, target, opt = carry
            places = jax.random.randint(
                jax.random.fold_in(key_run, index), (settings.batch_size,), 0, len(rows)
            )
            updates, opt = adam.update(jax.grad(loss)(critics, target, rows[places]), opt)
            critics = optax.apply_updates(critics, updates)
            return critics, optax.incremental_update(critics[0], target, POLYAK), opt

        end: tuple[MLP, MLP] = jax.lax.fori_loop(0, steps, step, (start, start[0], adam.init(start)))[0]
        return end

    return fitted(data, start)
