"""What a policy is, for everything that runs one: rollouts, evaluation, estimators, users' own code.

A policy is asked for actions in two ways. `act` maps a batch of observations to actions and has no
memory. `begin` starts an episode: a mixture draws its member there (one member per episode, never an
average of action probabilities), and a policy with memory, such as a transformer, starts its history.

Saved policies need NumPy and safetensors only: a file holds arrays and a JSON text, so that nothing
that is loaded can run code, and a controller does not need the framework that trained it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.encoding import Encoding, encode_rows, is_table
from slater.errors import InputError
from slater.policy.contract import Contract, RangeCheck, check_range, checked
from slater.policy.layers import Array, Rng


class Actor(Protocol):
    """A policy at work in one episode."""

    def act(self, observation: Array) -> Array:
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

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions, shape `(batch, action_dim)` or `(batch,)` if discrete, for `(batch, obs_dim)`."""
        ...

    def begin(self, *, rng: Rng, deterministic: bool = False) -> Actor:
        """Start an episode; the actor draws all its randomness from `rng`."""
        ...


class SavedPolicy(Policy, Protocol):
    """A policy that `save` can write and `load` can read: arrays by name, and JSON for the rest.

    Its class also has `from_tensors(description, tensors)` and stands in `_KINDS` under its kind.
    """

    def tensors(self) -> dict[str, Array]:
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
    ) -> Array:
        """Actions for N rows: (N, action_dim), or (N,) if discrete, by name where the data named them.

        rows: a pandas, Polars or Arrow table, a dict of columns (or of one row), a list of dicts, with the
        columns of the data that the policy was learned from, raw; or an array (N, obs_dim). episode: (N,)
        labels: the rows of an episode, in the order of time, are played by one member of a mixture; without
        it each row draws its own, and a policy that remembers its episode, by its own actions, refuses to
        act. seed: of all draws; deterministic: the likeliest action rather than a drawn one.
        """
        about, rng, acting = self.contract, np.random.default_rng(seed), cast(Policy, self)
        if not is_table(rows):
            observations = np.atleast_2d(np.asarray(rows))
        elif about is None:
            raise InputError(
                "this policy does not say which columns it takes; give observations as an array."
            )
        else:
            numbers = tuple(Encoding(entry.name) for entry in about.observations)
            observations = encode_rows(about.columns or numbers, rows)
        remembers = any(hasattr(member, "history") for member in getattr(self, "members", (self,)))
        if about is not None and not remembers:
            observations = checked(observations, len(about.observations))
        if episode is None:
            if remembers:
                raise InputError(
                    "this policy remembers its episode: give whole episodes in the order of time, and a "
                    "label per row, as episode=."
                )
            actions = acting.act(observations, rng=rng, deterministic=deterministic)
        else:
            labels = np.asarray(episode).reshape(-1).tolist()
            if len(labels) != len(observations):
                raise InputError(
                    f"{len(labels)} labels of episodes for {len(observations)} rows; give one per row."
                )
            actors = {x: acting.begin(rng=rng, deterministic=deterministic) for x in dict.fromkeys(labels)}
            pairs = zip(labels, observations, strict=True)
            actions = np.stack([np.asarray(actors[label].act(row)) for label, row in pairs])
        names = () if about is None else about.action_names
        if about is not None and about.num_actions is not None and len(names) == about.num_actions:
            return np.array(names, dtype=object)[np.asarray(actions)]
        return np.asarray(actions)


@dataclass(frozen=True)
class MemorylessActor:
    """The actor of a policy without memory: ask the policy anew at each step."""

    policy: Policy
    rng: Rng
    deterministic: bool

    def act(self, observation: Array, *, check: RangeCheck = "ignore") -> Array:
        """Action for one observation, shape `(obs_dim,)`.

        check: what to do if it is far outside the range of the data, see `slater.policy.contract`.
        """
        check_range(observation, getattr(self.policy, "contract", None), check)
        return np.asarray(self.batch(np.asarray(observation)[None])[0])

    def batch(self, observations: Array) -> Array:
        """Actions for the observations of several episodes that are played side by side."""
        return self.policy.act(observations, rng=self.rng, deterministic=self.deterministic)

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing to remember."""


class Memoryless(Policy, Protocol):
    """A policy that remembers nothing of its episode: to inherit from, with `act` of one's own."""

    def begin(self, *, rng: Rng, deterministic: bool = False) -> MemorylessActor:
        """Start an episode; the actor draws from `rng`."""
        return MemorylessActor(self, rng, deterministic)
