"""What a policy is, for everything that runs one: rollouts, evaluation, estimators, users' own code.

A policy is asked for actions in two ways. `act` maps a batch of observations to actions and has no
memory. `begin` starts an episode: a mixture draws its member there (one member per episode, never an
average of action probabilities), and a policy with memory, such as a transformer, starts its history.

Saved policies need NumPy and safetensors only: a file holds arrays and a JSON text, so that nothing
that is loaded can run code, and a controller does not need the framework that trained it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.policy.contract import Contract, RangeCheck, check_range

__all__ = ["Actor", "Described", "Memoryless", "MemorylessActor", "Policy", "SavedPolicy"]


class Actor(Protocol):
    """A policy at work in one episode."""

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Action, shape `(action_dim,)` or a scalar index, for one observation, shape `(obs_dim,)`."""
        ...

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Tell the actor what its last action brought: reward, and costs of shape `(I,)`.

        The costs of an actor that has `cost_names` are those, in their order; else all of the environment's.
        """
        ...


@runtime_checkable
class Policy(Protocol):
    """Anything that can be asked for actions."""

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions, shape `(batch, action_dim)` or `(batch,)` if discrete, for `(batch, obs_dim)`."""
        ...

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        """Start an episode; the actor draws all its randomness from `rng`."""
        ...


class SavedPolicy(Policy, Protocol):
    """A policy that `save` can write and `load` can read: arrays by name, and JSON for the rest.

    Its class also has `from_tensors(description, tensors)` and stands in `_KINDS` under its kind.
    """

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        ...

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON; "kind" names the class."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Described:
    """A policy that may hold what its file says about it."""

    contract: Contract | None = None

    def predict(
        self, rows: Any, *, seed: int = 0, deterministic: bool = False, episode: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Actions for many rows of a table, raw, or of an array; see `slater.policy.predicting.predict`."""
        from slater.policy.predicting import predict

        return predict(self, rows, seed=seed, deterministic=deterministic, episode=episode)


@dataclass(frozen=True)
class MemorylessActor:
    """The actor of a policy without memory: ask the policy anew at each step."""

    policy: Policy
    rng: np.random.Generator
    deterministic: bool

    def act(self, observation: NDArray[Any], *, check: RangeCheck = "ignore") -> NDArray[Any]:
        """Action for one observation, shape `(obs_dim,)`.

        check: what to do if it is far outside the range of the data, see `slater.policy.contract`.
        """
        check_range(observation, getattr(self.policy, "contract", None), check)
        return np.asarray(self.batch(np.asarray(observation)[None])[0])

    def batch(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Actions for the observations of several episodes that are played side by side."""
        return self.policy.act(observations, rng=self.rng, deterministic=self.deterministic)

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing to remember."""


class Memoryless(Policy, Protocol):
    """A policy that remembers nothing of its episode: to inherit from, with `act` of one's own."""

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> MemorylessActor:
        """Start an episode; the actor draws from `rng`."""
        return MemorylessActor(self, rng, deterministic)
