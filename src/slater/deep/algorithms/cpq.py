"""CPQ (Xu, Zhan and Zhu, 2022): Q-learning that counts unlike actions as costly and ignores unsafe values.

Reward critics Q, cost critics Qc^i, policy pi, and a CVAE of the data (`slater.deep.nets.vae`). q_i is the
limit as a discounted sum, tau_i; an action is safe at s if every Qc^i(s,a) <= q_i.

    Q       regression on  R + gamma 1{a' safe at s'} Q'(s',a')                       a' ~ pi(s'), targets '
    Qc^i    regression on  C_i + gamma Qc'(s',a'), minus alpha_i (E Qc^i(s,a_ood) - margin q_i):
            actions of pi that are unlike the data are pushed above the limit
    a_ood   of 10 actions of pi per state, the quarter of the batch with the largest KL(q(z|s,a) || N(0,1))
    alpha_i rises while E Qc^i(s,a_ood) < margin q_i: log alpha += eta_alpha alpha (margin q_i - E Qc^i)
    pi      maximises E[1{a safe at s} Q(s,a) - 1{a unsafe at s} max_i (Qc^i(s,a) - q_i)],  a ~ pi(s), the
            indicators constants; the second term is not in the paper (`escape`): without it a policy that
            is unsafe everywhere has no gradient, and stays so

Where rewards can be negative, what is unsafe is worth the least possible value instead of 0. An ensemble
counts with its least reward and its largest cost. Reward and cost bootstrap through timeouts alike.

Preset `released`: published code computes the penalty on target networks without a gradient, so that only
alpha feels it, on actions before their tanh, and counts the other three quarters as 0 in its mean; the
least cost of the ensemble counts (optimistic); rewards stop at timeouts, costs never do.
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

from slater.data import Dataset
from slater.deep.algorithms.base import Config, LastIterate
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data
from slater.deep.game.thresholds import thresholds
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import descend, polyak
from slater.deep.nets.policy import Gaussian, PolicyNetwork, make_policy
from slater.deep.nets.vae import CVAE, make_cvae
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class CPQConfig(Config):
    """Settings of CPQ. "released" marks what the preset changes, and to what."""

    eta: float = 1e-3
    """learning rate of the critics and the CVAE (released: 1e-3)"""
    eta_pi: float = 1e-4
    """learning rate of the policy (released: 1e-4)"""
    eta_alpha: float = 1e-4
    """rate of log alpha, per unit of discounted cost (released: 1e-4)"""
    polyak: float = 0.005
    """rate of the target networks, per iteration"""
    copies: int = 2
    """networks per critic"""
    cost_of_copies: Literal["largest", "least"] = "largest"
    """which of the cost critics counts (released: least)"""
    vae_hidden: tuple[int, ...] = (400, 400)
    """width of each hidden layer of the CVAE; its latent dimension is twice that of actions"""
    vae_steps: int = 5_000
    """iterations of the CVAE before all else (two thirds of all at most), then it is fixed; 0 trains it with
    the rest (released: 0)"""
    ood_actions: int = 10
    """actions of the policy per state that may be called unlike the data"""
    ood_share: float = 0.25
    """share of them that is, by the largest divergence"""
    ood_margin: float = 1.5
    """their cost is pushed above this many times the limit"""
    escape: bool = True
    """whether the policy lowers the cost where it is unsafe (released: no, it has no gradient there)"""
    penalty: Literal["gradient", "released"] = "gradient"
    """whether the penalty moves the cost critics (released: only alpha; see the module's text)"""
    masks: Literal["terminals", "released"] = "terminals"
    """where the future ends (released: also at timeouts for the reward, nowhere for the cost)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta", "eta_pi", "eta_alpha", "polyak", "copies", "ood_actions", "ood_margin")
        if not 0 < self.ood_share <= 1:
            raise InputError(f"ood_share must be in (0, 1], not {self.ood_share}.")
        if self.vae_steps < 0:
            raise InputError(f"vae_steps must be at least 0, not {self.vae_steps}.")


Copies = tuple[Critic, ...]


class CPQState(eqx.Module):
    """critics: Q, then Qc^1..Qc^I, each in copies; target mirrors them; log_alpha: (I,)."""

    critics: tuple[Copies, ...]
    target: tuple[Copies, ...]
    pi: PolicyNetwork
    vae: CVAE
    log_alpha: Array
    opt: Any
    opt_pi: Any
    opt_vae: Any


@register
class CPQ(LastIterate[CPQConfig, CPQState]):
    """Constraints-penalised Q-learning; see the module's text."""

    name: ClassVar[str] = "cpq"
    label: ClassVar[str] = "CPQ"
    published_as: ClassVar[str | None] = "CPQ"
    preparation: ClassVar[tuple[str, str, str] | None] = ("vae_steps", "vae", "train")
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {"ood_margin": ("1", "1.5", "3")}
    Config: ClassVar[type[Config]] = CPQConfig
    actions: ClassVar[tuple[Literal["continuous", "discrete"], ...]] = ("continuous",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "steps": 100_000, "escape": False, "cost_of_copies": "least", "vae_steps": 0,
            "penalty": "released", "masks": "released", "reward_scale": 0.1,
            "normalise_observations": False,
        },
    }  # fmt: skip

    def __init__(self, config: CPQConfig) -> None:
        super().__init__(config)
        self.adam, self.adam_pi = optax.adam(config.eta), optax.adam(config.eta_pi)

    def data(self, dataset: Dataset, task: Task, data: Data) -> Data:
        """The transitions, with a discount for rewards and one for costs: shape (N, 2)."""
        reward = cost = data.discount
        if self.config.masks == "released":
            reward = data.discount * (1.0 - dataset.timeouts[dataset.next_known])
            cost = jnp.full_like(data.discount, task.gamma)
        return data._replace(discount=jnp.stack([reward, cost], axis=-1))

    def limits(self, task: Task) -> Array:
        """The limits q, shape (I,), as discounted sums of scaled costs, for the mask of the rewards."""
        return thresholds(task, stop_at_timeouts=self.config.masks == "released")

    def init(self, task: Task, key: Array) -> CPQState:
        """All networks at random, alpha = 1."""
        config = self.config
        key_critics, key_pi, key_vae = jax.random.split(key, 3)
        critics = tuple(
            tuple(make_critic(task, config.hidden, k) for k in jax.random.split(key, config.copies))
            for key in jax.random.split(key_critics, 1 + task.costs)
        )
        pi = make_policy(task, config.hidden, key_pi)
        vae = make_cvae(task, config.vae_hidden, 2 * task.action_dim, key_vae)
        return CPQState(
            critics, critics, pi, vae, jnp.zeros(task.costs),
            self.adam.init(critics), self.adam_pi.init(pi), self.adam.init(vae),
        )  # fmt: skip

    def update(
        self, task: Task, state: CPQState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[CPQState, dict[str, Array]]:
        """CVAE, critics, policy, targets, in this order."""
        key_vae, key_next, key_ood, key_pi = jax.random.split(key, 4)
        metrics: dict[str, Array] = {}
        if phase == "vae" or self.config.vae_steps == 0:
            vae, opt_vae, loss_vae = state.vae.fitted(self.adam, state.opt_vae, batch.s, batch.a, key_vae)
            state, metrics["loss/vae"] = replace(state, vae=vae, opt_vae=opt_vae), loss_vae
        if phase == "vae":
            return state, metrics
        state, parts = self._critics(task, state, batch, key_next, key_ood)
        metrics |= parts

        def loss_pi(pi: PolicyNetwork) -> tuple[Array, Array]:
            a = pi.choice(batch.s, key_pi)
            excess = self._excess(task, state.critics, batch.s, a)
            safe = stop_gradient((excess <= 0).astype(jnp.float32))
            gain = safe * self._value(state.critics, 0, batch.s, a)
            if self.config.escape:
                gain -= (1.0 - safe) * excess
            return -jnp.mean(gain), jnp.mean(safe)

        pi, opt_pi, (value, share) = descend(self.adam_pi, loss_pi, state.pi, state.opt_pi, has_aux=True)
        target = polyak(state.target, state.critics, self.config.polyak)
        state = replace(state, pi=pi, opt_pi=opt_pi, target=target)
        return state, metrics | {"loss/pi": value, "safe/share": share}

    def _critics(
        self, task: Task, state: CPQState, batch: Batch, key_next: Array, key_ood: Array
    ) -> tuple[CPQState, dict[str, Array]]:
        """One step of all critics on their regressions and the penalty; and of alpha."""
        goals, names = self._goals(task, state, batch, key_next), ("q", *(f"qc_{x}" for x in task.cost_names))
        s_ood, a_ood = self._unlike(state, batch, key_ood)
        pushed = self.config.ood_margin * self.limits(task)
        alpha, released = jnp.exp(state.log_alpha), self.config.penalty == "released"

        def loss(critics: tuple[Copies, ...]) -> tuple[Array, tuple[dict[str, Array], Array]]:
            parts = {}
            for name, copies, goal in zip(names, critics, goals, strict=True):
                each = (jnp.mean((critic(batch.s, batch.a) - goal) ** 2) for critic in copies)
                parts[f"loss/{name}"] = sum(each, jnp.zeros(()))
            if released:  # on targets: a number without gradient, and a mean diluted by the likely actions
                values = [self._value(state.target, 1 + i, s_ood, a_ood) for i in range(task.costs)]
                unlike = self.config.ood_share * jnp.stack(values).mean(axis=1)
            else:
                each_cost = [jnp.stack([qc(s_ood, a_ood) for qc in copies]) for copies in critics[1:]]
                unlike = jnp.stack([values.mean() for values in each_cost])
            return sum(parts.values(), jnp.zeros(())) - jnp.sum(alpha * (unlike - pushed)), (parts, unlike)

        critics, opt, (_, (metrics, unlike)) = descend(
            self.adam, loss, state.critics, state.opt, has_aux=True
        )
        log_alpha = jnp.clip(state.log_alpha + self.config.eta_alpha * alpha * (pushed - unlike), -5.0, 5.0)
        for i, name in enumerate(task.cost_names):
            metrics[f"alpha/{name}"] = alpha[i]
            metrics[f"unlike/{name}"] = unlike[i] / task.scale[1 + i]
        return replace(state, critics=critics, opt=opt, log_alpha=log_alpha), metrics

    def _goals(self, task: Task, state: CPQState, batch: Batch, key: Array) -> list[Array]:
        """What the reward and the cost critics are regressed on, each `(batch,)`."""
        a_next = state.pi.choice(batch.s_next, key)
        safe = self._excess(task, state.target, batch.s_next, a_next) <= 0
        goals = []
        for u in range(1 + task.costs):
            low, high = task.value_low[u], task.value_high[u]
            future = jnp.clip(self._value(state.target, u, batch.s_next, a_next), low, high)
            if u == 0:  # the least value is 0 unless rewards can be negative
                worst = low if self.config.penalty == "gradient" else 0.0
                future = jnp.where(safe, future, worst)
            goals.append(batch.u[:, u] + batch.discount[:, min(u, 1)] * future)
        return goals

    def _unlike(self, state: CPQState, batch: Batch, key: Array) -> tuple[Array, Array]:
        """States and actions of pi that are least like the data: `ood_share` of all that are drawn."""
        s = jnp.repeat(batch.s, self.config.ood_actions, axis=0)
        a = state.pi.choice(s, key)
        if self.config.penalty == "released":
            assert isinstance(state.pi, Gaussian)
            a = jnp.arctanh(jnp.clip(a, -1 + 1e-6, 1 - 1e-6))
        count = max(1, round(self.config.ood_share * s.shape[0]))
        _, rows = jax.lax.top_k(state.vae.divergence(s, a), count)
        return s[rows], stop_gradient(a[rows])

    def _value(self, critics: tuple[Copies, ...], u: int, s: Array, a: Array) -> Array:
        """Q (u = 0) or Qc^u at (s, a): the least of the copies, or the largest for a cost."""
        values = jnp.stack([critic(s, a) for critic in critics[u]])
        largest = u > 0 and self.config.cost_of_copies == "largest"
        return jnp.max(values, axis=0) if largest else jnp.min(values, axis=0)

    def _excess(self, task: Task, critics: tuple[Copies, ...], s: Array, a: Array) -> Array:
        """max_i Qc^i(s,a) - q_i, shape `(batch,)`: at most 0 where (s, a) is safe."""
        costs = jnp.stack([self._value(critics, 1 + i, s, a) for i in range(task.costs)], axis=-1)
        # no cost is larger than value_high: a limit above it calls nothing unsafe
        costs = jnp.minimum(costs, jnp.asarray(task.value_high[1:]))
        return jnp.max(costs - self.limits(task), axis=-1)
