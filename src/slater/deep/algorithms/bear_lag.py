"""BEAR-Lag: an actor held near the data's actions by MMD (Kumar et al. 2019), a PID multiplier on every cost.

    actor     minimises  E[-(v_0 - lambda.v)(s, a)] + alpha (E[MMD(s)] - epsilon),   a ~ pi(.|s)
    alpha     log alpha <- log alpha + rate alpha (E[MMD] - epsilon), in [-5, 5]
    MMD(s)^2  = mean k(x, x') + mean k(y, y') - 2 mean k(x, y),  k = exp(-|x-y|^2 / (2 sigma^2))

x: n samples of the autoencoder of the data's actions (`slater.deep.nets.vae`), y: n samples of pi.
Critics and lambda are those of `slater.deep.algorithms.lagrangian`, with a' ~ pi(.|s').

Released code (OSRL) compares x and y before the tanh, where 3 and 9 are the same action, with so wide a
kernel (sigma^2 = 50) that it sees little but the means. Here they are compared as actions, in [-1, 1],
with sigma = 1; MMD is then about the distance of the means, and epsilon is in the same unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.lagrangian import RELEASED, LagrangianActor, LagrangianConfig, TwinState
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch
from slater.deep.game.dual import DualState
from slater.deep.nets.mlp import descend, polyak
from slater.deep.nets.policy import Gaussian, make_policy
from slater.deep.nets.vae import CVAE, make_cvae
from slater.deep.task import Task


@dataclass(frozen=True)
class BEARLagConfig(LagrangianConfig):
    """Settings of BEAR-Lag."""

    sigma: float = 1.0
    """width of the kernel, in units of half an action's range (released: sqrt(50), before the tanh)"""
    epsilon: float = 0.3
    """MMD allowed, in the same unit over sigma (released: 0.05)"""
    alpha_rate: float = 1e-3
    """step of log alpha"""
    compared: Literal["actions", "before_tanh"] = "actions"
    """what MMD compares (released: before_tanh)"""
    log_std_max: float = 0.0
    """largest log standard deviation of the actor before the tanh (released: 2)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("sigma", "epsilon")


def mmd(x: Array, y: Array, sigma: float) -> Array:
    """Maximum mean discrepancy of samples x, y (batch, n, dim) per row, shape (batch,)."""

    def kernel(a: Array, b: Array) -> Array:
        apart = jnp.sum((a[:, :, None] - b[:, None]) ** 2, axis=-1)
        return jnp.mean(jnp.exp(-apart / (2.0 * sigma**2)), axis=(1, 2))

    # the small number keeps the root's slope finite where the samples agree
    return jnp.sqrt(jnp.maximum(kernel(x, x) + kernel(y, y) - 2.0 * kernel(x, y), 0.0) + 1e-6)


class BEARLagState(eqx.Module):
    """Networks, their optimisers and both multipliers."""

    vae: CVAE
    pi: Gaussian
    pi_target: Gaussian
    twins: TwinState
    dual: DualState
    log_alpha: Array
    opt_vae: Any
    opt_pi: Any


@register
class BEARLag(LagrangianActor[BEARLagConfig, BEARLagState]):
    """See the module's text."""

    name: ClassVar[str] = "bear-lag"
    label: ClassVar[str] = "BEAR-Lag"
    published_as: ClassVar[str | None] = "BEAR-Lag"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {"epsilon": ("0.1", "0.3")}
    Config: ClassVar[type[Config]] = BEARLagConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            **RELEASED, "steps": 300_000, "sigma": 50.0**0.5, "epsilon": 0.05, "compared": "before_tanh",
            "log_std_max": 2.0,
        }
    }  # fmt: skip

    def init(self, task: Task, key: Array) -> BEARLagState:
        """All networks at random, alpha = 1, no multiplier."""
        config = self.config
        key_vae, key_pi, key_twins = jax.random.split(key, 3)
        vae = make_cvae(task, config.vae_hidden, 2 * task.action_dim, key_vae)
        pi = make_policy(task, config.hidden, key_pi, (-5.0, config.log_std_max))
        assert isinstance(pi, Gaussian)
        return BEARLagState(
            vae, pi, pi, self.twins.init(task, key_twins), self.pid.init(task.costs), jnp.zeros(()),
            self.adam_vae.init(vae), self.adam_actor.init(pi),
        )  # fmt: skip

    def update(
        self, task: Task, state: BEARLagState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[BEARLagState, dict[str, Array]]:
        """Autoencoder, critics, actor, alpha, multiplier: one step each."""
        config = self.config
        key_vae, key_next, key_actor, key_prior, key_excess = jax.random.split(key, 5)
        vae, opt_vae, loss_vae = state.vae.fitted(self.adam_vae, state.opt_vae, batch.s, batch.a, key_vae)
        state, metrics = replace(state, vae=vae, opt_vae=opt_vae), {"loss/vae": loss_vae}
        a_next = None if phase == "warm" else state.pi_target.choice(batch.s_next, key_next)
        twins, losses = self.twins.update(task, state.twins, batch, a_next)
        state, metrics = replace(state, twins=twins), metrics | losses

        lam, alpha = state.dual.lam, jnp.exp(state.log_alpha)
        repeated = jnp.repeat(batch.s[:, None], config.samples, axis=1)
        prior = state.vae.decode_before_tanh(repeated, None, key_prior)
        as_compared = jnp.tanh if config.compared == "actions" else lambda u: u

        def loss(pi: Gaussian) -> tuple[Array, Array]:
            if phase == "warm":  # the actor starts as a clone of the data's policy
                return -jnp.mean(pi.log_prob(batch.s, batch.a)), jnp.asarray(config.epsilon)
            u = pi.drawn(repeated, key_actor)
            distance = jnp.mean(mmd(as_compared(prior), as_compared(u), config.sigma))
            score = self.twins.score(twins.online, lam, batch.s, jnp.tanh(u[:, 0]))
            return -jnp.mean(score) + alpha * (distance - config.epsilon), distance

        pi, opt_pi, (value, distance) = descend(self.adam_actor, loss, state.pi, state.opt_pi, has_aux=True)
        rate = 1.0 if phase == "warm" else config.polyak
        pi_target = polyak(state.pi_target, pi, rate)
        moved = config.alpha_rate * alpha * (distance - config.epsilon)
        log_alpha = jnp.clip(state.log_alpha + moved, -5.0, 5.0)
        state = replace(state, pi=pi, pi_target=pi_target, opt_pi=opt_pi, log_alpha=log_alpha)
        metrics |= {"loss/actor": value, "mmd": distance, "alpha": jnp.exp(log_alpha)}
        if phase == "train":
            state, values = self.heard(task, state, batch, lambda s: pi.choice(s, key_excess))
            metrics |= values
        return state, metrics | self.multipliers(task, state)

    def policy(self, state: BEARLagState) -> Gaussian:
        """The actor."""
        return state.pi
