"""Networks: critics and policies, for continuous and for discrete actions, under one notation.

A *choice* is what stands in the second place of f(s, .): for continuous actions an action, shape
`(batch, action_dim)` in [-1, 1]; for discrete ones a distribution over actions, shape `(batch, actions)`,
a one-hot row for an action of the data. Then f(s, a) and f(s, pi) are the same call with another choice:
exact over discrete actions, by one reparameterised sample over continuous ones.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.nets.mlp import MLP
from slater.deep.task import Task
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy, SavedPolicy


class Exportable(Protocol):
    """What an algorithm trains: a PyTree of arrays that can leave as a policy in NumPy."""

    def export(self, task: Task) -> SavedPolicy:
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

    def drawn(self, obs: Array, key: Array) -> Array:
        """What is drawn to act, (batch, action_dim): an action before the tanh, or one that is one-hot."""
        raise NotImplementedError(f"a {type(self).__name__} does not say what it draws")

    def log_drawn(self, obs: Array, drawn: Array) -> Array:
        """Its log-likelihood, (batch,); beyond the tanh's last digit actions are alike, and draws are not."""
        raise NotImplementedError(f"a {type(self).__name__} does not say what it draws")

    def taken(self, drawn: Array) -> Array:
        """The action that it is, as networks take it, (batch, action_dim)."""
        return jnp.tanh(drawn)

    @abc.abstractmethod
    def entropy(self, obs: Array, key: Array) -> Array:
        """Entropy of pi(.|s), shape `(batch,)`, in nats; by one sample for continuous actions."""

    def divergence(self, other: PolicyNetwork, obs: Array) -> Array:
        """KL(self || other) of the actions at each state, shape `(batch,)`, in nats; `other` is alike."""
        raise NotImplementedError(f"a {type(self).__name__} has no divergence in closed form")

    @abc.abstractmethod
    def export(self, task: Task) -> GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy:
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
        return jnp.tanh(self.drawn(obs, key))

    def drawn(self, obs: Array, key: Array) -> Array:
        """A sample of the Gaussian."""
        mean, log_std = self._moments(obs)
        return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)

    def log_drawn(self, obs: Array, drawn: Array) -> Array:
        """The Gaussian's density, but for a constant that depends on the sample alone."""
        return self._log_prob_before_tanh(drawn, *self._moments(obs))

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

    def divergence(self, other: PolicyNetwork, obs: Array) -> Array:
        """In closed form before the tanh, which changes both densities alike."""
        assert isinstance(other, Gaussian)
        (mean, log_std), (mean_o, log_std_o) = self._moments(obs), other._moments(obs)
        square = (jnp.exp(2.0 * log_std) + (mean - mean_o) ** 2) * jnp.exp(-2.0 * log_std_o)
        return jnp.sum(log_std_o - log_std + 0.5 * (square - 1.0), axis=-1)

    def export(self, task: Task) -> GaussianPolicy:
        """A `GaussianPolicy` in the data's units."""
        assert task.action_low is not None
        assert task.action_high is not None
        return GaussianPolicy(
            *_layers(self.mlp), task.obs_mean, task.obs_std,
            task.action_low, task.action_high, self.log_std_range,
        )  # fmt: skip


class GaussianMixture(PolicyNetwork):
    """Squashed mixture of K Gaussians: what a log says where its operators act in several modes.

    The network gives K logits, then K means and K log standard deviations of every dimension before the tanh.
    """

    mlp: MLP
    components: int = eqx.field(static=True)
    log_std_range: tuple[float, float] = eqx.field(static=True)

    def _moments(self, obs: Array) -> tuple[Array, Array, Array]:
        """Log-weights (batch, K), means and log standard deviations (batch, K, action_dim)."""
        out = self.mlp(obs)
        logits, rest = out[..., : self.components], out[..., self.components :]
        mean, log_std = jnp.split(rest.reshape(*rest.shape[:-1], self.components, -1), 2, axis=-1)
        return jax.nn.log_softmax(logits, axis=-1), mean, jnp.clip(log_std, *self.log_std_range)

    def _drawn(self, obs: Array, key: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        """One sample before the tanh, (batch, action_dim), with gradients through its component's moments."""
        key_which, key_noise = jax.random.split(key)
        moments = log_weight, mean, log_std = self._moments(obs)
        which = jax.random.categorical(key_which, jax.lax.stop_gradient(log_weight))[..., None, None]
        mean, log_std = (jnp.take_along_axis(x, which, axis=-2)[..., 0, :] for x in (mean, log_std))
        return mean + jnp.exp(log_std) * jax.random.normal(key_noise, mean.shape), moments

    def choice(self, obs: Array, key: Array) -> Array:
        """One sample, (batch, action_dim); reparameterised within its component, which is drawn."""
        return jnp.tanh(self.drawn(obs, key))

    def drawn(self, obs: Array, key: Array) -> Array:
        """A sample of the mixture."""
        return self._drawn(obs, key)[0]

    def log_drawn(self, obs: Array, drawn: Array) -> Array:
        """The mixture's density, but for a constant that depends on the sample alone."""
        return self._log_density(drawn, self._moments(obs))

    def _log_density(self, u: Array, moments: tuple[Array, Array, Array]) -> Array:
        log_weight, mean, log_std = moments
        normal = -0.5 * ((u[..., None, :] - mean) * jnp.exp(-log_std)) ** 2 - log_std
        inside = jnp.sum(normal - 0.5 * jnp.log(2 * jnp.pi), axis=-1)
        slope = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return jax.nn.logsumexp(log_weight + inside, axis=-1) - jnp.sum(slope, axis=-1)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """Density of the squashed action, with the tanh's change of volume."""
        return self._log_density(jnp.arctanh(jnp.clip(choice, -0.999, 0.999)), self._moments(obs))

    def entropy(self, obs: Array, key: Array) -> Array:
        """By one sample."""
        return -self._log_density(*self._drawn(obs, key))

    def divergence(self, other: PolicyNetwork, obs: Array) -> Array:
        """The upper bound KL(weights) + sum_k weight_k KL(component k), exact where components stay apart."""
        assert isinstance(other, GaussianMixture)
        (log_w, mean, log_std), (log_wo, mean_o, log_std_o) = self._moments(obs), other._moments(obs)
        square = (jnp.exp(2.0 * log_std) + (mean - mean_o) ** 2) * jnp.exp(-2.0 * log_std_o)
        apart = jnp.sum(log_std_o - log_std + 0.5 * (square - 1.0), axis=-1)
        return jnp.sum(jnp.exp(log_w) * (log_w - log_wo + apart), axis=-1)

    def export(self, task: Task) -> GaussianMixturePolicy:
        """A `GaussianMixturePolicy` in the data's units."""
        assert task.action_low is not None
        assert task.action_high is not None
        return GaussianMixturePolicy(
            *_layers(self.mlp), task.obs_mean, task.obs_std,
            task.action_low, task.action_high, self.log_std_range, self.components,
        )  # fmt: skip


class Categorical(PolicyNetwork):
    """Softmax over a finite set of actions."""

    mlp: MLP

    def choice(self, obs: Array, key: Array) -> Array:
        """The distribution itself, shape `(batch, actions)`: expectations are exact."""
        return jax.nn.softmax(self.mlp(obs), axis=-1)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """Log-probability of the action taken."""
        return jnp.sum(jax.nn.log_softmax(self.mlp(obs), axis=-1) * choice, axis=-1)

    def drawn(self, obs: Array, key: Array) -> Array:
        """One action."""
        logits = self.mlp(obs)
        return jax.nn.one_hot(jax.random.categorical(key, logits), logits.shape[-1])

    def log_drawn(self, obs: Array, drawn: Array) -> Array:
        """Its log-probability."""
        return self.log_prob(obs, drawn)

    def taken(self, drawn: Array) -> Array:
        """Itself."""
        return drawn

    def entropy(self, obs: Array, key: Array) -> Array:
        """Exact."""
        log_pi = jax.nn.log_softmax(self.mlp(obs), axis=-1)
        return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)

    def divergence(self, other: PolicyNetwork, obs: Array) -> Array:
        """Exact."""
        assert isinstance(other, Categorical)
        log_pi, log_o = (jax.nn.log_softmax(policy.mlp(obs), axis=-1) for policy in (self, other))
        return jnp.sum(jnp.exp(log_pi) * (log_pi - log_o), axis=-1)

    def export(self, task: Task) -> CategoricalPolicy:
        """A `CategoricalPolicy`."""
        return CategoricalPolicy(*_layers(self.mlp), task.obs_mean, task.obs_std)


def _layers(mlp: MLP) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return tuple(np.asarray(w) for w in mlp.weights), tuple(np.asarray(b) for b in mlp.biases)


def make_policy(
    task: Task, hidden: Sequence[int], key: Array, log_std_range: tuple[float, float] = (-20.0, 2.0),
    components: int = 1,
) -> PolicyNetwork:  # fmt: skip
    """A policy for the problem's actions: softmax over discrete ones, else a squashed Gaussian, or a mixture
    of several `components`.
    """
    if task.discrete:
        # a small last layer starts near the uniform policy, pi_1 of Algorithm 1
        return Categorical(MLP([task.obs_dim, *hidden, task.action_dim], key, last_scale=0.01))
    if components > 1:
        outputs = components * (1 + 2 * task.action_dim)
        return GaussianMixture(MLP([task.obs_dim, *hidden, outputs], key), components, log_std_range)
    return Gaussian(MLP([task.obs_dim, *hidden, 2 * task.action_dim], key), log_std_range)
