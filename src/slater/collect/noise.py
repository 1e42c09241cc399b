"""A policy with noise on its actions: what the paper's datasets are recorded with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.policy import Actor, CategoricalPolicy, GaussianPolicy, MemorylessActor

__all__ = ["NoisyPolicy"]


@dataclass(frozen=True)
class NoisyPolicy:
    """`policy` with noise of size `noise`; the environment clips what leaves its bounds.

    Continuous actions get Gaussian noise of standard deviation `noise * half_range` per entry; discrete ones
    are replaced by a uniform one with probability `noise`.
    """

    policy: GaussianPolicy | CategoricalPolicy
    noise: float
    half_range: NDArray[np.float64] | None

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions, shape `(batch, action_dim)`, or `(batch,)` if discrete."""
        actions = self.policy.act(observations, rng=rng, deterministic=deterministic)
        if self.half_range is not None:
            return np.asarray(actions + self.noise * self.half_range * rng.standard_normal(actions.shape))
        count = self.policy.weights[-1].shape[1]
        uniform = rng.integers(count, size=actions.shape)
        return np.where(rng.random(actions.shape) < self.noise, uniform, actions)

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        """Start an episode; the actor draws from `rng`."""
        return MemorylessActor(self, rng, deterministic)
