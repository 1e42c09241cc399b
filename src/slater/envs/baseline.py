"""The policy to compare with: actions drawn uniformly, or the middle of the action space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium as gym

__all__ = ["RandomPolicy"]


@dataclass(frozen=True)
class _RandomActor:
    policy: RandomPolicy
    rng: np.random.Generator
    deterministic: bool

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        batch = np.asarray(observation)[None]
        action: NDArray[Any] = self.policy.act(batch, rng=self.rng, deterministic=self.deterministic)[0]
        return action

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing is learned from it."""


@dataclass(frozen=True)
class RandomPolicy:
    """Uniform over a Box or Discrete `action_space`; deterministic: its centre, or its first action."""

    action_space: gym.Space[Any]

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions, shape `(batch, action_dim)`, or `(batch,)` if discrete."""
        space: Any = self.action_space
        batch = len(observations)
        if hasattr(space, "n"):
            first = int(space.start)
            if deterministic:
                return np.full(batch, first)
            return rng.integers(first, first + int(space.n), size=batch)
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        if deterministic:
            return np.broadcast_to((low + high) / 2.0, (batch, *low.shape))
        return rng.uniform(low, high, size=(batch, *low.shape))

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> _RandomActor:
        """Start an episode; the actor draws from `rng`."""
        return _RandomActor(self, rng, deterministic)
