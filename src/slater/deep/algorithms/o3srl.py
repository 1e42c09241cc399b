"""O3SRL (Chemingui et al., NeurIPS 2025): offline RL on r - lambda (c - limit), lambda by an online learner.

    min over lambda, max over mixtures of pi:   V of  r - sum_i lambda_i (c_i - (1 - gamma) tau_i)

pi is TD3+BC (Fujimoto and Gu, 2021), a step each iteration from where it is; every `hold` iterations lambda
moves. There is no OPE: what lambda hears of pi are the critics that pi climbs. They are kept apart for the
reward and each cost, so that lambda may jump without a critic having to follow (a single critic of the
shaped reward, as printed, lags behind every change of lambda):

    Q_u     regression on  u + gamma Q_u'(s', a'),  a' = pi(s') + noise      two networks per utility
    pi      minimises  -alpha E z(s, pi(s)) / E|z(s, pi(s))| + E|pi(s) - a|^2,  z = min Q_r - lambda . max Q_c
            (discrete actions: -E log pi(a|s) in place of the square)
    lambda  hedge: multiplicative weights over the corners of B Delta^I, which with critics apart are all
            known each time, and their mean is played; exp3: as published, a bandit over a grid that plays
            one arm at a time and hears of it alone (`slater.deep.game.dual`): lambda times the relative
            excess, since the reward is the same for all arms

The output is the last policy, as published; the guarantee is of the mean over all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.algorithms.base import Config, LastIterate
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, draw_keys
from slater.deep.game.dual import EXP3, DualState, ExponentiatedGradient, Outcome, relative_excess
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import descend
from slater.deep.nets.policy import Gaussian, PolicyNetwork, make_policy
from slater.deep.ope.fitted_q import FittedQ
from slater.deep.task import Task
from slater.errors import InputError

#: networks per utility
COPIES = 2


@dataclass(frozen=True)
class O3SRLConfig(Config):
    """Settings of O3SRL. "paper" marks what that preset changes, and to what."""

    steps: int = 30_000
    """gradient iterations (paper: 100,000)"""
    eta: float = 1e-3
    """learning rate of the critics (paper: 3e-4)"""
    eta_pi: float = 3e-4
    """learning rate of the policy"""
    alpha: float = 2.5
    """weight of the critics against cloning"""
    noise: float = 0.2
    """standard deviation of what is added to continuous a', cut to +-.5"""
    polyak: float = 0.005
    """rate of the target networks, per iteration"""
    deflation: float = 0.01
    """rate at which the level of the critics is solved for, per iteration (paper: 0)"""
    hold: int = 10
    """iterations between moves of lambda"""
    dual: Literal["hedge", "exp3"] = "hedge"
    """how lambda learns (paper: exp3)"""
    multiplier_bound: float = 5.0
    """B, for rewards and costs scaled to [0, 1]"""
    dual_rate: float = 0.02
    """of lambda: per relative excess (hedge), of the bandit's losses in [0, 1] (exp3)"""
    margin: float = 0.0
    """share of every limit that is held back"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta", "eta_pi", "alpha", "polyak", "hold", "multiplier_bound", "dual_rate")
        if self.noise < 0 or self.deflation < 0 or not 0 <= self.margin < 1:
            raise InputError("noise and deflation must be >= 0, and margin in [0, 1).")


class O3SRLState(eqx.Module):
    """critics: (Q, its targets, its optimiser), COPIES networks per utility in a row; dual: lambda."""

    critics: tuple[tuple[Critic, ...], tuple[Critic, ...], Any]
    pi: PolicyNetwork
    opt: Any
    dual: DualState


@register
class O3SRL(LastIterate[O3SRLConfig, O3SRLState]):
    """TD3+BC against an online learner; see the module's text."""

    name: ClassVar[str] = "o3srl"
    label: ClassVar[str] = "O3SRL"
    limits_are_tau: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alpha": ("1", "2.5"), "multiplier_bound": ("5", "10")
    }  # fmt: skip
    Config: ClassVar[type[Config]] = O3SRLConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"steps": 100_000, "eta": 3e-4, "deflation": 0.0, "dual": "exp3"}
    }

    def __init__(self, config: O3SRLConfig) -> None:
        super().__init__(config)
        self.fitted = FittedQ(config.eta, config.polyak, config.deflation)
        self.adam = optax.adam(config.eta_pi)
        if config.dual == "exp3":
            self.lam: EXP3 | ExponentiatedGradient = EXP3(config.multiplier_bound, config.dual_rate)
        else:
            self.lam = ExponentiatedGradient(config.multiplier_bound, config.dual_rate)

    def init(self, task: Task, key: Array) -> O3SRLState:
        """All networks at random; TD3's policy has no spread."""
        key_critics, key_pi = jax.random.split(key)
        keys = jax.random.split(key_critics, COPIES * (1 + task.costs))
        q = tuple(make_critic(task, self.config.hidden, k) for k in keys)
        pi = make_policy(task, self.config.hidden, key_pi, (-20.0, -20.0))
        return O3SRLState((q, q, self.fitted.adam.init(q)), pi, self.adam.init(pi), self.lam.init(task.costs))

    def update(
        self, task: Task, state: O3SRLState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[O3SRLState, dict[str, Array]]:
        """Critics, policy, and every `hold` iterations lambda."""
        config, keys, lam = self.config, draw_keys(key), state.dual.lam
        a_next = state.pi.choice(batch.s_next, keys.s_next)
        if not task.discrete:
            noise = config.noise * jax.random.normal(keys.s_next, a_next.shape)
            a_next = jnp.clip(a_next + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
        utilities = [u for u in range(1 + task.costs) for _ in range(COPIES)]
        critics, losses = self.fitted.update(task, utilities, state.critics, batch, a_next)
        names = ("q", *(f"qc_{name}" for name in task.cost_names))
        metrics = {f"loss/{name}": losses[COPIES * u] for u, name in enumerate(names)}

        def loss(pi: PolicyNetwork) -> tuple[Array, Array]:
            a = pi.choice(batch.s, keys.s)
            values = _values(critics[0], batch.s, a)
            z = values[0] - lam @ values[1:]
            size = jax.lax.stop_gradient(jnp.mean(jnp.abs(z)))
            if isinstance(pi, Gaussian):
                unlike = jnp.mean(jnp.sum((a - batch.a) ** 2, axis=-1))
            else:
                unlike = -jnp.mean(pi.log_prob(batch.s, batch.a))
            return unlike - config.alpha * jnp.mean(z) / jnp.maximum(size, 1e-6), unlike

        pi, opt, told = descend(self.adam, loss, state.pi, state.opt, has_aux=True)
        metrics["loss/pi"], metrics["loss/clone"] = told
        heard = jnp.mean(_values(critics[1], batch.s0, pi.choice(batch.s0, keys.s0)), axis=1)
        limits = jnp.asarray(task.tightened_limits(config.margin))
        outcome = self.heard(heard, limits, 1e-3 / (1.0 - task.gamma))
        moved = self.lam.respond(state.dual, outcome, key)
        now = (step + 1) % config.hold == 0
        dual = jax.tree.map(lambda new, old: jnp.where(now, new, old), moved, state.dual)
        for i, name in enumerate(task.cost_names):
            metrics[f"lambda/{name}"] = dual.lam[i]
            metrics[f"value/{name}"] = heard[1 + i] / task.scale[1 + i]
        return O3SRLState(critics, pi, opt, dual), metrics

    def heard(self, values: Array, limits: Array, floor: float) -> Outcome:
        """What lambda hears of values of reward and costs, (1+I,), and of limits (I,), as discounted sums.

        A bandit's arm is judged by lambda times the relative excess alone. One policy answers all arms, since
        it hardly moves in `hold` iterations: its reward is the same for each, so that it would only be noise,
        and what critics say at first would be the range that all later losses are measured by.
        """
        if self.config.dual == "hedge":
            return Outcome(values[0], values[1:], limits, floor)
        excess = relative_excess(values[1:], limits, floor)
        return Outcome(jnp.zeros(()), excess, jnp.zeros_like(limits), 1.0)


def _values(networks: tuple[Critic, ...], s: Array, a: Array) -> Array:
    """The least of the reward's copies and the largest of each cost's, shape (1+I, batch)."""
    each = jnp.stack([q(s, a) for q in networks]).reshape(-1, COPIES, s.shape[0])
    return jnp.concatenate([jnp.min(each[:1], axis=1), jnp.max(each[1:], axis=1)])
