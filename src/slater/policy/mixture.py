"""A mixture: a policy that draws one member per episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.policy.base import Actor, Described, SavedPolicy
from slater.policy.layers import Array, Rng


@dataclass(frozen=True, repr=False)
class Mixture(Described):
    """A policy that draws one member at the start of an episode, member k with probability `weights[k]`.

    What holds for the mixture holds on average over episodes: a single one is played by a single member, so
    a mixture that keeps its limit may have a member that does not, in its share of the episodes.
    """

    members: tuple[SavedPolicy, ...]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)
        if not self.members or weights.shape != (len(self.members),):
            raise InputError(
                f"a mixture of {len(self.members)} members needs as many weights, not {weights.shape}."
            )
        if not np.all(weights >= 0) or not np.isclose(weights.sum(), 1.0, atol=1e-6):
            raise InputError(f"mixture weights must be >= 0 and sum to 1, not {weights.tolist()}.")
        object.__setattr__(self, "weights", weights / weights.sum())

    def __repr__(self) -> str:
        shares = ", ".join(f"{weight:.0%}" for weight in sorted(self.weights, reverse=True)[:5])
        more = ", ..." if len(self.members) > 5 else ""
        kind = type(self.members[0]).__name__
        return f"<Mixture of {len(self.members)} policies ({kind}), {shares}{more} of episodes>"

    @classmethod
    def uniform(cls, members: Sequence[SavedPolicy]) -> Mixture:
        """Unif(pi_1, ..., pi_K) of the paper."""
        return cls(tuple(members), np.full(len(members), 1.0 / len(members)))

    def draw(self, rng: Rng) -> SavedPolicy:
        """One member, for one episode."""
        return self.members[int(rng.choice(len(self.members), p=self.weights))]

    def begin(self, *, rng: Rng, deterministic: bool = False) -> Actor:
        """Start an episode with one member, drawn now and kept to the end."""
        return self.draw(rng).begin(rng=rng, deterministic=deterministic)

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for a batch of unrelated observations: each row draws its own member.

        This is right for first observations only; inside an episode use `begin`, which keeps its member.
        """
        if len(observations) == 0:
            raise InputError("the batch of observations is empty.")
        drawn = rng.choice(len(self.members), p=self.weights, size=len(observations))
        parts = [
            self.members[member].act(observations[drawn == member], rng=rng, deterministic=deterministic)
            for member in np.unique(drawn)
        ]
        return np.concatenate(parts)[np.argsort(np.argsort(drawn, kind="stable"))]


def parts_of(policy: Any) -> list[tuple[float, Any]]:
    """The policies of which a policy draws one in every episode, with their shares; itself if it is one."""
    if not isinstance(policy, Mixture):
        return [(1.0, policy)]
    return [(float(w), m) for w, m in zip(policy.weights, policy.members, strict=True) if w > 0]
