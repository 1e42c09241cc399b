"""Policies that are networks: a squashed Gaussian, a mixture of such and a softmax, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from slater.policy.base import Described, Memoryless
from slater.policy.contract import checked, usable
from slater.policy.layers import Array, Arrays, Layers, Rng, apply_layers, name_layers, read_layers, stretched

F32 = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class _NetworkPolicy(Described, Memoryless):
    """A ReLU network over normalised observations; its subclasses say what the outputs mean.

    `weights[l]` has shape `(in, out)`, `biases[l]` `(out,)`; observations enter as
    `(obs - obs_mean) / obs_std`, both of shape `(obs_dim,)`.
    """

    #: what files call this kind
    KIND: ClassVar[str]
    weights: tuple[F32, ...]
    biases: tuple[F32, ...]
    obs_mean: F32
    obs_std: F32

    @np.errstate(over="ignore", invalid="ignore")  # `usable` says it in words
    def outputs(self, observations: Array) -> F32:
        """The network's last layer, shape `(batch, outputs)`, for observations `(batch, obs_dim)`."""
        seen = checked(observations, self.obs_mean.shape[0])
        return usable(apply_layers(self.layers, (seen - self.obs_mean) / self.obs_std), seen)

    @property
    def layers(self) -> Layers:
        """Weight and bias of each layer."""
        return tuple(zip(self.weights, self.biases, strict=True))

    def __repr__(self) -> str:
        layers = " -> ".join(str(size) for size in (len(self.obs_mean), *(w.shape[1] for w in self.weights)))
        return f"<{type(self).__name__}: layers {layers}>"

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name."""
        normaliser = {"obs_mean": self.obs_mean, "obs_std": self.obs_std}
        return name_layers({"layers": self.layers}) | normaliser

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {"kind": self.KIND}

    @property
    def _width(self) -> int:
        """Outputs that the policy needs of its network."""
        return self.weights[-1].shape[1]

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> Self:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        weights, biases = zip(*read_layers(tensors, "layers"), strict=True)
        sizes = [tensors["obs_mean"].shape[0], *(weight.shape[1] for weight in weights)]
        for weight, bias, size in zip(weights, biases, sizes, strict=False):
            if weight.shape[0] != size or bias.shape != weight.shape[1:]:
                raise ValueError("the layers do not fit together")
        more = cls._more(description, tensors)
        policy = cls(weights, biases, tensors["obs_mean"], tensors["obs_std"], **more)
        if sizes[-1] != policy._width:
            raise ValueError("the bounds do not fit the last layer")
        return policy

    @staticmethod
    def _more(description: Mapping[str, Any], tensors: Arrays) -> dict[str, Any]:
        """The fields besides the network and its normaliser."""
        return {}


@dataclass(frozen=True, repr=False)
class _BoxPolicy(_NetworkPolicy):
    """Actions in a box: tanh of what is drawn, stretched to `[low, high]`."""

    low: F32
    high: F32
    log_std_range: tuple[float, float]

    def _before(self, actions: Array) -> tuple[NDArray[np.float64], ...]:
        """Actions before the tanh, the log of its slope there, and that of half the box's widths.

        The density is infinite at the edges of the box; actions there count as a hair inside.
        """
        half = 0.5 * (self.high.astype(np.float64) - self.low)
        given = np.asarray(actions, dtype=np.float64)
        squashed = np.clip((given - self.low) / half - 1.0, -1 + 1e-6, 1 - 1e-6)
        return np.arctanh(squashed), np.log1p(-(squashed**2)), np.log(half)

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name."""
        return super().tensors() | {"low": self.low, "high": self.high}

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return super().description() | {"log_std_range": list(self.log_std_range)}

    @staticmethod
    def _more(description: Mapping[str, Any], tensors: Arrays) -> dict[str, Any]:
        low, high = (float(x) for x in description["log_std_range"])
        if tensors["low"].shape != tensors["high"].shape:
            raise ValueError("the bounds do not fit the last layer")
        return {"low": tensors["low"], "high": tensors["high"], "log_std_range": (low, high)}


@dataclass(frozen=True, repr=False)
class GaussianPolicy(_BoxPolicy):
    """Continuous actions: tanh of a Gaussian, stretched to the box `[low, high]`.

    The network gives mean and log standard deviation before the tanh, each `(batch, action_dim)`; the
    log standard deviation is clipped to `log_std_range`. Deterministic means tanh of the mean.
    """

    KIND = "gaussian"

    @property
    def _width(self) -> int:
        return 2 * len(self.low)

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        mean, log_std = np.split(self.outputs(observations), 2, axis=-1)
        if not deterministic:
            noise = rng.standard_normal(mean.shape, dtype=np.float32)
            mean = np.asarray(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise, dtype=np.float32)
        return stretched(np.tanh(mean), self.low, self.high)

    def log_probability(self, observations: Array, actions: Array) -> NDArray[np.float64]:
        """Log density of actions `(batch, action_dim)`, in their own units, shape `(batch,)`."""
        mean, log_std = np.split(self.outputs(observations).astype(np.float64), 2, axis=-1)
        log_std = np.clip(log_std, *self.log_std_range)
        before, slope, width = self._before(actions)
        gaussian = -0.5 * ((before - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        return np.asarray((gaussian - slope - width).sum(axis=-1))


@dataclass(frozen=True, repr=False)
class GaussianMixturePolicy(_BoxPolicy):
    """Continuous actions in several modes: tanh of a mixture of K Gaussians, stretched to `[low, high]`.

    The network gives K logits, then means and log standard deviations before the tanh, (batch, K, action_dim)
    each. Deterministic means tanh of the mean of the likeliest component.
    """

    KIND = "gaussian mixture"
    components: int

    @property
    def _width(self) -> int:
        return self.components * (1 + 2 * len(self.low))

    def _moments(self, observations: Array) -> tuple[Array, Array, Array]:
        out = self.outputs(observations)
        logits, rest = out[:, : self.components], out[:, self.components :]
        mean, log_std = np.split(rest.reshape(len(out), self.components, -1), 2, axis=-1)
        return logits, mean, np.clip(log_std, *self.log_std_range)

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        logits, mean, log_std = self._moments(observations)
        if not deterministic:
            logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
        which = np.argmax(logits, axis=-1)[:, None, None]
        before = np.take_along_axis(mean, which, axis=1)[:, 0]
        if not deterministic:
            noise = rng.standard_normal(before.shape, dtype=np.float32)
            before = before + noise * np.exp(np.take_along_axis(log_std, which, axis=1)[:, 0])
        return stretched(np.tanh(before), self.low, self.high)

    def log_probability(self, observations: Array, actions: Array) -> NDArray[np.float64]:
        """Log density of actions `(batch, action_dim)`, in their own units, shape `(batch,)`."""
        logits, mean, log_std = (x.astype(np.float64) for x in self._moments(observations))
        before, slope, width = self._before(actions)
        before = before[:, None, :]
        normal = -0.5 * ((before - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        density = _log_sum(logits + normal.sum(axis=-1)) - _log_sum(logits)
        return np.asarray(density - (slope + width).sum(axis=-1))

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return super().description() | {"components": self.components}

    @staticmethod
    def _more(description: Mapping[str, Any], tensors: Arrays) -> dict[str, Any]:
        return _BoxPolicy._more(description, tensors) | {"components": int(description["components"])}


def _log_sum(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of the sum of exponentials over the last axis."""
    top = x.max(axis=-1)
    return np.asarray(top + np.log(np.exp(x - top[..., None]).sum(axis=-1)))


@dataclass(frozen=True, repr=False)
class CategoricalPolicy(_NetworkPolicy):
    """Discrete actions: the network gives one logit per action."""

    KIND = "categorical"

    def probabilities(self, observations: Array) -> NDArray[np.float32]:
        """Action probabilities, shape `(batch, actions)`."""
        logits = self.outputs(observations)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)

    def log_probability(self, observations: Array, actions: Array) -> NDArray[np.float64]:
        """Log probability of action indices `(batch,)`, shape `(batch,)`."""
        logits = self.outputs(observations).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, np.asarray(actions, dtype=np.int64)[:, None], axis=-1)[:, 0]
        return np.asarray(chosen - _log_sum(logits))

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> NDArray[np.int64]:
        """Action indices of shape `(batch,)`."""
        logits = self.outputs(observations)
        if not deterministic:
            # the Gumbel trick: argmax of logits plus Gumbel noise is a draw from the softmax
            logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
        return np.asarray(np.argmax(logits, axis=-1), dtype=np.int64)
