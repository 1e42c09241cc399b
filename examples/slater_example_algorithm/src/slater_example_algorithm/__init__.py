"""An example: behaviour cloning that shuns costly actions, with a multiplier on every cost.

    critic g^i   regressed on the data's discounted costs to go: g^i(s, a) of the behaviour policy
    weight       w = exp(-lambda . (g(s, a) - mean over the batch) / scale),  mean 1 over the batch
    policy       maximises E[w log pi(a|s)]
    lambda       projected gradient on E[g(s0, pi)] - tau, over tau

Small, not good: it shows every hook that an algorithm needs. The limit arrives converted, as `task.tau`:
discounted sums of costs that are scaled to [0, 1]; so do the data. There is no loop, checkpoint or command
line here: Slater has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep import (
    Algorithm,
    Batch,
    Config,
    Critic,
    DualState,
    InputError,
    PolicyNetwork,
    ProjectedGradient,
    Task,
    make_critic,
    make_policy,
    relative_excess,
)

__all__ = ["PenalisedClone", "PenalisedCloneConfig", "PenalisedCloneState"]


@dataclass(frozen=True)
class PenalisedCloneConfig(Config):
    """The text under a field is what `slater train penalised-clone --settings` prints."""

    learning_rate: float = 1e-3
    """of the policy and of the critics"""
    multiplier_bound: float = 20.0
    """bound on the sum of multipliers"""
    dual_rate: float = 0.02
    """step of lambda for a cost of twice the limit or more"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, not {self.learning_rate}.")


class PenalisedCloneState(eqx.Module):
    """Everything that changes: what is here is what a checkpoint holds."""

    pi: PolicyNetwork
    critics: tuple[Critic, ...]
    dual: DualState
    opt: Any


class PenalisedClone(Algorithm[PenalisedCloneConfig, PenalisedCloneState]):
    """Pure functions on the state; the engine compiles them."""

    name: ClassVar[str] = "penalised-clone"
    label: ClassVar[str] = "Penalised clone"
    Config: ClassVar[type[Config]] = PenalisedCloneConfig

    def __init__(self, config: PenalisedCloneConfig) -> None:
        super().__init__(config)
        self.adam = optax.adam(config.learning_rate)
        self.dual = ProjectedGradient(config.multiplier_bound, config.dual_rate)

    def init(self, task: Task, key: Array) -> PenalisedCloneState:
        """Networks at random, lambda = 0."""
        key_pi, *keys = jax.random.split(key, 1 + task.costs)
        pi = make_policy(task, self.config.hidden, key_pi, (-5.0, 0.0))
        critics = tuple(make_critic(task, self.config.hidden, k) for k in keys)
        return PenalisedCloneState(pi, critics, self.dual.init(task.costs), self.adam.init((pi, critics)))

    def update(
        self, task: Task, state: PenalisedCloneState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PenalisedCloneState, dict[str, Array]]:
        """One iteration; a metric named `loss/...` that is not finite stops the run with a message."""
        del step, phase

        def values(critics: tuple[Critic, ...], s: Array, choice: Array) -> Array:
            return jnp.stack([g(s, choice) for g in critics])  # (I, batch)

        g = jax.lax.stop_gradient(values(state.critics, batch.s, batch.a))
        spread = jnp.maximum(jnp.std(g, axis=1, keepdims=True), 1e-3)
        weights = jax.nn.softmax(-state.dual.lam @ ((g - jnp.mean(g, axis=1, keepdims=True)) / spread))

        def loss(nets: tuple[PolicyNetwork, tuple[Critic, ...]]) -> tuple[Array, dict[str, Array]]:
            pi, critics = nets
            clone = -jnp.sum(weights * pi.log_prob(batch.s, batch.a))
            fit = jnp.mean((values(critics, batch.s, batch.a) - batch.returns[:, 1:].T) ** 2)
            return clone + fit, {"loss/clone": clone, "loss/critics": fit}

        grads, metrics = jax.grad(loss, has_aux=True)((state.pi, state.critics))
        updates, opt = self.adam.update(grads, state.opt)
        pi, critics = optax.apply_updates((state.pi, state.critics), updates)
        cost = jnp.mean(values(critics, batch.s0, pi.choice(batch.s0, key)), axis=1)
        floor = 1e-3 / (1.0 - task.gamma)
        dual = self.dual.update(state.dual, relative_excess(cost, jnp.asarray(task.tau), floor))
        for i, name in enumerate(task.cost_names):
            metrics[f"lambda/{name}"] = dual.lam[i]
        return PenalisedCloneState(pi, critics, dual, opt), metrics

    def policy(self, state: PenalisedCloneState) -> PolicyNetwork:
        """Anything with `export(problem)`; a `PolicyNetwork` has it."""
        return state.pi
