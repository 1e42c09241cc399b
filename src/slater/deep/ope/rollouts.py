"""The one loop that rolls policies out in the log model, and what it makes of them: estimates of J(pi).

    s_0 ~ the log's first states,   a ~ pi(s),   s' ~ the model,   U = its mean utility,   P(end)

Sums are over whole episodes where limits count those, else discounted; after an end nothing is gained, which
weighs what follows by the probability of being alive. Training, choice, rivals and tuning all ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.deep.log_model.dynamics import Dynamics
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task, counts_episodes, in_j_units, rollout_length

__all__ = ["acted", "outcomes_of", "rolled", "values_of"]

F64 = NDArray[np.float64]
#: steps of rollouts per policy and network: as many episodes as fit, within these bounds
STEPS, LEAST, MOST = 25_600, 64, 256


def acted(discrete: bool, policy: PolicyNetwork, s: Array, key: Array) -> Array:
    """An action of `policy` in each of the states (n, obs_dim), as networks take it, (n, action_dim)."""
    key_choice, key_action = jax.random.split(key)
    a = policy.choice(s, key_choice)
    if discrete:  # a choice is then the distribution; an episode takes one action of it
        a = jax.nn.one_hot(jax.random.categorical(key_action, jnp.log(a + 1e-30)), a.shape[-1])
    return a


def rolled(
    units: tuple[bool, float, int], dynamics: Dynamics, policy: PolicyNetwork, first: Array, key: Array,
    noise: Array,
) -> Array:  # fmt: skip
    """Sums of scaled utilities and of the steps lived, (M, n, 2+I), of `policy` from `first`, (n, obs_dim).

    units: whether actions are discrete, the discount of sums, steps; noise: share of the model's, see
    `Dynamics.step`
    """
    discrete, gamma, steps = units

    def one(network: Any, key: Array) -> Array:
        def step(carry: Any, t: Array) -> Any:
            s, alive, total = carry
            key_act, key_next = jax.random.split(jax.random.fold_in(key, t))
            a = acted(discrete, policy, s, key_act)
            s_next, utilities, end = dynamics.step(network, s, a, key_next, noise)
            gained = jnp.concatenate([gamma**t * utilities, jnp.ones((len(s), 1))], axis=-1)
            return (s_next, alive * (1.0 - end), total + alive[:, None] * gained), None

        n = first.shape[0]
        start = (first, jnp.ones(n), jnp.zeros((n, dynamics.level.shape[1] + 1)))
        found: Array = jax.lax.scan(step, start, jnp.arange(steps))[0][2]
        return found

    found: Array = jax.vmap(one)(dynamics.networks, jax.random.split(key, dynamics.level.shape[0]))
    return found


def units_of(task: Task) -> tuple[bool, float, int]:
    """What `rolled` needs of a task."""
    return task.discrete, 1.0 if counts_episodes(task) else task.gamma, rollout_length(task)


#: compiled once for every policy of a kind
_compiled = eqx.filter_jit(rolled)


def outcomes_of(
    task: Task, dynamics: Dynamics, policies: Sequence[PolicyNetwork], first: NDArray[Any], key: Array,
    noise: float = 1.0,
) -> F64:  # fmt: skip
    """What every policy does in every network from each of some first states, (P, M, n, 2+I).

    first: (E, obs_dim) normalised, of which n are taken evenly. Utilities in J-units of the task, to compare
    with `task.tau`; the length in steps.
    """
    count = int(np.clip(STEPS // rollout_length(task), LEAST, MOST))
    places = np.linspace(0, len(first) - 1, count).round().astype(int)
    starts, units = jnp.asarray(first[places]), units_of(task)
    # the same draws for each: what two policies differ in shows better, and others do not matter
    found = [_compiled(units, dynamics, policy, starts, key, jnp.asarray(noise)) for policy in policies]
    return np.asarray(jnp.stack(found), np.float64) / in_j_units(task)


def values_of(task: Task, dynamics: Dynamics, policy: PolicyNetwork, first: Array, key: Array) -> Array:
    """J of `policy` by every network, (M, 1+I), the mean over rollouts from first states (n, obs_dim), to
    compare with `task.tau`; compiled into training.
    """
    total = rolled(units_of(task), dynamics, policy, first, key, jnp.asarray(1.0))
    return jnp.mean(total, axis=1)[:, :-1] / jnp.asarray(in_j_units(task)[:-1], total.dtype)
