"""Sums up to the horizon T of an episode, which is where a limit on episodes stops to look:

    f(s, t, a) = E[U_t + ... + U_{T-1}] / (T (1 - gamma))

not discounted, nothing after step T - 1, and in the unit of `task.tau`: what f says of a first state is J.
The time, t / T in [-1, 1], is one more entry of the observation.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from slater.deep.batches import Batch
from slater.deep.task import Task
from slater.errors import InputError

__all__ = ["horizon_of", "time_entry", "timed_task", "with_time"]


def horizon_of(task: Task) -> int:
    """T, the steps of a full episode; refused where none is known."""
    if task.units.horizon is None:
        raise InputError("timed critics need the number of steps of an episode: a horizon of the data.")
    return task.units.horizon


def timed_task(task: Task) -> Task:
    """The task with one entry more in its observations."""
    return replace(task, obs_dim=task.obs_dim + 1)


def with_time(task: Task, batch: Batch) -> Batch:
    """The minibatch with the time in its states, and a discount of 1, or 0 where the episode is over."""
    horizon = horizon_of(task)
    unit = 1.0 / (horizon * (1.0 - task.gamma))
    lives = (batch.discount > 0) & (batch.time < horizon - 1)
    return batch._replace(
        s=jnp.concatenate([batch.s, time_entry(task, batch.time)], axis=-1),
        s_next=jnp.concatenate([batch.s_next, time_entry(task, batch.time + 1.0)], axis=-1),
        u=batch.u * unit, returns=batch.to_go * unit, discount=lives.astype(batch.discount.dtype),
    )  # fmt: skip


def time_entry(task: Task, time: Array) -> Array:
    """Steps as an entry of an observation, (batch, 1): -1 at the start of an episode, 1 at its horizon."""
    return 2.0 * time[:, None] / horizon_of(task) - 1.0
