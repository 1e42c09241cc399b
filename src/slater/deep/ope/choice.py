"""The choice among policies on bounds, and what a studied log has to say about it.

The linear program picks members whose estimates err in their favour (the winner's curse). It therefore sees

    cost   + k spread       and       reward - k spread,          limits less the margin

where the spread is the disagreement of networks that were fitted to different episodes and steered no
multiplier, and the margin comes from the errors of the closed-loop check (`slater.deep.ope.closed_loop`).
A cohort's clone is judged by the log too: it counts with the worse of what the estimator says and what its
cohort did, less a standard error. Where no estimator passes the check, only the clones of cohorts are
chosen among, and the answer is labelled as not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.closed_loop import ClosedLoop, Judged, best_estimator, in_data_units, judge, sentence
from slater.deep.ope.cohorts import Reference, reference
from slater.deep.ope.study import Study
from slater.deep.task import Task
from slater.mixing import lp_weights

__all__ = ["BOUND", "Choice", "Verdict", "choose", "verdict"]

F64 = NDArray[np.float64]
#: standard deviations between networks that a bound is away from the mean. Not calibrated: on BallCircle
#: (one log, seed 0, 10 episodes a policy) errors of costs were 3.4 times the spread over the clones and 2.5
#: times over the in-sample policies (root mean squares), and 2 spreads covered 5 of 15
BOUND = 2.0


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a studied log says about estimators, before any policy of a run is looked at.

    said: of the log's own policies (clones of the cohorts, then in-sample ones)
    checks: of every estimator that was tried, by its name
    reference: the best mixture of the cohorts within the limits, by their logged means
    """

    study: Study
    said: Judged
    checks: dict[str, ClosedLoop]
    reference: Reference

    @property
    def best(self) -> ClosedLoop | None:
        """The check of the estimator that judges; None: nothing is judged."""
        return best_estimator(list(self.checks.values()))

    def line(self, task: Task) -> str:
        """One sentence for the user."""
        return sentence(task, self.study.cohorts, self.checks)

    def describe(self, task: Task) -> dict[str, Any]:
        """What a run's result says of the estimator, its check, the cohorts and the reference, as JSON."""
        names, cohorts = ("reward", *task.cost_names, "length"), self.study.cohorts
        rows = []
        for k, name in enumerate(cohorts.names):
            own = cohorts.episodes(k)
            row: dict[str, Any] = {"name": name, "episodes": len(own), "named": cohorts.named}
            if cohorts.told_apart is not None:
                row["told_apart"] = float(cohorts.told_apart[k])
            row["logged"] = dict(
                zip(names, in_data_units(task, self.study.sums[own].mean(axis=0)), strict=True)
            )
            row["weight"] = float(self.reference.weights[k])
            rows.append(row)
        value = dict(zip(names, in_data_units(task, self.reference.value), strict=True))
        return {
            "judged_by": None if self.best is None else self.best.name,
            "judgement": self.line(task),
            "estimator_checks": [check.describe(task, cohorts) for check in self.checks.values()],
            "cohorts": rows,
            "reference": {"within_limits": self.reference.feasible, **value},
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """Weights over the log's own policies (clones of the cohorts, then in-sample ones), then the given ones.

    weights: (P,); estimates: as in `Judged`, (P, 2+I); bounds: (P, 1+I) what the program saw
    """

    weights: F64
    estimates: Judged
    bounds: F64

    def value(self) -> F64:
        """The chosen mixture by its members' mean estimates, (2+I,)."""
        used = self.weights > 0
        return np.asarray(self.weights[used] @ self.estimates.mean[used])


def verdict(task: Task, study: Study, dataset: Dataset, key: Array) -> Verdict:
    """The check of the estimators on the cohorts' clones; `dataset` is the log that was studied."""
    said = study.estimates([study.policy(k) for k in range(study.count)], key)
    clones = said.first(len(study.cohorts))
    check = judge(task, study.cohorts, study.sums, "ensemble", clones, study.replays(dataset))
    return Verdict(study, said, {check.name: check}, reference(study.cohorts, study.sums, task.tau))


def choose(
    task: Task, found: Verdict, policies: Sequence[PolicyNetwork], key: Array, bound: float = BOUND
) -> Choice:
    """The best mixture of the log's own policies and of `policies` within the task's limits, on bounds."""
    study, clones = found.study, len(found.study.cohorts)
    said = found.said.joined(study.estimates(list(policies), key)) if policies else found.said
    tau, signs = np.asarray(task.tau, dtype=np.float64), np.append(-1.0, np.ones(task.costs))
    logged, sampling = study.cohorts.means(study.sums)
    bounds = said.mean[:, :-1] + signs * bound * np.sqrt(said.spread**2 + said.error**2)[:, :-1]
    weights = np.zeros(len(bounds))
    by_log = logged[:, :-1] + signs * bound * sampling[:, :-1]
    bounds[:clones] = signs * np.maximum(signs * bounds[:clones], signs * by_log)
    if found.best is not None:
        weights = lp_weights(bounds, tau * (1.0 - found.best.margin))
    else:
        weights[:clones] = lp_weights(bounds[:clones], tau)
        said = replace(said, mean=np.concatenate([logged, said.mean[clones:]]))
    return Choice(weights, said, bounds)
