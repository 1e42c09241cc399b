"""How far estimates are from what happened, over the log's cohorts: a correction, and what a bound needs.

The cohorts' clones are policies of which both is known, what the estimator says and what the log says. So

    correction  return = a + b * estimate by least squares over the cohorts, kept only if the errors that it
                leaves on cohorts that did not fit it (one left out at a time) are clearly smaller. Returns
                only: a clone that differs from its cohort would teach the correction of a cost to call a
                cost of the clone an error, and that is the unsafe side
    bound       estimate -+ k scale, scale^2 = spread^2 + error^2 + (FLOOR size)^2, where k is the share
                `COVERED` of the errors of held-out means to the unsafe side in units of their scale (with
                the log's own standard error in it), counted as in conformal prediction: the
                ceil(COVERED (K + 1))-th smallest of K, or the largest where there are too few

    excess      how many scales estimates of costs may be too high by error alone, counted alike over cohorts
                whose clones are known to act as their sources did (by recorded propensities); 0 if none is

The spread is the disagreement of networks on different bootstraps; alone it is no bound (errors were 2.5 to
3.4 times the spread on BallCircle), which is why k is asked from the log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.deep.ope.closed_loop import Judged
from slater.deep.ope.cohorts import Cohorts
from slater.deep.task import Task

__all__ = ["Calibration", "calibrate"]

F64 = NDArray[np.float64]
#: share of the cohorts' errors that a bound is to cover
COVERED = 0.8
#: least scale of an error, as a share of max(limit, estimate) or of the largest return
FLOOR = 0.02
#: range of k
BOUND = (0.5, 4.0)
#: cohorts that a correction needs, and the share of the errors that it must at most leave
LEAST_COHORTS = 5
KEPT_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the cohorts teach about an estimator.

    line: (a, b) of the correction of returns, (0, 1) if it is none
    k: (1+I,) scales that a bound is away from an estimate
    excess: (I,) scales by which the cost of a clone that acts as its source did may be said too high
    size: (1+I,) what the floor of a scale is a share of: the largest return of a cohort, the limits
    left_out: root mean square errors of returns over left-out cohorts, without and with the correction
    """

    line: tuple[float, float]
    k: F64
    excess: F64
    size: F64
    left_out: tuple[float, float]

    def corrected(self, said: Judged) -> F64:
        """Estimates of the utilities after the correction, (P, 1+I)."""
        found = said.mean[:, :-1].copy()
        found[:, 0] = self.line[0] + self.line[1] * found[:, 0]
        return found

    def scale(self, said: Judged) -> F64:
        """Scales of the errors, (P, 1+I)."""
        floor = FLOOR * np.maximum(self.size, np.abs(said.mean[:, :-1]))
        return np.asarray(np.sqrt(said.spread[:, :-1] ** 2 + said.error[:, :-1] ** 2 + floor**2))

    def bounds(self, said: Judged) -> F64:
        """Returns from below and costs from above, (P, 1+I)."""
        return self.corrected(said) + _unsafe(len(self.k) - 1) * self.k * self.scale(said)

    def describe(self, task: Task) -> dict[str, Any]:
        """As JSON; the errors of returns as shares of the largest return of a cohort."""
        names = ("reward", *task.cost_names)
        return {
            "bound": dict(zip(names, self.k.tolist(), strict=True)),
            "excess": dict(zip(names[1:], self.excess.tolist(), strict=True)),
            "return_slope": self.line[1],
            "left_out_return_errors": [float(x / self.size[0]) for x in self.left_out],
        }


def _unsafe(costs: int) -> F64:
    """The side of each utility to which an error is unsafe: returns said too high, costs too low."""
    return np.append(-1.0, np.ones(costs))


def calibrate(
    task: Task, cohorts: Cohorts, sums: F64, counted: NDArray[np.bool_], said: Judged,
    alike: NDArray[np.bool_],
) -> Calibration:  # fmt: skip
    """By what was `said` of the cohorts' clones.

    counted: (K,) cohorts that count; alike: (K,) whether the clone is known to act as its cohort did.
    """
    all_means, _ = cohorts.means(sums)
    held, sampling = cohorts.means(sums, held=True, pooled=True)
    size = np.append(max(float(np.abs(all_means[:, 0]).max()), 1e-9), np.maximum(task.tau, 1e-9))
    found = Calibration(
        (0.0, 1.0), np.full(len(size), BOUND[1]), np.zeros(task.costs), size, (np.inf, np.inf)
    )
    if counted.any():
        line, left_out = _correction(said.mean[counted, 0], all_means[counted, 0])
        found = replace(found, line=line, left_out=left_out)
    scale = np.sqrt(found.scale(said) ** 2 + sampling[:, :-1] ** 2)
    low = _unsafe(task.costs) * (held[:, :-1] - found.corrected(said)) / scale
    if counted.any():
        found = replace(found, k=np.clip(_covering(low[counted]), *BOUND))
    if alike.any():
        found = replace(found, excess=np.clip(_covering(-low[alike, 1:]), 0.0, BOUND[1]))
    return found


def _covering(errors: F64) -> F64:
    """The error that covers the share `COVERED` of those given, (K, n), per column."""
    place = min(math.ceil(COVERED * (len(errors) + 1)), len(errors)) - 1
    return np.asarray(np.sort(errors, axis=0)[place])


def _correction(said: F64, true: F64) -> tuple[tuple[float, float], tuple[float, float]]:
    """The line from `said` to `true`, each (K,), if it helps; and the errors left out without and with it."""
    plain = float(np.sqrt(np.mean((said - true) ** 2)))
    if len(said) < LEAST_COHORTS or float(np.std(said)) < 1e-9:
        return (0.0, 1.0), (plain, plain)
    errors = []
    for k in range(len(said)):
        others = np.arange(len(said)) != k
        slope, start = np.polyfit(said[others], true[others], 1)
        errors.append(start + slope * said[k] - true[k])
    left = float(np.sqrt(np.mean(np.square(errors))))
    if left > KEPT_SHARE * plain:
        return (0.0, 1.0), (plain, left)
    slope, start = np.polyfit(said, true, 1)
    return (float(start), float(slope)), (plain, left)
