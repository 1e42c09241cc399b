"""The choice among policies on bounds, and what a studied log has to say about it.

The linear program picks members whose estimates err in their favour (the winner's curse). It therefore sees
bounds: a policy that the log has not seen counts with its estimate and k scales to the unsafe side, k by the
errors over the log's cohorts (`slater.deep.ope.calibration`), by networks that steered no multiplier.

A cohort's clone is worth what its cohort did, up to what the clone does otherwise; that is what the log
itself says, with the log's standard error, and with what too few episodes may not have shown: a cohort of n
episodes without a cost may still have one of a limit's size in 2 of n + 1.

    its return  the cohort's, if recorded propensities show that the clone acts as its source did; else, where
                the estimate agrees in closed loop, half way to an estimate that is less; else the lesser
    its cost    the cohort's and a standard error, or the estimate of the clone if that is more. Where
                recorded propensities show that the clone acts as its source did, only what the estimate says
                beyond its own error over such cohorts counts

A policy that was played from such a clone, and stayed near it, is judged by the change from there. With
b = what the log says of the clone less what the estimator says of it,

    estimate of the policy + b      is right where the estimator errs alike about both
    estimate of the policy          is right where it errs about the clone alone

and the truth was found between the two: the estimate is their middle, and half of b is part of its error, as
is a quarter of the change itself.

An estimate about whose cost the networks disagree by more than the check would let an error pass is withheld:
the policy is not mixed, and nothing is said of it.

An estimator that fails its check, but is right about half of the cohorts or more, judges policies that were
played from the clones of those and no others. Where there is none at all, only the clones of cohorts are
chosen among, by what the log says of their cohorts, and the answer is labelled as not judged. Where
propensities show that some clones act as their cohorts did, only those are mixed if that costs little.
The same holds where the estimator is wrong about a source of the mixture that the log recommends, and leaves
no mixture of clones within the limits: then the log is believed, not the estimator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.deep.ope.calibration import Calibration, calibrate
from slater.deep.ope.closed_loop import (
    TOLERANCE,
    ClosedLoop,
    Judged,
    best_estimator,
    in_data_units,
    judge,
    nearby_estimator,
    sentence,
)
from slater.deep.ope.cohorts import Reference, reference
from slater.deep.ope.judges import Judge
from slater.deep.ope.study import Study
from slater.deep.task import Task
from slater.mixing import best_mixture, lp_weights

__all__ = ["Choice", "Verdict", "choose_mixture", "starting_cohorts", "verdict"]

F64 = NDArray[np.float64]
#: standard errors of the log's means by which a clone counts as worse than its cohort
LOG_ERRORS = 1.0
#: what never happened in n episodes may happen in this of n + 1 (a chance of e^-2 is left), and cost a limit
UNSEEN = 2.0
#: a policy that was played from a clone: scales by which its return and its costs count as worse than their
#: estimates, and the share of the change from its start that is part of the scale
RETURN_SCALES, COST_SCALES, CHANGE_SHARE = 1.0, 2.0, 0.25
#: share of the best mixture's return that one of clones known to act as their cohorts did must have
NEARLY = 0.97


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a studied log says about estimators, before any policy of a run is looked at.

    judges, checks: every estimator that was asked, and its check, by its name
    reference: the best mixture of the cohorts within the limits, by their logged means
    calibration: of the estimator that judges; None: nothing is judged
    distrusted: the estimators contradict the log, and nothing is judged
    """

    study: Study
    judges: dict[str, Judge]
    checks: dict[str, ClosedLoop]
    reference: Reference
    calibration: Calibration | None
    distrusted: bool = False

    @property
    def best(self) -> ClosedLoop | None:
        """The check of the estimator that judges everywhere; None: it failed."""
        return None if self.distrusted else best_estimator(list(self.checks.values()))

    @property
    def judge(self) -> ClosedLoop | None:
        """The check of the estimator that judges, if only near some cohorts; None: nothing is judged."""
        if self.distrusted:
            return None
        return self.best or nearby_estimator(list(self.checks.values()))

    @property
    def settled(self) -> bool:
        """Whether the estimator is right about all cohorts, none excused by a clone that differs."""
        return self.best is not None and not bool(self.best.clone_differs.any())

    @property
    def estimator(self) -> Judge:
        """The one that judges; where nothing is judged, the first, whose word is shown and not used."""
        return self.judges[next(iter(self.judges)) if self.judge is None else self.judge.name]

    @property
    def said(self) -> Judged:
        """What it says of the log's own policies: clones of the cohorts, then in-sample ones."""
        return self.estimator.of_log

    def line(self, task: Task) -> str:
        """One sentence for the user."""
        if self.distrusted:
            return (
                f"by {', '.join(self.checks)} no mixture of the log's policies keeps the limits, and by the "
                "log itself one does: not judged"
            )
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
            if np.isfinite(self.study.divergence[k]):
                row["clone_divergence"] = float(self.study.divergence[k])
            rows.append(row)
        value = dict(zip(names, in_data_units(task, self.reference.value), strict=True))
        return {
            "judged_by": None if self.judge is None else self.judge.name,
            "judged_everywhere": self.best is not None,
            "judgement": self.line(task),
            "calibration": None if self.calibration is None else self.calibration.describe(task),
            "estimator_checks": [check.describe(task, cohorts) for check in self.checks.values()],
            "cohorts": rows,
            "reference": {"within_limits": self.reference.feasible, **value},
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """Weights over the log's own policies (clones of the cohorts, then in-sample ones), then the given ones.

    weights: (P,); estimates: as in `Judged`, (P, 2+I); bounds: (P, 1+I) what the program saw
    withheld: (P,) whether the networks disagree so much about a given policy that nothing is said of it
    """

    weights: F64
    estimates: Judged
    bounds: F64
    withheld: NDArray[np.bool_]

    def value(self) -> F64:
        """The chosen mixture by its members' mean estimates, (2+I,)."""
        used = self.weights > 0
        return np.asarray(self.weights[used] @ self.estimates.mean[used])


def verdict(task: Task, study: Study, judges: Iterable[Judge], replayed: F64) -> Verdict:
    """The check of the estimators on the cohorts' clones, one after the other until one passes.

    replayed: by `Study.replays`, which does not depend on a limit.
    """
    checks: dict[str, ClosedLoop] = {}
    asked: dict[str, Judge] = {}
    for one in judges:
        asked[one.name] = one
        clones = one.of_log.first(len(study.cohorts))
        excuses = replayed if one.by_ensemble else None
        checks[one.name] = judge(
            task, study.cohorts, study.sums, one.name, clones, excuses, study.alike, pooled=True
        )
        if checks[one.name].passes:
            break
    best = reference(study.cohorts, study.sums, task.tau)
    found = Verdict(study, asked, checks, best, None)
    if (check := found.judge) is None:
        return found
    counted = ~check.clone_differs if check.passes else check.right
    clones = found.said.first(len(study.cohorts))
    found = replace(
        found, calibration=calibrate(task, study.cohorts, study.sums, counted, clones, study.alike)
    )
    if study.cohorts.named and _contradicts(task, found, check):
        return replace(found, calibration=None, distrusted=True)
    return found


def _contradicts(task: Task, found: Verdict, check: ClosedLoop) -> bool:
    """Whether no mixture of clones is within the limits by the estimator, and one is by the log, of which the
    estimator is wrong about a part. Of named sources only: what others did may be luck.
    """
    tau, by_log = np.asarray(task.tau, dtype=np.float64), _by_log(task, found.study)
    recommended = _by_log_alone(by_log, found.study.alike, tau)
    chosen = choose_mixture(task, found)
    kept, kept_by_log = (
        bool(np.all((weights @ bounds)[1:] <= tau * (1.0 + 1e-6) + 1e-9))
        for weights, bounds in ((chosen.weights, chosen.bounds), (recommended, by_log))
    )
    return kept_by_log and not kept and bool(np.any(recommended[~check.right] > 0))


def _by_log(task: Task, study: Study) -> F64:
    """What the log says of each cohort, (K, 1+I), costs with their error and what few episodes hide."""
    logged, sampling = study.cohorts.means(study.sums)
    found: F64 = logged[:, :-1].copy()
    found[:, 1:] += np.sqrt((LOG_ERRORS * sampling[:, 1:-1]) ** 2 + _unseen(task, study) ** 2)
    return found


def _unseen(task: Task, study: Study) -> F64:
    """Costs that a cohort may have and did not show, (K, I)."""
    return np.asarray(UNSEEN * np.asarray(task.tau, np.float64) / (1.0 + study.cohorts.counts[:, None]))


def choose_mixture(
    task: Task, found: Verdict, more: Judged | None = None, starts: NDArray[np.int64] | None = None
) -> Choice:
    """The best mixture within the task's limits, on bounds, of the log's own policies and of those of which
    `more` is said.

    starts: of each of those, the cohort whose clone it was played from; -1, and None for all: none.
    """
    study, clones = found.study, len(found.study.cohorts)
    said = found.said if more is None else found.said.joined(more)
    tau, unsafe = np.asarray(task.tau, dtype=np.float64), np.append(-1.0, np.ones(task.costs))
    logged, _ = study.cohorts.means(study.sums)
    by_log, unseen = _by_log(task, study), _unseen(task, study)
    scales = np.append(RETURN_SCALES, np.full(task.costs, COST_SCALES))
    known, judge = study.alike, found.judge
    withheld = _withheld(task, said, clones)
    if judge is None or found.calibration is None:
        weights = np.zeros(len(said.mean))
        weights[:clones] = _by_log_alone(by_log, known, tau)
        said = replace(said, mean=np.concatenate([logged, said.mean[clones:]]))
        return Choice(weights, said, np.concatenate([by_log, said.mean[clones:, :-1]]), withheld)
    estimates, bounds = found.calibration.corrected(said), found.calibration.bounds(said)
    agrees = judge.right
    eligible = np.full(len(bounds), found.best is not None)
    eligible[:clones] = True
    if more is not None and starts is not None:
        # a clone that does other things than its cohort says nothing about the estimator's error
        apart = np.where((known | agrees)[:, None], logged[:, :-1] - estimates[:clones], 0.0)
        for place, cohort in enumerate(starts, start=len(found.said.mean)):
            if cohort >= 0:
                half, change = apart[cohort] / 2.0, estimates[place] - estimates[cohort]
                parts = (said.spread[place, :-1], said.error[place, :-1], half, CHANGE_SHARE * change)
                scale = np.sqrt(np.sum(np.square(parts), axis=0))
                scale[1:] = np.sqrt(scale[1:] ** 2 + unseen[cohort] ** 2)
                estimates[place] += half
                bounds[place] = estimates[place] + unsafe * scales * scale
                eligible[place] |= agrees[cohort]
    beyond = found.calibration.scale(said)[:clones, 1:] * found.calibration.excess
    estimates[:clones, 1:] -= np.where(known[:, None], beyond, 0.0)
    worse = unsafe * np.maximum(unsafe * by_log, unsafe * estimates[:clones])
    # where the estimator is known to be wrong about a clone, the log speaks alone
    worse = np.where((known & ~agrees)[:, None], by_log, worse)
    bounds[:clones] = worse
    # as policies that were played from it are judged: half way to an estimate that says less
    credited = np.where(known, by_log[:, 0], (by_log[:, 0] + worse[:, 0]) / 2.0)
    bounds[:clones, 0] = np.where(agrees, credited, worse[:, 0])
    # what a clone is said to be worth: its return as it counts; its cost by the log where it is known to act
    # as its source did, else the middle of what the log says and what it counts with
    estimates[:clones, 0] = bounds[:clones, 0]
    between = (logged[:, 1:-1] + np.maximum(logged[:, 1:-1], estimates[:clones, 1:])) / 2.0
    estimates[:clones, 1:] = np.where(known[:, None], logged[:, 1:-1], between)
    # costs below nothing are an artefact of the correction
    if np.all(logged[:, 1:-1] >= 0):
        estimates[:, 1:] = np.maximum(estimates[:, 1:], 0.0)
    said = replace(said, mean=np.concatenate([estimates, said.mean[:, -1:]], axis=1))
    weights, eligible = np.zeros(len(bounds)), eligible & ~withheld
    weights[eligible] = lp_weights(bounds[eligible], tau)
    return Choice(weights, said, bounds, withheld)


def _withheld(task: Task, said: Judged, clones: int) -> NDArray[np.bool_]:
    """Whether the networks disagree about a cost by more than an error that passes, (P,); of the first
    policies, the `clones` of the log's cohorts, the log speaks too.
    """
    size = np.maximum(np.abs(said.mean[:, 1:-1]), np.asarray(task.tau, dtype=np.float64))
    apart = np.any(said.spread[:, 1:-1] > TOLERANCE * np.maximum(size, 1e-9), axis=1)
    return np.asarray(apart & (np.arange(len(apart)) >= clones))


def _by_log_alone(by_log: F64, known: NDArray[np.bool_], tau: F64) -> F64:
    """Weights over the cohorts' clones, (K,), by what the log says of them, (K, 1+I).

    Of those that are `known` to act as their cohorts did, if their mixture keeps the limits as far as that of
    all does and has `NEARLY` its return; else of all.
    """
    everyone = lp_weights(by_log, tau)
    if not known.any():
        return everyone
    some = np.zeros(len(by_log))
    some[known] = lp_weights(by_log[known], tau)
    best, own = everyone @ by_log, some @ by_log
    keeps = bool(np.all(own[1:] <= np.maximum(best[1:], tau) * (1.0 + 1e-6) + 1e-9))
    return some if keeps and own[0] >= best[0] - (1.0 - NEARLY) * abs(best[0]) else everyone


def starting_cohorts(task: Task, study: Study, count: int) -> tuple[NDArray[np.int64], F64]:
    """The cohorts from whose clones a game is best begun, (count,), and the limits' prices there, (I,).

    By the log's means: the prices lambda of the limits at the best mixture of cohorts, and the cohorts of the
    largest J_R - lambda.J_C, those of the mixture first. Where there are fewer than `count`, again from the
    first. Prices are in J-units of the scaled utilities; where no limit binds, 0, and where no mixture keeps
    the limits, 1 each.
    """
    means, _ = study.cohorts.means(study.sums)
    reward, costs, tau = means[:, 0], means[:, 1:-1], np.asarray(task.tau, dtype=np.float64)
    size = np.maximum(tau, 1e-9)
    best = best_mixture(reward, costs, tau, unit=size, slack=1e-9, least_weight=1e-6)
    prices = best.prices if best.excess == 0 else np.ones(task.costs)
    gain = reward - costs @ prices
    order = np.lexsort((-gain, best.weights <= 0))
    return np.resize(order, count), prices
