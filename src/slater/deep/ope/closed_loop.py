"""Can an estimator be trusted? What it says of each cohort's clone, against what the cohort did.

The clone of a cohort acts in closed loop, as any policy that is to be judged does; its episodes' means are
known from the log, by episodes that trained neither the clone nor the estimator. So the *means* of return,
of every cost and of the length are compared, and an error is measured by what it would do to the choice:

    a cost      against max(limit, what the cohort cost): a member of cost c gets at most a share limit / c
                of a mixture, so that an error of 10% of c is one of 10% of the limit
    the return  against the largest mean return of a cohort
    the length  against the cohort's mean length

An error passes if it is within `TOLERANCE` of that, give or take two standard errors of the log's means
and of the estimator's own. A clone may itself do other things than its cohort did, and a right estimator
then says so. That is told apart by replays: the cohort's logged actions, in windows of `WINDOW` steps from
logged states, in which no clone takes part (few steps: over many, logged actions do not correct a drift as a
policy does). A cohort whose errors are large in closed loop and small in
replays has a clone that differs, and does not count, unless recorded propensities show that the clone acts
as its cohort did: then it is the estimator that errs. An estimator passes if all other cohorts do, and they
are at least half. Of several that pass, the one with the least error is taken; if none passes, nothing that
was estimated may be called judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.deep.ope.cohorts import Cohorts
from slater.deep.task import Task

__all__ = ["TOLERANCE", "ClosedLoop", "Judged", "best_estimator", "judge", "nearby_estimator", "sizes"]

F64 = NDArray[np.float64]
#: largest error of a mean, as a share of what it is measured by
TOLERANCE = 0.25
#: steps of a replay; its error, as a share of the same, up to which a model is right where a clone is not
WINDOW = 5
REPLAY_TOLERANCE = 0.1
#: standard errors that are given on top
ALLOWED_ERRORS = 2.0


@dataclass(frozen=True, eq=False)
class Judged:
    """What an estimator says of K policies, (K, 2+I): utilities in J-units, then the length (NaN: not said).

    mean; spread: standard deviation between its networks; error: of the mean, by the number of rollouts.
    """

    mean: F64
    spread: F64
    error: F64

    def first(self, count: int) -> Judged:
        """What is said of the first `count` policies."""
        return Judged(self.mean[:count], self.spread[:count], self.error[:count])

    def after(self, count: int) -> Judged:
        """What is said of all policies but the first `count`."""
        return Judged(self.mean[count:], self.spread[count:], self.error[count:])

    def joined(self, other: Judged) -> Judged:
        """What is said of these policies and of others, one after the other."""
        return Judged(
            np.concatenate([self.mean, other.mean]), np.concatenate([self.spread, other.spread]),
            np.concatenate([self.error, other.error]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ClosedLoop:
    """An estimator's errors over cohorts.

    relative: (K, 2+I) error of each mean as a share of what it is measured by
    allowed: (K, 2+I) the share up to which an error passes
    replayed: (K, 1+I) relative error of the utilities' sums in replays; NaN where none were made
    alike: (K,) whether the clone is known to act as its cohort did
    """

    name: str
    relative: F64
    allowed: F64
    estimated: F64
    logged: F64
    replayed: F64
    alike: NDArray[np.bool_]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Cohorts whose errors are all within what is allowed, (K,)."""
        return np.all(~(np.abs(self.relative) > self.allowed), axis=1)

    @property
    def clone_differs(self) -> NDArray[np.bool_]:
        """Cohorts that fail in closed loop and not in replays, (K,): their clones do other things."""
        fails_alone = ~self.right & np.all(np.abs(self.replayed) <= REPLAY_TOLERANCE, axis=1)
        return np.asarray(fails_alone & ~self.alike)

    @property
    def passes(self) -> bool:
        """Whether every cohort is right but those whose clones differ, and at least half of all are."""
        return bool(np.all(self.right | self.clone_differs) and np.mean(self.right) >= 0.5)

    @property
    def right_nearby(self) -> bool:
        """Whether at least half of the cohorts are right, and three: near those the estimator can be used."""
        return bool(np.mean(self.right) >= 0.5 and np.sum(self.right) >= 3)

    @property
    def _counted(self) -> NDArray[np.bool_]:
        return ~self.clone_differs

    @property
    def score(self) -> float:
        """Root mean square of the relative errors over the cohorts that count; infinite if none does."""
        counted = self.relative[self._counted]
        return float(np.sqrt(np.nanmean(counted**2))) if len(counted) else float("inf")

    def describe(self, task: Task, cohorts: Cohorts) -> dict[str, Any]:
        """Verdict, score, and every cohort's logged and estimated means, in the data's units."""
        names = ("reward", *task.cost_names, "length")
        rows = []
        for k, cohort in enumerate(cohorts.names):
            rows.append(
                {
                    "cohort": cohort,
                    "logged": dict(zip(names, in_data_units(task, self.logged[k]), strict=True)),
                    "estimated": dict(zip(names, in_data_units(task, self.estimated[k]), strict=True)),
                    "passes": bool(self.right[k]),
                    "clone_differs": bool(self.clone_differs[k]),
                }
            )
        return {"estimator": self.name, "passes": self.passes, "error": self.score, "cohorts": rows}


def in_data_units(task: Task, values: F64) -> list[float | None]:
    """Utilities in J-units and a length, (2+I,), as sums over an episode in the data's units (None: NaN)."""
    sums = task.unscaled(values[:-1])
    if task.units.horizon is not None and all(limit.unit != "discounted" for limit in task.limits):
        sums = sums * task.units.horizon * (1.0 - task.gamma)
    return [None if not np.isfinite(x) else float(x) for x in (*sums, values[-1])]


def sizes(task: Task, logged: F64) -> F64:
    """What errors are measured by, (K, 2+I), where the log had `logged`; see the module's text."""
    size = np.abs(logged)
    size[:, 0] = max(float(np.abs(logged[:, 0]).max()), 1e-9)
    size[:, 1:-1] = np.maximum(size[:, 1:-1], task.tau)
    return np.maximum(size, 1e-9)


def judge(
    task: Task, cohorts: Cohorts, sums: F64, name: str, said: Judged, replayed: F64 | None = None,
    alike: NDArray[np.bool_] | None = None, pooled: bool = False,
) -> ClosedLoop:  # fmt: skip
    """The errors of what an estimator `said` of the cohorts' clones; `sums` are `cohorts.outcomes`.

    replayed: (K, 1+I) errors of the utilities in replays of held-out episodes, in J-units; None: not made.
    alike: (K,) whether each clone is known to act as its cohort did; None: not known of any.
    pooled: how the log's errors are known, see `Cohorts.means`. Certificates do without: the rates that they
    go by were measured so.
    """
    logged, sampling = cohorts.means(sums, held=True, pooled=pooled)
    size = sizes(task, logged)
    allowed = TOLERANCE + ALLOWED_ERRORS * np.sqrt(sampling**2 + said.error**2) / size
    replays = np.full(size[:, :-1].shape, np.nan) if replayed is None else replayed / size[:, :-1]
    known = np.zeros(len(size), dtype=bool) if alike is None else alike
    return ClosedLoop(name, (said.mean - logged) / size, allowed, said.mean, logged, replays, known)


def best_estimator(checks: Sequence[ClosedLoop]) -> ClosedLoop | None:
    """The one that passes with the least error; None if none passes."""
    passing = [check for check in checks if check.passes]
    return min(passing, key=lambda check: check.score) if passing else None


def nearby_estimator(checks: Sequence[ClosedLoop]) -> ClosedLoop | None:
    """The one that is right about most cohorts, if that is enough of them; None if none is."""
    useful = [check for check in checks if check.right_nearby]
    return max(useful, key=lambda check: float(np.mean(check.right))) if useful else None


def sentence(task: Task, cohorts: Cohorts, checks: Mapping[str, ClosedLoop]) -> str:
    """One line for the user: which estimator judges, and why."""
    best = best_estimator(list(checks.values()))
    if best is not None:
        return (
            f"estimates by {best.name}, checked on {len(cohorts)} cohorts of the log: its error there is "
            f"{best.score:.0%} of the limit's size"
        )
    near = nearby_estimator(list(checks.values()))
    if near is not None:
        wrong = ", ".join(name for name, right in zip(cohorts.names, near.right, strict=True) if not right)
        return (
            f"estimates by {near.name}, which is right about {int(near.right.sum())} of {len(cohorts)} "
            f"cohorts of the log and judges only near those (not near {wrong})"
        )
    parts = []
    for check in checks.values():
        excess = np.nan_to_num(np.abs(check.relative) - check.allowed, nan=-np.inf)
        k, u = np.unravel_index(int(excess.argmax()), excess.shape)
        name = ("reward", *task.cost_names, "length")[u]
        said, true = in_data_units(task, check.estimated[k])[u], in_data_units(task, check.logged[k])[u]
        parts.append(f"{check.name} says {said:.3g} of {name} for {cohorts.names[k]}, which had {true:.3g}")
    return "no estimator passes its check on the log's cohorts (" + "; ".join(parts) + "): not judged"
