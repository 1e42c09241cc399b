"""A bound is wrong as often as it says or more seldom, and as wide as the review of estimates measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slater import InputError
from slater.certify import bounds

ERROR = 0.1


def _draws(kind: str, rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, float]:
    """Draws in [0, 1] of shape (repeats, n), and their mean."""
    if kind == "beta":
        return rng.beta(0.6, 9.4, size), 0.06
    if kind == "rare":  # almost always nothing, sometimes everything: where the normal interval fails
        return (rng.random(size) < 0.03).astype(float), 0.03
    if kind == "coin":
        return (rng.random(size) < 0.5).astype(float), 0.5
    return np.full(size, 0.2), 0.2


def _at_most(misses: int, repeats: int, nominal: float) -> bool:
    """Whether the count is compatible with a rate of at most `nominal` (1 in 1000 false alarms)."""
    return bool(stats.binom.sf(misses - 1, repeats, nominal) > 1e-3)


@pytest.mark.parametrize("kind", ["beta", "rare", "coin", "constant"])
@pytest.mark.parametrize("n", [10, 60])
def test_fixed_size_bounds_are_wrong_at_most_as_often_as_they_say(kind: str, n: int) -> None:
    draws, mean = _draws(kind, np.random.default_rng(n), (300, n))
    uppers = [bounds.betting_upper(x, 0.0, 1.0, ERROR) for x in draws]
    lowers = [bounds.betting_lower(x, 0.0, 1.0, ERROR) for x in draws]
    assert _at_most(sum(u < mean - 1e-9 for u in uppers), 300, ERROR)
    assert _at_most(sum(low > mean + 1e-9 for low in lowers), 300, ERROR)


@pytest.mark.parametrize("kind", ["beta", "rare", "coin"])
def test_looking_after_every_draw_does_not_break_the_bound(kind: str) -> None:
    draws, mean = _draws(kind, np.random.default_rng(7), (400, 300))
    # the wealth against the true mean reaches the target at some time: the bound was wrong at some look
    bets = bounds.Below(draws.T, 0.0, 1.0, stopping=True)
    ever = bets.capital(mean, ERROR).max(axis=0) >= 1.0
    assert _at_most(sum(ever), 400, ERROR)
    # the same looks at a t interval are wrong far more often, so the test can fail
    t = np.arange(1, 301)
    means = draws.cumsum(axis=1) / t
    spread = np.sqrt(np.maximum((draws**2).cumsum(axis=1) / t - means**2, 0.0) / t)
    naive = (means + stats.norm.ppf(1 - ERROR) * spread < mean)[:, 10:].any(axis=1)
    assert naive.sum() > sum(ever) + 40


@pytest.mark.parametrize("stopping", [False, True])
def test_betting_and_bound_agree(stopping: bool) -> None:
    x = np.random.default_rng(0).beta(2, 8, 80)
    upper = bounds.betting_upper(x, 0.0, 1.0, 0.05, stopping=stopping)
    bets = bounds.Below(x, 0.0, 1.0, stopping=stopping)
    assert bounds.reached([bets.capital], np.array([upper]), 0.05).all()
    assert not bounds.reached([bets.capital], np.array([upper - 1e-5]), 0.05).any()


_PARTS = st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
@given(_PARTS, st.booleans())
def test_betting_grows_with_the_claim_and_with_what_it_starts_with(
    values: list[float], stopping: bool
) -> None:
    # so that bounds are found by halving, and less error never gives a narrower one
    claims = np.linspace(0.001, 0.999, 60)
    for bets, sign in ((bounds.Below(values, 0.0, 1.0, stopping=stopping), 1),
                       (bounds.Above(values, stopping=stopping), -1)):  # fmt: skip
        least = [np.maximum.accumulate(bets.capital(claims, e), axis=0) for e in (0.005, 0.05, 0.3)]
        reached = [path[-1] >= 1.0 for path in least]
        for path, over in zip(least, reached, strict=True):
            open_ = np.minimum(path, 1.0)  # at the goal nothing more is staked
            assert (np.diff(open_[-1]) * sign >= -1e-9).all()
            assert (np.diff(over.astype(int)) * sign >= 0).all()
        assert (reached[0] <= reached[1]).all()
        assert (reached[1] <= reached[2]).all()


@pytest.mark.parametrize("stopping", [False, True])
def test_nobody_can_be_expected_to_win_against_what_is_true(stopping: bool) -> None:
    # all courses of five draws of 0 and 1, weighed by their chances: the mean of the capital is no more
    mean, courses = 0.3, np.array(np.meshgrid(*[[0.0, 1.0]] * 5)).reshape(5, -1)
    chance = np.prod(np.where(courses > 0, mean, 1 - mean), axis=0)
    for bets in (bounds.Below(courses, 0.0, 1.0, stopping=stopping),
                 bounds.Above(courses, stopping=stopping)):  # fmt: skip
        path = bets.capital(mean, 0.05)
        assert path @ chance == pytest.approx(np.full(5, 0.05), abs=1e-12)


def test_a_rare_draw_is_bounded_nearly_as_well_as_if_its_size_were_known() -> None:
    # Clopper and Pearson know that draws are 0 or 1; the bound before this form gave 2.6 times the mean
    rng = np.random.default_rng(11)
    draws = (rng.random((10, 1000)) < 0.007).astype(float)
    own = np.mean([bounds.betting_upper(x, 0.0, 1.0, 0.05) for x in draws])
    known = np.mean([bounds.share_upper(int(x.sum()), 1000, 0.05) for x in draws])
    assert own < 1.15 * known


@pytest.mark.parametrize(("n", "said"), [(50, 22.8), (100, 17.7), (200, 14.9)])
def test_widths_of_the_review(n: int, said: float) -> None:
    # mean 12, standard deviation 6, range 200, 95%
    rng, share, spread = np.random.default_rng(1), 12 / 200, 6 / 200
    k = share * (1 - share) / spread**2 - 1
    draws = 200 * rng.beta(share * k, (1 - share) * k, (40, n))
    betting = np.mean([bounds.betting_upper(x, 0.0, 200.0, 0.05) for x in draws])
    assert betting == pytest.approx(said, abs=0.6)
    # Hoeffding, who knows the range and no spread; Maurer and Pontil (2009), who estimate the spread
    hoeffding = draws.mean() + 200 * math.sqrt(math.log(20) / (2 * n))
    assert hoeffding == pytest.approx({50: 46.6, 100: 36.7, 200: 29.3}[n], abs=0.6)
    log, variance = math.log(2 / 0.05), (draws / 200).var(axis=1, ddof=1)
    bernstein = draws.mean() + 200 * np.mean(np.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1)))
    assert betting < bernstein


def test_lower_bound_without_a_largest_value() -> None:
    # weights whose largest value nobody knows: log-normal of mean 1
    rng = np.random.default_rng(3)
    draws = rng.lognormal(-0.5, 1.0, (300, 200))
    lowers = np.array([bounds.betting_lower(x, 0.0, math.inf, ERROR) for x in draws])
    assert _at_most(int((lowers > 1.0).sum()), 300, ERROR)
    assert lowers.mean() > 0.7  # and it says something
    assert bounds.betting_lower(np.zeros(5), 0.0, math.inf, ERROR) == 0.0


def test_clopper_pearson_is_exact() -> None:
    assert bounds.share_upper(0, 59, 0.05) == pytest.approx(0.0495, abs=1e-4)  # 59 clean episodes: at most 5%
    upper = bounds.share_upper(3, 40, 0.05)
    assert stats.binom.cdf(3, 40, upper) == pytest.approx(0.05, abs=1e-9)
    lower = bounds.share_lower(3, 40, 0.05)
    assert stats.binom.sf(2, 40, lower) == pytest.approx(0.05, abs=1e-9)
    assert bounds.share_upper(5, 5, 0.05) == 1.0
    assert bounds.share_lower(0, 5, 0.05) == 0.0


@settings(max_examples=40, deadline=None)
@given(_PARTS, st.floats(1, 100), st.floats(-50, 50))
def test_bounds_follow_units_and_hold_the_order(values: list[float], scale: float, shift: float) -> None:
    x = np.array(values)
    upper = bounds.betting_upper(x, 0.0, 1.0, 0.05)
    lower = bounds.betting_lower(x, 0.0, 1.0, 0.05)
    assert 0.0 <= lower <= 1.0
    assert upper <= 1.0
    moved = bounds.betting_upper(shift + scale * x, shift, shift + scale, 0.05)
    assert moved == pytest.approx(shift + scale * upper, abs=1e-4 * scale)
    # a smaller error asks for a wider bound
    assert bounds.betting_upper(x, 0.0, 1.0, 0.01) >= upper - 1e-9


@pytest.mark.parametrize(
    ("values", "low", "high", "error", "says"),
    [
        ([], 0, 1, 0.05, "at least 1"),
        ([0.5, 2.0], 0, 1, 0.05, "draw of 2 lies outside"),
        ([0.5, math.nan], 0, 1, 0.05, "nan"),
        ([0.5], 1, 1, 0.05, "empty"),
        ([0.5], 0, 1, 1.5, "between 0 and 1"),
    ],
)
def test_bad_draws_get_one_sentence(
    values: list[float], low: float, high: float, error: float, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        bounds.betting_upper(values, low, high, error)
