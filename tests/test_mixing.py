"""The cone program over policies whose worth is known up to a joint error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slater.mixing import best_mixture, robust_mixture

MEMBERS, COSTS, K = 5, 2, (1.0, 1.64)
values = arrays(np.float64, (MEMBERS, 1 + COSTS), elements=st.floats(0, 10))
factors = arrays(np.float64, (1 + COSTS, MEMBERS, 3), elements=st.floats(-1, 1))
limits = arrays(np.float64, COSTS, elements=st.floats(0.5, 10))


def covariances(factor):
    return factor @ factor.transpose(0, 2, 1)


def bounds(weights, mean, covariance):
    """(1+I,): the reward that is at least had, the costs that are at most had."""
    deviation = np.sqrt(np.maximum(np.einsum("p,upq,q->u", weights, covariance, weights), 0))
    return weights @ mean + np.array([-K[0], K[1], K[1]]) * deviation


@settings(max_examples=60)
@given(values, factors, limits)
def test_without_deviations_it_is_the_linear_program(mean, factor, tau):
    found = robust_mixture(mean, covariances(factor), tau, (0.0, 0.0), least_weight=0.0)
    plain = best_mixture(mean[:, 0], mean[:, 1:], tau, unit=tau)
    assert found.excess == pytest.approx(plain.excess, abs=1e-4)
    if plain.excess == 0:
        assert found.weights @ mean[:, 0] == pytest.approx(plain.weights @ mean[:, 0], abs=1e-3)
    assert np.all(found.weights @ mean[:, 1:] <= tau * (1 + 1.001 * plain.excess) + 1e-3 * (1 + tau))


@settings(max_examples=60)
@given(values, factors, limits)
def test_bounds_hold_at_the_solution_and_no_mixture_that_keeps_them_is_better(mean, factor, tau):
    covariance = covariances(factor)
    found = robust_mixture(mean, covariance, tau, K, least_weight=0.0)
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1.0)
    own = bounds(found.weights, mean, covariance)
    rng = np.random.default_rng(0)
    others = np.concatenate([np.eye(MEMBERS), rng.dirichlet(np.full(MEMBERS, 0.5), 200)])
    every = np.array([bounds(w, mean, covariance) for w in others])
    excess = np.max(every[:, 1:] / tau - 1, axis=1)
    if found.excess > 0:  # nobody keeps all bounds: the least excess says by how much
        assert excess.min() >= found.excess - 1e-3
    else:
        assert np.all(own[1:] <= tau * (1 + 2e-3))
        safe = excess <= 0
        assert not safe.any() or own[0] >= every[safe, 0].max() - 5e-3


@settings(max_examples=60)
@given(values, factors, limits)
def test_where_bounds_cannot_be_kept_no_mixture_is_surer(mean, factor, tau):
    covariance = covariances(factor) + 0.01 * np.eye(MEMBERS)

    def sureness(weights):
        """The deviations that all limits keep, and by how much the worst mean exceeds its limit."""
        middle = weights @ mean[:, 1:]
        deviation = np.sqrt(np.einsum("p,upq,q->u", weights, covariance, weights))[1:]
        return np.min((tau - middle) / deviation), np.max(middle / tau - 1)

    found = robust_mixture(mean, covariance, tau, K, least_weight=0.0)
    if found.excess == 0:
        return
    rng = np.random.default_rng(0)
    others = np.concatenate([np.eye(MEMBERS), rng.dirichlet(np.full(MEMBERS, 0.5), 200)])
    deviations, excess = np.array([sureness(w) for w in others]).T
    own = sureness(found.weights)
    if own[1] > 1e-3:  # no mean is within
        assert excess.min() >= own[1] * (1 - 2e-3) - 5e-3
    else:
        assert deviations.max() <= own[0] + 0.05


@settings(max_examples=40)
@given(values, factors, limits)
def test_prices_are_what_one_more_unit_of_a_limit_buys(mean, factor, tau):
    covariance = covariances(factor)
    found = robust_mixture(mean, covariance, tau, K, least_weight=0.0)
    assert np.all(found.prices >= 0)
    step = 1e-3 * tau
    if robust_mixture(mean, covariance, tau - 2 * step, K).excess > 0 or found.excess > 0:
        return  # not feasible around: there is no such price
    for i in range(COSTS):
        best = []
        for sign in (-1, 1):
            room = tau + sign * step * np.eye(COSTS)[i]
            weights = robust_mixture(mean, covariance, room, K, least_weight=0.0).weights
            best.append(bounds(weights, mean, covariance)[0])
        down, up = (bounds(found.weights, mean, covariance)[0] - best[0]), None
        up = best[1] - bounds(found.weights, mean, covariance)[0]
        # the value is concave in the limit: its price lies between the slopes on both sides
        rounding = 2e-3 * (1 + np.abs(mean[:, 0]).max())
        assert up - rounding <= found.prices[i] * step[i] <= down + rounding


def test_prices_agree_with_finite_differences_in_a_known_case():
    """Two policies without error: one more unit of cost buys 3 of reward; a second limit does not bind."""
    mean = np.array([[10.0, 4.0, 0.0], [1.0, 1.0, 0.0]])
    covariance = np.zeros((3, 2, 2))
    found = robust_mixture(mean, covariance, np.array([2.0, 5.0]), K)
    np.testing.assert_allclose(found.weights, [1 / 3, 2 / 3], atol=1e-5)
    np.testing.assert_allclose(found.prices, [3.0, 0.0], atol=1e-4)
    # an error that both share takes of the room what it is wide, and does not average out
    covariance[1] = 0.25
    wide = robust_mixture(mean, covariance, np.array([2.0, 5.0]), K)
    np.testing.assert_allclose(wide.weights @ mean[:, 1], 2.0 - K[1] * 0.5, atol=1e-4)
    # errors of their own do
    covariance[1] = 0.25 * np.eye(2)
    own = robust_mixture(mean, covariance, np.array([2.0, 5.0]), K)
    assert own.weights @ mean[:, 1] > wide.weights @ mean[:, 1] + 0.05


def test_a_policy_that_is_best_by_luck_of_its_estimate_is_not_taken_for_that():
    mean = np.array([[10.0, 0.5], [9.9, 0.5]])
    covariance = np.zeros((2, 2, 2))
    covariance[0] = np.diag([4.0, 0.01])
    assert robust_mixture(mean, covariance, np.array([1.0]), K).weights[1] > 0.9


def test_where_nothing_keeps_the_limits_the_least_excess_is_taken():
    mean = np.array([[5.0, 3.0], [9.0, 8.0], [1.0, 2.0]])
    found = robust_mixture(mean, np.zeros((2, 3, 3)), np.array([1.0]), K)
    np.testing.assert_allclose(found.weights, [0, 0, 1], atol=2e-3)
    assert found.excess == pytest.approx(1.0, abs=1e-3)
