"""Bounds on a mean or a share from independent draws: the arithmetic behind every verdict.

Every bound here is one-sided and holds for each sample size, not in the limit: `error` is the probability
with which an upper bound may lie below the mean (or a lower one above it).

The bound that verdicts use is the betting bound of Waudby-Smith and Ramdas (2023, "Estimating means of
bounded random variables by betting"). Whoever claims that the mean is m offers fair bets at m; if betting
that draws fall below m multiplies the stake by 1/error, m is too large, because against the true mean no
strategy does so with a larger probability than `error` (Ville's inequality). As that inequality holds for all
times at once, a bound with `stopping` may be looked at after each draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError

__all__ = [
    "Interval",
    "betting_lower",
    "betting_upper",
    "betting_wealth",
    "empirical_bernstein_upper",
    "hoeffding_upper",
    "share_lower",
    "share_upper",
]

F64 = NDArray[np.float64]

#: the largest share of the stake that may be lost by one draw; the middle of the authors' 1/2 and 1
LARGEST_BET = 0.75


@dataclass(frozen=True)
class Interval:
    """An estimate with a lower and an upper bound, each wrong with at most the stated error."""

    estimate: float
    lower: float
    upper: float


def _unit(values: ArrayLike, low: float, high: float, error: float) -> F64:
    """`values` as draws in [0, 1]; an InputError names what is outside."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise InputError(f"a bound needs draws of shape (n,) with n at least 1, not {x.shape}.")
    if not (math.isfinite(low) and low < high):
        raise InputError(f"the range {low:g} to {high:g} is empty; give the least and the largest draw.")
    if not 0.0 < error < 1.0:
        raise InputError(f"the error of a bound is {error}; it must be between 0 and 1.")
    # sums of float32 steps may leave the range by rounding
    slack = 1e-6 * (high - low if math.isfinite(high) else 1.0)
    outside = ~np.isfinite(x) | (x < low - slack) | (x > high + slack)
    if outside.any():
        raise InputError(
            f"a draw of {x[outside][0]:g} lies outside its range {low:g} to {high:g}; state a wider range."
        )
    if math.isinf(high):
        return np.maximum(x - low, 0.0)
    return np.clip((x - low) / (high - low), 0.0, 1.0)


def _bets(x: F64, error: float, *, stopping: bool, scale: float) -> F64:
    """What to stake on each draw, from the draws before it alone, shape (n,), before the cap.

    The approximately best stake sqrt(2 log(1/error) / (n variance)); with `stopping`, where n is not
    known, n is replaced by t log(t + 1). `scale` is the spread that is believed before the first draw.
    """
    t = np.arange(1, len(x) + 1)
    mean = (0.5 * scale + np.cumsum(x)) / (t + 1)
    variance = (0.25 * scale**2 + np.cumsum((x - mean) ** 2)) / (t + 1)
    believed = np.concatenate([[0.25 * scale**2], variance[:-1]])
    count = t * np.log(t + 1.0) if stopping else np.full(len(x), float(len(x)))
    return np.asarray(np.sqrt(2.0 * math.log(1.0 / error) / np.maximum(believed * count, 1e-300)))


def betting_wealth(
    values: ArrayLike, mean: float, low: float, high: float, error: float, *, stopping: bool = True
) -> F64:
    """Log wealth after each draw, shape (n,), of who bets that the mean is *below* `mean`.

    Against a true mean of at least `mean` it ever exceeds log(1/error) with probability at most `error`.
    """
    x = _unit(values, low, high, error)
    m = (mean - low) / (high - low)
    if not 0.0 < m < 1.0:
        raise InputError(f"bets at {mean:g} need a mean strictly inside the range {low:g} to {high:g}.")
    stakes = np.minimum(_bets(x, error, stopping=stopping, scale=1.0), LARGEST_BET / (1.0 - m))
    return np.asarray(np.cumsum(np.log1p(stakes * (m - x))))


def betting_upper(
    values: ArrayLike, low: float, high: float, error: float, *, stopping: bool = False
) -> float:
    """Upper bound on the mean of draws in [low, high].

    With `stopping` the bound may be computed after every draw and the draws be stopped by what it says.
    """
    x = _unit(values, low, high, error)
    stakes = _bets(x, error, stopping=stopping, scale=1.0)
    target = math.log(1.0 / error)

    def rejected(m: float) -> bool:
        # the wealth grows with m, so one bisection finds where it reaches the target
        paid = np.log1p(np.minimum(stakes, LARGEST_BET / (1.0 - m)) * (m - x))
        return bool(np.cumsum(paid).max() >= target)

    inside, outside = 0.0, 1.0 - 1e-9
    if not rejected(outside):
        return high
    for _ in range(50):
        middle = 0.5 * (inside + outside)
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    return low + (high - low) * outside


def betting_lower(
    values: ArrayLike, low: float, high: float, error: float, *, stopping: bool = False
) -> float:
    """Lower bound on the mean of draws in [low, high]; `high` may be infinite.

    A bet that draws exceed m loses at most what a draw of `low` takes, so nothing need be known about how
    large a draw can be: weighted sums, whose weights have no largest value, are bounded without clipping.
    """
    if math.isfinite(high):
        return -betting_upper(-np.asarray(values, dtype=np.float64), -high, -low, error, stopping=stopping)
    x = _unit(values, low, high, error)
    largest = float(x.max())
    if largest == 0.0:
        return low
    # the spread believed before the first draw must not come from the draws: callers scale these to means of
    # about 1, as weighted sums have; another scale costs width, not validity
    stakes = _bets(x, error, stopping=stopping, scale=1.0)
    target = math.log(1.0 / error)

    def rejected(m: float) -> bool:
        paid = np.log1p(np.minimum(stakes, LARGEST_BET / m) * (x - m))
        return bool(np.cumsum(paid).max() >= target)

    outside, inside = 1e-12 * largest, largest
    if not rejected(outside):
        return low
    for _ in range(60):
        middle = 0.5 * (inside + outside)
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    # rejected values lie below the kept ones, so the last rejected one is the bound
    return low + outside


def hoeffding_upper(values: ArrayLike, low: float, high: float, error: float) -> float:
    """Hoeffding's upper bound, for comparison: it knows the range and no spread."""
    x = _unit(values, low, high, error)
    return low + (high - low) * min(1.0, float(x.mean()) + math.sqrt(math.log(1.0 / error) / (2.0 * len(x))))


def empirical_bernstein_upper(values: ArrayLike, low: float, high: float, error: float) -> float:
    """The upper bound of Maurer and Pontil (2009), for comparison: it estimates the spread."""
    x = _unit(values, low, high, error)
    if len(x) < 2:
        return high
    log = math.log(2.0 / error)
    width = math.sqrt(2.0 * float(x.var(ddof=1)) * log / len(x)) + 7.0 * log / (3.0 * (len(x) - 1))
    return low + (high - low) * min(1.0, float(x.mean()) + width)


def _check_share(hits: int, draws: int, error: float) -> None:
    if draws < 1 or not 0 <= hits <= draws:
        raise InputError(f"{hits} of {draws} is no share; give 0 <= hits <= draws with draws at least 1.")
    if not 0.0 < error < 1.0:
        raise InputError(f"the error of a bound is {error}; it must be between 0 and 1.")


def share_upper(hits: int, draws: int, error: float) -> float:
    """Upper bound of Clopper and Pearson on a probability of which `hits` of `draws` came true."""
    from scipy.special import betaincinv

    _check_share(hits, draws, error)
    return 1.0 if hits == draws else float(betaincinv(hits + 1, draws - hits, 1.0 - error))


def share_lower(hits: int, draws: int, error: float) -> float:
    """Lower bound of Clopper and Pearson on a probability of which `hits` of `draws` came true."""
    from scipy.special import betaincinv

    _check_share(hits, draws, error)
    return 0.0 if hits == 0 else float(betaincinv(hits, draws - hits + 1, error))
