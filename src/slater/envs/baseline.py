"""The policy to compare with: actions drawn uniformly, or the middle of the action space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slater.policy.base import Memoryless

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class RandomPolicy(Memoryless):
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
