"""What comes out of PDCA: weights over its members, and the certificate beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.data.past import remedy
from slater.deep.algorithms.base import Member
from slater.deep.log_model.clones import one_of
from slater.deep.log_model.dynamics import Dynamics
from slater.deep.log_model.log_model import LogModel, LogModelSettings, cache_folder, fit_log_model
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.ope.posterior import Posterior, deviations_at, posterior_of
from slater.deep.task import Task, counts_episodes
from slater.limit_status import LimitStatus
from slater.mixing import BestMixture, robust_mixture
from slater.runs.result import from_log

__all__ = ["LADDER", "STARTS", "PosteriorProgram", "Starts", "certificate"]

F64 = NDArray[np.float64]


class Starts(NamedTuple):
    """Where a game is begun.

    policies: S candidates of the log, each the best at some multiple of the prices, leaves with an axis S
    first; values: (S, 1+I) of J; prices: (I,) of the limits, in J-units of the scaled utilities
    aim: (I,) costs of which the bounds keep the limits, in J-units; unit: (I,) of prices, the best return of
    a candidate over the limit
    dynamics: of the log model
    """

    policies: PolicyNetwork
    values: F64
    prices: F64
    aim: F64
    unit: F64
    dynamics: Dynamics


@dataclass(eq=False)
class _Evidence:
    """What the last look found: the log, and, once members were weighed, the posterior of all of them and
    what the run's result says about it, as JSON.
    """

    log: LogModel
    report: dict[str, Any] = field(default_factory=dict)
    posterior: Posterior | None = None


@dataclass(frozen=True)
class PosteriorProgram:
    """The best mixture of the log's candidates and the game's policies by what the log says of all of them
    (`slater.deep.ope.posterior`): a cone program on bounds of the given confidence (`slater.mixing`).

    settings: of the log model; confidence: with which each limit is to be kept
    """

    settings: LogModelSettings
    confidence: float

    def _log(self, task: Task, dataset: Dataset | StoredDataset, tick: Tick | None = None) -> LogModel:
        return fit_log_model(dataset, task, self.settings, cache_folder(), tick)

    def _chosen(self, task: Task, found: Posterior) -> BestMixture:
        """The best mixture within the limits by their bounds."""
        k = deviations_at(self.confidence)
        return robust_mixture(
            found.mean, found.covariance, task.tau.astype(np.float64), (REWARD_DEVIATIONS, k)
        )

    def starts(self, task: Task, dataset: Dataset | StoredDataset, tick: Tick) -> Starts:
        """The candidates that are best at the prices of the limits and where these are off. The prices are
        those of costs at which the bounds would keep the limits, in the best mixture of all candidates by
        their means: bounds themselves are for the choice at the end, and price what is not known.
        """
        log = self._log(task, dataset, tick)
        found = posterior_of(log)
        limits = task.tau.astype(np.float64)
        best = self._chosen(task, found)
        _, spread = found.mixed(best.weights)
        aim = np.clip(limits - deviations_at(self.confidence) * spread[1:], limits / 2, limits)
        size = np.maximum(limits, 0.05 * np.maximum(np.abs(found.mean[:, 1:]).max(axis=0), 1e-9))
        unit = np.maximum(np.abs(found.mean[:, 0]).max(), 1e-9) / size
        prices = robust_mixture(found.mean, found.covariance, aim, (0.0, 0.0)).prices
        prices = np.maximum(prices, LEAST_PRICE * unit)
        which = np.argmax(found.mean[:, :1] - found.mean[:, 1:] @ np.outer(prices, LADDER), axis=0)
        policies = jax.tree.map(lambda leaf: leaf[which], log.candidates)
        return Starts(policies, found.mean[which], prices, aim, unit, log.dynamics)

    def check(self, task: Task, dataset: Dataset | StoredDataset) -> Check:
        """The log's own candidates, as members to weigh."""
        found = _Evidence(log := self._log(task, dataset))
        candidates = tuple((one_of(log.candidates, k), kind) for k, kind in enumerate(log.kinds))
        return Check(
            candidates=candidates,
            evidence=found,
            report=found.report,
            warnings=tuple(filter(None, [remedy(log.past)])),
        )

    def weights(
        self, task: Task, members: Sequence[Member], policies: Sequence[PolicyNetwork],
        played_in: Mapping[int, int], tick: Tick, check: Check,
    ) -> tuple[F64, list[Member]]:  # fmt: skip
        """By the cone program; every member has its posterior mean and standard deviation.

        played_in: the half of the log whose model the policy of each step was played in, 0 or 1
        """
        played = [k for k, member in enumerate(members) if not from_log(member.kind)]
        logged = [k for k, member in enumerate(members) if from_log(member.kind)]
        tick("estimates of all policies", 0, 1)
        halves = [played_in.get(members[k].step) for k in played]
        found = posterior_of(check.evidence.log, [policies[k] for k in played], halves)
        tick("estimates of all policies", 1, 1)
        found = found.of(np.argsort([*logged, *played]))
        check.evidence.posterior = found
        weights = self._chosen(task, found).weights
        check.evidence.report.update(self._said(task, check.evidence.log, found, weights, logged))
        better = [
            replace(member, estimates=tuple(map(float, mean)), careful=True, spread=tuple(map(float, spread)))
            for member, mean, spread in zip(members, found.mean, found.deviation, strict=True)
        ]
        return weights, better

    def _said(
        self, task: Task, log: LogModel, found: Posterior, weights: F64, logged: Sequence[int]
    ) -> dict[str, Any]:
        """What the result says of the choice, as JSON, sums per episode where limits count those.

        posterior: its confidence, the bound of every cost, the multiple of sigma that the log's errors ask
        for, and what the past says more of than a state; without_game: weights of the choice among the log's
        own candidates alone, by what they are
        """
        mean, deviation = found.mixed(weights)
        bound = task.unscaled(mean + deviations_at(self.confidence) * deviation)[1:]
        if counts_episodes(task):
            bound = np.array([task.units.rescale(x, "discounted", "episode") for x in bound])
        alone = self._chosen(task, found.of(logged)).weights
        return {
            "posterior": {
                "confidence": self.confidence, "scale": found.scale.tolist(),
                "at_most": dict(zip(task.cost_names, bound.tolist(), strict=True)),
                "behaviours": len(log.behaviours), "past": list(log.past),
            },
            "without_game": {log.kinds[k]: float(w) for k, w in enumerate(alone) if w > 0},
            "reference": log.reference(),
        }  # fmt: skip

    def limit_status(self, task: Task, weights: F64, check: Check) -> Sequence[LimitStatus]:
        """By the posterior's bounds; a cost that the past says more of than a state does is not known."""
        found = check.evidence.posterior.status(weights, task.tau, self.confidence)
        past = check.evidence.log.past
        return [
            LimitStatus.NOT_KNOWN if name in past and status is LimitStatus.WITHIN else status
            for name, status in zip(task.cost_names, found, strict=True)
        ]


#: starts of a game; multiples of the prices at which candidates are kept for it; the least price, in units of
#: the best return over the limit: a limit that does not bind at the log's mixture may bind later
STARTS, LADDER, LEAST_PRICE = 2, 3.0 ** np.arange(-3, 4), 0.01
#: standard deviations of its return that count against a mixture
REWARD_DEVIATIONS = 1.0


def certificate(
    task: Task, multiplier_bound: float, multiplier_mean: Array, members: Sequence[Member], weights: F64
) -> dict[str, Any]:
    """Multipliers, slack, and an offline estimate of the duality gap, all in the data's units.

        gap = max_pi [J_R - lam_bar.J_C](pi) + lam_bar.tau - [J_R - B max_i (J_Ci - tau_i)_+](mixture)

    with the members' estimates for J, and the best of the kept policies for the maximum over all: an
    estimate from below, honest only as far as those policies and their estimates are.
    """
    names, lam = task.cost_names, np.asarray(multiplier_mean, dtype=np.float64)
    rate = task.scale[1:] / task.scale[0]
    answer: dict[str, Any] = {"lambda_mean": dict(zip(names, (lam * rate).tolist(), strict=True))}
    known = [k for k, member in enumerate(members) if member.estimates is not None]
    if known and np.sum(weights[known]) > 1.0 - 1e-9:
        J = np.array([members[k].estimates for k in known])
        tau = task.tau.astype(np.float64)
        mixed = weights[known] @ J
        upper = float(np.max(J[:, 0] - J[:, 1:] @ lam) + lam @ tau)
        lower = float(mixed[0] - multiplier_bound * max(np.max(mixed[1:] - tau), 0.0))
        slack = (tau - mixed[1:]) / task.scale[1:]
        answer["slack"] = dict(zip(names, slack.tolist(), strict=True))
        answer["duality_gap_estimate"] = (upper - lower) / float(task.scale[0])
    return answer
