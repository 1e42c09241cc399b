"""The critics of the game: f of the reward and g^i of each cost, both pessimistic.

    f   minimises  2 E_D(f, pi; R)     + A_D(f, pi)
    g^i minimises  2 E_D(g^i, pi; C_i) - A_D(g^i, pi)

E_D is a squared double-Q residual with target networks, which learns where the printed form stalls; that is
in `slater.deep.algorithms.pdca.paper`. E_D and A_D themselves are in `slater.deep.game.bellman`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.batches import Batch, draw_keys
from slater.deep.game.bellman import (
    advantage,
    bellman_halves,
    residual,
    squared_bellman_error,
)
from slater.deep.nets.critic import Critic, make_critics
from slater.deep.nets.mlp import polyak
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task

__all__ = ["Critics", "CriticsState", "Lagrangian"]

#: networks per utility
COPIES = 2

#: per utility (reward, then costs) its copies
Networks = tuple[tuple[Critic, ...], ...]


class CriticsState(eqx.Module):
    """f and g: the copies of each; target: target networks of (f, g^1, ...)."""

    f: tuple[Critic, ...]
    g: Networks
    target: Networks
    opt: Any


class Lagrangian(eqx.Module):
    """z = f + sum_i lambda_i (tau_i - g^i): what the pi-player climbs, by one copy of every critic."""

    f: Critic
    g: tuple[Critic, ...]
    multipliers: Array
    tau: Array

    def __call__(self, s: Array, choice: Array) -> Array:
        """z(s, choice), shape (batch,)."""
        values = self.f(s, choice)
        for i, g in enumerate(self.g):
            values = values + self.multipliers[i] * (self.tau[i] - g(s, choice))
        return values


@dataclass(frozen=True)
class Critics:
    """One set of critics for every utility.

    C: weight of the Bellman error against pessimism, C_infinity of the paper
    polyak: rate of the target networks, per iteration
    """

    hidden: tuple[int, ...]
    learning_rate: float
    C: float
    polyak: float = 0.005

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def init(self, task: Task, key_f: Array, key_g: Array) -> CriticsState:
        """All at random."""

        def networks(key: Array) -> tuple[Critic, ...]:
            return make_critics(task, self.hidden, key, COPIES)

        f, g = networks(key_f), tuple(networks(k) for k in jax.random.split(key_g, task.costs))
        return CriticsState(f, g, (f, *g), self._adam.init((f, g)))

    def warm(self, task: Task, state: CriticsState, batch: Batch) -> tuple[CriticsState, dict[str, Array]]:
        """One step of regression on the data's returns."""
        del task

        def loss(fg: tuple[tuple[Critic, ...], Networks]) -> Array:
            pairs = ((critic, u) for u, copies in enumerate((fg[0], *fg[1])) for critic in copies)
            losses = (jnp.mean((critic(batch.s, batch.a) - batch.returns[:, u]) ** 2) for critic, u in pairs)
            return sum(losses, jnp.zeros(()))

        value, grads = jax.value_and_grad(loss)((state.f, state.g))
        updates, opt = self._adam.update(grads, state.opt)
        f, g = optax.apply_updates((state.f, state.g), updates)
        return CriticsState(f, g, (f, *g), opt), {"loss/returns": value}

    def update(
        self, task: Task, state: CriticsState, policy: PolicyNetwork, batch: Batch, key: Array
    ) -> tuple[CriticsState, dict[str, Array]]:
        """One step of Adam on 2 E + A of f and 2 E - A of every g^i."""
        keys = draw_keys(key)
        pi_s, pi_next = policy.choice(batch.s, keys.s), policy.choice(batch.s_next, keys.s_next)
        futures = self._futures(task, state, batch, pi_next)

        def loss(fg: tuple[tuple[Critic, ...], Networks]) -> tuple[Array, dict[str, Array]]:
            total, parts = jnp.zeros(()), {}
            for u, copies in enumerate((fg[0], *fg[1])):
                name = "f" if u == 0 else f"g_{task.cost_names[u - 1]}"
                for critic in copies:
                    value, halves = self._loss(critic, u, batch, pi_s, pi_next, futures)
                    total += value
                parts[f"loss/{name}"] = value
                parts[f"E_plus/{name}"], parts[f"E_minus/{name}"] = halves
            return total, parts

        grads, parts = jax.grad(loss, has_aux=True)((state.f, state.g))
        updates, opt = self._adam.update(grads, state.opt)
        f, g = optax.apply_updates((state.f, state.g), updates)
        return CriticsState(f, g, polyak(state.target, (f, *g), self.polyak), opt), parts

    def lagrangian(self, task: Task, state: CriticsState, multipliers: Array, batch: Batch) -> Lagrangian:
        """The sum f + sum_i lambda_i (tau_i - g^i), by the first copies; to be asked about `batch.s`."""
        del batch
        return Lagrangian(
            state.f[0], tuple(copies[0] for copies in state.g), multipliers, jnp.asarray(task.tau)
        )  # fmt: skip

    def _loss(
        self, f: Critic, u: int, batch: Batch, pi_s: Array, pi_next: Array, futures: Sequence[Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        """2 E_D(f, pi; U) +- A_D(f, pi): plus for the reward (u = 0), minus for a cost; and E's halves."""
        f_sa, f_pi = f(batch.s, batch.a), f(batch.s, pi_s)
        delta = residual(f_sa, batch.u[:, u], f(batch.s_next, pi_next), batch.discount)
        A = advantage(f_pi, f_sa) * (1.0 if u == 0 else -1.0)
        E = squared_bellman_error(delta, residual(f_sa, batch.u[:, u], futures[u], batch.discount))
        # 2 C E + A over 2 C: the gradient of E keeps its size whatever C is
        return E + A / (2.0 * self.C), bellman_halves(jax.lax.stop_gradient(delta))

    def _futures(self, task: Task, state: CriticsState, batch: Batch, pi_next: Array) -> list[Array]:
        """What the target networks of each utility say of s', (batch,)."""
        # pessimistic over the copies, the smallest reward and the largest cost; within what a value can be
        return [
            jnp.clip(
                (jnp.min if u == 0 else jnp.max)(
                    jnp.stack([t(batch.s_next, pi_next) for t in copies]), axis=0
                ),
                task.value_low[u], task.value_high[u],
            )
            for u, copies in enumerate(state.target)
        ]  # fmt: skip
