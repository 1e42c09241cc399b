"""Tier 3: verdicts from the log alone, without propensities and without running the policy.

Two estimators that err differently, a model ensemble and fitted Q, each fitted to several bootstraps of
episodes, must agree. What their networks disagree about measures what the data leave open, not what all of
them get wrong alike, so the spread is inflated by a factor that is *calibrated*: on a bank of policies of
known truth, the factor that would have covered them, each task judged by the others' factor. Such a verdict
is an estimate with a measured rate of error, never a guarantee, and without a calibration it abstains.
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

from slater.certify.bounds import Interval, share_upper
from slater.certify.verdict import Evidence, Gate, LimitVerdict, decide
from slater.errors import InputError

__all__ = ["BankRow", "Calibration", "Opinion", "calibrate", "judge_estimates", "shipped_calibration"]

F64 = NDArray[np.float64]

#: a calibration must rest on this many policies and tasks
FEWEST_POLICIES, FEWEST_TASKS = 120, 6
#: fewest complete episodes that estimators may be fitted to
FEWEST_EPISODES = 20
#: largest difference between the two estimators, as a share of the limit, beyond their own spread
DISAGREEMENT = 0.25
#: largest share of a rollout's states that may lie where the log has nothing alike
LARGEST_SHARE_OUTSIDE = 0.1
NO_CALIBRATION = (
    "no bank of policies of known truth has calibrated estimates from the log alone, so they decide nothing."
)
#: without a calibration, intervals are drawn with this many spreads (and no verdict is based on them)
UNCALIBRATED = 2.0


@dataclass(frozen=True)
class Opinion:
    """What one estimator says of every cost, per episode: a mean, and the spread of networks, both (I,)."""

    estimator: str
    mean: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class BankRow:
    """A policy of known truth under Tier 3, one cost: what was said, and what is so (all per episode).

    gated: whether every gate but the calibration was met; spread: at least a hundredth of the limit.
    """

    task: str
    policy: str
    limit: float
    truth: float
    mean: float
    spread: float
    gated: bool


@dataclass(frozen=True)
class Calibration:
    """How many spreads above the mean the truth stays below, with which measured rate of false passes.

    factor: by confidence, of the bank as a whole, for tasks outside it.
    false_passes, passes, judged: counts over the bank, each task under the factor of the others.
    """

    confidence: float
    factor: float
    policies: int
    tasks: int
    judged: int
    passes: int
    false_passes: int

    @property
    def rate_at_most(self) -> float:
        """Upper end of the exact 95% interval of the false-pass rate among policies over their limit."""
        return share_upper(self.false_passes, max(self.judged, 1), 0.025)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def _factor(rows: Sequence[BankRow], error: float) -> float:
    """The conformal quantile of (truth - mean) / spread: the next policy exceeds it with at most `error`."""
    scores = np.sort([(row.truth - row.mean) / row.spread for row in rows])
    rank = math.ceil((len(scores) + 1) * (1.0 - error))
    return math.inf if rank > len(scores) else max(float(scores[rank - 1]), 0.0)


def calibrate(rows: Sequence[BankRow], confidence: float) -> Calibration:
    """The factor of a bank, and its rate of false passes with one task left out at a time.

    A false pass is a gated policy whose mean plus the *other* tasks' factor times its spread is within the
    limit while its truth is not. The rate is counted among the gated policies whose truth is over the limit.
    """
    used = [row for row in rows if row.gated]
    tasks = sorted({row.task for row in used})
    if len(tasks) < 2:
        raise InputError(f"a calibration leaves one task out at a time; the bank has {len(tasks)}.")
    error = 1.0 - confidence
    judged = passes = wrong = 0
    for task in tasks:
        factor = _factor([row for row in used if row.task != task], error)
        for row in (row for row in used if row.task == task):
            passed = row.mean + factor * row.spread <= row.limit
            passes += passed
            judged += row.truth > row.limit
            wrong += passed and row.truth > row.limit
    policies = len({(row.task, row.policy) for row in rows})
    return Calibration(
        confidence, _factor(used, error), policies, len({row.task for row in rows}), judged, passes, wrong
    )


def shipped_calibration(confidence: float) -> Calibration | None:
    """The calibration that comes with the package for this confidence or a higher one, or None."""
    file = resources.files("slater.certify") / "calibration.json"
    if not file.is_file():
        return None
    return read_calibration(json.loads(file.read_text()), confidence)


def read_calibration(record: Mapping[str, Any], confidence: float) -> Calibration | None:
    """Of a record `{"calibrations": [...]}` the loosest that has at least this confidence."""
    found = [Calibration(**row) for row in record["calibrations"]]
    enough = [row for row in found if row.confidence >= confidence - 1e-9]
    return min(enough, key=lambda row: row.confidence) if enough else None


def _calibration_gate(calibration: Calibration | None, error: float) -> Gate:
    name = "calibration"
    if calibration is None:
        return Gate(name, False, NO_CALIBRATION)
    if calibration.policies < FEWEST_POLICIES or calibration.tasks < FEWEST_TASKS:
        return Gate(
            name, False,
            f"the calibration rests on {calibration.policies} policies of {calibration.tasks} tasks; "
            f"{FEWEST_POLICIES} of {FEWEST_TASKS} are needed.",
        )  # fmt: skip
    if 1.0 - calibration.confidence > error + 1e-9:
        return Gate(
            name, False,
            f"the calibration is for {calibration.confidence:.0%}, and this statement needs {1 - error:.1%}.",
        )  # fmt: skip
    rate = calibration.false_passes / max(calibration.judged, 1)
    return Gate(
        name, rate <= error,
        f"on a bank of {calibration.policies} policies, {calibration.false_passes} of {calibration.judged} "
        f"over their limit passed ({rate:.1%}; at most {calibration.rate_at_most:.1%}).",
    )  # fmt: skip


def judge_estimates(
    opinions: Sequence[Opinion],
    names: Sequence[str],
    limits: Sequence[float],
    error: float,
    *,
    gates: Sequence[Gate] = (),
    calibration: Calibration | None = None,
) -> tuple[LimitVerdict, ...]:
    """Verdicts on limits per episode, where every estimator must agree and every gate be met."""
    if len(opinions) < 2:
        raise InputError(f"a verdict from the log alone needs two estimators, not {len(opinions)}.")
    factor = UNCALIBRATED if calibration is None else calibration.factor
    verdicts = []
    for i, (name, limit) in enumerate(zip(names, limits, strict=True)):
        means = np.array([opinion.mean[i] for opinion in opinions])
        spreads = np.maximum([opinion.spread[i] for opinion in opinions], 0.01 * max(limit, 1e-9))
        evidence = tuple(
            Evidence(o.estimator, float(m), max(float(m - factor * s), 0.0), float(m + factor * s))
            for o, m, s in zip(opinions, means, spreads, strict=True)
        )
        apart = float(means.max() - means.min())
        allowed = DISAGREEMENT * limit + float(spreads.max())
        agree = Gate(
            "agreement", apart <= allowed,
            f"the estimators are {apart:.3g} apart; {allowed:.3g} is allowed.",
        )  # fmt: skip
        every = (*gates, agree, _calibration_gate(calibration, error))
        interval = Interval(
            float(means.mean()), min(e.lower for e in evidence), max(e.upper for e in evidence)
        )
        verdict, reason = decide(interval, limit, every)
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, interval.estimate, interval.lower,
                interval.upper, "estimates", reason, every, evidence,
            )
        )  # fmt: skip
    return tuple(verdicts)
