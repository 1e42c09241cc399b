"""Soft actor-critic whose critics keep return and costs apart, so that the penalty may move while it learns.

Maximises E sum gamma^t (R - lambda.C + alpha H) (Haarnoja et al., arXiv 1812.05905). Each of the two critics
has one output for the return to come (with entropy) and one for each cost to come; the smaller critic is
chosen by the value of R - lambda.C. All parts obey a linear Bellman equation, so for a fixed lambda this is
SAC on R - lambda.C; when lambda moves, what was learned stays true and only the policy has to follow. For
discrete actions the same formulas hold with exact expectations over actions.

What makes it cheap per processor second: returns of several steps, an actor that moves at every second update
of the critics, large steps of Adam, and rows that are gathered from one packed array.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from slater.collect.behaviour import LOG_STD_RANGE
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import Categorical, Gaussian, PolicyNetwork
from slater.errors import InputError


@dataclass(frozen=True)
class SACConfig:
    """Settings of the learner."""

    hidden: tuple[int, ...] = (128, 128)
    """width of each hidden layer"""
    batch_size: int = 128
    """transitions per update"""
    gamma: float = 0.99
    """discount per step"""
    learning_rate: float = 1e-3
    """of Adam, for critics, policy and temperature"""
    polyak: float = 0.01
    """share of the critics that enters their targets at each update"""
    updates_per_step: float = 0.5
    """updates of the critics per environment step; the policy moves at every second one"""
    returns_over: int = 3
    """steps of reward and cost before the critics' own value enters a target"""
    layer_norm: bool = False
    """whether the critics' hidden layers are normalised"""
    mean_bound: float = 2.0
    """means beyond it, before the tanh, are penalised: actions within rounding of a bound have no useful
    density"""

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden needs at least one layer of width 1 or more, not {self.hidden}.")
        for name in ("batch_size", "returns_over", "learning_rate", "updates_per_step", "mean_bound"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if not 0 <= self.gamma < 1:
            raise InputError(f"gamma must be in [0, 1), not {self.gamma}.")


@dataclass(frozen=True)
class Spaces:
    """Observation entries, action entries or number of actions, and number of costs."""

    observations: int
    actions: int
    discrete: bool
    costs: int

    @property
    def target_entropy(self) -> float:
        """Minus one nat per action entry; for discrete actions a fifth of the largest entropy."""
        return 0.2 * float(np.log(self.actions)) if self.discrete else -float(self.actions)


class NStepBatch(NamedTuple):
    """s, a (in [-1, 1], or one-hot), discounted sums of r and c (batch, I), gamma^n or 0, s'."""

    s: Array
    a: Array
    r: Array
    c: Array
    discount: Array
    s_next: Array


class Learner(NamedTuple):
    """Everything that learning changes."""

    pi: PolicyNetwork
    q: tuple[MLP, MLP]
    q_target: tuple[MLP, MLP]
    log_alpha: Array
    opt_pi: Any
    opt_q: Any
    opt_alpha: Any


def init(spaces: Spaces, config: SACConfig, key: Array) -> Learner:
    """The state before the first update: the targets are the critics, the optimiser has seen nothing."""
    key_pi, *keys = jax.random.split(key, 3)
    outputs = 1 + spaces.costs
    if spaces.discrete:
        pi: PolicyNetwork = Categorical(MLP([spaces.observations, *config.hidden, spaces.actions], key_pi))
        sizes = [spaces.observations, *config.hidden, spaces.actions * outputs]
    else:
        network = MLP([spaces.observations, *config.hidden, 2 * spaces.actions], key_pi)
        pi = Gaussian(network, LOG_STD_RANGE)
        sizes = [spaces.observations + spaces.actions, *config.hidden, outputs]
    q1, q2 = (MLP(sizes, k, layer_norm=config.layer_norm) for k in keys)
    adam, log_alpha = optax.adam(config.learning_rate), jnp.log(0.2)
    states = (adam.init(eqx.filter(part, eqx.is_array)) for part in (pi, (q1, q2), log_alpha))
    return Learner(pi, (q1, q2), (q1, q2), log_alpha, *states)


def _drawn(pi: PolicyNetwork, obs: Array, key: Array, mean_bound: float) -> tuple[Array, Array, Array]:
    """A choice (see `deep.nets.policy`), minus its entropy, and how far means are beyond their bound."""
    if isinstance(pi, Categorical):
        return pi.choice(obs, key), -pi.entropy(obs, key), jnp.zeros(len(obs))
    mean, log_std = jnp.split(pi.mlp(obs), 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    noise = jax.random.normal(key, mean.shape)
    u = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    slope = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    beyond = jnp.sum(jax.nn.relu(jnp.abs(mean) - mean_bound) ** 2, axis=-1)
    return jnp.tanh(u), jnp.sum(normal - slope, axis=-1), beyond


def _values(spaces: Spaces, critic: MLP, obs: Array, choice: Array) -> Array:
    """Return and costs to come, shape `(batch, 1 + I)`."""
    if spaces.discrete:
        table = critic(obs).reshape(-1, spaces.actions, 1 + spaces.costs)
        return jnp.sum(table * choice[..., None], axis=1)
    return critic(jnp.concatenate([obs, choice], axis=-1))


def _smaller(spaces: Spaces, critics: tuple[MLP, MLP], obs: Array, choice: Array, worth: Array) -> Array:
    """Return and costs of the critic whose R - lambda.C is smaller."""
    one, other = (_values(spaces, critic, obs, choice) for critic in critics)
    return jnp.where(((one - other) @ worth < 0.0)[:, None], one, other)


def _update(
    spaces: Spaces,
    config: SACConfig,
    state: Learner,
    rows: NStepBatch,
    penalty: Array,
    key: Array,
    actor: bool,
) -> Learner:
    key_next, key_pi = jax.random.split(key)
    adam = optax.adam(config.learning_rate)
    alpha = jnp.exp(state.log_alpha)
    worth = jnp.concatenate([jnp.ones(1), -penalty])
    a_next, log_next, _ = _drawn(state.pi, rows.s_next, key_next, config.mean_bound)
    value = _smaller(spaces, state.q_target, rows.s_next, a_next, worth)
    value = value - jnp.stack([alpha * log_next] + spaces.costs * [jnp.zeros_like(log_next)], axis=-1)
    y = jnp.concatenate([rows.r[:, None], rows.c], axis=-1) + rows.discount[:, None] * value

    def critic_loss(q: tuple[MLP, MLP]) -> Array:
        weight = jnp.concatenate([jnp.ones(1), jnp.maximum(penalty, 0.1) ** 2])
        misses = (_values(spaces, one, rows.s, rows.a) - y for one in q)
        return sum((jnp.mean((miss**2) @ weight) for miss in misses), jnp.zeros(()))

    step, opt_q = adam.update(jax.grad(critic_loss)(state.q), state.opt_q)
    q = optax.apply_updates(state.q, step)
    # in the roundings of Optax, with which the behaviours that ship were trained; elsewhere: nets.mlp.polyak
    q_target = optax.incremental_update(q, state.q_target, config.polyak)
    state = state._replace(q=q, q_target=q_target, opt_q=opt_q)
    if not actor:
        return state

    def policy_loss(pi: PolicyNetwork) -> tuple[Array, Array]:
        choice, log_pi, beyond = _drawn(pi, rows.s, key_pi, config.mean_bound)
        value = _smaller(spaces, q, rows.s, choice, worth) @ worth
        return jnp.mean(alpha * log_pi - value) + alpha * jnp.mean(beyond), -jnp.mean(log_pi)

    gradient, entropy = jax.grad(policy_loss, has_aux=True)(state.pi)
    step, opt_pi = adam.update(gradient, state.opt_pi)
    pi = optax.apply_updates(state.pi, step)
    # alpha falls while the entropy is above its target
    step, opt_alpha = adam.update(entropy - spaces.target_entropy, state.opt_alpha)
    return state._replace(
        pi=pi, opt_pi=opt_pi, opt_alpha=opt_alpha, log_alpha=optax.apply_updates(state.log_alpha, step)
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def updates(
    spaces: Spaces, config: SACConfig, state: Learner, batches: NStepBatch, penalty: Array, key: Array
) -> Learner:
    """Critics move for each of 2 K batches (leading axis), the policy at every second. penalty: (I,)."""
    pairs = jax.tree.map(lambda x: x.reshape(-1, 2, *x.shape[1:]), batches)

    def two(state: Learner, given: tuple[NStepBatch, Array]) -> tuple[Learner, None]:
        rows, key = given
        keys = jax.random.split(key)
        for turn in range(2):
            part = jax.tree.map(lambda x, turn=turn: x[turn], rows)
            state = _update(spaces, config, state, part, penalty, keys[turn], actor=turn == 1)
        return state, None

    state, _ = jax.lax.scan(two, state, (pairs, jax.random.split(key, pairs.r.shape[0])))
    return state
