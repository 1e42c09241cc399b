"""Rollouts of a policy in every network of an ensemble.

A policy that is a network of ours runs as one compiled program, which all policies of its shape share. Any
other acts in NumPy between the steps, which the ensemble takes in JAX.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.certify.acting import acting, chosen
from slater.deep.ope.ensemble import Ensemble
from slater.deep.task import Task, normalised
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy

__all__ = ["ROLLOUTS", "Rolled", "rolled_out"]

F64 = NDArray[np.float64]
#: rollouts of a policy in every network
ROLLOUTS = 128
#: moments of an episode at which the visited states are noted, at most
MOMENTS = 100


class Rolled(NamedTuple):
    """What rollouts gave.

    sums: (copies, n, 2+I) over an episode: reward and costs in the data's units, then its length in steps;
    visited: (m, obs_dim) states of the first network's rollouts, normalised
    """

    sums: F64
    visited: F64


def rolled_out(
    policy: Any, task: Task, ensemble: Ensemble, initial: NDArray[np.float32], horizon: int, seed: int
) -> Rolled:
    """`ROLLOUTS` episodes of a policy without memory in every network, from raw first observations."""
    starts = normalised(initial, task)
    rows = np.random.default_rng(seed).integers(len(starts), size=(ensemble.copies, ROLLOUTS))
    states = np.asarray(starts[rows], np.float32)
    key = jax.random.key(seed)
    act = acting(policy, task, np.random.default_rng(seed))  # refuses what cannot act
    if isinstance(policy, GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy):
        network = _network(policy, task)
        found = _episodes(ensemble, network, jnp.asarray(states), key, horizon, task.discrete)
        total, paths, alive = (np.asarray(part, np.float64) for part in found)
        visited = paths[alive > 0.5]
    else:
        total, visited = _step_by_step(chosen(act, task), ensemble, states, key, horizon)
    total[..., :-1] /= task.scale
    return Rolled(total, visited)


class _Network(eqx.Module):
    """A network policy of `slater.policy` from the task's normalised states to the networks' actions.

    shift, stretch: (obs_dim,) lead from the task's states to the policy's; offset, gain: (action_dim,) from
    squashed actions to the task's (continuous actions only); components: of a mixture of Gaussians, 1 for one
    Gaussian.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    shift: Array
    stretch: Array
    offset: Array
    gain: Array
    log_std_range: Array
    components: int = eqx.field(static=True, default=1)

    def __call__(self, states: Array, key: Array, *, discrete: bool) -> Array:
        x = states * self.stretch + self.shift
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.relu(x @ weight + bias)
        x = x @ self.weights[-1] + self.biases[-1]
        if discrete:
            return jax.nn.one_hot(jax.random.categorical(key, x), x.shape[-1])
        if self.components > 1:
            key_which, key = jax.random.split(key)
            which = jax.random.categorical(key_which, x[:, : self.components])[:, None, None]
            each = x[:, self.components :].reshape(len(x), self.components, -1)
            x = jnp.take_along_axis(each, which, axis=1)[:, 0]
        mean, log_std = jnp.split(x, 2, axis=-1)
        log_std = jnp.clip(log_std, self.log_std_range[0], self.log_std_range[1])
        squashed = jnp.tanh(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))
        return jnp.clip(self.offset + self.gain * squashed, -1.0, 1.0)


def _network(policy: GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy, task: Task) -> _Network:
    offset = gain = np.zeros(0, np.float32)
    log_std_range = (0.0, 0.0)
    if not isinstance(policy, CategoricalPolicy):
        assert task.action_low is not None
        assert task.action_high is not None
        half = 0.5 * (task.action_high - task.action_low)
        gain = 0.5 * (policy.high - policy.low) / half
        offset = (0.5 * (policy.high + policy.low) - 0.5 * (task.action_high + task.action_low)) / half
        log_std_range = policy.log_std_range

    def moved(leaf: Any) -> Array:
        return jnp.asarray(leaf, jnp.float32)

    return _Network(
        tuple(map(moved, policy.weights)), tuple(map(moved, policy.biases)),
        moved((task.obs_mean - policy.obs_mean) / policy.obs_std), moved(task.obs_std / policy.obs_std),
        moved(offset), moved(gain), moved(log_std_range), components=getattr(policy, "components", 1),
    )  # fmt: skip


@eqx.filter_jit
def _episodes(
    ensemble: Ensemble, network: _Network, first: Array, key: Array, horizon: int, discrete: bool
) -> tuple[Array, Array, Array]:
    """Sums (copies, n, 2+I), scaled; states (moments, n, obs_dim) in the first network, and who is alive."""
    every = max(horizon // MOMENTS, 1)

    def step(carry: tuple[Array, Array, Array], t: Array) -> tuple[Any, None]:
        s, alive, total = carry
        key_action, key_next = jax.random.split(jax.random.fold_in(key, t))
        flat = s.reshape(-1, s.shape[-1])
        a = network(flat, key_action, discrete=discrete).reshape(*s.shape[:2], -1)
        keys = jax.random.split(key_next, s.shape[0])
        s, utilities, end = jax.vmap(ensemble.step)((ensemble.dynamics, ensemble.outcomes), s, a, keys)
        gained = jnp.concatenate([utilities, jnp.ones((*alive.shape, 1))], axis=-1)
        return (s, alive * (1.0 - end), total + alive[..., None] * gained), None

    def moment(carry: tuple[Array, Array, Array], start: Array) -> tuple[Any, tuple[Array, Array]]:
        ahead, _ = jax.lax.scan(step, carry, start + jnp.arange(every))
        return ahead, (carry[0][0], carry[1][0])

    width = len(ensemble.utility_low) + 1
    carry = (first, jnp.ones(first.shape[:2]), jnp.zeros((*first.shape[:2], width)))
    carry, (states, alive) = jax.lax.scan(moment, carry, every * jnp.arange(horizon // every))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(every * (horizon // every), horizon))
    return carry[2], states, alive


@eqx.filter_jit
def _step(ensemble: Ensemble, states: Array, actions: Array, key: Array) -> tuple[Array, Array, Array]:
    """One step of (copies, n) rollouts, each copy in its own network."""
    keys = jax.random.split(key, ensemble.copies)
    return jax.vmap(ensemble.step)((ensemble.dynamics, ensemble.outcomes), states, actions, keys)


def _step_by_step(
    choose: Any, ensemble: Ensemble, states: NDArray[np.float32], key: Array, horizon: int
) -> tuple[F64, F64]:
    """The same with actions of `choose` (see `chosen`), which is not compiled."""
    shape = states.shape[:2]
    alive = np.ones(shape)
    total = np.zeros((*shape, len(ensemble.utility_low) + 1))
    visited = []
    for t in range(horizon):
        actions = choose(states.reshape(-1, states.shape[-1])).reshape(*shape, -1)
        if t % max(horizon // MOMENTS, 1) == 0:
            visited.append(states[0][alive[0] > 0.5])
        following, utilities, end = _step(
            ensemble, jnp.asarray(states), jnp.asarray(actions), jax.random.fold_in(key, t)
        )
        total[..., :-1] += alive[..., None] * np.asarray(utilities, np.float64)
        total[..., -1] += alive
        alive = alive * (1.0 - np.asarray(end, np.float64))
        states = np.array(following)
    return total, np.concatenate(visited).astype(np.float64)
