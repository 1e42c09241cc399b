"""The network that all others are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from slater.policy.layers import Layers

Tree = TypeVar("Tree")


class MLP(eqx.Module):
    """A network, `weights[l]` of shape `(in, out)`; maps `(batch, in)` to `(batch, out)`.

    gains, shifts: `(out,)` of each hidden layer's normalisation; empty tuples where there is none
    smooth: SiLU between layers; else ReLU
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    gains: tuple[Array, ...]
    shifts: tuple[Array, ...]
    smooth: bool = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[int], key: Array | np.random.Generator, *, last_scale: float = 1.0,
        layer_norm: bool = False, smooth: bool = False,
    ) -> None:  # fmt: skip
        """Uniform in +-1/sqrt(fan-in), as in PyTorch; the last layer times `last_scale`.

        key: a generator of NumPy's draws where nothing is to be compiled
        layer_norm: what a hidden layer gives is normalised over its units, before the activation.
        """
        self.smooth = smooth
        count, own = 2 * (len(sizes) - 1), isinstance(key, np.random.Generator)
        keys: Any = [key] * count if isinstance(key, np.random.Generator) else jax.random.split(key, count)
        weights, biases = [], []
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1.0 / np.sqrt(fan_in) * (last_scale if layer == len(sizes) - 2 else 1.0)
            weights.append(_uniform(keys[2 * layer], (fan_in, fan_out), bound))
            biases.append(_uniform(keys[2 * layer + 1], (fan_out,), bound))
        self.weights, self.biases = tuple(weights), tuple(biases)
        normalised = sizes[1:-1] if layer_norm else ()
        xp: Any = np if own else jnp
        self.gains = tuple(xp.ones(width, jnp.float32) for width in normalised)
        self.shifts = tuple(xp.zeros(width, jnp.float32) for width in normalised)

    def __call__(self, x: Array) -> Array:
        """The last layer's outputs, without activation."""
        for layer, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = x @ weight + bias
            if self.gains:  # layer normalisation: mean 0 and variance 1 over the last axis
                centred = x - jnp.mean(x, axis=-1, keepdims=True)
                x = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
                x = self.gains[layer] * x + self.shifts[layer]
            x = jax.nn.silu(x) if self.smooth else jax.nn.relu(x)
        return x @ self.weights[-1] + self.biases[-1]

    def layers(self) -> Layers:
        """Weight and bias of every layer, in NumPy."""
        return tuple((np.asarray(w), np.asarray(b)) for w, b in zip(self.weights, self.biases, strict=True))


def stacked(make: Callable[[np.random.Generator], Tree], count: int, seed: int) -> Tree:
    """`count` networks of `make(generator)` as one, leaves with an axis first; nothing is compiled."""
    rng = np.random.default_rng(seed)
    many: Tree = jax.tree.map(
        lambda *leaves: jnp.asarray(np.stack(leaves)), *(make(rng) for _ in range(count))
    )
    return many


def _uniform(key: Any, shape: tuple[int, ...], bound: float) -> Any:
    if isinstance(key, np.random.Generator):
        return key.uniform(-bound, bound, shape).astype(np.float32)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def _standardised(x: Array) -> Array:
    """Mean 0 and variance 1 over the last axis (layer normalisation without its gain and shift)."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def picked(chances: Array, uniform: Array) -> Array:
    """An index drawn by `chances`, (..., K), which sum to 1, at uniform numbers (...,)."""
    passed = jnp.cumsum(chances[..., :-1], axis=-1) < uniform[..., None]
    return jnp.sum(passed, axis=-1)


def normal_at(uniform: Array) -> Array:
    """The standard normal's quantiles at uniform numbers in [0, 1).

    One call of the generator then serves all that a step draws: each further one takes longer to compile
    than a layer.
    """
    return jnp.sqrt(2.0) * jax.lax.erf_inv(jnp.clip(2.0 * uniform - 1.0, -1 + 1e-7, 1 - 1e-7))


def descend(
    optimiser: Any, loss: Callable[[Tree], Any], networks: Tree, memory: Any, *, has_aux: bool = False
) -> tuple[Tree, Any, Any]:
    """One step of an Optax optimiser on `loss(networks)`: the networks, its memory, and the loss before it.

    has_aux: the loss gives a pair, the number and what else is to be known, and so does the last answer.
    """
    value, grads = jax.value_and_grad(loss, has_aux=has_aux)(networks)
    updates, memory = optimiser.update(grads, memory, networks)
    return optax.apply_updates(networks, updates), memory, value


def polyak(target: Tree, online: Tree, rate: float) -> Tree:
    """Move a target network: target + rate (online - target), leaf by leaf.

    `optax.incremental_update` is the same step in other roundings, rate online + (1 - rate) target: with it
    every run with target networks would have other bits, for nothing.
    """
    moved: Tree = jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
    return moved
