"""The two players: the lambda-player over B Delta^I, and the policy player."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from slater.tabular.dual import ExponentiatedGradient, Greedy
from slater.tabular.primal import NaturalPolicyGradient

from .problems import few, seeds

violations = st.integers(1, 6).flatmap(lambda costs: arrays(float, costs, elements=st.floats(-5, 5)))
bounds = st.floats(0.1, 50.0)


@given(violations, bounds)
@few
def test_greedy_is_the_minimiser_over_the_simplex(violation: np.ndarray, bound: float) -> None:
    lam = Greedy(bound).update(violation)
    best = linprog(-violation, A_ub=np.ones((1, len(violation))), b_ub=[bound], method="highs")
    assert -lam @ violation == pytest.approx(best.fun, abs=1e-7)
    assert np.all(lam >= 0)
    assert lam.sum() <= bound


def test_greedy_plays_nothing_when_no_limit_is_exceeded() -> None:
    assert np.array_equal(Greedy(7.0).update(np.array([0.0, -1.0])), [0.0, 0.0])
    assert np.array_equal(Greedy(7.0).update(np.zeros(0)), np.zeros(0))


@given(st.integers(1, 5), bounds, st.floats(0.01, 10.0), seeds)
@few
def test_the_gradient_player_stays_in_its_set(costs: int, bound: float, step: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    player = ExponentiatedGradient(bound, step)
    for _ in range(200):
        lam = player.update(rng.normal(size=costs) * 100)
        assert np.all(np.isfinite(lam))
        assert np.all(lam >= 0)
        assert lam.sum() <= bound * (1 + 1e-12)


def test_the_gradient_player_has_small_regret() -> None:
    # the mean payoff comes close to that of the best fixed multipliers in hindsight
    rng = np.random.default_rng(0)
    bound, T = 3.0, 4000
    player = ExponentiatedGradient(bound, 0.05)
    drift = np.array([0.3, -0.2, 0.1])
    payoffs, total, lam = [], np.zeros(3), np.full(3, bound / 4)
    for _ in range(T):
        violation = drift + rng.normal(size=3)
        payoffs.append(lam @ violation)
        total += violation
        lam = player.update(violation)
    best = bound * max(total.max() / T, 0.0)
    assert np.mean(payoffs) >= best - 0.2


def test_exponentiated_gradient_starts_with_equal_shares_and_keeps_the_slack() -> None:
    player = ExponentiatedGradient(4.0, 0.5)
    assert player.current(3) == pytest.approx([1.0, 1.0, 1.0])
    # it must leave a multiplier again after having put everything on it for long
    for _ in range(5000):
        player.update(np.array([10.0]))
    for _ in range(10000):
        lam = player.update(np.array([-10.0]))
    assert lam == pytest.approx([0.0], abs=1e-9)


@given(seeds, st.floats(0.01, 30.0))
@few
def test_the_policy_player_is_exponential_weights(seed: int, step: float) -> None:
    rng = np.random.default_rng(seed)
    player = NaturalPolicyGradient(2, 3, step)
    assert np.allclose(player.policy, 1 / 3)
    total = np.zeros((2, 3))
    for _ in range(5):
        z = rng.uniform(-1, 1, size=(2, 3))
        total += step * z
        weights = np.exp(total - total.max(axis=1, keepdims=True))
        assert np.allclose(player.update(z), weights / weights.sum(axis=1, keepdims=True))


@given(seeds)
@few
def test_the_policy_player_keeps_its_regret_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, K = 4, 400
    step = np.sqrt(2 * np.log(A) / K)
    player = NaturalPolicyGradient(1, A, step)
    gained, total = 0.0, np.zeros(A)
    for _ in range(K):
        z = np.clip(rng.normal(size=A) + np.linspace(-0.5, 0.5, A), -1, 1)
        gained += player.policy[0] @ z
        total += z
        player.update(z[None])
    assert (total.max() - gained) / K <= np.log(A) / (step * K) + step / 2 + 1e-12


def test_the_policy_player_stays_finite_for_ever() -> None:
    player = NaturalPolicyGradient(1, 2, 100.0)
    for z in itertools.islice(itertools.cycle([np.array([[1.0, -1.0]])]), 10_000):
        player.update(z)
    assert np.allclose(player.policy, [[1.0, 0.0]])
    assert np.all(np.isfinite(player.update(np.array([[-1.0, 1.0]]))))
