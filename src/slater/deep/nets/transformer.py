"""A causal transformer over episodes: each step is four tokens, in the order of events.

    R_t   return still to come      one number
    C_t   costs still to come       a vector, one entry per cost
    s_t   observation
    a_t   action                    a vector in [-1, 1], or a one-hot row

Tokens are embedded linearly, get an embedding of their time step, and pass pre-norm blocks of causal
attention. Only the outputs at s_t (which action?) and at a_t (what will it cost?) are ever read, so the
last block computes no others: the same numbers for less work. Contexts are padded on the right, where
causality alone keeps the padding from being seen.

`slater.policy.sequence` is the same network in NumPy, step by step with cached keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zero a share `rate` of the entries and scale up the others; nothing happens without a key.

    Noise is most of its price, so an entry gets 8 random bits: the share is `rate` rounded to n/256.
    """
    zeros = round(rate * 256)
    if key is None or zeros == 0:
        return x
    words = jax.random.bits(key, (-(-x.size // 4),), jnp.uint32)
    bytes_ = jax.lax.bitcast_convert_type(words, jnp.uint8).ravel()[: x.size].reshape(x.shape)
    return jnp.where(bytes_ >= zeros, x * (256.0 / (256.0 - zeros)), 0.0)


def _normal(key: Array, *shape: int) -> Array:
    return 0.02 * jax.random.normal(key, shape)


def _normed(x: Array, scale_and_shift: Array) -> Array:
    """Layer normalisation; row 0 is the scale, row 1 the shift."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return centred / spread * scale_and_shift[0] + scale_and_shift[1]


def _dense(x: Array, weight: Array, bias: Array) -> Array:
    """One product of two matrices, whatever the leading axes: the form that XLA does fastest on a CPU."""
    return (x.reshape(-1, x.shape[-1]) @ weight + bias).reshape(*x.shape[:-1], -1)


def _fresh_norm(width: int) -> Array:
    return jnp.stack([jnp.ones(width), jnp.zeros(width)])


class Block(eqx.Module):
    """x + attention(norm x), then x + mlp(norm x); matrices are `(in, out)`."""

    norm_1: Array
    qkv_weight: Array
    qkv_bias: Array
    out_weight: Array
    out_bias: Array
    norm_2: Array
    up_weight: Array
    up_bias: Array
    down_weight: Array
    down_bias: Array
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: Array) -> None:
        k = jax.random.split(key, 4)
        self.norm_1, self.norm_2 = _fresh_norm(width), _fresh_norm(width)
        self.qkv_weight, self.qkv_bias = _normal(k[0], width, 3 * width), jnp.zeros(3 * width)
        self.out_weight, self.out_bias = _normal(k[1], width, width), jnp.zeros(width)
        self.up_weight, self.up_bias = _normal(k[2], width, 4 * width), jnp.zeros(4 * width)
        self.down_weight, self.down_bias = _normal(k[3], 4 * width, width), jnp.zeros(width)
        self.heads = heads

    def __call__(self, x: Array, rows: Sequence[int], rate: float, key: Array | None) -> Array:
        """Outputs at the positions `rows`, `(batch, rows, width)`, for x of `(batch, length, width)`."""
        batch, length, width = x.shape
        k_attention, k_out, k_mlp = (None,) * 3 if key is None else jax.random.split(key, 3)
        everywhere = len(rows) == length
        picked = np.asarray(rows)
        normed = _normed(x, self.norm_1)
        x = x if everywhere else x[:, picked]
        if everywhere:
            q, k, v = jnp.split(_dense(normed, self.qkv_weight, self.qkv_bias), 3, axis=-1)
        else:
            q = _dense(normed[:, picked], self.qkv_weight[:, :width], self.qkv_bias[:width])
            k, v = jnp.split(_dense(normed, self.qkv_weight[:, width:], self.qkv_bias[width:]), 2, axis=-1)
        size = width // self.heads
        # (batch, heads, position, size): products of contiguous matrices, several times faster than einsum
        q, k, v = (t.reshape(batch, -1, self.heads, size).swapaxes(1, 2) for t in (q, k, v))
        scores = (q / np.sqrt(size)) @ k.swapaxes(2, 3)
        seen = picked[:, None] >= np.arange(length)[None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        mixed = (dropout(weights, rate, k_attention) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + dropout(_dense(mixed, self.out_weight, self.out_bias), rate, k_out)
        inner = jax.nn.gelu(_dense(_normed(x, self.norm_2), self.up_weight, self.up_bias), approximate=True)
        return x + dropout(_dense(inner, self.down_weight, self.down_bias), rate, k_mlp)


class Transformer(eqx.Module):
    """Embeddings, blocks and the last normalisation; see the module's text."""

    return_weight: Array
    cost_weight: Array
    obs_weight: Array
    action_weight: Array
    token_bias: Array
    time: Array
    norm_in: Array
    blocks: tuple[Block, ...]
    norm_out: Array
    rate: float = eqx.field(static=True)

    def __init__(
        self, *, costs: int, obs_dim: int, action_dim: int, times: int, width: int, blocks: int, heads: int,
        rate: float, key: Array,
    ) -> None:  # fmt: skip
        """`times`: number of time steps with an embedding of their own; `rate`: dropout."""
        k = jax.random.split(key, 5 + blocks)
        self.return_weight, self.cost_weight = _normal(k[0], 1, width), _normal(k[1], costs, width)
        self.obs_weight, self.action_weight = _normal(k[2], obs_dim, width), _normal(k[3], action_dim, width)
        self.token_bias, self.time = jnp.zeros((4, width)), _normal(k[4], times, width)
        self.norm_in, self.norm_out = _fresh_norm(width), _fresh_norm(width)
        self.blocks = tuple(Block(width, heads, key) for key in k[5:])
        self.rate = rate

    def __call__(self, togo: Array, obs: Array, action: Array, time: Array, key: Array | None) -> Array:
        """Outputs at s_t and a_t, shape `(batch, context, 2, width)`.

        togo: (batch, context, 1+I) return and costs to go, normalised; obs, action: (batch, context, .);
        time: (batch, context) int; key: for dropout, None for none.
        """
        batch, context = time.shape
        tokens = jnp.stack(
            [
                togo[..., :1] @ self.return_weight, togo[..., 1:] @ self.cost_weight,
                obs @ self.obs_weight, action @ self.action_weight,
            ],
            axis=2,
        )  # fmt: skip
        when = self.time[jnp.minimum(time, len(self.time) - 1)]
        tokens = tokens + self.token_bias + when[:, :, None]
        x = _normed(tokens.reshape(batch, 4 * context, -1), self.norm_in)
        keys: Sequence[Array | None] = [None] * (1 + len(self.blocks))
        if key is not None:
            keys = list(jax.random.split(key, 1 + len(self.blocks)))
        x = dropout(x, self.rate, keys[0])
        for index, block in enumerate(self.blocks):
            last = index == len(self.blocks) - 1
            rows = [p for p in range(4 * context) if not last or p % 4 >= 2]
            x = block(x, rows, self.rate, keys[1 + index])
        return _normed(x, self.norm_out).reshape(batch, context, 2, -1)
