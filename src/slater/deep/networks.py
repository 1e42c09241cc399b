"""Networks: critics and policies, for continuous and for discrete actions, under one notation.

A *choice* is what stands in the second place of f(s, .): for continuous actions an action, shape
`(batch, action_dim)` in [-1, 1]; for discrete ones a distribution over actions, shape `(batch, actions)`,
a one-hot row for an action of the data. Then f(s, a) and f(s, pi) are the same call with another choice:
exact over discrete actions, by one reparameterised sample over continuous ones.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.problem import Problem
from slater.policy import CategoricalPolicy, GaussianPolicy, SavedPolicy

__all__ = [
    "MLP",
    "Categorical",
    "Critic",
    "Exportable",
    "Gaussian",
    "PolicyNetwork",
    "make_critic",
    "make_policy",
]


class MLP(eqx.Module):
    """A ReLU network, `weights[l]` of shape `(in, out)`; maps `(batch, in)` to `(batch, out)`.

    gains, shifts: `(out,)` of each hidden layer's normalisation; empty tuples where there is none.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    gains: tuple[Array, ...]
    shifts: tuple[Array, ...]

    def __init__(
        self, sizes: Sequence[int], key: Array, *, last_scale: float = 1.0, layer_norm: bool = False
    ) -> None:
        """Uniform in +-1/sqrt(fan-in), as in PyTorch; the last layer times `last_scale`.

        layer_norm: what a hidden layer gives is normalised over its units, before the ReLU.
        """
        keys = jax.random.split(key, 2 * (len(sizes) - 1))
        weights, biases = [], []
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1.0 / np.sqrt(fan_in) * (last_scale if layer == len(sizes) - 2 else 1.0)
            weights.append(
                jax.random.uniform(keys[2 * layer], (fan_in, fan_out), minval=-bound, maxval=bound)
            )
            biases.append(jax.random.uniform(keys[2 * layer + 1], (fan_out,), minval=-bound, maxval=bound))
        self.weights, self.biases = tuple(weights), tuple(biases)
        normalised = sizes[1:-1] if layer_norm else ()
        self.gains = tuple(jnp.ones(width) for width in normalised)
        self.shifts = tuple(jnp.zeros(width) for width in normalised)

    def __call__(self, x: Array) -> Array:
        """The last layer's outputs, without activation."""
        for layer, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = x @ weight + bias
            if self.gains:
                x = self.gains[layer] * _standardised(x) + self.shifts[layer]
            x = jax.nn.relu(x)
        return x @ self.weights[-1] + self.biases[-1]


def _standardised(x: Array) -> Array:
    """Mean 0 and variance 1 over the last axis (layer normalisation without its gain and shift)."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


class Critic(eqx.Module):
    """f(s, a): a network on (observation, action), or on the observation with one output per action."""

    mlp: MLP
    discrete: bool = eqx.field(static=True)

    def __call__(self, obs: Array, choice: Array) -> Array:
        """f(s, choice), shape `(batch,)`; see the module's text for what a choice is."""
        if self.discrete:
            return jnp.sum(self.mlp(obs) * choice, axis=-1)
        return self.mlp(jnp.concatenate([obs, choice], axis=-1))[..., 0]


class Exportable(Protocol):
    """What an algorithm trains: a PyTree of arrays that can leave as a policy in NumPy."""

    def export(self, problem: Problem) -> SavedPolicy:
        """The same policy in NumPy, taking raw observations and giving actions in the data's units."""
        ...


class PolicyNetwork(eqx.Module):
    """pi: gives choices for states, the log-likelihood of data, and itself as a NumPy policy."""

    mlp: eqx.AbstractVar[MLP]

    @abc.abstractmethod
    def choice(self, obs: Array, key: Array) -> Array:
        """What to put for pi in f(s, pi), differentiable in the policy's parameters."""

    @abc.abstractmethod
    def log_prob(self, obs: Array, choice: Array) -> Array:
        """The log-likelihood log pi(a|s) of the data's choices, shape `(batch,)`."""

    @abc.abstractmethod
    def entropy(self, obs: Array, key: Array) -> Array:
        """Entropy of pi(.|s), shape `(batch,)`, in nats; by one sample for continuous actions."""

    @abc.abstractmethod
    def export(self, problem: Problem) -> GaussianPolicy | CategoricalPolicy:
        """The same policy in NumPy, taking raw observations and giving actions in the data's units."""


class Gaussian(PolicyNetwork):
    """Squashed Gaussian: tanh of N(mean, std), in [-1, 1] per dimension."""

    mlp: MLP
    log_std_range: tuple[float, float] = eqx.field(static=True)

    def _moments(self, obs: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.mlp(obs), 2, axis=-1)
        return mean, jnp.clip(log_std, *self.log_std_range)

    def choice(self, obs: Array, key: Array) -> Array:
        """One reparameterised sample, shape `(batch, action_dim)`."""
        mean, log_std = self._moments(obs)
        return jnp.tanh(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def _log_prob_before_tanh(self, u: Array, mean: Array, log_std: Array) -> Array:
        normal = -0.5 * ((u - mean) * jnp.exp(-log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        # log(1 - tanh(u)^2), written so that it does not lose its digits for large |u|
        slope = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return jnp.sum(normal - slope, axis=-1)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """Density of the squashed action, with the tanh's change of volume."""
        mean, log_std = self._moments(obs)
        # an action on the bound has no preimage under tanh: 1e-3 inside keeps its likelihood finite
        return self._log_prob_before_tanh(jnp.arctanh(jnp.clip(choice, -0.999, 0.999)), mean, log_std)

    def entropy(self, obs: Array, key: Array) -> Array:
        """By one sample."""
        mean, log_std = self._moments(obs)
        u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return -self._log_prob_before_tanh(u, mean, log_std)

    def export(self, problem: Problem) -> GaussianPolicy:
        """A `GaussianPolicy` in the data's units."""
        assert problem.action_low is not None
        assert problem.action_high is not None
        return GaussianPolicy(
            *_layers(self.mlp), problem.obs_mean, problem.obs_std,
            problem.action_low, problem.action_high, self.log_std_range,
        )  # fmt: skip


class Categorical(PolicyNetwork):
    """Softmax over a finite set of actions."""

    mlp: MLP

    def choice(self, obs: Array, key: Array) -> Array:
        """The distribution itself, shape `(batch, actions)`: expectations are exact."""
        del key
        return jax.nn.softmax(self.mlp(obs), axis=-1)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """Log-probability of the action taken."""
        return jnp.sum(jax.nn.log_softmax(self.mlp(obs), axis=-1) * choice, axis=-1)

    def entropy(self, obs: Array, key: Array) -> Array:
        """Exact."""
        del key
        log_pi = jax.nn.log_softmax(self.mlp(obs), axis=-1)
        return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)

    def export(self, problem: Problem) -> CategoricalPolicy:
        """A `CategoricalPolicy`."""
        return CategoricalPolicy(*_layers(self.mlp), problem.obs_mean, problem.obs_std)


def _layers(mlp: MLP) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return tuple(np.asarray(w) for w in mlp.weights), tuple(np.asarray(b) for b in mlp.biases)


def make_critic(problem: Problem, hidden: Sequence[int], key: Array, *, layer_norm: bool = False) -> Critic:
    """A critic for the problem's observations and actions; `layer_norm` as in `MLP`."""
    if problem.discrete:
        sizes = [problem.obs_dim, *hidden, problem.action_dim]
    else:
        sizes = [problem.obs_dim + problem.action_dim, *hidden, 1]
    return Critic(MLP(sizes, key, layer_norm=layer_norm), problem.discrete)


def make_policy(
    problem: Problem, hidden: Sequence[int], key: Array, log_std_range: tuple[float, float] = (-20.0, 2.0)
) -> PolicyNetwork:
    """A policy for the problem's actions: softmax over discrete ones, else a squashed Gaussian."""
    if problem.discrete:
        # a small last layer starts near the uniform policy, pi_1 of Algorithm 1
        return Categorical(MLP([problem.obs_dim, *hidden, problem.action_dim], key, last_scale=0.01))
    return Gaussian(MLP([problem.obs_dim, *hidden, 2 * problem.action_dim], key), log_std_range)
