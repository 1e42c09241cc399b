"""The data as it lies on the device, in the units of a task, and minibatches of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.data.episodes import LEAST_LIVED
from slater.deep.task import Task, normalised, raw_utilities, scaled_actions, state_task
from slater.limits import Limit

F64 = NDArray[np.float64]


class Data(NamedTuple):
    """The dataset on the device (N transitions, E episodes, scaled and normalised).

    utilities: (N, 1+I) reward, then costs; discount: (N,) gamma, or 0 after a terminal
    returns: (N, 1+I) discounted sums from this row to the end of its episode; after a timeout the rest is
        guessed to continue at the episode's mean rate (see `_returns`). A warm start
        uses them.
    time: (N,) steps of its episode before this row; to_go: (N, 1+I) plain sums from this row to the last one
        of its episode. Critics that know the time use both.
    initial: (E, obs_dim) first observations
    """

    obs: Array
    actions: Array
    utilities: Array
    discount: Array
    next_obs: Array
    returns: Array
    time: Array
    to_go: Array
    initial: Array


class Batch(NamedTuple):
    """A minibatch D_mini in the paper's letters: s, a (as a *choice*, see networks), u, gamma, s', s0.

    returns, time, to_go: as in `Data`
    """

    s: Array
    a: Array
    u: Array
    discount: Array
    s_next: Array
    returns: Array
    time: Array
    to_go: Array
    s0: Array


def draw(data: Data, task: Task, key: Array, size: int) -> Batch:
    """A minibatch of `size` transitions and `size` first observations, uniform with replacement."""
    key_rows, key_initial = jax.random.split(key)
    rows = jax.random.randint(key_rows, (size,), 0, data.obs.shape[0])
    first = jax.random.randint(key_initial, (size,), 0, data.initial.shape[0])
    actions = data.actions[rows]
    return Batch(
        s=data.obs[rows],
        a=jax.nn.one_hot(actions, task.action_dim) if task.discrete else actions,
        u=data.utilities[rows],
        discount=data.discount[rows],
        s_next=data.next_obs[rows],
        returns=data.returns[rows],
        time=data.time[rows],
        to_go=data.to_go[rows],
        s0=data.initial[first],
    )


class DrawKeys(NamedTuple):
    """Keys for what a policy chooses at the s, s' and s0 of one iteration's minibatch."""

    s: Array
    s_next: Array
    s0: Array


def draw_keys(key: Array) -> DrawKeys:
    """From an iteration's key: every part of an algorithm that asks here sees the same choices."""
    return DrawKeys(*jax.random.split(key, 3))


def prepare(
    dataset: Dataset,
    limits: tuple[Limit, ...],
    gamma: float,
    *,
    normalise_observations: bool = True,
    reward_scale: float | None = None,
) -> tuple[Task, Data]:
    """The problem and its data on the device; `limits` one per cost, in the data's order.

    reward_scale: factor on rewards; None scales the 99.9th percentile of their size to 1. Costs are
    always divided by their largest value, so that multipliers mean the same everywhere.
    """
    task = state_task(
        dataset, limits, gamma, normalise_observations=normalise_observations, reward_scale=reward_scale
    )
    return task, on_device(dataset, task)


def on_device(dataset: Dataset, task: Task) -> Data:
    """The dataset in the units of `task`, which may have been stated for other data of the same task."""
    columns = {name: jnp.asarray(column) for name, column in transitions(dataset, task).items()}
    return Data(**columns, initial=jnp.asarray(normalised(dataset.initial_observations, task)))


def transitions(dataset: Dataset, task: Task) -> dict[str, NDArray[Any]]:
    """The columns of `Data` but `initial`, on the host: every row whose next observation is known."""
    rows = np.flatnonzero(dataset.next_known)
    utilities = raw_utilities(dataset) * task.scale
    return {
        "obs": normalised(dataset.observations[rows], task),
        "actions": scaled_actions(dataset.actions[rows], task),
        "utilities": utilities[rows].astype(np.float32),
        "discount": (task.gamma * (1.0 - dataset.terminals[rows])).astype(np.float32),
        "next_obs": normalised(dataset.next_observations[rows], task),
        "returns": _returns(dataset, utilities, task)[rows].astype(np.float32),
        "time": _times(dataset)[rows].astype(np.float32),
        "to_go": _to_go(dataset, utilities)[rows].astype(np.float32),
    }


def _times(dataset: Dataset) -> F64:
    """Steps of its episode before each row."""
    table = dataset.episodes
    return np.asarray(np.arange(table.stops[-1]) - np.repeat(table.starts, table.lengths), dtype=np.float64)


def _to_go(dataset: Dataset, utilities: F64) -> F64:
    """Plain sums from each row to the last one of its episode."""
    table = dataset.episodes
    before = np.cumsum(utilities, axis=0) - utilities
    total = before[table.stops - 1] + utilities[table.stops - 1]
    return np.asarray(np.repeat(total, table.lengths, axis=0) - before)


def _returns(dataset: Dataset, utilities: F64, task: Task) -> F64:
    """Discounted sums to the end of each row's episode, continued past a timeout at the episode's mean rate.

    An episode that was cut off before half the horizon says too little of its rate: it is continued at the
    mean rate of the data.
    """
    from scipy.signal import lfilter

    gamma = task.gamma
    # a part of the data may hold no full episode; the task knows the horizon of the whole
    episodes = replace(dataset.episodes, stated_horizon=task.units.horizon)
    short = episodes.cut_off & (episodes.lengths < LEAST_LIVED * episodes.horizon)
    typical = utilities.mean(axis=0)
    returns = np.empty_like(utilities)
    table = zip(episodes.starts, episodes.stops, episodes.terminated, short, strict=True)
    for start, stop, terminated, too_short in table:
        part = utilities[start:stop]
        # y[t] = u[t] + gamma y[t+1]: a one-pole filter over reversed time
        sums = lfilter([1.0], [1.0, -gamma], part[::-1], axis=0)[::-1]
        if not terminated:
            left = np.arange(stop - start, 0, -1)[:, None]
            rate = typical if too_short else part.mean(axis=0)
            sums = sums + gamma**left * rate / (1 - gamma)
        returns[start:stop] = sums
    return returns
