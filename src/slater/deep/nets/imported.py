"""Policies that lie in files, as networks again: what was exported to NumPy comes back into JAX."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import Categorical, Gaussian, GaussianMixture, PolicyNetwork
from slater.deep.task import Task
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy


class _Moved(PolicyNetwork):
    """A policy whose actions have other bounds than the task's: a -> offset + gain a, cut to [-1, 1]."""

    mlp: MLP
    inner: PolicyNetwork
    offset: Array
    gain: Array

    def choice(self, obs: Array, key: Array) -> Array:
        """That of the policy inside, moved."""
        return jnp.clip(self.offset + self.gain * self.inner.choice(obs, key), -1.0, 1.0)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """Density in the task's units."""
        inside = (choice - self.offset) / self.gain
        return self.inner.log_prob(obs, inside) - jnp.sum(
            jnp.log(jnp.broadcast_to(self.gain, choice.shape[-1:]))
        )

    def entropy(self, obs: Array, key: Array) -> Array:
        """In the task's units."""
        return self.inner.entropy(obs, key) + jnp.sum(jnp.log(self.gain))

    def export(self, task: Task) -> Any:
        """It came from a file, which is still there."""
        raise NotImplementedError("a policy that was read from a file is not exported again")


def network_of(policy: Any, task: Task) -> PolicyNetwork:
    """A policy in NumPy as a network over the task's normalised states and scaled actions.

    An InputError where it is none of Slater's networks that choose from what they see now, or takes and gives
    something else than the task's observations and actions.
    """
    if not isinstance(policy, GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy):
        raise InputError(
            f"a {type(policy).__name__} cannot be judged from the log alone, which needs a network of "
            "Slater's without memory (a run or its .safetensors file): run it in a simulator or give its own "
            "logged episodes."
        )
    if len(policy.obs_mean) != task.obs_dim:
        raise InputError(
            f"the policy takes observations of {len(policy.obs_mean)} entries, but the data have "
            f"{task.obs_dim}."
        )
    if isinstance(policy, CategoricalPolicy) != task.discrete:
        raise InputError("the policy and the data disagree on whether actions are discrete.")
    given = len(policy.biases[-1]) if isinstance(policy, CategoricalPolicy) else len(policy.low)
    if given != task.action_dim:
        what = "actions" if task.discrete else "entries of an action"
        raise InputError(f"the policy has {given} {what}, but the data have {task.action_dim}.")
    # the policy's normaliser goes into the first layer, so that states enter as the task has them
    stretch = np.asarray(task.obs_std, np.float64) / policy.obs_std
    shift = (np.asarray(task.obs_mean, np.float64) - policy.obs_mean) / policy.obs_std
    weights = [np.asarray(w, np.float64) for w in policy.weights]
    biases = [np.asarray(b, np.float64) for b in policy.biases]
    biases[0] = biases[0] + shift @ weights[0]
    weights[0] = stretch[:, None] * weights[0]
    empty = MLP([len(weights[0]), *(len(b) for b in biases)], jax.random.key(0))
    mlp = eqx.tree_at(
        lambda m: (m.weights, m.biases), empty,
        (tuple(jnp.asarray(w, jnp.float32) for w in weights), tuple(jnp.asarray(b, jnp.float32) for b in
        biases)),
    )  # fmt: skip
    if isinstance(policy, CategoricalPolicy):
        return Categorical(mlp)
    network: PolicyNetwork = Gaussian(mlp, policy.log_std_range)
    if isinstance(policy, GaussianMixturePolicy):
        network = GaussianMixture(mlp, policy.components, policy.log_std_range)
    low, high = np.asarray(task.action_low), np.asarray(task.action_high)
    if np.array_equal(policy.low, low) and np.array_equal(policy.high, high):
        return network
    half = 0.5 * (high - low)
    gain = 0.5 * (policy.high - policy.low) / half
    offset = (0.5 * (policy.high + policy.low) - 0.5 * (high + low)) / half
    return _Moved(mlp, network, jnp.asarray(offset, jnp.float32), jnp.asarray(gain, jnp.float32))
