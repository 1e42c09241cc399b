"""In-sample critics: what actions of the log could do, by implicit Q-learning (Kostrikov et al., 2021).

For every signal U (the reward, each cost, or a sum of them) with its own networks:

    V(s)     the expectile of Q'(s, a) over the log's actions: L_e(u) = |e - 1{u < 0}| u^2, u = Q' - V
    Q(s, a)  regression on U + discount V(s')

No network is asked about an action that nobody took. A signal that is wanted takes the expectile e > 1/2 of
the least of its target copies Q', one that is not (a cost) takes 1 - e of the largest: V is then the value
of the best, or the cheapest, continuation that the log's actions allow, and errs to the cautious side.

Where sums end is a choice (`ends`), the same as that of the budget that they are compared with
(`slater.policy.budget`): at the horizon, not discounted and with the time as an input, which is exact for
limits on episodes; never, discounted, for limits that are discounted sums; or at timeouts.
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
from jax.lax import stop_gradient

from slater.deep.batches import Batch
from slater.deep.game.timed import horizon_of, timed_task, with_time
from slater.deep.nets.critic import Critic, make_critics
from slater.deep.nets.mlp import MLP, polyak
from slater.deep.task import Task
from slater.errors import InputError
from slater.policy.budget import Budget, Ends

__all__ = ["InSampleCritics", "InSampleState", "clone_weights"]


class InSampleState(eqx.Module):
    """q: per signal its copies; v: one network per signal; target: of q."""

    q: tuple[tuple[Critic, ...], ...]
    v: tuple[MLP, ...]
    target: tuple[tuple[Critic, ...], ...]
    opt: Any


@dataclass(frozen=True)
class InSampleCritics:
    """Critics of n signals, the columns of `batch.u`.

    signs: (n,) +1 where more is better, -1 for a cost
    expectile: e of wanted signals, in (0, 1); 1 - e of costs; .5 is what the log's policies do
    copies: networks of each Q
    ends: where sums end, see the module's text
    """

    signs: tuple[int, ...]
    hidden: tuple[int, ...]
    learning_rate: float = 3e-4
    expectile: float = 0.7
    copies: int = 2
    polyak: float = 0.005
    ends: Ends = "horizon"

    def __post_init__(self) -> None:
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must be above 0 and below 1, not {self.expectile}.")

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def seen_task(self, task: Task) -> Task:
        """The task with the observations that these critics see."""
        return timed_task(task) if self.ends == "horizon" else task

    def seen(self, task: Task, batch: Batch) -> Batch:
        """The minibatch as they see it. Those that end at timeouts expect a discount of 0 there already."""
        return with_time(task, batch) if self.ends == "horizon" else batch

    def budget(self, task: Task) -> Budget:
        """The budget that ends where these critics do."""
        return Budget(self.ends, horizon_of(task), task.gamma)

    def init(self, task: Task, key: Array) -> InSampleState:
        """All at random."""
        own = self.seen_task(task)
        key_q, key_v = jax.random.split(key)
        q = tuple(
            make_critics(own, self.hidden, k, self.copies) for k in jax.random.split(key_q, len(self.signs))
        )
        v = tuple(
            MLP([own.obs_dim, *self.hidden, 1], k) for k in jax.random.split(key_v, len(self.signs))
        )  # fmt: skip
        return InSampleState(q, v, q, self._adam.init((q, v)))

    def update(
        self,
        state: InSampleState,
        batch: Batch,
        bounds: tuple[Array, Array] | None = None,
        ahead: Sequence[Array] | None = None,
    ) -> tuple[InSampleState, dict[str, Array]]:
        """One step of Adam; `batch` as `seen` gave it, `bounds` (n,) each on every sum, in its units.

        ahead: what follows s' for every signal, (batch,) each; None: V(s').
        """
        ahead = [v(batch.s_next)[:, 0] for v in state.v] if ahead is None else ahead
        if bounds is not None:
            ahead = [jnp.clip(x, low, high) for x, low, high in zip(ahead, *bounds, strict=True)]
        goals = [stop_gradient(batch.u[:, k] + batch.discount * x) for k, x in enumerate(ahead)]
        old = [stop_gradient(self.value(state.target, k, batch.s, batch.a)) for k in range(len(self.signs))]

        def loss(networks: tuple[tuple[tuple[Critic, ...], ...], tuple[MLP, ...]]) -> tuple[Array, Any]:
            q, v = networks
            parts = {"loss/q": jnp.zeros(()), "loss/v": jnp.zeros(())}
            for k, sign in enumerate(self.signs):
                above = old[k] - v[k](batch.s)[:, 0]
                share = jnp.where(sign * above > 0, self.expectile, 1.0 - self.expectile)
                parts["loss/v"] += jnp.mean(share * above**2)
                parts["loss/q"] += sum(
                    (jnp.mean((copy(batch.s, batch.a) - goals[k]) ** 2) for copy in q[k]), jnp.zeros(())
                )
            return parts["loss/q"] + parts["loss/v"], parts

        grads, parts = jax.grad(loss, has_aux=True)((state.q, state.v))
        updates, opt = self._adam.update(grads, state.opt)
        q, v = optax.apply_updates((state.q, state.v), updates)
        return InSampleState(q, v, polyak(state.target, q, self.polyak), opt), parts

    def value(self, networks: Sequence[Sequence[Critic]], signal: int, s: Array, a: Array) -> Array:
        """Q of a signal at (s, a), (batch,): the least of its copies, of a cost the largest."""
        copies = jnp.stack([q(s, a) for q in networks[signal]])
        return jnp.min(copies, axis=0) if self.signs[signal] > 0 else jnp.max(copies, axis=0)

    def gains(self, state: InSampleState, batch: Batch) -> Array:
        """What each row's action is worth above V, (batch, n): Q - V, of costs V - Q."""
        columns = [
            sign * (self.value(state.target, k, batch.s, batch.a) - state.v[k](batch.s)[:, 0])
            for k, sign in enumerate(self.signs)
        ]
        return stop_gradient(jnp.stack(columns, axis=-1))


def clone_weights(gain: Array, beta: float, most: float, *, in_units: bool = True) -> Array:
    """exp(beta gain), at most `most`, (batch,): weights of a clone's rows.

    in_units: the gain is divided by its root mean square over the minibatch first, so that one beta serves
    rewards and costs of any size.
    """
    size = jnp.maximum(jnp.sqrt(jnp.mean(gain**2)), 1e-8) if in_units else 1.0
    return jnp.exp(jnp.minimum(beta * gain / size, jnp.log(most)))
