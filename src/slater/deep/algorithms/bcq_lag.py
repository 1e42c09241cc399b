"""BCQ-Lag: batch-constrained Q-learning (Fujimoto et al. 2019) with a PID multiplier on every cost.

    v ~ CVAE decoder(s, z)                          actions like the data's (`slater.deep.nets.vae`)
    a  = clip(v + phi tanh MLP(s, v), -1, 1)        perturbed a little, phi = .05
    pi(s): of n perturbed samples the one with the largest score v_0 - lambda.v   (`lagrangian`)

    critics        y = u + gamma v(s', pi(s'))      both reward and costs of the policy that acts
    perturbation   maximises E[v_0(s, a) - lambda.v(s, a)] over one sample per state
    lambda         PID on E[h_i(s_0, pi)] - tau_i   (`lagrangian`)

Released code (OSRL) acts with one random sample, so that its critics (a maximum over ten samples, taken
for reward and cost apart) are those of no policy; the preset `released` does that as far as it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.lagrangian import RELEASED, LagrangianActor, LagrangianConfig, TwinState
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch
from slater.deep.game.dual import DualState
from slater.deep.nets.critic import Critic
from slater.deep.nets.mlp import MLP, descend, polyak
from slater.deep.nets.vae import CVAE, make_cvae
from slater.deep.task import Task
from slater.errors import InputError
from slater.policy.candidates import CandidatesPolicy


@dataclass(frozen=True)
class BCQLagConfig(LagrangianConfig):
    """Settings of BCQ-Lag."""

    phi: float = 0.05
    """largest perturbation of an action, in units of half its range"""
    act_samples: int = 10
    """samples of which the policy takes the best, in training and in use (released: 1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.act_samples < 1 or not 0 <= self.phi <= 1:
            raise InputError("act_samples must be at least 1 and phi in [0, 1].")


class Perturbed(eqx.Module):
    """The policy: decoder, perturbation, and the critics and multipliers that choose among samples."""

    vae: CVAE
    perturbation: MLP
    critics: tuple[tuple[Critic, Critic], ...]
    lam: Array
    phi: float = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    leans: tuple[float, ...] = eqx.field(static=True)

    def propose(self, s: Array, n: int, key: Array) -> Array:
        """Perturbed samples (batch, n, action_dim) for s (batch, obs_dim)."""
        repeated = jnp.repeat(s[:, None], n, axis=1)
        v = jax.lax.stop_gradient(self.vae.decode(repeated, None, key))
        shift = jnp.tanh(self.perturbation(jnp.concatenate([repeated, v], axis=-1)))
        return jnp.clip(v + self.phi * shift, -1.0, 1.0)

    def export(self, task: Task) -> CandidatesPolicy:
        """The same in NumPy."""
        assert task.action_low is not None
        assert task.action_high is not None
        return CandidatesPolicy(
            decoder=self.vae.decoder.layers(), perturbation=self.perturbation.layers(),
            critics=tuple(c.mlp.layers() for pair in self.critics for c in pair),
            leans=self.leans, multipliers=np.asarray(self.lam), phi=self.phi, samples=self.samples,
            latent_cut=self.vae.latent_cut, obs_mean=task.obs_mean, obs_std=task.obs_std,
            low=task.action_low, high=task.action_high,
        )  # fmt: skip


class BCQLagState(eqx.Module):
    """Networks, their optimisers and the multiplier."""

    vae: CVAE
    perturbation: MLP
    perturbation_target: MLP
    twins: TwinState
    dual: DualState
    opt_vae: Any
    opt_actor: Any


@register
class BCQLag(LagrangianActor[BCQLagConfig, BCQLagState]):
    """See the module's text."""

    name: ClassVar[str] = "bcq-lag"
    label: ClassVar[str] = "BCQ-Lag"
    published_as: ClassVar[str | None] = "BCQ-Lag"
    Config: ClassVar[type[Config]] = BCQLagConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {**RELEASED, "steps": 100_000, "act_samples": 1}
    }

    def init(self, task: Task, key: Array) -> BCQLagState:
        """All networks at random, no multiplier."""
        config = self.config
        key_vae, key_actor, key_twins = jax.random.split(key, 3)
        vae = make_cvae(task, config.vae_hidden, 2 * task.action_dim, key_vae)
        sizes = [task.obs_dim + task.action_dim, *config.hidden, task.action_dim]
        actor = MLP(sizes, key_actor, last_scale=0.1)
        return BCQLagState(
            vae, actor, actor, self.twins.init(task, key_twins), self.pid.init(task.costs),
            self.adam_vae.init(vae), self.adam_actor.init(actor),
        )  # fmt: skip

    def update(
        self, task: Task, state: BCQLagState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[BCQLagState, dict[str, Array]]:
        """Autoencoder, critics, perturbation, multiplier: one step each."""
        key_vae, key_next, key_actor, key_excess = jax.random.split(key, 4)
        vae, opt_vae, loss_vae = state.vae.fitted(self.adam_vae, state.opt_vae, batch.s, batch.a, key_vae)
        state, metrics = replace(state, vae=vae, opt_vae=opt_vae), {"loss/vae": loss_vae}
        if phase == "warm":
            twins, losses = self.twins.update(task, state.twins, batch, None)
            return replace(state, twins=twins), metrics | losses | self.multipliers(task, state)

        # critics of the policy that acts: at s' it takes the best of its samples
        lam, n = state.dual.lam, self.config.act_samples
        proposed = replace(self.policy(state), perturbation=state.perturbation_target).propose(
            batch.s_next, n, key_next
        )
        a_next = self.twins.best(state.twins.target, lam, batch.s_next, proposed)
        twins, losses = self.twins.update(task, state.twins, batch, a_next)
        state = replace(state, twins=twins)

        def loss(actor: MLP) -> Array:
            a = replace(self.policy(state), perturbation=actor).propose(batch.s, 1, key_actor)[:, 0]
            return -jnp.mean(self.twins.score(twins.online, lam, batch.s, a))

        actor, opt_actor, loss_actor = descend(self.adam_actor, loss, state.perturbation, state.opt_actor)
        target = polyak(state.perturbation_target, actor, self.config.polyak)
        state = replace(state, perturbation=actor, perturbation_target=target, opt_actor=opt_actor)

        def act(s: Array) -> Array:
            return self.twins.best(twins.online, lam, s, self.policy(state).propose(s, n, key_excess))

        state, values = self.heard(task, state, batch, act)
        metrics |= losses | values | {"loss/actor": loss_actor}
        return state, metrics | self.multipliers(task, state)

    def policy(self, state: BCQLagState) -> Perturbed:
        """The samplers with the present critics and multipliers."""
        lean = 0.25 if self.config.cost_twins == "max" else 0.75
        leans = (0.75, *(lean for _ in state.twins.online[1:]))
        return Perturbed(
            state.vae, state.perturbation, state.twins.online, state.dual.lam, self.config.phi,
            self.config.act_samples, leans,
        )  # fmt: skip
