"""CAPS (Chemingui et al., AAAI 2025): heads between reward and cost, and a budget that switches among them.

In-sample critics of the reward and of every cost (`slater.deep.game.in_sample`), and K heads on one trunk,
each a clone of the log weighted by what its rows are worth. G_r = Q_r - V_r, G_c = sum_i (V_ci - Q_ci):

    head k < K - 1    exp(beta (G_r + m_k G_c)),  m_k = 2 k / (K - 1)
    head K - 1        exp(beta G_c)                                                       each at most 100

Acting keeps what is left of every limit: of the heads' actions whose cost-to-go fits, the one of the best
reward; else the one that exceeds least (`slater.policy.switching`). Costs-to-go are those of the cheapest
continuation, by the lower expectile. One model serves all limits: `slater evaluate RUN --limit N`, or
`with_limits` of the policy; its actor takes another limit in the middle of an episode too.

Under limits per episode or per step, critics and heads know the time and sums are not discounted, so that
cost-to-go and what is left are the same quantity; under discounted limits, sums and budget are discounted.

With `actor = "sac"` the heads are trained by the critics' gradients instead, beside cloning (CAPS with
SAC+BC), and what follows s' is the reward head's action for the reward and the cost head's for every cost:

    head k    minimises  -q_weight E z_k / E|z_k| + E|a_k - a|^2 - alpha H
              z_k = Q_r - m_k sum_i Q_ci, of the last one -sum_i Q_ci

with -log pi(a|s) for the square where actions are discrete, and alpha such that the mean entropy of the heads
stays at -dim A, or a tenth of its largest. (Released code puts the entropy into the cost's backup too, which
shifts costs by alpha E log pi / (1 - gamma), and has one critic for random heads: neither is repeated.)

The preset `released` is what published code does: critics that do not know the time and end at timeouts
against a budget converted at a constant rate, middle heads that add the weights of two clones, weights of
raw gains, squared errors instead of likelihoods, and costs-to-go below 0 that count as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from slater.deep.algorithms.base import Config, LastIterate
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch
from slater.deep.game.in_sample import InSampleCritics, InSampleState, clone_weights
from slater.deep.game.timed import horizon_of
from slater.deep.nets.critic import Critic
from slater.deep.nets.mlp import MLP, descend
from slater.deep.nets.policy import Categorical, Gaussian, PolicyNetwork
from slater.deep.task import Task, counts_episodes
from slater.errors import InputError
from slater.policy.switching import SwitchingPolicy


@dataclass(frozen=True)
class CAPSConfig(Config):
    """Settings of CAPS. "released" marks what the preset changes, and to what."""

    actor: Literal["iql", "sac"] = "iql"
    """how heads are trained: as weighted clones, or by the critics' gradients beside cloning"""
    heads: int = 4
    """K, heads between reward and cost, at least 2 (released: 2)"""
    eta: float = 3e-4
    """learning rate of critics and heads"""
    expectile: float = 0.7
    """of Q that V is for the reward; one less it for costs"""
    beta: float = 3.0
    """of the weights, per root mean square of the gain (released: per unit of it)"""
    most_weight: float = 100.0
    """largest weight of a row"""
    q_weight: float = 2.5
    """actor = sac: weight of the critics against cloning"""
    alpha_rate: float = 1e-3
    """actor = sac: rate of log alpha, per nat of missing entropy"""
    polyak: float = 0.005
    """rate of the target networks, per iteration"""
    critics: Literal["matched", "released"] = "matched"
    """matched: sums end where the limits do; released: at timeouts, discounted, without the time"""
    middle: Literal["sum", "released"] = "sum"
    """middle heads weigh by exp of a sum of gains; released: by a sum of exps"""
    likelihood: Literal["squashed", "squared"] = "squashed"
    """loss of a head for continuous actions (released: squared error of tanh(mean))"""
    log_std_min: float = -5.0
    """smallest log standard deviation before the tanh: actions that repeat exactly have no density"""
    clip_costs: bool = True
    """whether a cost-to-go below 0 counts as 0 (released: no)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads < 2:
            raise InputError(f"heads must be at least 2, one for reward and one for cost, not {self.heads}.")
        self.require_positive("eta", "beta", "most_weight", "q_weight", "alpha_rate", "polyak")
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must be above 0 and below 1, not {self.expectile}.")


class CAPSNetwork(eqx.Module):
    """The heads side by side on one trunk, and the critics that choose among them."""

    mlp: MLP
    critics: tuple[tuple[Critic, ...], ...]
    config: CAPSConfig = eqx.field(static=True)

    def export(self, task: Task) -> SwitchingPolicy:
        """The same in NumPy, under the problem's limits."""
        limits = task.units.thresholds(task.limits, "episode").astype(np.float32)
        return SwitchingPolicy(
            self.mlp.layers(), tuple(tuple(q.mlp.layers() for q in copies) for copies in self.critics),
            self.config.heads, _critics(task, self.config).budget(task), limits,
            task.scale[1:].astype(np.float32), task.obs_mean, task.obs_std, task.action_low, task.action_high,
            _log_std_range(self.config), self.config.clip_costs, task.cost_names,
        )  # fmt: skip


def _critics(task: Task, config: CAPSConfig) -> InSampleCritics:
    """The critics, with sums that end where the limits stop to look."""
    released = config.critics == "released"
    return InSampleCritics(
        signs=(1, *[-1] * task.costs), hidden=config.hidden, learning_rate=config.eta,
        expectile=config.expectile, polyak=config.polyak,
        ends="timeouts" if released else "horizon" if counts_episodes(task) else "never",
    )  # fmt: skip


def _log_std_range(config: CAPSConfig) -> tuple[float, float]:
    return (-20.0, -20.0) if config.likelihood == "squared" else (config.log_std_min, 2.0)


class CAPSState(eqx.Module):
    """The critics, the network of all heads, its optimiser, and log alpha of `actor = sac`."""

    critics: InSampleState
    mlp: MLP
    opt: Any
    log_alpha: Array


@register
class CAPS(LastIterate[CAPSConfig, CAPSState]):
    """Constraint-adaptive policy switching; see the module's text."""

    name: ClassVar[str] = "caps"
    label: ClassVar[str] = "CAPS"
    published_as: ClassVar[str | None] = "CAPS-IQL-2heads"
    serves_all_limits: ClassVar[bool] = True
    Config: ClassVar[type[Config]] = CAPSConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "steps": 100_000, "hidden": (512, 512), "heads": 2, "critics": "released", "middle": "released",
            "likelihood": "squared", "clip_costs": False, "reward_scale": 0.1,
            "normalise_observations": False,
        },
        "sac": {"actor": "sac"},
    }  # fmt: skip

    def __init__(self, config: CAPSConfig) -> None:
        super().__init__(config)
        self.adam = optax.adam(config.eta)

    def init(self, task: Task, key: Array) -> CAPSState:
        """All at random."""
        key_critics, key_heads = jax.random.split(key)
        critics = _critics(task, self.config)
        outputs = self.config.heads * task.action_dim * (1 if task.discrete else 2)
        mlp = MLP([critics.seen_task(task).obs_dim, *self.config.hidden, outputs], key_heads)
        log_alpha = jnp.asarray(np.log(0.1), dtype=jnp.float32)
        return CAPSState(critics.init(task, key_critics), mlp, self.adam.init(mlp), log_alpha)

    def update(
        self, task: Task, state: CAPSState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[CAPSState, dict[str, Array]]:
        """One step of the critics, then one of all heads."""
        critics, rest = _critics(task, self.config), jnp.ones_like(batch.time)
        if critics.ends != "never":
            rest = jnp.clip((horizon_of(task) - 1.0 - batch.time) / horizon_of(task), 0.0, 1.0)
        if critics.ends == "timeouts":
            batch = batch._replace(discount=jnp.where(rest > 0, batch.discount, 0.0))
            rest = jnp.ones_like(rest)
        seen = critics.seen(task, batch)
        bounds = (jnp.outer(task.value_low, rest), jnp.outer(task.value_high, rest))
        key_next, key_heads = jax.random.split(key)
        ahead, last = None, self.config.heads - 1
        if self.config.actor == "sac":  # by the reward head, and for costs by the cost head
            choices = [self._head(task, state.mlp, k).choice(seen.s_next, key_next) for k in (0, last)]
            ahead = [
                critics.value(state.critics.target, u, seen.s_next, choices[min(u, 1)])
                for u in range(1 + task.costs)
            ]
        trained, metrics = critics.update(state.critics, seen, bounds, ahead)
        if self.config.actor == "sac":
            return self._climb(task, critics, replace(state, critics=trained), seen, key_heads, metrics)
        weights = self._weights(critics.gains(trained, seen))

        def loss(mlp: MLP) -> Array:
            each = [
                jnp.mean(weight * self._unlikeliness(self._head(task, mlp, k), seen)) / jnp.mean(weight)
                for k, weight in enumerate(weights)
            ]
            return jnp.stack(each).mean()

        mlp, opt, metrics["loss/clone"] = descend(self.adam, loss, state.mlp, state.opt)
        for k, weight in enumerate(weights):
            metrics[f"rows/head_{k}"] = jnp.mean(weight) ** 2 / jnp.mean(weight**2)
        return CAPSState(trained, mlp, opt, state.log_alpha), metrics

    def _climb(
        self, task: Task, critics: InSampleCritics, state: CAPSState, seen: Batch, key: Array,
        metrics: dict[str, Array],
    ) -> tuple[CAPSState, dict[str, Array]]:  # fmt: skip
        """One step of all heads along the critics, beside cloning, and one of alpha."""
        config, last = self.config, self.config.heads - 1

        def loss(mlp: MLP) -> tuple[Array, tuple[Array, Array]]:
            total, unlike, entropy = jnp.zeros(()), jnp.zeros(()), jnp.zeros(())
            for k in range(config.heads):
                head = self._head(task, mlp, k)
                a = head.choice(seen.s, jax.random.fold_in(key, k))
                reward, *costs = (critics.value(state.critics.q, u, seen.s, a) for u in range(1 + task.costs))
                z = -sum(costs) if k == last else reward - 2.0 * k / last * sum(costs)
                size = jax.lax.stop_gradient(jnp.maximum(jnp.mean(jnp.abs(z)), 1e-6))
                away = jnp.sum((a - seen.a) ** 2, axis=-1)
                if task.discrete:
                    away = -head.log_prob(seen.s, seen.a)
                spread = jnp.mean(head.entropy(seen.s, jax.random.fold_in(key, k)))
                total += jnp.mean(away) - config.q_weight * jnp.mean(z) / size
                total -= jnp.exp(state.log_alpha) * spread
                unlike, entropy = unlike + jnp.mean(away), entropy + spread
            return total / config.heads, (unlike / config.heads, entropy / config.heads)

        mlp, opt, (metrics["loss/pi"], parts) = descend(self.adam, loss, state.mlp, state.opt, has_aux=True)
        metrics["loss/clone"], metrics["entropy"] = parts
        wanted = 0.1 * float(np.log(task.action_dim)) if task.discrete else -float(task.action_dim)
        missing = jnp.clip(wanted - metrics["entropy"], -1.0, 1.0)
        log_alpha = jnp.clip(state.log_alpha + config.alpha_rate * missing, -10.0, 2.0)
        metrics["alpha"] = jnp.exp(log_alpha)
        return CAPSState(state.critics, mlp, opt, log_alpha), metrics

    def _weights(self, gains: Array) -> list[Array]:
        """Weights of the rows for each head, (batch,), from gains of reward and costs, (batch, 1+I)."""
        config, last = self.config, self.config.heads - 1
        raw = config.middle == "released"
        if not raw:  # reward and costs on one scale, whatever their units
            gains = gains / jnp.maximum(jnp.sqrt(jnp.mean(gains**2, axis=0)), 1e-8)
        reward, cost = gains[:, 0], jnp.sum(gains[:, 1:], axis=1)

        def weigh(gain: Array) -> Array:
            return clone_weights(gain, config.beta, config.most_weight, in_units=not raw)

        mixes = [2.0 * k / last for k in range(last)]
        if raw:
            return [weigh(reward) + m * weigh(cost) for m in mixes] + [weigh(cost)]
        return [weigh(reward + m * cost) for m in mixes] + [weigh(cost)]

    def _unlikeliness(self, head: PolicyNetwork, batch: Batch) -> Array:
        """What a head loses on each row, (batch,)."""
        if self.config.likelihood == "squared" and isinstance(head, Gaussian):
            mean, _ = jnp.split(head.mlp(batch.s), 2, axis=-1)
            return jnp.sum((jnp.tanh(mean) - batch.a) ** 2, axis=-1)
        return -head.log_prob(batch.s, batch.a)

    def _head(self, task: Task, mlp: MLP, k: int) -> PolicyNetwork:
        """Head k as a policy of its own; the compiler computes the trunk once."""
        size = mlp.biases[-1].shape[0] // self.config.heads
        own = slice(k * size, (k + 1) * size)
        cut = eqx.tree_at(
            lambda m: (m.weights[-1], m.biases[-1]), mlp,
            (mlp.weights[-1][:, own], mlp.biases[-1][own]),
        )  # fmt: skip
        return Categorical(cut) if task.discrete else Gaussian(cut, _log_std_range(self.config))

    def policy(self, state: CAPSState) -> CAPSNetwork:
        """The heads and the critics that choose among them."""
        return CAPSNetwork(state.mlp, state.critics.q, self.config)
