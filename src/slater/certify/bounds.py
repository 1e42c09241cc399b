"""Bounds on a mean or a share from independent draws: the arithmetic behind every verdict.

Every bound here is one-sided and holds for each sample size, not in the limit: `error` is the probability
with which an upper bound may lie below the mean (or a lower one above it).

The bounds that verdicts use are betting bounds (Waudby-Smith and Ramdas 2023, "Estimating means of bounded
random variables by betting"). Whoever claims that the mean is m offers fair bets at m. Who begins with a
capital of `error` and bets that draws fall below m has 1 at some time with probability at most `error` if the
claim is true, whatever is staked (Ville's inequality): so if betting reaches 1, m is too large.

What is staked is what reaches a goal by a deadline with the largest probability (Browne 1999, "Reaching goals
by a deadline"; Voracek and Orabona 2025, "STaR-Bets"): with a capital v, k draws left and their standard
deviation s,

    stake / v = phi(z) / v / (s sqrt(k)),     z = Phi^-1(v),

at most all of it. Of s nothing is known at first but that a mean of m allows no more than sqrt(m (1 - m)): it
is guessed as if 1 / m draws of that spread had come before, in which the claim expects the largest draw
once. Where draws may be stopped at any time there is no deadline: the stake is `UNHURRIED` / (s sqrt(t log(t
+ 1))) at draw t, and a part is kept.

A larger capital stays larger whatever comes, and so does that against a larger m: the rejected m are all
those above one, and less error gives a wider bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from slater.errors import InputError

F64 = NDArray[np.float64]

#: draws that are bet on one by one; of more, the means of consecutive ones
MOST_BETS = 20_000
#: claims that are tried side by side, and how close bounds are to what betting says, as a share
CLAIMS, PRECISION = 64, 1e-5
#: without a deadline: what is staked over the spread, which is best at an error of 5%, and the largest share
UNHURRIED, LARGEST_BET = math.sqrt(2.0 * math.log(20.0)), 0.9


class Interval(NamedTuple):
    """An estimate with a lower and an upper bound, each wrong with at most the stated error."""

    estimate: float
    lower: float
    upper: float


def _check_error(error: float) -> None:
    if not 0.0 < error < 1.0:
        raise InputError(f"the error of a bound is {error}; it must be between 0 and 1.")


def _unit(values: ArrayLike, low: float, high: float) -> F64:
    """`values` as draws in [0, 1]; an InputError names what is outside."""
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise InputError(f"a bound needs draws of shape (n,) with n at least 1, not {x.shape}.")
    if not (math.isfinite(low) and low < high):
        raise InputError(f"the range {low:g} to {high:g} is empty; give the least and the largest draw.")
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


def betting_upper(
    values: ArrayLike, low: float, high: float, error: float, *, stopping: bool = False
) -> float:
    """Upper bound on the mean of draws in [low, high]; `stopping`: draws may be stopped by what it says."""
    _check_error(error)
    bets = Below(values, low, high, stopping=stopping)
    return upper_of([bets.capital], low, high, error)


def betting_lower(
    values: ArrayLike, low: float, high: float, error: float, *, stopping: bool = False
) -> float:
    """Lower bound on the mean of draws in [low, high]; `high` may be infinite.

    A bet that draws exceed m loses at most what a draw of `low` takes, so nothing need be known about how
    large a draw can be: weighted sums, whose weights have no largest value, are bounded without clipping.
    """
    if math.isfinite(high):
        return -betting_upper(-np.asarray(values, dtype=np.float64), -high, -low, error, stopping=stopping)
    _check_error(error)
    x = _unit(values, low, high)
    return low + lower_of([Above(x, stopping=stopping).capital], float(x.max()), error)


def _left(draws: int, stopping: bool) -> F64:
    """Draws that are left, before each, (n, 1); `stopping`: how many there will be is not known."""
    t = np.arange(1, draws + 1)[:, None]
    return np.asarray(t * np.log(t + 1.0) if stopping else draws + 1.0 - t)


def _before(x: F64) -> tuple[F64, F64]:
    """Before each draw, (n, K): the mean of those that came, and their sum of squares about it."""
    t = np.arange(1, len(x) + 1)[:, None]
    mean = np.cumsum(x, axis=0) / t
    about = np.maximum(np.cumsum(x**2, axis=0) - t * mean**2, 0.0)
    return np.roll(mean, 1, axis=0) * (t > 1), np.roll(about, 1, axis=0) * (t > 1)


def _played(start: float, wide: F64, most: F64, gain: F64, stopping: bool) -> F64:
    """The capital after each draw, (n, K), of who wins `gain` (n, K) for each unit that is staked.

    wide: (n, K) spread of all that is left; most: (K,) that can be staked of a capital of 1
    """
    wide = np.maximum(wide, 1e-300)
    if stopping:
        stakes = np.minimum(UNHURRIED / wide, LARGEST_BET * most)
        return np.asarray(start * np.exp(np.minimum(np.cumsum(np.log1p(stakes * gain), axis=0), 700.0)))
    path = np.empty(gain.shape)
    capital = np.full(gain.shape[1:], start)
    for t in range(len(path)):
        # above 1/2 the stake stays as it is: a larger capital is then always worth more
        z = ndtri(np.minimum(capital, 0.5))
        stake = np.minimum(np.exp(-0.5 * z**2) / (math.sqrt(2.0 * math.pi) * capital * wide[t]), most)
        stake *= capital < 1.0
        # who has nothing bets on with next to nothing
        path[t] = capital = np.maximum(capital * (1.0 + stake * gain[t]), 1e-300)
    return path


def _few(values: F64) -> F64:
    """At most `MOST_BETS` draws of the same mean: the means of as many consecutive ones as it takes."""
    size = -(-len(values) // MOST_BETS)
    starts = np.arange(0, len(values), size)
    count = np.diff(np.append(starts, len(values))).reshape(-1, *(1,) * (values.ndim - 1))
    return np.asarray(np.add.reduceat(values, starts, axis=0) / count)


class Above:
    """Bets that the mean of draws from 0 on, (n,) or (n, K), exceeds m: a share of the capital, in units of
    m, on each. The spread is that of the draws before over their mean, so that their unit does not matter.
    """

    def __init__(self, values: ArrayLike, *, stopping: bool = False) -> None:
        x = _few(np.asarray(values, dtype=np.float64))
        self.x, self.stopping = x.reshape(len(x), -1), stopping
        # squares of huge draws are no numbers
        mean, about = _before(self.x / np.maximum(self.x.max(axis=0), 1e-300))
        t = np.arange(1, len(x) + 1)[:, None]
        known = mean > 1e-100
        square = np.where(known, mean, 1.0) ** 2
        relative = np.where(known, (about + 0.25 * square) / (t * square), 1.0)
        self.wide = np.sqrt(relative * _left(len(x), stopping))

    def capital(self, m: ArrayLike, start: float) -> F64:
        """After each draw, (n, K), against means of at most m, (K,) or one; it falls with m."""
        gain = self.x / np.asarray(m, dtype=np.float64) - 1.0
        return _played(start, np.broadcast_to(self.wide, gain.shape), np.ones(1), gain, self.stopping)


class Below:
    """Bets that the mean of draws in [low, high], (n,) or (n, K), is below m."""

    def __init__(self, values: ArrayLike, low: float, high: float, *, stopping: bool = False) -> None:
        self.low, self.width, self.stopping = low, high - low, stopping
        x = _few(_unit(values, low, high))
        self.x = x.reshape(len(x), -1)
        self.about, self.left = _before(self.x)[1], _left(len(x), stopping)

    def capital(self, m: ArrayLike, start: float) -> F64:
        """After each draw, (n, K), against means of at least m, (K,) or one; it grows with m."""
        u = np.clip((np.asarray(m, dtype=np.float64) - self.low) / self.width, 0.0, 1.0 - 1e-9)
        before = np.arange(len(self.x))[:, None]
        wide = np.sqrt(u * (1.0 - u + self.about) / (1.0 + before * u) * self.left)
        return _played(start, wide, 1.0 / (1.0 - u), u - self.x, self.stopping)


#: capital of a strategy against claims (K,), from what it starts with, after each draw, (n, K)
Strategy = Callable[[F64, float], F64]


def reached(strategies: Sequence[Strategy], claims: F64, error: float) -> NDArray[np.bool_]:
    """Whether betting rejects each claim, (K,): the capital is divided evenly among the strategies, which is
    a fair game as they are.
    """
    paths = [play(claims, error / len(strategies)) for play in strategies]
    return np.asarray(np.sum(paths, axis=0).max(axis=0) >= 1.0)


def upper_of(strategies: Sequence[Strategy], low: float, high: float, error: float) -> float:
    """The least m in [low, high] that betting rejects, of capitals that grow with m; high if none."""
    claims, width = low + (high - low) * np.geomspace(1e-6, 1.0 - 1e-9, CLAIMS), high - low
    inside = low
    while True:
        rejected = reached(strategies, claims, error)
        if not rejected[-1]:
            return high
        first = int(rejected.argmax())
        inside, outside = (claims[first - 1] if first else inside), claims[first]
        if outside - inside <= max(PRECISION * (outside - low), 1e-9 * width):
            return float(outside)
        claims, high = np.linspace(inside, outside, CLAIMS + 1)[1:], outside


def lower_of(strategies: Sequence[Strategy], high: float, error: float) -> float:
    """The largest m in (0, high) that betting rejects, of capitals that fall with m; 0 if none."""
    if high <= 0.0:
        return 0.0
    claims, low = high * np.geomspace(1e-9, 1.0, CLAIMS), 0.0
    while True:
        rejected = reached(strategies, claims, error)
        if not rejected[0]:
            return low
        last = len(claims) - 1 - int(rejected[::-1].argmax())
        low = float(claims[last])
        if last == len(claims) - 1 or claims[last + 1] - low <= PRECISION * low:
            return low
        claims = np.geomspace(low, claims[last + 1], CLAIMS)


def _check_share(hits: int, draws: int, error: float) -> None:
    if draws < 1 or not 0 <= hits <= draws:
        raise InputError(f"{hits} of {draws} is no share; give 0 <= hits <= draws with draws at least 1.")
    _check_error(error)


def share_upper(hits: int, draws: int, error: float) -> float:
    """Upper bound of Clopper and Pearson on a probability of which `hits` of `draws` came true."""
    _check_share(hits, draws, error)
    return 1.0 if hits == draws else float(betaincinv(hits + 1, draws - hits, 1.0 - error))


def share_lower(hits: int, draws: int, error: float) -> float:
    """Lower bound of Clopper and Pearson on a probability of which `hits` of `draws` came true."""
    _check_share(hits, draws, error)
    return 0.0 if hits == 0 else float(betaincinv(hits, draws - hits + 1, error))
