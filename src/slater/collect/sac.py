"""Soft actor-critic on a penalised reward, in JAX: pure functions on one state.

Maximises E sum gamma^t (r_t + alpha H(pi(.|s_t))) where r = scale * (R - lambda.C) (Haarnoja et al., 2018),
with two critics and the smaller of their values, targets that follow by Polyak averaging, and a temperature
alpha that keeps the entropy near its target. For discrete actions the same formulas hold with exact
expectations over actions.

Reference: Haarnoja et al., Soft Actor-Critic Algorithms and Applications, arXiv 1812.05905.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from slater.deep.nets.critic import Critic
from slater.deep.nets.mlp import MLP, polyak
from slater.deep.nets.policy import Categorical, Gaussian, PolicyNetwork
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy

__all__ = [
    "Learner",
    "ReplayBatch",
    "SACConfig",
    "State",
    "Task",
    "export",
    "init",
    "state_before",
    "updates",
]

Actor = TypeVar("Actor", bound=PolicyNetwork)
Judge = TypeVar("Judge", Critic, MLP)


@dataclass(frozen=True)
class SACConfig:
    """Settings of the learner; the defaults are those of the reference unless said otherwise."""

    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer"""
    batch_size: int = 256
    """transitions per update"""
    gamma: float = 0.99
    """discount per step"""
    learning_rate: float = 3e-4
    """of Adam, for critics, policy and temperature"""
    polyak: float = 0.005
    """share of the critics that enters their targets at each update"""
    start_steps: int = 1_000
    """steps with uniform actions before the policy acts"""
    update_every: int = 50
    """environment steps between rounds of updates"""
    updates_per_step: float = 1.0
    """updates per environment step"""
    reward_scale: float = 1.0
    """factor on R - lambda*C"""

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden needs at least one layer of width 1 or more, not {self.hidden}.")
        for name in ("batch_size", "update_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.gamma < 1:
            raise InputError(f"gamma must be in [0, 1), not {self.gamma}.")
        for name in ("learning_rate", "updates_per_step", "reward_scale"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")

    @property
    def round(self) -> int:
        """Updates in a round."""
        return max(1, round(self.update_every * self.updates_per_step))


@dataclass(frozen=True)
class Task:
    """The spaces: observation entries, action entries or number of actions, bounds of continuous actions."""

    obs_dim: int
    action_dim: int
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None

    @property
    def discrete(self) -> bool:
        """Whether actions are indices."""
        return self.low is None

    @property
    def target_entropy(self) -> float:
        """Minus one nat per action entry; for discrete actions a fifth of the largest entropy."""
        return 0.2 * float(np.log(self.action_dim)) if self.discrete else -float(self.action_dim)


class ReplayBatch(NamedTuple):
    """Transitions: s, a (as a choice, see `slater.deep.nets`), r penalised and scaled, gamma or 0, s'."""

    s: Array
    a: Array
    r: Array
    discount: Array
    s_next: Array


class State(NamedTuple, Generic[Actor, Judge]):
    """Everything that learning changes, here and in `slater.collect.penalised_sac`."""

    pi: Actor
    q: tuple[Judge, Judge]
    q_target: tuple[Judge, Judge]
    log_alpha: Array
    opt_pi: Any
    opt_q: Any
    opt_alpha: Any


#: the state of the learner on this page
Learner = State[PolicyNetwork, Critic]


def state_before(
    pi: Actor, q: tuple[Judge, Judge], log_alpha: Array, adam: optax.GradientTransformation
) -> State[Actor, Judge]:
    """The state before the first update: the targets are the critics, the optimiser has seen nothing."""
    return State(
        pi=pi,
        q=q,
        q_target=q,
        log_alpha=log_alpha,
        opt_pi=adam.init(eqx.filter(pi, eqx.is_array)),
        opt_q=adam.init(eqx.filter(q, eqx.is_array)),
        opt_alpha=adam.init(log_alpha),
    )


def init(task: Task, config: SACConfig, key: Array) -> Learner:
    """The state before the first update."""
    key_pi, *keys = jax.random.split(key, 3)
    if task.discrete:
        pi: PolicyNetwork = Categorical(MLP([task.obs_dim, *config.hidden, task.action_dim], key_pi))
        sizes = [task.obs_dim, *config.hidden, task.action_dim]
    else:
        pi = Gaussian(MLP([task.obs_dim, *config.hidden, 2 * task.action_dim], key_pi), (-5.0, 2.0))
        sizes = [task.obs_dim + task.action_dim, *config.hidden, 1]
    q1, q2 = (Critic(MLP(sizes, k), task.discrete) for k in keys)
    return state_before(pi, (q1, q2), jnp.zeros(()), optax.adam(config.learning_rate))


def _smaller(critics: tuple[Critic, Critic], obs: Array, choice: Array) -> Array:
    return jnp.minimum(critics[0](obs, choice), critics[1](obs, choice))


def _update(
    task: Task, config: SACConfig, state: Learner, batch: ReplayBatch, key: Array
) -> tuple[Learner, Array]:
    key_next, key_pi = jax.random.split(key)
    adam = optax.adam(config.learning_rate)
    alpha = jnp.exp(state.log_alpha)

    # y = r + gamma (min_j Q'_j(s', a') + alpha H), a' ~ pi; the same key gives the sample and its entropy
    a_next = state.pi.choice(batch.s_next, key_next)
    entropy_next = state.pi.entropy(batch.s_next, key_next)
    y = batch.r + batch.discount * (_smaller(state.q_target, batch.s_next, a_next) + alpha * entropy_next)

    def critic_loss(q: tuple[Critic, Critic]) -> Array:
        return sum((jnp.mean((one(batch.s, batch.a) - y) ** 2) for one in q), jnp.zeros(()))

    loss_q, gradient = jax.value_and_grad(critic_loss)(state.q)
    step, opt_q = adam.update(gradient, state.opt_q)
    q = optax.apply_updates(state.q, step)

    def policy_loss(pi: PolicyNetwork) -> tuple[Array, Array]:
        entropy = jnp.mean(pi.entropy(batch.s, key_pi))
        return -jnp.mean(_smaller(q, batch.s, pi.choice(batch.s, key_pi))) - alpha * entropy, entropy

    (_, entropy), gradient = jax.value_and_grad(policy_loss, has_aux=True)(state.pi)
    step, opt_pi = adam.update(gradient, state.opt_pi)
    pi = optax.apply_updates(state.pi, step)

    # alpha falls while the entropy is above its target
    step, opt_alpha = adam.update(entropy - task.target_entropy, state.opt_alpha)
    log_alpha = optax.apply_updates(state.log_alpha, step)

    q_target = polyak(state.q_target, q, config.polyak)
    new = State(pi, q, q_target, log_alpha, opt_pi, opt_q, opt_alpha)
    return new, jnp.stack([loss_q, entropy, alpha])


@functools.partial(jax.jit, static_argnums=(0, 1))
def updates(
    task: Task, config: SACConfig, state: Learner, batches: ReplayBatch, key: Array
) -> tuple[Learner, Array]:
    """One update for each of K batches (leading axis K); and the mean critic loss, entropy and alpha."""

    def one(state: Learner, given: tuple[ReplayBatch, Array]) -> tuple[Learner, Array]:
        return _update(task, config, state, *given)

    state, figures = jax.lax.scan(one, state, (batches, jax.random.split(key, batches.r.shape[0])))
    return state, figures.mean(axis=0)


def export(task: Task, pi: PolicyNetwork) -> GaussianPolicy | CategoricalPolicy:
    """The policy in NumPy, for raw observations and actions in the environment's units."""
    weights = tuple(np.asarray(w) for w in pi.mlp.weights)
    biases = tuple(np.asarray(b) for b in pi.mlp.biases)
    mean, std = np.zeros(task.obs_dim, np.float32), np.ones(task.obs_dim, np.float32)
    if task.low is None or task.high is None:
        return CategoricalPolicy(weights, biases, mean, std)
    assert isinstance(pi, Gaussian)
    low, high = (np.array(bound, np.float32) for bound in (task.low, task.high))
    return GaussianPolicy(weights, biases, mean, std, low, high, pi.log_std_range)
