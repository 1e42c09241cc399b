"""The pi-player: how a policy climbs the Lagrangian z = f + sum_i lambda_i (tau_i - g^i).

All players share one interface: `init` gives a policy at random, `warm` makes it a clone of the data's,
`update` moves it along z, `start` puts it at a given policy. `PolicyGradient` is Algorithm 2's,
`NaturalGradient` is exponential weights on the logits of a network over discrete actions,
`AnchoredGradient` is mirror descent from the policy that it was started at.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
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

__all__ = [
    "AnchoredGradient",
    "AnchoredState",
    "NaturalGradient",
    "PolicyGradient",
    "Primal",
    "PrimalState",
]


class PrimalState(eqx.Module):
    """pi, and what its optimiser remembers."""

    policy: PolicyNetwork
    opt: Any


class AnchoredState(PrimalState):
    """And the policy that it is held to."""

    anchor: PolicyNetwork


@dataclass(frozen=True)
class Primal(abc.ABC):
    """A pi-player.

    learning_rate, warm_rate: of Adam, in the game and while cloning
    log_std_max, log_std_min: range of a Gaussian policy's log standard deviation before the tanh
    components: Gaussians that continuous actions are drawn from
    """

    hidden: tuple[int, ...]
    learning_rate: float
    warm_rate: float
    log_std_max: float = 2.0
    log_std_min: float = -20.0
    components: int = 1

    def init(self, task: Task, key: Array) -> PrimalState:
        """A policy at random."""
        noise = (self.log_std_min, self.log_std_max)
        return self.start(make_policy(task, self.hidden, key, noise, self.components))

    def start(self, policy: PolicyNetwork) -> PrimalState:
        """The player at `policy`, with nothing remembered."""
        return PrimalState(policy, optax.adam(self.learning_rate).init(policy))

    def warm(self, state: PrimalState, batch: Batch) -> tuple[PrimalState, dict[str, Array]]:
        """One step of cloning: Adam on -E_D[log pi(a|s)]."""
        value, grads = jax.value_and_grad(lambda pi: -jnp.mean(pi.log_prob(batch.s, batch.a)))(state.policy)
        updates, opt = optax.adam(self.warm_rate).update(grads, state.opt)
        policy = optax.apply_updates(state.policy, updates)
        return replace(state, policy=policy, opt=opt), {"loss/clone": value}

    def update(
        self, task: Task, state: PrimalState, z: Lagrangian, batch: Batch, key: Array
    ) -> tuple[PrimalState, dict[str, Array]]:
        """One step of Adam on `loss`."""

        def loss(policy: PolicyNetwork) -> Array:
            return self.loss(task, policy, z, batch, draw_keys(key).s) + self.held(state, policy, z, batch)

        value, grads = jax.value_and_grad(loss)(state.policy)
        updates, opt = optax.adam(self.learning_rate).update(grads, state.opt)
        return replace(state, policy=optax.apply_updates(state.policy, updates), opt=opt), {"loss/pi": value}

    def held(self, state: PrimalState, policy: PolicyNetwork, z: Lagrangian, batch: Batch) -> Array:
        """What it costs to leave where the player is held, a scalar; nothing by default."""
        del state, policy, z, batch
        return jnp.zeros(())

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
class AnchoredGradient(PolicyGradient):
    """Mirror descent from the policy that it was started at, Algorithm 1's oracle PO on networks:

        minimises  -A_D(z, pi) + anchor_weight size KL(pi || start),    size = E_D |f(s, a)|

    whose minimiser is pi ~ start exp(z / (anchor_weight size)). No critic is asked about actions that are far
    from those that the start would take, and an estimate of pi can be told from that of its start.
    """

    anchor_weight: float = 0.003

    def start(self, policy: PolicyNetwork) -> AnchoredState:
        """The player at `policy`, and held to it."""
        own = jax.tree.map(jnp.copy, policy)  # a chunk may reuse the buffers of its state: none twice
        return AnchoredState(policy, optax.adam(self.learning_rate).init(policy), own)

    def held(self, state: PrimalState, policy: PolicyNetwork, z: Lagrangian, batch: Batch) -> Array:
        """The weighted divergence from the start, over the data's states."""
        assert isinstance(state, AnchoredState)  # by start
        return self.anchor_weight * _size(z, batch) * jnp.mean(policy.divergence(state.anchor, batch.s))


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
            raise InputError("the natural gradient needs discrete actions.")
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


def _size(z: Lagrangian, batch: Batch) -> Array:
    """E_D |f(s, a)|, a constant for the policy: what weights of other terms are relative to."""
    return jax.lax.stop_gradient(jnp.mean(jnp.abs(z.f(batch.s, batch.a))))
