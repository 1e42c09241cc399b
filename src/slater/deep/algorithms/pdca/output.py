"""What comes out of PDCA: weights over its members, and the certificate beside them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.deep.algorithms.base import Member
from slater.deep.algorithms.pdca.fallback import Fallback, NoFallback
from slater.deep.batches import Batch, Data
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Estimate, Estimator, Tick
from slater.deep.task import Task
from slater.mixing import select

__all__ = ["LinearProgram", "Output", "Uniform", "certificate"]


@dataclass(frozen=True)
class Output(abc.ABC):
    """How the members become a mixture; and policies of its own to mix, trained before the game.

    margin: share of every limit that is held back
    multiplier_bound: B, for the certificate
    fallback: a policy of its own
    """

    margin: float
    multiplier_bound: float
    fallback: Fallback = field(default_factory=NoFallback)

    def init(self, task: Task, key: Array) -> Any:
        """The state of its own policies."""
        return self.fallback.init(task, key)

    def update(self, task: Task, state: Any, batch: Batch, step: Array) -> tuple[Any, dict[str, Array]]:
        """One iteration of its own policies, `step` from 0; and scalars to log."""
        return self.fallback.update(task, state, batch, step)

    @abc.abstractmethod
    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members, shape (members,), and the members with what was learned about them."""

    def report(
        self, task: Task, state: Any, multiplier_mean: Array, members: Sequence[Member],
        weights: NDArray[np.float64],
    ) -> dict[str, Any]:  # fmt: skip
        """The `certificate`, and what the fallback says."""
        found = certificate(task, self.multiplier_bound, multiplier_mean, members, weights)
        return found | self.fallback.report(state, members, weights)


@dataclass(frozen=True)
class Uniform(Output):
    """The paper's: every member alike."""

    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """1 / members."""
        del task, estimator, estimator_state, data, policies, key, tick, check
        return np.full(len(members), 1.0 / len(members)), list(members)


@dataclass(frozen=True)
class LinearProgram(Output):
    """The best mixture within the limits less the margin, by careful estimates (`slater.mixing`).

    By an estimator that cannot be trusted, all weight is on the fallback, if there is one.
    """

    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """By the linear program; members that it weighed have careful estimates."""
        careful = estimator.careful(task, estimator_state, data, tick)

        def refine(index: int) -> NDArray[np.float64]:
            copies = careful(policies[index], jax.random.fold_in(key, members[index].step))
            tick(f"policy of step {members[index].step}", 1, 1)
            return np.asarray(Estimate(jnp.asarray(copies)).pessimistic, dtype=np.float64)

        # a member without an estimate (the fallback) is refined like all others
        unknown = np.zeros(1 + task.costs)
        quick = np.array([m.estimates or unknown for m in members], dtype=np.float64)
        limits = np.asarray(task.tightened_limits(self.margin), np.float64)
        most = len(members) if estimator.careful_limit is None else estimator.careful_limit
        weights, used, refined = select(quick, limits, refine, most)
        better = [
            Member(m.step, tuple(used[k]), careful=k in refined, kind=m.kind) for k, m in enumerate(members)
        ]
        clone = np.array([member.kind == "fallback" for member in members])
        if clone.any() and not check.trusted:
            weights = clone.astype(np.float64)
        return weights, better


def certificate(
    task: Task, multiplier_bound: float, multiplier_mean: Array, members: Sequence[Member],
    weights: NDArray[np.float64],
) -> dict[str, Any]:  # fmt: skip
    """Multipliers, slack, and an offline estimate of the duality gap, all in the data's units.

        gap = max_pi [J_R - lam_bar.J_C](pi) + lam_bar.tau - [J_R - B max_i (J_Ci - tau_i)_+](mixture)

    with the members' estimates for J, and the best of the kept policies for the maximum over all: an
    estimate from below, honest only as far as those policies and their estimates are.
    """
    names, lam = task.cost_names, np.asarray(multiplier_mean, dtype=np.float64)
    rate = task.scale[1:] / task.scale[0]
    answer: dict[str, Any] = {"lambda_mean": dict(zip(names, (lam * rate).tolist(), strict=True))}
    if all(member.estimates is not None for member in members):
        J = np.array([member.estimates for member in members])
        tau = task.tau.astype(np.float64)
        mixed = weights @ J
        upper = float(np.max(J[:, 0] - J[:, 1:] @ lam) + lam @ tau)
        lower = float(mixed[0] - multiplier_bound * max(np.max(mixed[1:] - tau), 0.0))
        slack = (tau - mixed[1:]) / task.scale[1:]
        answer["slack"] = dict(zip(names, slack.tolist(), strict=True))
        answer["duality_gap_estimate"] = (upper - lower) / float(task.scale[0])
    return answer
