"""A policy that sees its episode's past: any other policy behind a memory (`slater.history`).

It takes observations as they are measured. An actor remembers what it was shown and what it did; the policy
inside sees both. What keeps a budget besides keeps it: the actor passes on what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from slater.history import History
from slater.policy.base import Actor, Described, SavedPolicy
from slater.policy.contract import RangeCheck, check_range, checked
from slater.policy.layers import Array, Arrays, Rng


@dataclass(frozen=True, eq=False, repr=False)
class RememberingPolicy(Described):
    """policy: takes an observation with the memory behind it; history: what is remembered, and how."""

    policy: SavedPolicy
    history: History

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for unrelated observations, each the first of an episode of its own."""
        rows = checked(observations, self.history.entries)
        seen = np.concatenate([rows, self.history.start(len(rows))], axis=1)
        return np.asarray(self.policy.act(seen, rng=rng, deterministic=deterministic))

    def begin(self, *, rng: Rng, deterministic: bool = False) -> RememberingActor:
        """Start an episode that remembers nothing yet."""
        return RememberingActor(self, self.policy.begin(rng=rng, deterministic=deterministic))

    def with_limits(self, limits: Sequence[float]) -> RememberingPolicy:
        """The same under other limits, one per cost, if the policy inside takes them."""
        from slater.policy.files import with_limits

        return replace(self, policy=cast(SavedPolicy, with_limits(self.policy, limits)))

    def __repr__(self) -> str:
        return f"<RememberingPolicy: {self.history.size} numbers remembered, {self.policy!r}>"

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy inside, by name."""
        return self.policy.tensors()

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        inside, history = self.policy.description(), self.history.to_json()
        return {"kind": "remembering", "history": history, "policy": inside}

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> RememberingPolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        from slater.policy.files import from_tensors

        history = History.from_json(description["history"])
        policy = cls(from_tensors(description["policy"], tensors), history)
        # one step shows whether the arrays fit together
        policy.begin(rng=np.random.default_rng(0)).act(np.zeros(history.entries))
        return policy


class RememberingActor:
    """One episode, or several side by side (`batch`), and what is remembered of them."""

    def __init__(self, policy: RememberingPolicy, actor: Actor) -> None:
        self.policy, self.actor = policy, actor
        self.memory = policy.history.start(1)
        for name in ("cost_names", "change_limits", "ledger"):
            if hasattr(actor, name):
                setattr(self, name, getattr(actor, name))

    def act(self, observation: Array, *, check: RangeCheck = "ignore") -> Array:
        """Action for one observation; `check` as in `slater.policy.contract`."""
        check_range(observation, self.policy.contract, check)
        return self._acted(np.asarray(observation)[None], lambda seen: self.actor.act(seen[0])[None])[0]

    def batch(self, observations: Array) -> Array:
        """Actions for the observations of so many episodes, (n, entries), that are played side by side."""
        batch: Any = getattr(self.actor, "batch")  # noqa: B009 (not of every actor)
        return self._acted(observations, batch)

    def _acted(self, observations: Array, act: Any) -> Array:
        history = self.policy.history
        rows = checked(observations, history.entries)
        memory = np.broadcast_to(self.memory, (len(rows), history.size))
        actions = np.asarray(act(np.concatenate([rows, memory], axis=1)))
        self.memory = history.after(memory, rows, actions)
        return actions

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """What the last action brought, for the policy inside."""
        self.actor.observe(reward, costs)
