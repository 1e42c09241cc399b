"""The posterior of J: a distribution, as wide as the evidence leaves it, and moved by what the log shows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slater.deep.ope import posterior as posteriors
from slater.deep.ope.posterior import (
    COST_PRIOR,
    REWARD_PRIOR,
    Acting,
    Posterior,
    conditioned,
    judges_of,
    told,
)
from slater.limit_status import LimitStatus

POLICIES, NETWORKS, ROLLOUTS = 6, 4, 30


def said(seed, noise=0.3):
    """Values (P, M, n, 2) of a cost and of steps, and how the policies act."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.5, 5, (POLICIES, 1, 1)) + noise * rng.normal(size=(POLICIES, NETWORKS, 1))
    values = np.maximum(values + 0.5 * rng.normal(size=(POLICIES, NETWORKS, ROLLOUTS)), 0.0)
    places = rng.uniform(0, 0.6, POLICIES)
    apart = np.abs(places[:, None] - places)
    acting = Acting(apart, rng.uniform(0, 1, POLICIES), np.zeros(POLICIES))
    return np.stack([values, np.full_like(values, 20.0)], axis=-1), acting


def shown(values, errors, count=20, seed=1):
    """What the first policies' episodes did: what was said of them, and an error."""
    rng = np.random.default_rng(seed)
    middle = values[..., 0].mean(axis=(1, 2))
    return [(k, middle[k] + e + 0.1 * rng.normal(size=count), middle[k]) for k, e in enumerate(errors)]


@settings(max_examples=50)
@given(st.integers(0, 1000), st.lists(st.floats(-3, 3), max_size=4), st.sampled_from([None, 1.0, 20.0]))
def test_covariances_are_symmetric_and_positive_semidefinite(seed, errors, event):
    values, acting = said(seed)
    prior = REWARD_PRIOR if event is None else COST_PRIOR
    logged = np.random.default_rng(0).gamma(2.0, size=100)
    mean, wide, scale = conditioned(
        values, judges_of([None] * len(values)), logged, acting, shown(values, errors), prior, event
    )
    assert np.all(np.isfinite(mean))
    np.testing.assert_allclose(wide, wide.T, atol=1e-9)
    assert np.linalg.eigvalsh((wide + wide.T) / 2).min() >= -1e-8
    assert scale[0] in posteriors.SCALES
    assert scale[1] in posteriors.SHARES


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(-3, 3))
def test_what_a_behaviour_did_moves_its_clone_there_and_widens_nothing(seed, error):
    """At a given sigma: the errors of the log also say how large that is."""
    values, acting = said(seed)
    logged = np.random.default_rng(0).gamma(2.0, size=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posteriors, "SCALES", (1.0,))
        before, prior_wide, _ = conditioned(
            values, judges_of([None] * len(values)), logged, acting, [], COST_PRIOR, 1.0
        )
        seen = shown(values, [error])
        after, wide, _ = conditioned(
            values, judges_of([None] * len(values)), logged, acting, seen, COST_PRIOR, 1.0
        )
    np.testing.assert_allclose(before, values[..., 0].mean(axis=(1, 2)))
    assert np.all(np.diag(wide) <= np.diag(prior_wide) + 1e-9)
    found, wanted = after[0] - before[0], seen[0][1].mean() - before[0]
    assert found * wanted >= 0
    assert abs(found) <= abs(wanted) + 1e-9


def test_who_acts_alike_moves_with_a_behaviour_and_others_less():
    values, acting = said(3)
    acting = acting._replace(far=0 * acting.far)
    values = np.repeat(values.mean(axis=(0, 1), keepdims=True), POLICIES, axis=0).repeat(NETWORKS, axis=1)
    logged = np.random.default_rng(0).gamma(2.0, size=100)
    seen = shown(values, [2.0], 200)
    mean, wide, _ = conditioned(
        values, judges_of([None] * len(values)), logged, acting, seen, COST_PRIOR, 1.0
    )
    order = np.argsort(acting.apart[0])
    moved = (mean - values[..., 0].mean(axis=(1, 2)))[order]
    assert np.all(moved > 0)
    assert np.all(np.diff(moved) <= 1e-9)
    assert np.all(np.diff(np.diag(wide)[order]) >= -1e-9)


def test_errors_of_the_log_say_how_wrong_its_model_is():
    values, acting = said(0, noise=0.05)
    logged = np.random.default_rng(0).gamma(2.0, size=100)
    widths = []
    for size in (0.0, 3.0):
        errors = size * np.array([1.0, -1.0, 1.0, -1.0])
        _, wide, scale = conditioned(
            values,
            judges_of([None] * len(values)),
            logged,
            acting,
            shown(values, errors),
            COST_PRIOR,
            0.1,
        )
        widths.append((wide[-1, -1], scale))
    assert widths[1][0] > widths[0][0]
    assert widths[1][1] > widths[0][1]


@pytest.mark.parametrize("event", [None, 0.5, 10.0])
def test_fewer_episodes_leave_more_open(event):
    values, acting = said(0)
    prior = REWARD_PRIOR if event is None else COST_PRIOR
    logged = np.random.default_rng(0).gamma(2.0, size=400)
    few, many = (
        np.diag(
            conditioned(
                values,
                judges_of([None] * len(values)),
                own,
                acting,
                shown(values, [0.2, 0.1], n),
                prior,
                event,
            )[1]
        )
        for own, n in ((logged[:40], 5), (np.tile(logged[:40], 10), 50))
    )
    assert np.all(few > many)


def test_what_was_never_seen_is_priced_as_one_event_and_more_far_from_the_log():
    values, acting = said(0)
    nothing = values * [0.0, 1.0]

    def widths(size, far=0.0, unseen=0.0):
        own = Acting(acting.apart, np.full(POLICIES, far), np.full(POLICIES, unseen))
        judges = judges_of([None] * POLICIES)
        return np.sqrt(np.diag(conditioned(nothing, judges, np.zeros(100), own, [], COST_PRIOR, size)[1]))

    near = widths(1.0)
    assert np.all(near > 0)
    np.testing.assert_allclose(widths(10.0), 10 * near, rtol=1e-6)
    assert np.all(widths(1.0, far=2.0) > 2 * near)
    # a step that nobody took may cost an event
    more = posteriors.UNSEEN * 0.4 * 20
    np.testing.assert_allclose(widths(1.0, unseen=0.4), np.hypot(near, more), rtol=1e-6)


def test_status_is_within_by_the_bound_above_by_the_mean_and_else_not_known():
    mean = np.array([[5.0, 1.0], [9.0, 3.0]])
    found = Posterior(
        mean, np.array([np.zeros((2, 2)), np.diag([0.04, 0.04])]), mean, np.ones(2), np.ones((2, 2))
    )
    alone = np.array([1.0, 0.0])
    # 95% are 2.13 deviations: Student's t with four degrees of freedom
    for limit, word in ((1.43, LimitStatus.WITHIN), (1.42, LimitStatus.NOT_KNOWN), (0.9, LimitStatus.ABOVE)):
        assert found.status(alone, np.array([limit]), 0.95) == [word]
    assert found.status(alone, np.array([1.2]), 0.6) == [LimitStatus.WITHIN]
    half = np.array([0.5, 0.5])
    np.testing.assert_allclose(found.mixed(half)[0], [7.0, 2.0])
    np.testing.assert_allclose(found.mixed(half)[1][1], 0.2 / np.sqrt(2))
    np.testing.assert_allclose(found.deviation[:, 1], 0.2)


def test_what_was_searched_for_in_one_half_is_judged_by_the_other():
    values = np.random.default_rng(0).normal(size=(3, 4, 5, 2))
    found = told(values, judges_of([None, 0, 1]))
    np.testing.assert_allclose(found[0], values[0].mean(axis=(0, 1)))
    np.testing.assert_allclose(found[1], values[1, [1, 3]].mean(axis=(0, 1)))
    np.testing.assert_allclose(found[2], values[2, [0, 2]].mean(axis=(0, 1)))


def test_errors_of_halves_have_the_covariance_of_means_of_independent_halves():
    """Of many logs, each half's error drawn alone: what both say, and what one half says, together."""
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(2, 200_000)) * np.sqrt(2.0)  # the mean of both halves has variance 1
    judges = judges_of([None, 0, 0, 1])
    np.testing.assert_allclose(np.cov(judges @ errors), 2.0 * judges @ judges.T, atol=0.03)


def test_episodes_that_are_all_worth_the_same_have_a_posterior():
    """As where every episode pays 1 in its last step: no spread in the log, some in the model."""
    values, acting = said(3, noise=0.05)
    seen = [(k, np.full(20, 2.0), m) for k, _, m in shown(values, [0.0] * POLICIES)]
    acting = acting._replace(apart=np.zeros_like(acting.apart))
    judges = judges_of([None] * POLICIES)
    mean, wide, _ = conditioned(values, judges, np.full(100, 2.0), acting, seen, REWARD_PRIOR, None)
    assert np.all(np.isfinite(mean))
    assert np.linalg.eigvalsh((wide + wide.T) / 2).min() >= -1e-12


def test_a_cost_below_0_is_known_no_better_than_one_above():
    values, acting = said(5)
    logged, judges = np.random.default_rng(0).gamma(2.0, size=100), judges_of([None] * POLICIES)
    seen, below = shown(values, [0.5, -0.5]), values * [-1.0, 1.0]
    mirrored = [(k, -did, -m) for k, did, m in seen]
    up, above, _ = conditioned(values, judges, logged, acting, seen, COST_PRIOR, 1.0)
    down, under, _ = conditioned(below, judges, -logged, acting, mirrored, COST_PRIOR, 1.0)
    np.testing.assert_allclose(-down, up)
    np.testing.assert_allclose(under, above)
