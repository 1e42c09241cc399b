"""WSAC (Wei et al., NeurIPS 2024) on networks: not below the policy that logged, at its costs or the limits.

    f    minimises  2 E_D(f, pi; R)     + A_D(f, pi)         pessimistic about the reward, relative to the log
    g^i  minimises  2 E_D(g^i, pi; C_i) - A_D(g^i, pi)       pessimistic about each cost
    pi   climbs     A_D(f, pi) - lambda sum_i (A_D(g^i, pi) - (1 - gamma) room_i)_+

lambda is fixed, and `room_i = tau_i - J_Ci(mu)` is what the logging policy mu leaves of limit i (0 at
`level = reference`). By pessimism `(1 - gamma)(J_Ci(pi) - J_Ci(mu)) <= A_D(g^i, pi)`, so the hinge asks for
the limit, and no estimator decides anything: `slater.tabular.wsac` has the short proof and exact numbers.
E_D is the squared residual of `slater.deep.game.critics` where the paper has an importance-weighted average
one, which on networks stalls. J_Ci(mu) is the mean cost of the log's rows over 1 - gamma. The game starts at
a clone of the log, and the output is the mixture of the second half of its policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.from_clone import FromClone, FromCloneConfig, anchored_at
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, draw_keys
from slater.deep.game.bellman import advantage
from slater.deep.game.critics import Critics, CriticsState
from slater.deep.game.primal import PrimalState
from slater.deep.task import Task

#: rate at which means over minibatches move, per iteration
SMOOTHING = 0.02


@dataclass(frozen=True)
class WSACConfig(FromCloneConfig):
    """Settings of WSAC."""

    level: Literal["limits", "reference"] = "limits"
    """what costs are held to: the limits, or what the policy that logged cost"""
    multiplier: float = 5.0
    """lambda, for rewards and costs scaled to [0, 1]; above the optimal multipliers of the level"""
    C: float = 10.0
    """weight of the Bellman error against pessimism; any value keeps the guarantee"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("multiplier", "C")


class WSACState(eqx.Module):
    """Critics, player, and means over minibatches, (I,): the log's cost rate, and A_D of every g^i."""

    critics: CriticsState
    primal: PrimalState
    rate: Array
    advantage: Array


@register
class WSAC(FromClone[WSACConfig, WSACState]):
    """Weighted safe actor-critic; see the module's text."""

    name: ClassVar[str] = "wsac"
    label: ClassVar[str] = "WSAC"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {"C": ("1", "10"), "multiplier": ("5", "20")}
    Config: ClassVar[type[Config]] = WSACConfig

    def __init__(self, config: WSACConfig) -> None:
        super().__init__(config)
        self.critics = Critics(config.hidden, config.eta_fast, config.C, polyak=config.polyak)

    def init(self, task: Task, key: Array) -> WSACState:
        """All networks at random."""
        key_f, key_g, key_pi = jax.random.split(key, 3)
        zero = jnp.zeros(task.costs)
        return WSACState(
            self.critics.init(task, key_f, key_g), self.primal(task).init(task, key_pi), zero, zero
        )

    def update(
        self, task: Task, state: WSACState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[WSACState, dict[str, Array]]:
        """Critics and clone on the log; then critics against the policy, and the policy against the hinge."""
        primal = self.primal(task)
        # a mean from the first minibatch on, later over about the last 1 / SMOOTHING of them
        share = jnp.maximum(1.0 / (step + 1.0), SMOOTHING)
        rate = state.rate + share * (jnp.mean(batch.u[:, 1:], axis=0) - state.rate)
        if phase == "warm":
            critics, metrics = self.critics.warm(task, state.critics, batch)
            cloned, told = primal.warm(state.primal, batch)
            return WSACState(critics, anchored_at(cloned), rate, state.advantage), metrics | told
        pi, keys = state.primal.policy, draw_keys(key)
        critics, metrics = self.critics.update(task, state.critics, pi, batch, key)
        choice = pi.choice(batch.s, keys.s)
        now = jnp.stack([advantage(g[0](batch.s, choice), g[0](batch.s, batch.a)) for g in critics.g])
        smooth = state.advantage + SMOOTHING * (now - state.advantage)
        # (1 - gamma) (tau - J_C(mu)), (I,); 0 at the reference's level
        reference = self.config.level == "reference"
        room = jnp.zeros_like(rate) if reference else (1.0 - task.gamma) * jnp.asarray(task.tau) - rate
        excess = smooth - room
        multipliers = jnp.where(excess > 0, self.config.multiplier, 0.0)
        z = self.critics.lagrangian(task, critics, multipliers, batch)
        moved, told = primal.update(task, state.primal, z, batch, key)
        for i, name in enumerate(task.cost_names):
            told[f"paid/{name}"] = (excess[i] > 0).astype(jnp.float32)
            told[f"excess/{name}"] = excess[i] / ((1.0 - task.gamma) * task.scale[1 + i])
        return WSACState(critics, moved, rate, smooth), metrics | told

    def report(self, task: Task, state: WSACState, members: Any, weights: Any) -> dict[str, Any]:
        """What the log itself costs, as a discounted sum."""
        costs = np.asarray(state.rate, dtype=np.float64) / ((1.0 - task.gamma) * task.scale[1:])
        return {"reference_costs": dict(zip(task.cost_names, costs.tolist(), strict=True))}
