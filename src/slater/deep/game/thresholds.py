"""Limits of a problem in the unit and with the mask that an estimate has, for costs as they are scaled.

`task.tau` is this for critics that bootstrap through timeouts. Released code of the rivals stops at
timeouts, so that its thresholds are those of episodes of T steps, and sometimes has the unit wrong.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from slater.deep.task import Task
from slater.limits import Limit, Quantity

__all__ = ["thresholds"]


def thresholds(task: Task, to: Quantity = "discounted", *, stop_at_timeouts: bool = False) -> Array:
    """The limits, shape (I,), in the unit `to`, times the scale of each cost.

    stop_at_timeouts: nothing follows a timeout, so that a discounted sum has T terms. What a user calls
    discounted is the endless sum, so every limit is read as the rate per step that it allows.
    """
    rates = [Limit.per_step(task.units.per_step(limit)) for limit in task.limits]
    units = replace(task.units, bootstrap_timeouts=not stop_at_timeouts)
    return jnp.asarray(units.thresholds(rates, to) * task.scale[1:], dtype=jnp.float32)
