"""Policies that are networks: a squashed Gaussian, a mixture of such and a softmax, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.policy.base import Described, Memoryless
from slater.policy.contract import checked, usable

__all__ = ["CategoricalPolicy", "GaussianMixturePolicy", "GaussianPolicy"]


F32 = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class _NetworkPolicy(Described, Memoryless):
    """A ReLU network over normalised observations; its subclasses say what the outputs mean.

    `weights[l]` has shape `(in, out)`, `biases[l]` `(out,)`; observations enter as
    `(obs - obs_mean) / obs_std`, both of shape `(obs_dim,)`.
    """

    weights: tuple[F32, ...]
    biases: tuple[F32, ...]
    obs_mean: F32
    obs_std: F32

    @np.errstate(over="ignore", invalid="ignore")  # `usable` says it in words
    def outputs(self, observations: NDArray[Any]) -> F32:
        """The network's last layer, shape `(batch, outputs)`, for observations `(batch, obs_dim)`."""
        seen = checked(observations, self.obs_mean.shape[0])
        x = (seen - self.obs_mean) / self.obs_std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        return usable(np.asarray(x @ self.weights[-1] + self.biases[-1], dtype=np.float32), seen)

    def __repr__(self) -> str:
        layers = " -> ".join(str(size) for size in (len(self.obs_mean), *(w.shape[1] for w in self.weights)))
        return f"<{type(self).__name__}: layers {layers}>"

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        named: dict[str, NDArray[Any]] = {"obs_mean": self.obs_mean, "obs_std": self.obs_std}
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layers.{index}.weight"] = weight
            named[f"layers.{index}.bias"] = bias
        return named

    @staticmethod
    def _layers(tensors: Mapping[str, NDArray[Any]]) -> tuple[tuple[F32, ...], tuple[F32, ...], int]:
        """Weights, biases and the number of outputs; ValueError if they do not fit together."""
        layers = sum(name.endswith(".weight") for name in tensors)
        weights = tuple(tensors[f"layers.{index}.weight"] for index in range(layers))
        biases = tuple(tensors[f"layers.{index}.bias"] for index in range(layers))
        sizes = [tensors["obs_mean"].shape[0], *(weight.shape[1] for weight in weights)]
        if layers == 0 or any(
            weight.shape[0] != size or bias.shape != (weight.shape[1],)
            for weight, bias, size in zip(weights, biases, sizes, strict=False)
        ):
            raise ValueError("the layers do not fit together")
        return weights, biases, sizes[-1]


@dataclass(frozen=True, repr=False)
class GaussianPolicy(_NetworkPolicy):
    """Continuous actions: tanh of a Gaussian, stretched to the box `[low, high]`.

    The network gives mean and log standard deviation before the tanh, each `(batch, action_dim)`; the
    log standard deviation is clipped to `log_std_range`. Deterministic means tanh of the mean.
    """

    low: F32
    high: F32
    log_std_range: tuple[float, float]

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        mean, log_std = np.split(self.outputs(observations), 2, axis=-1)
        if not deterministic:
            noise = rng.standard_normal(mean.shape, dtype=np.float32)
            mean = np.asarray(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise, dtype=np.float32)
        squashed = np.tanh(mean)
        actions = self.low + (squashed + 1.0) * 0.5 * (self.high - self.low)
        # float32 rounding may leave the box by one unit in the last place; simulators refuse that
        return np.clip(actions, self.low, self.high).astype(np.float32)

    def log_probability(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float64]:
        """Log density of actions `(batch, action_dim)`, in their own units, shape `(batch,)`.

        The density is infinite at the edges of the box; actions there count as a hair inside.
        """
        mean, log_std = np.split(self.outputs(observations).astype(np.float64), 2, axis=-1)
        log_std = np.clip(log_std, *self.log_std_range)
        half = 0.5 * (self.high.astype(np.float64) - self.low)
        squashed = np.clip(
            (np.asarray(actions, dtype=np.float64) - self.low) / half - 1.0, -1 + 1e-6, 1 - 1e-6
        )
        before = np.arctanh(squashed)
        gaussian = -0.5 * ((before - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        return np.asarray((gaussian - np.log1p(-(squashed**2)) - np.log(half)).sum(axis=-1))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        return super().tensors() | {"low": self.low, "high": self.high}

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {"kind": "gaussian", "log_std_range": list(self.log_std_range)}

    @classmethod
    def from_tensors(
        cls, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> GaussianPolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        weights, biases, outputs = cls._layers(tensors)
        low, high = (float(x) for x in description["log_std_range"])
        if outputs != 2 * tensors["low"].shape[0] or tensors["low"].shape != tensors["high"].shape:
            raise ValueError("the bounds do not fit the last layer")
        return cls(
            weights, biases, tensors["obs_mean"], tensors["obs_std"], tensors["low"], tensors["high"],
            (low, high),
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class GaussianMixturePolicy(_NetworkPolicy):
    """Continuous actions in several modes: tanh of a mixture of K Gaussians, stretched to `[low, high]`.

    The network gives K logits, then means and log standard deviations before the tanh, (batch, K, action_dim)
    each. Deterministic means tanh of the mean of the likeliest component.
    """

    low: F32
    high: F32
    log_std_range: tuple[float, float]
    components: int

    def _moments(self, observations: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        out = self.outputs(observations)
        logits, rest = out[:, : self.components], out[:, self.components :]
        mean, log_std = np.split(rest.reshape(len(out), self.components, -1), 2, axis=-1)
        return logits, mean, np.clip(log_std, *self.log_std_range)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        logits, mean, log_std = self._moments(observations)
        if not deterministic:
            logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
        which = np.argmax(logits, axis=-1)[:, None, None]
        before = np.take_along_axis(mean, which, axis=1)[:, 0]
        if not deterministic:
            noise = rng.standard_normal(before.shape, dtype=np.float32)
            before = before + noise * np.exp(np.take_along_axis(log_std, which, axis=1)[:, 0])
        actions = self.low + (np.tanh(before) + 1.0) * 0.5 * (self.high - self.low)
        return np.clip(actions, self.low, self.high).astype(np.float32)

    def log_probability(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float64]:
        """Log density of actions `(batch, action_dim)`, in their own units, shape `(batch,)`.

        The density is infinite at the edges of the box; actions there count as a hair inside.
        """
        logits, mean, log_std = (x.astype(np.float64) for x in self._moments(observations))
        half = 0.5 * (self.high.astype(np.float64) - self.low)
        squashed = np.clip(
            (np.asarray(actions, dtype=np.float64) - self.low) / half - 1.0, -1 + 1e-6, 1 - 1e-6
        )
        before = np.arctanh(squashed)[:, None, :]
        normal = -0.5 * ((before - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        weighed = logits + normal.sum(axis=-1)
        top = weighed.max(axis=-1, keepdims=True)
        density = top[:, 0] + np.log(np.exp(weighed - top).sum(axis=-1))
        whole = np.log(np.exp(logits - logits.max(axis=-1, keepdims=True)).sum(axis=-1)) + logits.max(axis=-1)
        slope = (np.log1p(-(squashed**2)) + np.log(half)).sum(axis=-1)
        return np.asarray(density - whole - slope)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        return super().tensors() | {"low": self.low, "high": self.high}

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {
            "kind": "gaussian mixture", "components": self.components,
            "log_std_range": list(self.log_std_range),
        }  # fmt: skip

    @classmethod
    def from_tensors(
        cls, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> GaussianMixturePolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        weights, biases, outputs = cls._layers(tensors)
        low, high = (float(x) for x in description["log_std_range"])
        components, dim = int(description["components"]), tensors["low"].shape[0]
        if outputs != components * (1 + 2 * dim) or tensors["low"].shape != tensors["high"].shape:
            raise ValueError("the bounds do not fit the last layer")
        return cls(
            weights, biases, tensors["obs_mean"], tensors["obs_std"], tensors["low"], tensors["high"],
            (low, high), components,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class CategoricalPolicy(_NetworkPolicy):
    """Discrete actions: the network gives one logit per action."""

    def probabilities(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Action probabilities, shape `(batch, actions)`."""
        logits = self.outputs(observations)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)

    def log_probability(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float64]:
        """Log probability of action indices `(batch,)`, shape `(batch,)`."""
        logits = self.outputs(observations).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, np.asarray(actions, dtype=np.int64)[:, None], axis=-1)[:, 0]
        return np.asarray(chosen - np.log(np.exp(logits).sum(axis=-1)))

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.int64]:
        """Action indices of shape `(batch,)`."""
        logits = self.outputs(observations)
        if not deterministic:
            # the Gumbel trick: argmax of logits plus Gumbel noise is a draw from the softmax
            logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
        return np.asarray(np.argmax(logits, axis=-1), dtype=np.int64)

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {"kind": "categorical"}

    @classmethod
    def from_tensors(
        cls, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> CategoricalPolicy:
        """What `tensors` gave; ValueError or KeyError if the arrays do not fit together."""
        weights, biases, _ = cls._layers(tensors)
        return cls(weights, biases, tensors["obs_mean"], tensors["obs_std"])
