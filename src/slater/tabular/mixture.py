"""A mixture of policies: one member is drawn at the start of an episode and followed to its end.

Its value is the weighted mean of its members' values. Averaging the members' action probabilities
gives another policy with another value; the Markov policy that does match a mixture weights the
members by how often they visit each state (`Mixture.markov`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from slater.errors import InputError
from slater.policy.files import load
from slater.policy.tabular import TableMixture
from slater.tabular._check import Float, as_array, check_distribution
from slater.tabular.cmdp import CMDP, normalise_policy


@dataclass(frozen=True, eq=False)
class Mixture(TableMixture):
    """Policies `(K, S, A)`, drawn for an episode with probabilities `weights` `(K,)`; with exact values."""

    def __post_init__(self) -> None:
        # first what names the value that is wrong
        check_distribution("weights", as_array("weights", self.weights, (len(self.members),)))
        super().__post_init__()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Mixture:
        """The mixture in a file that `slater.policy.save` wrote."""
        policy = load(path)
        if not isinstance(policy, TableMixture):
            raise InputError(f"{path} holds a policy over observations, not over states of a finite problem.")
        return cls(policy.members, policy.weights)

    @classmethod
    def single(cls, policy: Float) -> Mixture:
        """The mixture with one member."""
        return cls(policy[None], np.ones(1))

    @classmethod
    def uniform(cls, policies: Float) -> Mixture:
        """The paper's output: every member `(K, S, A)` equally likely."""
        return cls(policies, np.full(len(policies), 1.0 / len(policies)))

    def returns(self, cmdp: CMDP) -> tuple[float, Float]:
        """Exact `J_R` and `J_C` (shape `(I,)`), J-units: weighted means of the members' values."""
        d = cmdp.horizon * self.occupancy(cmdp)
        return float(np.sum(d * cmdp.reward)), np.einsum("isa,sa->i", cmdp.costs, d)

    def occupancy(self, cmdp: CMDP) -> Float:
        """Normalised discounted occupancy `(S, A)` of the mixture: the weighted mean of the members'."""
        chosen = np.flatnonzero(self.weights)
        members = self.members[chosen]
        if not cmdp.successors.small:
            total = np.zeros(cmdp.reward.shape)
            for weight, member in zip(self.weights[chosen], members, strict=True):
                total += weight * cmdp.occupancy(member)
            return total
        inflow = np.broadcast_to(
            (1.0 - cmdp.discount) * cmdp.start[:, None], (len(chosen), cmdp.num_states, 1)
        )
        d = cmdp.successors.flows(members, inflow, cmdp.discount)[..., 0]
        return np.einsum("k,ks,ksa->sa", self.weights[chosen], np.maximum(d, 0.0), members)

    def extended(self, states: int) -> Mixture:
        """The same in a problem with more states behind its own, in which it is uniform."""
        K, S, A = self.members.shape
        idle = np.full((K, states - S, A), 1.0 / A)
        return Mixture(np.concatenate([self.members, idle], axis=1), self.weights)

    def markov(self, cmdp: CMDP) -> Float:
        """The Markov policy `(S, A)` with the mixture's occupancy, hence its exact values."""
        return normalise_policy(self.occupancy(cmdp))
