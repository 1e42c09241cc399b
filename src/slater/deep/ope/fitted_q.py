"""Fitted Q evaluation: estimates h of J_U(pi) from the data's rows.

Fitted Q evaluation (FQE) regresses h on U + gamma h_target(s', pi), targets clipped to what a value can
be, and moves h_target slowly towards h. Trials with the policy held fixed: a Polyak rate of .02 diverges
after some thousand iterations, .005 is right and stays right. But slow is late: the constant function is
an eigenvector of P^pi with eigenvalue 1, so an error in the *level* of h shrinks only by the factor
1 - polyak (1-gamma) per iteration: 20,000 iterations for gamma = .99. That mode is known, so it is solved
for (deflation): the level that makes the mean residual of h_target vanish is

    c = E_D[U + gamma h_target(s',pi) - h_target(s,a)] / E_D[1 - gamma]

and h and h_target move by a small part of c per iteration. The fixed point is that of FQE, the other
modes contract as before (the system is block triangular), and the level takes some hundred iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.batches import Batch, Data, draw
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import polyak
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task

__all__ = ["FQE", "FittedQ"]


@dataclass(frozen=True)
class FittedQ:
    """One iteration of FQE for several utilities at once: the rates, and the update."""

    learning_rate: float
    polyak_rate: float
    deflation: float

    @property
    def adam(self) -> optax.GradientTransformation:
        """The optimiser of h."""
        return optax.adam(self.learning_rate)

    def update(
        self,
        task: Task,
        utilities: Sequence[int],
        state: tuple[tuple[Critic, ...], tuple[Critic, ...], Any],
        batch: Batch,
        pi_next: Array,
    ) -> tuple[tuple[tuple[Critic, ...], tuple[Critic, ...], Any], Array]:
        """New (h, h_target, optimiser) and the losses; network n estimates utility `utilities[n]`."""
        h, target, opt = state
        goals, levels = [], []
        for n, u in enumerate(utilities):
            future = jnp.clip(target[n](batch.s_next, pi_next), task.value_low[u], task.value_high[u])
            goals.append(batch.u[:, u] + batch.discount * future)
            mean_residual = jnp.mean(goals[n] - target[n](batch.s, batch.a))
            levels.append(self.deflation * mean_residual / jnp.mean(1.0 - batch.discount))

        def loss(h: tuple[Critic, ...]) -> tuple[Array, Array]:
            losses = jnp.stack(
                [jnp.mean((h[n](batch.s, batch.a) - goal) ** 2) for n, goal in enumerate(goals)]
            )
            return jnp.sum(losses), losses

        grads, losses = jax.grad(loss, has_aux=True)(h)
        updates, opt = self.adam.update(grads, opt)
        h = optax.apply_updates(h, updates)
        target = polyak(target, h, self.polyak_rate)
        if self.deflation > 0:
            h = tuple(_raised(critic, level) for critic, level in zip(h, levels, strict=True))
            target = tuple(_raised(critic, level) for critic, level in zip(target, levels, strict=True))
        return (h, target, opt), losses


def _raised(critic: Critic, level: Array) -> Critic:
    """The critic plus a constant."""
    raised: Critic = eqx.tree_at(lambda c: c.mlp.biases[-1], critic, critic.mlp.biases[-1] + level)
    return raised


class _FQEState(eqx.Module):
    h: tuple[Critic, ...]
    target: tuple[Critic, ...]
    opt: Any
    total: Array


@dataclass(frozen=True, eq=False)
class FQE:
    """FQE of one fixed policy after another, from scratch, on one problem; compiled once.

    copies: independent networks per utility; their spread shows what the data leave open.
    The estimate is the mean of h_target(s0, pi) over the last quarter of the iterations.
    """

    task: Task
    data: Data
    steps: int = 8_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    polyak_rate: float = 0.005
    deflation: float = 0.01
    hidden: tuple[int, ...] = (256, 256)
    copies: int = 1

    @property
    def _fitted(self) -> FittedQ:
        return FittedQ(self.learning_rate, self.polyak_rate, self.deflation)

    @partial(jax.jit, static_argnums=0)
    def _start(self, key: Array) -> _FQEState:
        task = self.task
        keys = jax.random.split(key, (1 + task.costs) * self.copies)
        h = tuple(make_critic(task, self.hidden, k) for k in keys)
        opt = self._fitted.adam.init(h)
        return _FQEState(h, h, opt, jnp.zeros(len(h)))

    @cached_property
    def _advance(self) -> Callable[..., _FQEState]:
        task, fitted = self.task, self._fitted
        utilities = [u for u in range(1 + task.costs) for _ in range(self.copies)]
        tail = self.steps - self.steps // 4

        @eqx.filter_jit(donate="all-except-first")
        def advance(
            constants: tuple[Data, PolicyNetwork, Array], state: _FQEState, start: Array, stop: Array
        ) -> _FQEState:
            data, policy, key = constants

            def step(index: Array, state: _FQEState) -> _FQEState:
                key_batch, key_next, key_initial = jax.random.split(jax.random.fold_in(key, index), 3)
                batch = draw(data, task, key_batch, self.batch_size)
                pi_next = policy.choice(batch.s_next, key_next)

                (h, target, opt), _ = fitted.update(
                    task, utilities, (state.h, state.target, state.opt), batch, pi_next
                )
                pi_initial = policy.choice(batch.s0, key_initial)
                values = jnp.stack([jnp.mean(t(batch.s0, pi_initial)) for t in target])
                return _FQEState(h, target, opt, state.total + jnp.where(index >= tail, values, 0.0))

            end: _FQEState = jax.lax.fori_loop(start, stop, step, state)
            return end

        return advance

    def __call__(
        self, policy: PolicyNetwork, key: Array, tick: Callable[[int], None] = lambda done: None
    ) -> NDArray[np.float64]:
        """Estimated J of every utility, shape (copies, 1+I); `tick` hears how many iterations are done."""
        key_start, key_run = jax.random.split(key)
        state = self._start(key_start)
        for start in range(0, self.steps, 1000):
            stop = min(start + 1000, self.steps)
            state = self._advance((self.data, policy, key_run), state, jnp.asarray(start), jnp.asarray(stop))
            state.total.block_until_ready()
            tick(stop)
        values = np.asarray(state.total, dtype=np.float64) / max(self.steps // 4, 1)
        values = values.reshape(1 + self.task.costs, self.copies).T
        return np.clip(values, self.task.value_low, self.task.value_high)
