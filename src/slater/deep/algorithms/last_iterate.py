"""Algorithms whose answer is the policy at the end of training, not a mixture of what came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.deep.algorithms.base import Algorithm, ConfigT, Member, State
from slater.deep.nets.policy import Exportable, PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.task import Task

__all__ = ["LastIterate"]


class LastIterate(Algorithm[ConfigT, State]):
    """Members are kept at the interval, and the last policy too; the mixture is the last policy alone."""

    acts_likeliest: ClassVar[bool] = True

    def keeps(self, done: int) -> bool:
        """At the interval and at the end."""
        return super().keeps(done) or done == self.config.steps

    def policy(self, state: Any) -> Exportable:
        """What the state calls `pi`, unless overridden."""
        own: Exportable = state.pi
        return own

    def weigh(
        self, task: Task, state: Any, data: Any, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """All weight on the last."""
        return np.eye(len(members))[-1], list(members)
