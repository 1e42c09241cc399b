"""The smallest algorithm: cloning with one optimiser. Registered as a third party would, for engine tests."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.algorithms.base import Algorithm, Config
from slater.deep.batches import Batch
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task


class ToyState(eqx.Module):
    pi: PolicyNetwork
    opt: Any


class Toy(Algorithm[Config, ToyState]):
    """Minimise -log pi(a|s). With gamma = 0 its loss turns to NaN at iteration 33, for the fault tests."""

    name: ClassVar[str] = "toy"
    Config: ClassVar[type[Config]] = Config
    adam = optax.adam(1e-3)

    def init(self, task: Task, key: Array) -> ToyState:
        pi = make_policy(task, self.config.hidden, key, (-5.0, 0.0))
        return ToyState(pi, self.adam.init(pi))

    def update(
        self, task: Task, state: ToyState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[ToyState, dict[str, Array]]:
        def loss(pi: PolicyNetwork) -> Array:
            return -jnp.mean(pi.log_prob(batch.s, batch.a))

        value, grads = jax.value_and_grad(loss)(state.pi)
        updates, opt = self.adam.update(grads, state.opt)
        if self.config.gamma == 0:
            value = jnp.where(step == 33, jnp.nan, value)
        return ToyState(optax.apply_updates(state.pi, updates), opt), {"loss/clone": value}

    def policy(self, state: ToyState) -> PolicyNetwork:
        return state.pi
