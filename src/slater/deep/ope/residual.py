"""OPE as Algorithm 2 prints it: h^i minimises E_D(h^i, pi; C_i), one step of Adam beside the players'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.batches import Batch, Data, draw_keys
from slater.deep.game.bellman import bellman_error, residual
from slater.deep.nets.critic import Critic, make_critics
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Careful, Estimate, Estimator, Tick
from slater.deep.ope.fitted_q import FittedQEstimator
from slater.deep.task import Task

__all__ = ["ResidualEstimator", "ResidualState"]


class ResidualState(eqx.Module):
    """Networks h of every utility, reward first."""

    h: tuple[Critic, ...]
    opt: Any


@dataclass(frozen=True)
class ResidualEstimator(Estimator[ResidualState]):
    """E_D as a loss; C is its weight (C_infinity). Careful estimates are those of `careful_by`."""

    hidden: tuple[int, ...]
    learning_rate: float
    C: float
    careful_by: FittedQEstimator
    layer_norm: bool = False

    @property
    def careful_limit(self) -> int | None:  # type: ignore[override]
        """As many as fitted Q estimates."""
        return self.careful_by.careful_limit

    @property
    def policy_steps(self) -> int:
        """One step beside each of the players'."""
        return 0

    def init(self, task: Task, key: Array) -> ResidualState:
        """All at random."""
        h = make_critics(task, self.hidden, key, 1 + task.costs, layer_norm=self.layer_norm)
        return ResidualState(h, optax.adam(self.learning_rate).init(h))

    def update(
        self, task: Task, state: ResidualState, policy: PolicyNetwork, batch: Batch, key: Array, place: Array
    ) -> tuple[ResidualState, dict[str, Array]]:
        """One step of Adam on the sum of E_D(h, pi; U)."""
        del place
        pi_next = policy.choice(batch.s_next, draw_keys(key).s_next)

        def loss(h: tuple[Critic, ...]) -> tuple[Array, dict[str, Array]]:
            parts = {}
            for u, (critic, name) in enumerate(zip(h, ("reward", *task.cost_names), strict=True)):
                h_next = critic(batch.s_next, pi_next)
                delta = residual(critic(batch.s, batch.a), batch.u[:, u], h_next, batch.discount)
                parts[f"loss/h_{name}"] = bellman_error(delta, self.C)
            return sum(parts.values(), jnp.zeros(())), parts

        grads, parts = jax.grad(loss, has_aux=True)(state.h)
        updates, opt = optax.adam(self.learning_rate).update(grads, state.opt)
        return ResidualState(optax.apply_updates(state.h, updates), opt), parts

    def value(
        self, task: Task, state: ResidualState, policy: PolicyNetwork, first: Array, key: Array
    ) -> Estimate:
        """h(s0, pi)."""
        del task
        choice = policy.choice(first, key)
        return Estimate(jnp.stack([jnp.mean(h(first, choice)) for h in state.h])[None])

    def careful(self, task: Task, state: ResidualState, data: Data, tick: Tick) -> Careful:
        """Fitted Q evaluation from scratch: what has lagged behind one policy says little of another."""
        del state
        return self.careful_by.careful(task, self.careful_by.init(task, jax.random.key(0)), data, tick)
