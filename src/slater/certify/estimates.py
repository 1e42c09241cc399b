"""Tier 3: verdicts from the log alone, without propensities and without running the policy.

Two estimators that err differently, a model ensemble and fitted Q, each fitted to several bootstraps of
episodes, must agree. What their networks disagree about measures what the data leave open, not what all of
them get wrong alike, so the spread also has what both got wrong about the log's own cohorts, and is inflated
by a factor that is *calibrated* on a bank of policies of known truth (`slater.certify.calibration`). Such a
verdict is an estimate with a measured rate of error, never a guarantee, and without a calibration it
abstains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Interval
from slater.certify.calibration import Calibration, calibration_gate
from slater.certify.verdict import Evidence, Gate, LimitVerdict, decide
from slater.errors import InputError

__all__ = ["Opinion", "Standing", "agree", "combined", "judge_estimates", "standing"]

#: fewest complete episodes that estimators may be fitted to
FEWEST_EPISODES = 20
#: largest difference between the two estimators beyond their own spread, as a share of the limit, or of what
#: both say where both are over it
DISAGREEMENT = 0.25
#: largest share of what a policy does in a rollout of which the log may have nothing alike
LARGEST_SHARE_OUTSIDE = 0.1
#: an error over the log's cohorts counts as at least this, as a share, where estimators are weighed by it
LEAST_ERROR = 0.05
#: without a calibration, intervals are drawn with this many spreads (and no verdict is based on them)
UNCALIBRATED = 2.0


@dataclass(frozen=True)
class Opinion:
    """What one estimator says of every cost, per episode: a mean, and the spread of networks, both (I,)."""

    estimator: str
    mean: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class Standing:
    """What the two estimators of one cost got wrong about the log's own cohorts.

    weights: of each in what both say together, adding up to 1; error: root mean square of that, so weighted,
    over the cohorts, as a share of their cost or of the limit, whichever is more.
    """

    weights: tuple[float, float] = (0.5, 0.5)
    error: float = 0.0


def standing(relative: NDArray[np.float64]) -> Standing:
    """From the relative errors of both estimators over K cohorts, (K, 2); weights as 1 / mean square."""
    if not len(relative):
        return Standing(error=math.inf)
    precision = 1.0 / (np.mean(relative**2, axis=0) + LEAST_ERROR**2)
    weights = precision / precision.sum()
    return Standing(
        (float(weights[0]), float(weights[1])), float(np.sqrt(np.mean((relative @ weights) ** 2)))
    )


def combined(
    means: Sequence[float], spreads: Sequence[float], limit: float, own: Standing
) -> tuple[float, float]:
    """Two opinions as one: their weighted mean, and a spread that knows how far they are apart.

    The spread has that of the networks, the distance of the two, the error over the log's cohorts, and a
    fiftieth of the limit. What none of this shows is left to the factor.
    """
    weights, said = np.array(own.weights), np.array(means)
    centre = float(weights @ said)
    networks = math.sqrt(float(weights @ np.square(spreads)))
    apart = math.sqrt(float(weights @ (said - centre) ** 2))
    return centre, math.hypot(networks, apart, 0.02 * max(limit, 1e-9), own.error * max(limit, centre))


def _allowed(means: Sequence[float], spreads: Sequence[float], limit: float) -> float:
    """How far apart two opinions may be."""
    return DISAGREEMENT * max(limit, min(means)) + max(spreads)


def agree(means: Sequence[float], spreads: Sequence[float], limit: float) -> bool:
    """Whether two opinions on one cost are near enough to each other to be one."""
    return max(means) - min(means) <= _allowed(means, spreads, limit)


def judge_estimates(
    opinions: Sequence[Opinion],
    names: Sequence[str],
    limits: Sequence[float],
    error: float,
    *,
    gates: Sequence[Gate] = (),
    standings: Sequence[Standing] | None = None,
    calibration: Calibration | None = None,
    most: Sequence[float] | None = None,
) -> tuple[LimitVerdict, ...]:
    """Verdicts on limits per episode, where every estimator must agree and every gate be met.

    standings: of the estimators, for every cost; equal and without error unless given. most: what an episode
    can cost, for every cost, which no upper bound exceeds; infinite unless given.
    """
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
        centre, spread = combined(
            means.tolist(), spreads.tolist(), limit, Standing() if standings is None else standings[i]
        )
        apart = float(means.max() - means.min())
        allowed = _allowed(means.tolist(), spreads.tolist(), limit)
        said = f"the estimators are {apart:.3g} apart; {allowed:.3g} is allowed."
        if math.isnan(apart):
            said = "there are no estimates to compare."
        near = Gate("agreement", apart <= allowed, said)
        every = (*gates, near, calibration_gate(calibration, error))
        # a spread of 0 is never right, so an infinite factor gives an infinite bound, not one that is unknown
        ceiling = math.inf if most is None else most[i]
        interval = Interval(centre, max(centre - down * spread, 0.0), min(centre + up * spread, ceiling))
        verdict, reason = decide(interval, limit, every)
        verdicts.append(
            LimitVerdict(
                name, float(limit), "per episode", verdict, interval.estimate, interval.lower,
                interval.upper, "estimates", reason, every, evidence,
            )
        )  # fmt: skip
    return tuple(verdicts)
