"""The choice among policies on bounds, and what a studied log has to say about it.

The linear program picks members whose estimates err in their favour (the winner's curse). It therefore sees

    cost   + k spread       and       reward - k spread,          limits less the margin

where the spread is the disagreement of networks that were fitted to different episodes and steered no
multiplier, and the margin comes from the errors of the closed-loop check (`slater.deep.ope.closed_loop`).
A cohort's clone is judged by the log too: it counts with the worse of what the estimator says and what its
cohort did. Where no estimator passes the check, only the clones of cohorts are chosen among, by the log's
own means less a standard error, and the answer is labelled as not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.closed_loop import ClosedLoop, Judged, best_estimator, in_data_units, judge, sentence
from slater.deep.ope.cohorts import Reference, reference
from slater.deep.ope.study import Study
from slater.deep.task import Task
from slater.mixing import lp_weights

__all__ = ["BOUND", "Choice", "choose"]

F64 = NDArray[np.float64]
#: standard deviations between networks that a bound is away from the mean
BOUND = 1.0


@dataclass(frozen=True, eq=False)
class Choice:
    """Weights over the columns: clones of the cohorts, then in-sample policies, then the given ones.

    weights: (P,); estimates: means (P, 2+I) as in `Judged`; bounds: (P, 1+I) what the program saw
    judged: whether an estimator that passed its check has chosen; reference: see `cohorts.reference`
    margin: (I,) share of each limit held back; line: one sentence for the user
    """

    weights: F64
    estimates: Judged
    bounds: F64
    judged: bool
    checks: dict[str, ClosedLoop]
    reference: Reference
    margin: F64
    line: str

    def value(self) -> F64:
        """The chosen mixture by its members' mean estimates, (2+I,)."""
        used = self.weights > 0
        return np.asarray(self.weights[used] @ self.estimates.mean[used])

    def describe(self, task: Task, study: Study) -> dict[str, Any]:
        """What a run's result says of the estimator, its check, the cohorts and the reference, as JSON."""
        names = ("reward", *task.cost_names, "length")
        best = best_estimator(list(self.checks.values()))
        rows = []
        for k, name in enumerate(study.cohorts.names):
            own = study.sums[study.cohorts.episodes(k)].mean(axis=0)
            rows.append(
                {
                    "name": name,
                    "episodes": len(study.cohorts.episodes(k)),
                    "weight": float(self.reference.weights[k]),
                    "logged": dict(zip(names, in_data_units(task, own), strict=True)),
                }
            )
        return {
            "estimator": None if best is None else best.name,
            "judged": self.judged,
            "checks": [check.describe(task, study.cohorts) for check in self.checks.values()],
            "cohorts": rows,
            "reference": {
                "within_limits": self.reference.feasible,
                **dict(zip(names, in_data_units(task, self.reference.value), strict=True)),
            },
        }


def choose(
    task: Task, study: Study, policies: Sequence[PolicyNetwork], key: Array, bound: float = BOUND
) -> Choice:
    """The best mixture of the log's columns and of `policies` within the task's limits, on bounds.

    `task` may have other limits than the one the log was studied with.
    """
    own = [study.policy(k) for k in range(study.count)]
    clones = len(study.cohorts)
    said = study.estimates([*own, *policies], key)
    first = Judged(said.mean[:clones], said.spread[:clones], said.error[:clones])
    checks = {"ensemble": judge(task, study.cohorts, study.sums, "ensemble", first)}
    tau = np.asarray(task.tau, dtype=np.float64)
    logged, sampling = study.cohorts.means(study.sums)
    width = bound * np.sqrt(said.spread**2 + said.error**2)[:, :-1]
    bounds = said.mean[:, :-1] + np.append(-1.0, np.ones(task.costs)) * width
    bounds[:clones, 0] = np.minimum(bounds[:clones, 0], logged[:, 0])
    bounds[:clones, 1:] = np.maximum(bounds[:clones, 1:], logged[:, 1:-1])
    best = best_estimator(list(checks.values()))
    weights = np.zeros(len(bounds))
    if best is not None:
        margin = best.margin
        weights = lp_weights(bounds, tau * (1.0 - margin))
    else:
        margin = np.zeros(task.costs)
        by_log = logged[:, :-1] + np.append(-1.0, np.ones(task.costs)) * bound * sampling[:, :-1]
        weights[:clones] = lp_weights(by_log, tau)
    return Choice(
        weights, said, bounds, best is not None, checks, reference(study.cohorts, study.sums, tau), margin,
        sentence(task, study.cohorts, checks),
    )  # fmt: skip


def winners_curse(choice: Choice, measured: F64) -> dict[str, float]:
    """Error of the cost estimates over all members and over the chosen ones, weighted, for one cost.

    measured: (P,) true mean cost of each column in the estimates' units; NaN where it was not measured.
    """
    error = choice.estimates.mean[:, 1] - measured
    known = np.isfinite(error)
    chosen = known & (choice.weights > 0)
    return {
        "all": float(error[known].mean()),
        "chosen": float(np.average(error[chosen], weights=choice.weights[chosen])),
    }
