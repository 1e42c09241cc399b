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

__all__ = [
    "BankRow",
    "Calibration",
    "Opinion",
    "agree",
    "calibrate",
    "combined",
    "judge_estimates",
    "shipped_calibration",
]

F64 = NDArray[np.float64]

#: a calibration must rest on this many policies and tasks
FEWEST_POLICIES, FEWEST_TASKS = 120, 6
#: fewest complete episodes that estimators may be fitted to
FEWEST_EPISODES = 20
#: largest difference between the two estimators beyond their own spread, as a share of the limit, or of what
#: both say where both are over it
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
    """A policy of known truth under Tier 3 at one limit: what was said, and what is so (all per episode).

    centre, spread: as `combined` gives them; gated: whether every gate but the calibration was met.
    """

    task: str
    policy: str
    limit: float
    truth: float
    centre: float
    spread: float
    gated: bool


@dataclass(frozen=True)
class Calibration:
    """How many spreads from the centre the truth stays, with which measured rate of error.

    factor: spreads above the centre, of the bank as a whole, for tasks outside it; lower_factor: below it.
    inflation: what both are multiplied by beyond the quantile of the bank, so that its measured rate is at
    most the nominal one. policies, tasks: of the bank; gated: policies that meet every gate.
    too_low, too_high: of those, with a truth above the upper or below the lower bound, at any limit, each
    task under the factors of the others. passes, false_passes: pairs of a policy and a limit; judged: gated
    pairs whose truth is over the limit.
    """

    confidence: float
    factor: float
    lower_factor: float
    inflation: float
    policies: int
    tasks: int
    gated: int
    too_low: int
    too_high: int
    judged: int
    passes: int
    false_passes: int

    @property
    def rate_at_most(self) -> float:
        """Upper end of the exact 95% interval of the rate of upper bounds that are too low."""
        return share_upper(self.too_low, max(self.gated, 1), 0.025)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def combined(means: Sequence[float], spreads: Sequence[float], limit: float) -> tuple[float, float]:
    """Two opinions as one: their middle, and a spread that knows how far they are apart.

    What both fail to see is left to the factor; a fiftieth of the limit is always allowed for.
    """
    apart = 0.5 * (max(means) - min(means))
    spread = math.sqrt(max(spreads) ** 2 + apart**2 + (0.02 * max(limit, 1e-9)) ** 2)
    return 0.5 * (max(means) + min(means)), spread


def _allowed(means: Sequence[float], spreads: Sequence[float], limit: float) -> float:
    """How far apart two opinions may be."""
    return DISAGREEMENT * max(limit, min(means)) + max(spreads)


def agree(means: Sequence[float], spreads: Sequence[float], limit: float) -> bool:
    """Whether two opinions on one cost are near enough to each other to be one."""
    return max(means) - min(means) <= _allowed(means, spreads, limit)


def _scores(rows: Sequence[BankRow]) -> F64:
    """Of every policy the worst over its limits: spreads of the truth above the centre, and below it."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        score = (row.truth - row.centre) / row.spread
        above, below = worst.get((row.task, row.policy), (-math.inf, -math.inf))
        worst[row.task, row.policy] = (max(above, score), max(below, -score))
    return np.array(list(worst.values())).reshape(-1, 2)


def _factors(rows: Sequence[BankRow], error: float) -> F64:
    """Conformal quantiles of both scores: the next policy exceeds each with probability at most `error`."""
    scores = np.sort(_scores(rows), axis=0)
    rank = math.ceil((len(scores) + 1) * (1.0 - error))
    return np.full(2, math.inf) if rank > len(scores) else np.maximum(scores[rank - 1], 0.0)


#: the bank may ask for factors up to this many times its quantiles
INFLATIONS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


def calibrate(rows: Sequence[BankRow], confidence: float) -> Calibration:
    """The factors of a bank, and its rate of errors with one task left out at a time.

    Policies of one task err alike, so that a quantile over policies may fall short on another task: the
    factors are multiplied by the least of `INFLATIONS` under which the measured rates are nominal.
    """
    used = [row for row in rows if row.gated]
    tasks = sorted({row.task for row in used})
    if len(tasks) < 2:
        raise InputError(f"a calibration leaves one task out at a time; the bank has {len(tasks)}.")
    error = 1.0 - confidence
    parts = {task: [row for row in used if row.task == task] for task in tasks}
    others = {task: _factors([row for row in used if row.task != task], error) for task in tasks}
    gated = len(_scores(used))

    def wrong(inflation: float) -> NDArray[np.int64]:
        counts = [(_scores(parts[task]) > inflation * others[task]).sum(axis=0) for task in tasks]
        return np.asarray(np.sum(counts, axis=0))

    fitting = [x for x in INFLATIONS if (wrong(x) <= error * gated).all()]
    inflation = fitting[0] if fitting else math.inf
    low, high = (int(x) for x in wrong(inflation if fitting else INFLATIONS[-1]))
    judged = passes = false = 0
    for task in tasks:
        factor = float(inflation * others[task][0]) if others[task][0] > 0 else 0.0
        for row in parts[task]:
            passed = row.centre + factor * row.spread <= row.limit
            passes += passed
            judged += row.truth > row.limit
            false += passed and row.truth > row.limit
    factors = inflation * _factors(used, error)
    return Calibration(
        confidence, float(factors[0]), float(factors[1]), inflation,
        len({(row.task, row.policy) for row in rows}), len({row.task for row in rows}), gated, low, high,
        judged, passes, false,
    )  # fmt: skip


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
    rate = calibration.too_low / max(calibration.gated, 1)
    return Gate(
        name, rate <= error + 1e-9,
        f"on a bank of {calibration.policies} policies of {calibration.tasks} tasks, each task under the "
        f"factor of the others, the upper bound was too low for {calibration.too_low} of "
        f"{calibration.gated} that met the other gates ({rate:.1%}; at most {calibration.rate_at_most:.1%}).",
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
    up = UNCALIBRATED if calibration is None else calibration.factor
    down = UNCALIBRATED if calibration is None else calibration.lower_factor
    verdicts = []
    for i, (name, limit) in enumerate(zip(names, limits, strict=True)):
        means = np.array([opinion.mean[i] for opinion in opinions])
        spreads = np.array([opinion.spread[i] for opinion in opinions])
        # an estimator's own interval is drawn with its own networks' spread; the verdict needs them together
        evidence = tuple(
            Evidence(
                o.estimator, float(m), max(float(m - UNCALIBRATED * s), 0.0), float(m + UNCALIBRATED * s)
            )
            for o, m, s in zip(opinions, means, spreads, strict=True)
        )
        centre, spread = combined(means.tolist(), spreads.tolist(), limit)
        apart = float(means.max() - means.min())
        allowed = _allowed(means.tolist(), spreads.tolist(), limit)
        said = f"the estimators are {apart:.3g} apart; {allowed:.3g} is allowed."
        if math.isnan(apart):
            said = "there are no estimates to compare."
        near = Gate("agreement", apart <= allowed, said)
        every = (*gates, near, _calibration_gate(calibration, error))
        # a spread of 0 is never right, so an infinite factor gives an infinite bound, not one that is unknown
        interval = Interval(centre, max(centre - down * spread, 0.0), centre + up * spread)
        verdict, reason = decide(interval, limit, every)
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, interval.estimate, interval.lower,
                interval.upper, "estimates", reason, every, evidence,
            )
        )  # fmt: skip
    return tuple(verdicts)
