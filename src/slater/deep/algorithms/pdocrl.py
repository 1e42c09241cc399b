"""PDOCRL (Ko, Tewari and Hong, 2025) on networks: the saddle point of `slater.tabular.pdocrl`.

    max_{w, pi} min_{Q, lambda}
        (1 - gamma) E Q(s0, pi) + E_D[w (R - lambda.C + gamma Q(s', pi) - Q)] + lambda.limits

Q is fitted Q of pi plus an adversary: Q = Q_r - lambda.Q_c + x. The fitted part is what the guarantee needs
of Q, and is kept apart for the reward and each cost, so that lambda may jump. The adversary x prices what w
does to the flow: w becomes the density ratio of pi over the log and does not chase signs of residuals.

    Q_r, Q_c   fitted Q of pi, with their level solved for                    (Q answers every round: fast)
    x          minimises  (1 - gamma) E x(s0, pi) + E_D[w (gamma x(s', pi) - x)] + E_D[x^2] / 2
    w          maximises  E_D[w (delta + gamma x(s', pi) - x)] - E_D[(w - 1)^2] hold / 2;  w / E_D[w] is used
    pi         climbs Q at states that w says it visits: s0, and s' drawn by w
    lambda     projected gradient on  chat - limit,
               chat = (1 - gamma) E Q_c(s0, pi) + E_D[w (C + gamma Q_c(s', pi) - Q_c)]

chat is what lambda sees of pi (`lambda_sees = policy`). `weights` shows it E_D[w C], the saddle point as
printed; `data` the mean cost of the log, as released code does: no policy changes that, so lambda drifts to
an end of its range. The released program has more mistakes (no s0 term, so that nothing makes w a ratio;
timeouts as ends; batch states for first ones); the preset `released` repeats its rule for lambda and rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.from_clone import FromClone, FromCloneConfig, anchored_at
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, draw_keys
from slater.deep.game.critics import Lagrangian
from slater.deep.game.dual import DualState, ProjectedGradient, relative_excess
from slater.deep.game.primal import PrimalState
from slater.deep.nets.critic import Critic, make_critic, make_critics
from slater.deep.nets.mlp import descend
from slater.deep.ope.fitted_q import FittedQ
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class PDOCRLConfig(FromCloneConfig):
    """Settings of PDOCRL. "released" marks what the preset changes, and to what."""

    lambda_sees: Literal["policy", "weights", "data"] = "policy"
    """what the multiplier hears of costs (released: data)"""
    multiplier_bound: float = 5.0
    """B, for rewards and costs scaled to [0, 1] (released: 10)"""
    dual_rate: float = 0.001
    """of lambda, per relative excess and iteration"""
    weight_bound: float = 10.0
    """C_infinity, the largest density ratio"""
    weight_hold: float = 0.01
    """how much w is held to 1"""
    deflation: float = 0.01
    """rate at which the level of Q is solved for, per iteration (released: 0)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("multiplier_bound", "dual_rate", "weight_bound")
        if min(self.deflation, self.weight_hold) < 0:
            raise InputError("deflation and weight_hold must be at least 0.")


class PDOCRLState(eqx.Module):
    """q: (Q of every utility, targets, optimiser); w, x: density ratio and adversary, with optimisers."""

    q: tuple[tuple[Critic, ...], tuple[Critic, ...], Any]
    w: Critic
    x: Critic
    opt_w: Any
    opt_x: Any
    primal: PrimalState
    dual: DualState


@register
class PDOCRL(FromClone[PDOCRLConfig, PDOCRLState]):
    """Primal-dual offline constrained RL; see the module's text."""

    name: ClassVar[str] = "pdocrl"
    label: ClassVar[str] = "PDOCRL"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "multiplier_bound": ("2", "5", "10"), "weight_bound": ("5", "10")
    }  # fmt: skip
    Config: ClassVar[type[Config]] = PDOCRLConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "steps": 100_000, "lambda_sees": "data", "multiplier_bound": 10.0, "eta_fast": 3e-4,
            "eta_slow": 3e-4, "warm_steps": 0, "deflation": 0.0, "reward_scale": 0.1,
            "normalise_observations": False,
        }
    }  # fmt: skip

    def __init__(self, config: PDOCRLConfig) -> None:
        super().__init__(config)
        self.fitted = FittedQ(config.eta_fast, config.polyak, config.deflation)
        self.adam = optax.adam(config.eta_fast)
        self.lam = ProjectedGradient(config.multiplier_bound, config.dual_rate)

    def init(self, task: Task, key: Array) -> PDOCRLState:
        """All networks at random, lambda 0."""
        key_q, key_w, key_x, key_pi = jax.random.split(key, 4)
        hidden = self.config.hidden
        q = make_critics(task, hidden, key_q, 1 + task.costs)
        w, x = make_critic(task, hidden, key_w), make_critic(task, hidden, key_x)
        return PDOCRLState(
            (q, q, self.fitted.adam.init(q)), w, x, self.adam.init(w), self.adam.init(x),
            self.primal(task).init(task, key_pi), self.lam.init(task.costs),
        )  # fmt: skip

    def update(
        self, task: Task, state: PDOCRLState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDOCRLState, dict[str, Array]]:
        """Q, then the adversary, w, pi and lambda."""
        keys, primal, pi = draw_keys(key), self.primal(task), state.primal.policy
        choice_0, choice_next = pi.choice(batch.s0, keys.s0), pi.choice(batch.s_next, keys.s_next)
        q, losses = self.fitted.update(task, range(1 + task.costs), state.q, batch, choice_next)
        names = ("q", *(f"qc_{name}" for name in task.cost_names))
        metrics = {f"loss/{name}": losses[u] for u, name in enumerate(names)}
        if phase == "warm":
            cloned, told = primal.warm(state.primal, batch)
            return replace(state, q=q, primal=anchored_at(cloned)), metrics | told
        live = 1.0 - task.gamma
        deltas = jnp.stack(
            [batch.u[:, u] + batch.discount * h(batch.s_next, choice_next) - h(batch.s, batch.a)
             for u, h in enumerate(q[1])]
        )  # fmt: skip
        # normalised units, in which the adversary's square is of the size of its other terms
        price = jnp.concatenate([jnp.ones(1), -state.dual.lam])
        delta = price @ deltas * live

        def flow(x: Critic) -> tuple[Array, Array]:
            """(1 - gamma) E x(s0, pi), and what each row does to the flow, (batch,)."""
            ahead = batch.discount * x(batch.s_next, choice_next) - x(batch.s, batch.a)
            return live * jnp.mean(x(batch.s0, choice_0)), ahead

        ratio = stop_gradient(self._ratio(state.w, batch))

        def loss_x(x: Critic) -> Array:
            first, ahead = flow(x)
            return first + jnp.mean(ratio * ahead) + 0.5 * jnp.mean(x(batch.s, batch.a) ** 2)

        x, opt_x, metrics["loss/x"] = descend(self.adam, loss_x, state.x, state.opt_x)
        gain = stop_gradient(delta + flow(x)[1])

        def loss_w(w: Critic) -> Array:
            ratio = self._ratio(w, batch)
            return -jnp.mean(ratio * gain) + 0.5 * self.config.weight_hold * jnp.mean((ratio - 1.0) ** 2)

        w, opt_w, metrics["loss/w"] = descend(self.adam, loss_w, state.w, state.opt_w)
        ratio = self._ratio(w, batch)
        z = Lagrangian(q[0][0], q[0][1:], state.dual.lam, jnp.asarray(task.tau))
        moved, told = primal.update(task, state.primal, z, self._visited(task, batch, ratio, keys.s), key)
        costs = self._seen(task, q[1], batch, ratio, deltas, choice_0)
        floor = 1e-3 / live
        dual = self.lam.update(state.dual, relative_excess(costs, jnp.asarray(task.tau), floor))
        metrics["w/spread"] = jnp.std(ratio)
        for i, name in enumerate(task.cost_names):
            metrics[f"lambda/{name}"] = dual.lam[i]
            metrics[f"seen/{name}"] = costs[i] / task.scale[1 + i]
        return PDOCRLState(q, w, x, opt_w, opt_x, moved, dual), metrics | told

    def _ratio(self, w: Critic, batch: Batch) -> Array:
        """The density ratio of each row, (batch,), with mean 1."""
        raw = jnp.minimum(jax.nn.softplus(w(batch.s, batch.a)), self.config.weight_bound)
        return raw / jnp.maximum(jnp.mean(raw), 1e-3)

    def _visited(self, task: Task, batch: Batch, ratio: Array, key: Array) -> Batch:
        """The minibatch with states of nu in the place of s: first ones, and next ones drawn by w."""
        key_first, key_next = jax.random.split(key)
        size = batch.s.shape[0]
        logits = jnp.log(jnp.maximum(ratio * batch.discount, 1e-9))
        drawn = batch.s_next[jax.random.categorical(key_next, logits, shape=(size,))]
        first = jax.random.uniform(key_first, (size, 1)) < 1.0 - task.gamma
        return batch._replace(s=jnp.where(first, batch.s0, drawn))

    def _seen(
        self, task: Task, q: tuple[Critic, ...], batch: Batch, ratio: Array, deltas: Array, choice_0: Array
    ) -> Array:
        """What lambda sees of every cost, (I,), as a discounted sum to compare with tau."""
        live = 1.0 - task.gamma
        if self.config.lambda_sees == "policy":
            first = jnp.stack([jnp.mean(h(batch.s0, choice_0)) for h in q[1:]])
            return first + jnp.mean(ratio * deltas[1:], axis=1) / live
        weight = ratio if self.config.lambda_sees == "weights" else jnp.ones_like(ratio)
        return jnp.mean(weight[:, None] * batch.u[:, 1:], axis=0) / live
