"""A conditional variational autoencoder of the data's actions: q(z|s,a) and p(a|s,z).

CPQ asks it how unlike the data an action is, BCQ and BEAR ask it for actions like the data's. With z of
dimension k, continuous actions in [-1, 1]:

    encode   q(z|s,a) = N(m, diag(sigma^2)),   log sigma in [-4, 15]
    decode   p(a|s,z): tanh network; z ~ N(0, 1) cut to +-0.5 where none is given
    loss     E[(a - decode(s, m + sigma e))^2] + beta KL,   e ~ N(0, 1)
    KL       -1/2 mean_k(1 + log sigma^2 - m^2 - sigma^2), the mean over latent entries

Means, not sums, over entries of the action and of z: beta = .5 then has the weight of released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from slater.deep.nets.mlp import MLP, descend
from slater.deep.task import Task


class CVAE(eqx.Module):
    """Observations `(..., obs_dim)` normalised, actions `(..., action_dim)` in [-1, 1]."""

    encoder: MLP
    decoder: MLP
    latent_dim: int = eqx.field(static=True)
    log_std_range: tuple[float, float] = eqx.field(static=True, default=(-4.0, 15.0))
    #: where z is drawn for the decoder, it is cut to +- this: near the middle of the prior
    latent_cut: float = eqx.field(static=True, default=0.5)

    def encode(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation of q(z|s,a), each `(..., latent_dim)`."""
        out = self.encoder(jnp.concatenate([obs, action], axis=-1))
        mean, log_std = jnp.split(out, 2, axis=-1)
        return mean, jnp.clip(log_std, *self.log_std_range)

    def decode(self, obs: Array, z: Array | None, key: Array | None = None) -> Array:
        """Actions `(..., action_dim)` in [-1, 1] for z `(..., latent_dim)`; for z = None, z from `key`.

        For several actions per state give observations of shape `(batch, n, obs_dim)`.
        """
        return jnp.tanh(self.decode_before_tanh(obs, z, key))

    def decode_before_tanh(self, obs: Array, z: Array | None, key: Array | None = None) -> Array:
        """What `decode` squashes, `(..., action_dim)`: BEAR compares actions there."""
        if z is None:
            assert key is not None, "give z, or a key to draw it with"
            noise = jax.random.normal(key, (*obs.shape[:-1], self.latent_dim))
            z = jnp.clip(noise, -self.latent_cut, self.latent_cut)
        return self.decoder(jnp.concatenate([obs, z], axis=-1))

    def divergence(self, obs: Array, action: Array) -> Array:
        """KL(q(z|s,a) || N(0, 1)), the mean over latent entries, shape `(...)`: large far from the data."""
        return _divergence(*self.encode(obs, action))

    def loss(self, obs: Array, action: Array, key: Array, beta: float = 0.5) -> Array:
        """Squared error of the reconstruction plus `beta` KL, a scalar: the mean over the batch."""
        mean, log_std = self.encode(obs, action)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        error = jnp.mean((self.decode(obs, z) - action) ** 2)
        return error + beta * jnp.mean(_divergence(mean, log_std))

    def fitted(
        self, optimiser: Any, memory: Any, obs: Array, action: Array, key: Array
    ) -> tuple[CVAE, Any, Array]:
        """After one step on the loss; the optimiser's memory, and the loss."""
        return descend(optimiser, lambda vae: vae.loss(obs, action, key), self, memory)


def _divergence(mean: Array, log_std: Array) -> Array:
    return -0.5 * jnp.mean(1.0 + 2.0 * log_std - mean**2 - jnp.exp(2.0 * log_std), axis=-1)


def make_cvae(task: Task, hidden: Sequence[int], latent_dim: int, key: Array) -> CVAE:
    """A CVAE for the problem's observations and continuous actions; `latent_dim` is usually 2 action_dim."""
    assert not task.discrete, "a CVAE is of continuous actions"
    key_encoder, key_decoder = jax.random.split(key)
    return CVAE(
        encoder=MLP([task.obs_dim + task.action_dim, *hidden, 2 * latent_dim], key_encoder),
        decoder=MLP([task.obs_dim + latent_dim, *hidden, task.action_dim], key_decoder),
        latent_dim=latent_dim,
    )
