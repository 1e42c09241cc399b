"""How many spreads from the estimate the truth stays: what a bank of policies of known truth says.

    score     (truth - estimate) / spread of a policy, the worst over its limits, for policies that met every
              other gate; below the estimate likewise
    quantile  conformal: the next policy like those of the bank exceeds it with probability at most the error
    factor    the quantile over all policies, times the least of `INFLATIONS` under which the rate of errors,
              each task under the quantile of the others, is at most nominal: policies of one task err alike;
              at least that of a larger error

The rate that is published leaves the task out of *both*: for every task, quantile and inflation are found
from the others alone, and its policies are counted under them. So nothing that is counted has chosen
anything. Intervals of rates are exact for independent policies; those of one task are not quite that.

There are two calibrations, by how a policy was made. One that *imitates*, by a likelihood of logged actions,
however weighted, stays where the log is. One that was searched for through a critic or a model finds what
those get wrong, and the estimators of another part of the same log get the same wrong, with all gates met.
What is not known to imitate is under the factors of the second kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import share_upper
from slater.certify.verdict import Gate
from slater.errors import InputError

__all__ = [
    "BankRow",
    "Calibration",
    "calibrate",
    "calibration_gate",
    "fewest_gated",
    "left_out",
    "read_calibration",
    "shipped_record",
]

F64 = NDArray[np.float64]

#: a calibration must rest on this many policies and tasks, and those that met every gate be of this many
FEWEST_POLICIES, FEWEST_TASKS, FEWEST_GATED_TASKS = 120, 6, 4
NO_CALIBRATION = (
    "no bank of policies of known truth has calibrated estimates from the log alone, so they decide nothing."
)
#: errors that calibrations are made for
ERRORS = (0.1, 0.05, 0.025, 0.01)
#: names of the two calibrations, by whether they are of policies that imitate
KINDS = {True: "imitation", False: "other"}
#: a factor may be up to this many times the bank's quantile
INFLATIONS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


def fewest_gated(error: float) -> int:
    """The fewest policies that could show a rate: none wrong of so many says, with 95%, at most `error`."""
    return math.ceil(math.log(0.05) / math.log1p(-error) - 1e-9)


@dataclass(frozen=True)
class BankRow:
    """A policy of known truth under Tier 3 at one limit: what was said, and what is so (all per episode).

    centre, spread: as `combined` gives them; gated: whether every gate but the calibration was met; imitates:
    see the module's text.
    """

    task: str
    policy: str
    limit: float
    truth: float
    centre: float
    spread: float
    gated: bool
    imitates: bool = False


@dataclass(frozen=True)
class Calibration:
    """Factors for tasks outside the bank, and the rates of error on tasks that had no part in theirs.

    factor, lower_factor: spreads above and below the centre. policies, tasks: of the bank; gated: policies
    that met every other gate, of gated_tasks tasks. All that follows is of those, each task under factors
    that the others chose. too_low, too_high: policies with a truth above the upper or below the lower bound
    at any limit. unbounded: policies of tasks for which the others are too few for a factor, so that nothing
    is tried. over: policies whose truth exceeds one of their limits, and false_passes those of them that
    passed there; within, false_fails: likewise below a limit. pairs: of a policy and a limit, of which passes
    and fails were decided. kind: of its policies, see `KINDS`.
    """

    confidence: float
    factor: float
    lower_factor: float
    policies: int
    tasks: int
    gated: int
    gated_tasks: int
    too_low: int
    too_high: int
    unbounded: int
    over: int
    false_passes: int
    within: int
    false_fails: int
    pairs: int
    passes: int
    fails: int
    kind: str = "imitation"

    @property
    def rate(self) -> float:
        """Share of upper bounds that were too low, or of lower ones that were too high if that is more.

        Of policies that had bounds: one that is infinite is never wrong and shows nothing.
        """
        return max(self.too_low, self.too_high) / max(self.tried, 1)

    @property
    def tried(self) -> int:
        """Policies that met every gate and had finite bounds."""
        return self.gated - self.unbounded

    @property
    def rate_at_most(self) -> float:
        """Upper end of the exact 95% interval of the rate of upper bounds that are too low."""
        return share_upper(self.too_low, max(self.tried, 1), 0.025)

    @property
    def finite(self) -> bool:
        """Whether there are factors at all."""
        return math.isfinite(self.factor) and math.isfinite(self.lower_factor)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def _scores(rows: Sequence[BankRow]) -> F64:
    """Of every policy the worst over its limits, (P, 2): spreads of the truth above the centre, and below."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        score = (row.truth - row.centre) / row.spread
        above, below = worst.get((row.task, row.policy), (-math.inf, -math.inf))
        worst[row.task, row.policy] = (max(above, score), max(below, -score))
    return np.array(list(worst.values())).reshape(-1, 2)


def _quantiles(scores: F64, error: float) -> F64:
    """Conformal quantiles of both scores, (2,), at least 0; infinite where there are too few."""
    rank = math.ceil((len(scores) + 1) * (1.0 - error) - 1e-9)
    return np.full(2, math.inf) if rank > len(scores) else np.maximum(np.sort(scores, axis=0)[rank - 1], 0.0)


def _factors(scores: Mapping[str, F64], error: float) -> F64:
    """The factors of a bank of scores by task, (2,); never less than those of a larger error."""
    errors = [error, *(larger for larger in ERRORS if larger > error + 1e-9)]
    return np.asarray(np.max([_inflated(scores, one) for one in errors], axis=0))


def _inflated(scores: Mapping[str, F64], error: float) -> F64:
    """Quantiles times the inflation that they need, (2,)."""
    every = np.concatenate(list(scores.values()))
    if len(scores) < 2:
        return np.full(2, math.inf)
    others = {
        task: _quantiles(np.concatenate([scores[other] for other in scores if other != task]), error)
        for task in scores
    }
    for inflation in INFLATIONS:
        wrong = sum((scores[task] > inflation * others[task]).sum(axis=0) for task in scores)
        if (np.asarray(wrong) <= error * len(every)).all():
            return np.asarray(inflation * _quantiles(every, error))
    return np.full(2, math.inf)


@dataclass(frozen=True)
class LeftOut:
    """A task under factors that the other tasks chose: those factors, and its policies' scores, (P, 2)."""

    factors: F64
    scores: F64

    @property
    def wrong(self) -> tuple[int, int]:
        """Policies whose upper bound is too low, and whose lower one is too high."""
        low, high = (self.scores > self.factors).sum(axis=0)
        return int(low), int(high)


def left_out(rows: Sequence[BankRow], confidence: float) -> dict[str, LeftOut]:
    """Every task whose policies met the gates, under the factors of the others; at least three tasks."""
    used = [row for row in rows if row.gated]
    tasks = sorted({row.task for row in used})
    if len(tasks) < 3:
        raise InputError(
            f"a calibration leaves one task out and compares the others; policies of {len(tasks)} tasks met "
            "every gate, and three are needed."
        )
    scores = {task: _scores([row for row in used if row.task == task]) for task in tasks}
    return {
        task: LeftOut(
            _factors({other: scores[other] for other in tasks if other != task}, 1.0 - confidence),
            scores[task],
        )
        for task in tasks
    }


def calibrate(rows: Sequence[BankRow], confidence: float) -> Calibration:
    """The factors of a bank, and its rates of error, each task under factors of the others."""
    found = left_out(rows, confidence)
    passes = fails = 0
    over: set[tuple[str, str]] = set()
    within: set[tuple[str, str]] = set()
    false_passes: set[tuple[str, str]] = set()
    false_fails: set[tuple[str, str]] = set()
    used = [row for row in rows if row.gated]
    for row in used:
        up, down = found[row.task].factors
        who = (row.task, row.policy)
        passed = bool(row.centre + up * row.spread <= row.limit)
        failed = bool(row.centre - down * row.spread > row.limit)
        passes, fails = passes + passed, fails + failed
        (over if row.truth > row.limit else within).add(who)
        if passed and row.truth > row.limit:
            false_passes.add(who)
        if failed and row.truth <= row.limit:
            false_fails.add(who)
    factors = _factors({task: one.scores for task, one in found.items()}, 1.0 - confidence)
    return Calibration(
        confidence=confidence, factor=float(factors[0]), lower_factor=float(factors[1]),
        policies=len({(row.task, row.policy) for row in rows}), tasks=len({row.task for row in rows}),
        gated=sum(len(one.scores) for one in found.values()), gated_tasks=len(found),
        too_low=sum(one.wrong[0] for one in found.values()),
        too_high=sum(one.wrong[1] for one in found.values()),
        unbounded=sum(len(one.scores) for one in found.values() if np.isinf(one.factors).any()),
        over=len(over), false_passes=len(false_passes), within=len(within), false_fails=len(false_fails),
        pairs=len(used), passes=passes, fails=fails,
    )  # fmt: skip


def shipped_record() -> dict[str, Any] | None:
    """What comes with the package: `calibrations` by kind, and `settings` of the estimators it holds for."""
    file = resources.files("slater.certify") / "calibration.json"
    if not file.is_file():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def read_calibration(
    record: Mapping[str, Any], confidence: float, *, imitates: bool = False
) -> Calibration | None:
    """Of a record `{"calibrations": {kind: [...]}}` the loosest of this confidence that kept its rate.

    One that was wrong more often than this confidence allows gives way to a stricter one; where none kept
    the rate, the loosest is given, and its gate says so.
    """
    rows = [Calibration(**row) for row in record["calibrations"][KINDS[imitates]]]
    found = sorted(rows, key=lambda row: row.confidence)
    enough = [row for row in found if row.confidence >= confidence - 1e-9]
    kept = [row for row in enough if calibration_gate(row, 1.0 - confidence).passed]
    return next(iter(kept or enough), None)


def calibration_gate(calibration: Calibration | None, error: float) -> Gate:
    """Whether a calibration lets a statement of this error be made."""
    name = "calibration"
    if calibration is None:
        return Gate(name, False, NO_CALIBRATION)
    of = f"for policies {'that' if calibration.kind == KINDS[True] else 'not known to'} imitate"
    if calibration.policies < FEWEST_POLICIES or calibration.tasks < FEWEST_TASKS:
        return Gate(
            name, False,
            f"the calibration {of} rests on {calibration.policies} policies of {calibration.tasks} tasks; "
            f"{FEWEST_POLICIES} of {FEWEST_TASKS} are needed.",
        )  # fmt: skip
    if 1.0 - calibration.confidence > error + 1e-9:
        return Gate(
            name, False,
            f"the calibration {of} is for {calibration.confidence:.0%}, and this statement needs "
            f"{1 - error:.1%}.",
        )  # fmt: skip
    fewest = fewest_gated(error)
    if calibration.tried < fewest or calibration.gated_tasks < FEWEST_GATED_TASKS:
        return Gate(
            name, False,
            f"{calibration.tried} policies of {calibration.gated_tasks} tasks met every gate and were tried "
            f"in the calibration {of}; saying {1 - error:.1%} needs {fewest} of {FEWEST_GATED_TASKS}.",
        )  # fmt: skip
    return Gate(
        name, calibration.finite and calibration.rate <= error + 1e-9,
        f"{of}, on a bank of {calibration.policies} such of {calibration.tasks} tasks, each task under the "
        f"factors of the others, the upper bound was too low for {calibration.too_low} and the lower one too "
        f"high for {calibration.too_high} of {calibration.tried} that met the other gates (upper: "
        f"{calibration.too_low / max(calibration.tried, 1):.1%}, at most {calibration.rate_at_most:.1%}).",
    )  # fmt: skip
