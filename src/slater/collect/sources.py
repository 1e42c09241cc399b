"""What a log is recorded from: a policy with noise, that knows the density of each of its actions.

Three ways of recording, each with a density that is exact for the action as it is recorded:

- `SquashedSource`: the noise is added before the tanh, `a = tanh(u)`, `u ~ N(mean, std^2 + noise^2)`, where
  std is 0 for a deterministic source. The action has an ordinary density everywhere inside its bounds. This
  is how the project's own datasets are recorded.
- `ClippedSource`: noise is added to the action, which is then clipped, as the paper's authors do with
  `a = clip(tanh(N(mean, std^2)) + N(0, noise^2))`. Clipping puts a probability on the bounds themselves:
  for an entry on a bound the factor of the density is that probability, inside it is an ordinary density.
  Ratios of two such densities are right; a ratio to a policy without probability on the bounds is 0 there.
- `UniformSource`: discrete actions, uniform with probability `noise`.

Densities are evaluated in float64 on the float32 numbers of the log, so that they do not depend on how rows
are grouped; they are in the units of the data. Means before the tanh are held within +-3 in `SquashedSource`
(tanh 3 = .995): an action closer to a bound than float32 can say has no useful density.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy
from slater.policy.base import Memoryless

F64 = NDArray[np.float64]

#: means before the tanh are held within +- this
MEAN_BOUND = 3.0
#: the largest |a| in [-1, 1] that is recorded: the last float32 before 1
INSIDE = 1.0 - 2.0**-24
#: nodes of the integral over the policy's own randomness, see `_clipped_log_density`
NODES = 301
#: beyond it tanh is 1 to nine digits
FLAT = 10.0


class _Network:
    """A policy's network in float64, on observations as the log has them (float32)."""

    def __init__(self, policy: GaussianPolicy | CategoricalPolicy) -> None:
        self.mean, self.std = policy.obs_mean.astype(np.float64), policy.obs_std.astype(np.float64)
        self.weights = [weight.astype(np.float64) for weight in policy.weights]
        self.biases = [bias.astype(np.float64) for bias in policy.biases]

    def __call__(self, observations: NDArray[Any]) -> F64:
        x = np.asarray(observations, np.float32).astype(np.float64)
        x = (x - self.mean) / self.std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.maximum(x @ weight + bias, 0.0)
        return np.asarray(x @ self.weights[-1] + self.biases[-1])


def _mean_and_std(network: _Network, policy: GaussianPolicy, observations: NDArray[Any]) -> tuple[F64, F64]:
    outputs = network(observations)
    half = outputs.shape[-1] // 2
    return outputs[..., :half], np.exp(outputs[..., half:].clip(*policy.log_std_range))


def _half_range(policy: GaussianPolicy) -> F64:
    return (policy.high.astype(np.float64) - policy.low) / 2.0


def _centred(policy: GaussianPolicy, actions: NDArray[Any]) -> F64:
    """Actions of the data in [-1, 1]."""
    return np.asarray((np.asarray(actions, np.float64) - policy.low) / _half_range(policy) - 1.0)


@dataclass(frozen=True)
class SourcePolicy(Memoryless):
    """A policy that is recorded; it acts like any other, and gives the density of recorded actions.

    noise: what is added to the policy's own randomness, which `mean_only` leaves out.
    """

    policy: GaussianPolicy | CategoricalPolicy
    noise: float
    mean_only: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise < np.inf:
            raise InputError(f"noise must be a number of at least 0, not {self.noise}.")

    @cached_property
    def _network(self) -> _Network:
        return _Network(self.policy)

    @abstractmethod
    def propensity(self, observations: NDArray[Any], actions: NDArray[Any]) -> F64:
        """Density or probability of each recorded action, shape `(batch,)`."""


@dataclass(frozen=True)
class SquashedSource(SourcePolicy):
    """tanh of a Gaussian whose variance is the policy's own (0 if `mean_only`) plus `noise` squared."""

    policy: GaussianPolicy

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_only and self.noise == 0.0:
            raise InputError(
                "a deterministic source needs noise above 0: without it, actions have no density."
            )

    def _moments(self, observations: NDArray[Any]) -> tuple[F64, F64]:
        mean, std = _mean_and_std(self._network, self.policy, observations)
        variance = self.noise**2 + (0.0 if self.mean_only else std**2)
        return mean.clip(-MEAN_BOUND, MEAN_BOUND), np.sqrt(variance) + np.zeros_like(mean)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)`; `deterministic` leaves out all noise."""
        mean, std = self._moments(observations)
        if not deterministic:
            mean = mean + std * rng.standard_normal(mean.shape)
        squashed = np.clip(np.tanh(mean), -INSIDE, INSIDE)
        low, high = self.policy.low, self.policy.high
        stretched = (low + (squashed + 1.0) * _half_range(self.policy)).astype(np.float32)
        # rounding to float32 may reach a bound, where the density is not defined
        return np.clip(stretched, np.nextafter(low, high), np.nextafter(high, low))

    def propensity(self, observations: NDArray[Any], actions: NDArray[Any]) -> F64:
        """Density of the actions, in the units of the data."""
        mean, std = self._moments(observations)
        squashed = np.clip(_centred(self.policy, actions), -INSIDE, INSIDE)
        normal = -0.5 * ((np.arctanh(squashed) - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        slope = np.log1p(-(squashed**2)) + np.log(_half_range(self.policy))
        return np.asarray(np.exp(np.sum(normal - slope, axis=-1)))


@dataclass(frozen=True)
class ClippedSource(SourcePolicy):
    """The policy's action (its own mean if `mean_only`, else a draw) plus noise, clipped to the bounds.

    noise: standard deviation in half action ranges, above 0.
    """

    policy: GaussianPolicy

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)`, clipped; `deterministic` leaves out all noise."""
        actions = self.policy.act(observations, rng=rng, deterministic=deterministic or self.mean_only)
        if not deterministic:
            drawn = self.noise * _half_range(self.policy) * rng.standard_normal(actions.shape)
            actions = np.clip(actions + drawn, self.policy.low, self.policy.high).astype(np.float32)
        return actions

    def propensity(self, observations: NDArray[Any], actions: NDArray[Any]) -> F64:
        """Product over entries of a density (inside the bounds) or a probability (on them)."""
        if self.noise == 0.0:
            raise InputError("a clipped source needs noise above 0: without it, its density is not defined.")
        mean, std = _mean_and_std(self._network, self.policy, observations)
        taken = np.asarray(actions, np.float32)
        on_low, on_high = taken <= self.policy.low, taken >= self.policy.high
        logs = _clipped_log_density(
            _centred(self.policy, actions), np.zeros_like(std) if self.mean_only else std, mean, self.noise,
            on_low, on_high,
        )  # fmt: skip
        inside = ~(on_low | on_high)
        return np.asarray(np.exp(np.sum(logs - inside * np.log(_half_range(self.policy)), axis=-1)))


def _clipped_log_density(
    a: F64, std: F64, mean: F64, noise: float, on_low: NDArray[np.bool_], on_high: NDArray[np.bool_]
) -> F64:
    """Log of E_u[N(a; tanh u, noise^2)], or of the tails at the bounds -1 and 1; all of shape `(batch,
    action_dim)`.

    u ~ N(mean, std^2). The expectation is a trapezoidal sum over u, out to 9 std but not beyond +-10, where
    tanh is 1 in every digit that counts and what is left is a tail of the Gaussian. The integrand is smooth
    on the scales of std and of the noise, both many times the distance of the nodes.
    """

    def log_given(action: F64) -> F64:
        z = (a - action) / noise
        inside = -0.5 * z**2 - np.log(noise) - 0.5 * np.log(2 * np.pi)
        low, high = log_ndtr((-1.0 - action) / noise), log_ndtr((action - 1.0) / noise)
        return np.where(on_low, low, np.where(on_high, high, inside))

    if not std.any():
        return log_given(np.tanh(mean))
    first, last = np.maximum(mean - 9.0 * std, -FLAT), np.minimum(mean + 9.0 * std, FLAT)
    # a mean beyond the flat ends leaves no interval: then all of the mass is in a tail
    first, last = np.minimum(first, FLAT), np.maximum(last, -FLAT)
    width = np.maximum(last - first, 0.0) / (NODES - 1)
    with np.errstate(divide="ignore"):
        log_width = np.log(width)
    terms = [
        log_ndtr((-FLAT - mean) / std) + log_given(-np.ones_like(mean)),
        log_ndtr((mean - FLAT) / std) + log_given(np.ones_like(mean)),
    ]
    for node in range(NODES):
        u = first + node * width
        log_weight = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        ends = np.log(0.5) if node in (0, NODES - 1) else 0.0
        terms.append(log_weight + log_given(np.tanh(u)) + log_width + ends)
    return np.asarray(logsumexp(terms, axis=0))


@dataclass(frozen=True)
class UniformSource(SourcePolicy):
    """Discrete actions: the policy's own, replaced by a uniform one with probability `noise`.

    mean_only: the policy's own action is its most likely one.
    """

    policy: CategoricalPolicy

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise <= 1.0:
            raise InputError(f"noise must be a probability for discrete actions, not {self.noise}.")

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Numbers of actions, shape `(batch,)`; `deterministic` leaves out all noise."""
        actions = self.policy.act(observations, rng=rng, deterministic=deterministic or self.mean_only)
        if deterministic:
            return actions
        uniform = rng.integers(self.policy.weights[-1].shape[1], size=actions.shape)
        return np.where(rng.random(actions.shape) < self.noise, uniform, actions)

    def propensity(self, observations: NDArray[Any], actions: NDArray[Any]) -> F64:
        """Probability of each action."""
        logits = self._network(observations)
        count = logits.shape[1]
        if self.mean_only:
            own = (np.argmax(logits, axis=1) == actions).astype(np.float64)
        else:
            own = np.exp(logits[np.arange(len(logits)), actions] - logsumexp(logits, axis=1))
        return np.asarray((1.0 - self.noise) * own + self.noise / count)
