"""Policies of finite problems: a table of action probabilities for each member of a mixture.

Observations are state indices. One member is drawn at the start of an episode and followed to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.policy.layers import Array, Arrays, Rng


@dataclass(frozen=True, eq=False)
class TableActor:
    """A table of action probabilities `(S, A)` at work in one episode; observations are state indices."""

    policy: NDArray[np.float64]
    rng: Rng
    deterministic: bool = False

    def act(self, observation: Array | int) -> Array:
        """The action index for one state index."""
        state = np.asarray(observation)
        if state.size != 1 or not (state == np.round(state)).all() or not 0 <= state < len(self.policy):
            raise InputError(
                f"the policy takes a state from 0 to {len(self.policy) - 1}, not {np.asarray(observation)}."
            )
        row = self.policy[int(state.item())]
        if self.deterministic:
            return np.asarray(np.argmax(row))
        return np.asarray(self.rng.choice(len(row), p=row))

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing: a Markov policy has no memory."""


@dataclass(frozen=True, eq=False)
class TableMixture:
    """Policies `(K, S, A)` with probabilities `weights` `(K,)` of being drawn for an episode."""

    members: NDArray[np.float64]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.members.ndim != 3 or self.weights.shape != (len(self.members),):
            raise InputError(
                f"a mixture needs members of shape (K, S, A) and K weights; "
                f"got {self.members.shape} and {self.weights.shape}."
            )
        for part in (self.members, self.weights):
            if not (np.all(part >= 0) and np.allclose(part.sum(axis=-1), 1.0)):
                raise InputError("probabilities of a mixture must be at least 0 and sum to 1.")

    def begin(self, *, rng: Rng, deterministic: bool = False) -> TableActor:
        """Draw one member for an episode."""
        k = int(rng.choice(len(self.members), p=self.weights))
        return TableActor(self.members[k], rng, deterministic)

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Action indices `(batch,)` for state indices `(batch,)`, one member drawn for each."""
        return np.array([int(self.begin(rng=rng, deterministic=deterministic).act(s)) for s in observations])

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name; members that are never drawn are left out."""
        drawn = np.flatnonzero(self.weights)
        return {"members": self.members[drawn], "weights": self.weights[drawn]}

    def description(self) -> dict[str, Any]:
        """The kind."""
        return {"kind": "table-mixture"}

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> TableMixture:
        """What `tensors` wrote."""
        return cls(np.asarray(tensors["members"], float), np.asarray(tensors["weights"], float))
