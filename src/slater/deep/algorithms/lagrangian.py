"""What the Lagrangian actor-critics share (BCQ-Lag, BEAR-Lag): twin critics, a PID multiplier, two phases.

For every utility (reward, then costs) two critics Q_1, Q_2, regressed on the same target; a' is what the
policy chooses at s':

    y_u    = u + gamma (1 - terminal) v_u(s', a')        the same mask for reward and costs
    v_0    = 3/4 min_j Q_j + 1/4 max_j Q_j               soft clipped double Q
    v_i    = 3/4 max_j Q_j + 1/4 min_j Q_j               a cost counts rather too much than too little
    h_i    = c_i + gamma (1 - terminal) h_i(s', a')      a judge of each cost that no policy climbs
    e_i    = E[h_i(s_0, pi)] - tau_i                     what the PID player is told, over tau_i
    score  = v_0 - sum_i lambda_i v_i                    what the policy maximises

The policy chooses actions by v, so v errs on its choices to the good side: judged by v_i itself, costs came
out at less than half of what rollouts gave (docs/lab, 2026-11-16). Released code (OSRL) takes the smaller
critic for costs too, the largest cost over ten sampled actions in the target, no terminal mask for costs,
judges by v_i, and averages e over all states of the data instead of first ones.
A slow target network is late in the level of Q; as in `slater.deep.ope.fitted_q` that level is solved for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.algorithms.base import Algorithm, Config, State
from slater.deep.batches import Batch
from slater.deep.game.dual import PID, relative_excess
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import descend, polyak
from slater.deep.ope.fitted_q import FittedQ
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class LagrangianConfig(Config):
    """Settings that the Lagrangian actor-critics share. "released" marks what that preset changes."""

    steps: int = 30_000
    """gradient iterations, warm ones included (released: 100,000; bear-lag 300,000)"""
    critic_rate: float = 1e-3
    """learning rate of the critics"""
    actor_rate: float = 1e-4
    """learning rate of the actor (released: 1e-3)"""
    vae_rate: float = 1e-3
    """learning rate of the autoencoder"""
    vae_hidden: tuple[int, ...] = (400, 400)
    """width of each hidden layer of the autoencoder"""
    polyak: float = 0.005
    """rate of the target networks, per iteration"""
    deflation: float = 0.01
    """rate at which the level of the critics is solved for, per iteration; 0: not (released: 0)"""
    warm_steps: int = 3_000
    """first iterations: autoencoder, and critics on the data's returns; no actor yet, at
    most two thirds of all (released: 0)"""
    samples: int = 10
    """actions drawn per state"""
    multiplier_bound: float = 5.0
    """bound on the sum of multipliers, for rewards and costs scaled to [0, 1]"""
    kp: float = 0.1
    """proportional gain of the multiplier, per relative excess"""
    ki: float = 0.0003
    """integral gain, per relative excess and iteration (released: 0.003)"""
    kd: float = 0.001
    """derivative gain, on rising costs only"""
    margin: float = 0.1
    """share of every limit that is held back (released: 0)"""
    cost_twins: Literal["max", "min"] = "max"
    """which of its two critics a cost leans on (released: min, the optimist)"""
    judge: Literal["own", "critics"] = "own"
    """what estimates a cost for the multiplier: networks of its own, or the actor's critics (released)"""
    excess_at: Literal["initial", "data"] = "initial"
    """states at which the cost is compared with the limit: first ones, or all (released: data)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("critic_rate", "actor_rate", "vae_rate", "polyak", "multiplier_bound")
        if min(self.kp, self.ki, self.kd, self.deflation, self.warm_steps) < 0 or self.samples < 1:
            raise InputError("kp, ki, kd, deflation and warm_steps must be >= 0 and samples >= 1.")
        if not 0 <= self.margin < 1:
            raise InputError(f"margin must be in [0, 1), not {self.margin}.")


#: the two critics of every utility
Pairs = tuple[tuple[Critic, Critic], ...]


class TwinState(eqx.Module):
    """Critics, their targets and optimiser; judge: h, its target, its optimiser."""

    online: Pairs
    target: Pairs
    opt: Any
    judge: tuple[tuple[Critic, ...], tuple[Critic, ...], Any]


class Twins:
    """Two critics per utility: their start, their values and their update."""

    def __init__(self, config: LagrangianConfig) -> None:
        self.config, self.adam = config, optax.adam(config.critic_rate)
        self.fqe = FittedQ(config.critic_rate, config.polyak, config.deflation)

    def init(self, task: Task, key: Array) -> TwinState:
        """All at random."""
        key, key_judge = jax.random.split(key)
        keys = jax.random.split(key, (1 + task.costs, 2))
        own = jax.random.split(key_judge, task.costs) if self.config.judge == "own" else ()
        hidden = self.config.hidden
        h = tuple(make_critic(task, hidden, k) for k in own)
        nets = tuple((make_critic(task, hidden, a), make_critic(task, hidden, b)) for a, b in keys)
        return TwinState(nets, nets, self.adam.init(nets), (h, h, self.fqe.adam.init(h)))

    def values(self, nets: Pairs, s: Array, a: Array) -> Array:
        """v_u(s, a) of every utility, shape (1+I, batch)."""
        answer = []
        for u, (one, two) in enumerate(nets):
            q1, q2 = one(s, a), two(s, a)
            low, high = jnp.minimum(q1, q2), jnp.maximum(q1, q2)
            leans_low = u == 0 or self.config.cost_twins == "min"
            answer.append(0.75 * low + 0.25 * high if leans_low else 0.25 * low + 0.75 * high)
        return jnp.stack(answer)

    def costs(self, state: TwinState, s: Array, a: Array) -> Array:
        """Estimates of every cost at (s, a) for the multiplier, shape (I, batch)."""
        _, target, _ = state.judge
        return jnp.stack([h(s, a) for h in target]) if target else self.values(state.target, s, a)[1:]

    def score(self, nets: Pairs, lam: Array, s: Array, a: Array) -> Array:
        """v_0 - sum_i lambda_i v_i, shape (batch,)."""
        v = self.values(nets, s, a)
        return v[0] - lam @ v[1:]

    def best(self, nets: Pairs, lam: Array, s: Array, actions: Array) -> Array:
        """Of actions (batch, n, action_dim), the one with the largest score, (batch, action_dim)."""
        batch, n, dim = actions.shape
        if n == 1:
            return actions[:, 0]
        score = self.score(nets, lam, jnp.repeat(s, n, axis=0), actions.reshape(batch * n, dim))
        best = jnp.argmax(score.reshape(batch, n), axis=1)
        return jnp.take_along_axis(actions, best[:, None, None], 1)[:, 0]

    def update(
        self, task: Task, state: TwinState, batch: Batch, a_next: Array | None
    ) -> tuple[TwinState, dict[str, Array]]:
        """One step of Adam on both critics of every utility; on the data's returns if there is no a'."""
        goals = batch.returns.T
        levels = jnp.zeros(len(goals))
        if a_next is not None:
            future = self.values(state.target, batch.s_next, a_next)
            future = jnp.clip(future, task.value_low[:, None], task.value_high[:, None])
            goals = batch.u.T + batch.discount * future
            here = self.values(state.target, batch.s, batch.a)
            drift = jnp.mean(goals - here, axis=1) / jnp.mean(1.0 - batch.discount)
            levels = self.config.deflation * drift

        def loss(nets: Pairs) -> tuple[Array, Array]:
            pairs = zip(nets, goals, strict=True)
            each = [sum(jnp.mean((q(batch.s, batch.a) - y) ** 2) for q in pair) for pair, y in pairs]
            losses = jnp.stack(each)
            return jnp.sum(losses), losses

        online, opt, (_, losses) = descend(self.adam, loss, state.online, state.opt, has_aux=True)
        target = online if a_next is None else polyak(state.target, online, self.config.polyak)
        online, target = _raised(online, levels), _raised(target, levels)
        names = ("reward", *task.cost_names)
        metrics = {f"loss/Q_{name}": losses[u] for u, name in enumerate(names)}
        judge = state.judge
        if a_next is not None and judge[0]:
            judge, judged = self.fqe.update(task, range(1, 1 + task.costs), judge, batch, a_next)
            metrics |= {f"loss/h_{name}": judged[i] for i, name in enumerate(task.cost_names)}
        return TwinState(online, target, opt, judge), metrics


def _raised(nets: Pairs, levels: Array) -> Pairs:
    """Every critic of utility u plus levels[u]."""

    def raised(critic: Critic, level: Array) -> Critic:
        higher: Critic = eqx.tree_at(lambda c: c.mlp.biases[-1], critic, critic.mlp.biases[-1] + level)
        return higher

    return tuple((raised(a, levels[u]), raised(b, levels[u])) for u, (a, b) in enumerate(nets))


#: what the presets `released` have in common
RELEASED: Mapping[str, Any] = {
    "actor_rate": 1e-3, "ki": 0.003, "warm_steps": 0, "deflation": 0.0, "margin": 0.0, "cost_twins": "min",
    "excess_at": "data", "judge": "critics", "normalise_observations": False, "reward_scale": 0.1,
}  # fmt: skip
LagrangianT = TypeVar("LagrangianT", bound=LagrangianConfig)


class LagrangianActor(Algorithm[LagrangianT, State]):
    """An actor-critic with twin critics and a PID multiplier; its state has the multiplier's as `dual`."""

    actions = ("continuous",)
    acts_likeliest: ClassVar[bool] = True
    preparation: ClassVar[tuple[str, str, str] | None] = ("warm_steps", "warm", "train")

    def __init__(self, config: LagrangianT) -> None:
        super().__init__(config)
        self.twins = Twins(config)
        self.pid = PID(config.multiplier_bound, config.kp, config.ki, config.kd)
        self.adam_vae, self.adam_actor = optax.adam(config.vae_rate), optax.adam(config.actor_rate)

    def keeps(self, done: int) -> bool:
        """The last policy only, with the multiplier that belongs to it."""
        return done == self.config.steps

    @staticmethod
    def multipliers(task: Task, state: Any) -> dict[str, Array]:
        """The multipliers by name."""
        return {f"lambda/{name}": state.dual.lam[i] for i, name in enumerate(task.cost_names)}

    def heard(
        self, task: Task, state: Any, batch: Batch, act: Callable[[Array], Array]
    ) -> tuple[Any, dict[str, Array]]:
        """The state once the multiplier heard what actions `act(s)` cost; and metrics."""
        s = batch.s0 if self.config.excess_at == "initial" else batch.s
        e, metrics = excess(task, self.config, self.twins.costs(state.twins, s, act(s)))
        return replace(state, dual=self.pid.update(state.dual, e)), metrics


def excess(task: Task, config: LagrangianConfig, costs: Array) -> tuple[Array, dict[str, Array]]:
    """The relative excess e / tau (I,), from estimates (I, batch) at the policy's actions; and metrics."""
    tau, cost = jnp.asarray(task.tau * (1.0 - config.margin)), jnp.mean(costs, axis=1)
    metrics = {f"value/{name}": cost[i] / task.scale[1 + i] for i, name in enumerate(task.cost_names)}
    return relative_excess(cost, tau, 1e-3 / (1.0 - task.gamma)), metrics
