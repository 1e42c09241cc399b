"""From the members of a run to the mixture that is handed out."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater import tabular as tab
from slater.errors import InputError
from slater.mixing import best_mixture
from slater.tabular.output import mix

from .problems import few, random_cmdp, random_policy, sampled, seeds, without_pair


@given(seeds, st.integers(1, 6), st.integers(0, 3))
@few
def test_master_weights_against_cvxpy(seed: int, members: int, costs: int) -> None:
    rng = np.random.default_rng(seed)
    reward, cost = rng.random(members), rng.random((members, costs))
    # some convex combination meets the limits, perhaps no single member does
    limits = rng.dirichlet(np.ones(members)) @ cost + 0.01
    weights, multipliers, excess = best_mixture(reward, cost, limits)
    w = cp.Variable(members, nonneg=True)
    constraints = [cp.sum(w) == 1] + ([cost.T @ w <= limits] if costs else [])
    problem = cp.Problem(cp.Maximize(reward @ w), constraints)
    problem.solve(solver=cp.CLARABEL)
    assert weights @ reward == pytest.approx(problem.value, abs=1e-6)
    assert excess == 0
    assert weights.sum() == pytest.approx(1.0)
    assert np.all(weights >= 0)
    assert np.all(weights @ cost <= limits + 1e-8)
    # never worse than a single member that meets the limits
    single = reward[np.all(cost <= limits, axis=1)]
    assert weights @ reward >= single.max(initial=-np.inf) - 1e-8
    # its multipliers are those of its program: no member has a positive reduced profit
    profit = (reward - cost @ multipliers).max() + multipliers @ limits
    assert profit == pytest.approx(weights @ reward, abs=1e-7)
    # a vertex: at most one member more than there are costs
    assert np.sum(weights > 1e-9) <= costs + 1


@given(seeds, st.integers(1, 6), st.integers(1, 3))
@few
def test_out_of_reach_limits_give_the_weights_that_come_closest(seed: int, members: int, costs: int) -> None:
    rng = np.random.default_rng(seed)
    reward, cost = rng.random(members), 1.0 + rng.random((members, costs))
    limits = rng.random(costs)
    weights, multipliers, excess = best_mixture(reward, cost, limits)
    w = cp.Variable(members, nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.max(cost.T @ w - limits)), [cp.sum(w) == 1])
    problem.solve(solver=cp.CLARABEL)
    assert np.max(weights @ cost - limits) == pytest.approx(problem.value, abs=1e-6)
    assert weights.sum() == pytest.approx(1.0)
    assert excess == pytest.approx(problem.value, abs=1e-6)
    assert np.all(multipliers >= 0)


@given(seeds)
@few
def test_lp_output_meets_the_limits_by_estimate(seed: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    # with a pair missing: its reward is counted at the least, its cost at the most
    data = without_pair(sampled(cmdp, 500, seed), 1, 0)
    members = np.array([random_policy(rng, 3, 2) for _ in range(8)])
    J_R = tab.evaluate(data, members, data.reward[None], "low")[:, 0]
    J_C = tab.evaluate(data, members, data.costs, "high")[:, 0]
    # few members meet the limit, so that it binds
    limits = np.array([0.9 * J_C.min() + 0.1 * J_C.mean()])
    mixture, multipliers = mix(data, members, limits, "lp")
    assert multipliers is not None
    assert mixture.weights @ J_C <= limits[0] + 1e-7
    # no worse than any member that meets the limits
    assert mixture.weights @ J_R >= J_R[limits[0] >= J_C].max() - 1e-7


def test_uniform_and_tail_weights() -> None:
    data = sampled(random_cmdp(1), 100, 1)
    members = np.array([random_policy(np.random.default_rng(k), 3, 2) for k in range(5)])
    uniform, none = mix(data, members, data.limits, "uniform")
    assert none is None
    assert uniform.weights == pytest.approx([0.2] * 5)
    tail, _ = mix(data, members, data.limits, "tail")
    assert tail.weights == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    one, _ = mix(data, members[:1], data.limits, "tail")
    assert one.weights == pytest.approx([1.0])
    with pytest.raises(InputError, match="'best'"):
        mix(data, members, data.limits, "best")  # type: ignore[arg-type]


def test_among_the_weights_that_come_closest_the_richest_is_taken() -> None:
    reward, cost = np.array([1.0, 3.0, 9.0]), np.array([[2.0], [2.0], [4.0]])
    weights, _, excess = best_mixture(reward, cost, np.array([1.0]))
    assert weights == pytest.approx([0, 1, 0], abs=1e-6)
    assert excess == pytest.approx(1.0)


def test_prices_are_what_a_unit_of_the_limit_buys_whatever_the_unit_of_the_excess() -> None:
    reward, cost, limits = np.array([0.0, 6.0]), np.array([[0.0], [3.0]]), np.array([1.0])
    for unit in (None, np.array([10.0])):
        price = best_mixture(reward, cost, limits, unit=unit).prices
        more = best_mixture(reward, cost, limits + 0.5, unit=unit).weights @ reward
        now = best_mixture(reward, cost, limits, unit=unit).weights @ reward
        assert price == pytest.approx([(more - now) / 0.5])
