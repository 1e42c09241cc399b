"""What a small world is: vectorised over episodes, with a truth that can be measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["F64", "Rng", "State", "World"]

F64 = NDArray[np.float64]
Rng = np.random.Generator
State = dict[str, Any]


class World(ABC):
    """A world; horizon in steps, limits per episode, actions: number of discrete ones, None for
    continuous.
    """

    horizon: int = 50
    limits: tuple[float, ...] = (0.0,)
    actions: int | None = None

    @abstractmethod
    def start(self, n: int, rng: Rng) -> State:
        """First states."""

    @abstractmethod
    def observe(self, s: State) -> F64:
        """What is seen."""

    def operators(self, n: int, rng: Rng) -> Any:
        """What operators differ in; nothing by default."""
        del n, rng
        return None

    @abstractmethod
    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        """What operators do."""

    @abstractmethod
    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        """Reward and costs; moves the state."""
