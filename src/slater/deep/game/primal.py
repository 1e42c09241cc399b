"""The pi-player: how a policy climbs the Lagrangian z = f + sum_i lambda_i (tau_i - g^i).

All players share one interface: `init` gives a policy at random, `warm` makes it a clone of the data's,
`update` moves it along z. `PolicyGradient` is Algorithm 2's, `NaturalGradient` is exponential weights on
the logits of a network over discrete actions.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.batches import Batch, draw_keys
from slater.deep.game.critics import Lagrangian
from slater.deep.nets.policy import Categorical, PolicyNetwork, make_policy
from slater.deep.task import Task
from slater.errors import InputError

__all__ = ["NaturalGradient", "PolicyGradient", "Primal", "PrimalState"]


class PrimalState(eqx.Module):
    """pi, and what its optimiser remembers."""

    policy: PolicyNetwork
    opt: Any


@dataclass(frozen=True)
class Primal(abc.ABC):
    """A pi-player.

    learning_rate, warm_rate: of Adam, in the game and while cloning
    log_std_max: largest log standard deviation of a Gaussian policy before the tanh
    clone_weight: weight of -log pi(a|s) in the loss, relative to the mean size of f
    """

    hidden: tuple[int, ...]
    learning_rate: float
    warm_rate: float
    log_std_max: float = 2.0
    clone_weight: float = 0.0

    def init(self, task: Task, key: Array) -> PrimalState:
        """A policy at random."""
        policy = make_policy(task, self.hidden, key, (-20.0, self.log_std_max))
        return PrimalState(policy, optax.adam(self.learning_rate).init(policy))

    def warm(self, state: PrimalState, batch: Batch) -> tuple[PrimalState, dict[str, Array]]:
        """One step of cloning: Adam on -E_D[log pi(a|s)]."""
        value, grads = jax.value_and_grad(lambda pi: -jnp.mean(pi.log_prob(batch.s, batch.a)))(state.policy)
        updates, opt = optax.adam(self.warm_rate).update(grads, state.opt)
        return PrimalState(optax.apply_updates(state.policy, updates), opt), {"loss/clone": value}

    def update(
        self, task: Task, state: PrimalState, z: Lagrangian, batch: Batch, key: Array
    ) -> tuple[PrimalState, dict[str, Array]]:
        """One step of Adam on `loss`."""

        def loss(policy: PolicyNetwork) -> Array:
            value = self.loss(task, policy, z, batch, draw_keys(key).s)
            if self.clone_weight > 0:
                size = jax.lax.stop_gradient(jnp.mean(jnp.abs(z.f(batch.s, batch.a))))
                value -= self.clone_weight * size * jnp.mean(policy.log_prob(batch.s, batch.a))
            return value

        value, grads = jax.value_and_grad(loss)(state.policy)
        updates, opt = optax.adam(self.learning_rate).update(grads, state.opt)
        return PrimalState(optax.apply_updates(state.policy, updates), opt), {"loss/pi": value}

    @abc.abstractmethod
    def loss(self, task: Task, policy: PolicyNetwork, z: Lagrangian, batch: Batch, key: Array) -> Array:
        """What the player minimises, a scalar; `key` draws pi(s)."""


@dataclass(frozen=True)
class PolicyGradient(Primal):
    """The paper's: minimises -A_D(z, pi)."""

    def loss(self, task: Task, policy: PolicyNetwork, z: Lagrangian, batch: Batch, key: Array) -> Array:
        """-A_D(z, pi), without the second term of A_D, which pi does not enter."""
        del task
        return -jnp.mean(z(batch.s, policy.choice(batch.s, key)))


@dataclass(frozen=True)
class NaturalGradient(Primal):
    """Exponential weights on networks: logits move along z(s,.) - z(s,pi), pulled towards uniform.

    The stationary point is softmax(A(s,.) / (temperature H)). The gradient in the logits does not vanish
    with pi(a|s), so an action that was given up can come back. Discrete actions only.
    """

    temperature: float = 0.02

    def init(self, task: Task, key: Array) -> PrimalState:
        """A policy at random; refused where actions are continuous."""
        if not task.discrete:
            raise InputError("the natural gradient needs discrete actions; take primal gradient or auto.")
        return super().init(task, key)

    def loss(self, task: Task, policy: PolicyNetwork, z: Lagrangian, batch: Batch, key: Array) -> Array:
        """A loss whose gradient in the logits is that of the pull less the gain."""
        del key
        assert isinstance(policy, Categorical)  # by init
        logits = policy.mlp(batch.s)
        actions = jnp.eye(task.action_dim)
        every = jnp.stack([z(batch.s, jnp.broadcast_to(a, batch.a.shape)) for a in actions], axis=-1)
        gain = every - jnp.sum(jax.nn.softmax(logits) * every, axis=-1, keepdims=True)
        gain = jax.lax.stop_gradient(gain * (1.0 - task.gamma))
        centred = logits - jnp.mean(logits, axis=-1, keepdims=True)
        pull = 0.5 * self.temperature * centred**2
        return jnp.mean(jnp.sum(pull - gain * centred, axis=-1))
