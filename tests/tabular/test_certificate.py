"""The duality gap: never negative, and a bound on what it certifies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater import tabular as tab
from slater.errors import InputError

from .problems import few, random_cmdp, random_policy, sampled, seeds, without_pair

bounds = st.floats(0.0, 50.0)


def anything(seed: int, costs: int, states: int = 3, actions: int = 2) -> tuple[tab.Mixture, np.ndarray]:
    """A random mixture of one to five members, some deterministic, and random multipliers."""
    rng = np.random.default_rng(seed)
    members = [random_policy(rng, states, actions) for _ in range(int(rng.integers(1, 4)))]
    members += [np.eye(actions)[rng.integers(actions, size=states)] for _ in range(int(rng.integers(0, 3)))]
    mixture = tab.Mixture(np.array(members), rng.dirichlet(np.ones(len(members))))
    return mixture, rng.exponential(size=costs) * rng.integers(0, 2, size=costs) * 3


@given(seeds, st.integers(0, 3), bounds)
@few
def test_the_gap_is_never_negative_on_the_true_model(seed: int, costs: int, bound: float) -> None:
    cmdp = random_cmdp(seed, costs=costs)
    mixture, multipliers = anything(seed, costs)
    certificate = tab.certify(cmdp, mixture, multipliers, bound)
    assert certificate.gap >= -1e-8
    assert certificate.multiplier_bound >= multipliers.sum()
    assert certificate.gap == pytest.approx(certificate.upper - certificate.lower)
    J_R, J_C = mixture.returns(cmdp)
    assert pytest.approx(J_R) == certificate.J_R
    assert certificate.slack == pytest.approx(cmdp.limits - J_C)


@given(seeds, st.integers(0, 3), bounds, st.integers(15, 300))
@few
def test_the_gap_is_never_negative_on_the_estimate(seed: int, costs: int, bound: float, n: int) -> None:
    cmdp = random_cmdp(seed, costs=costs)
    data = without_pair(sampled(cmdp, n + 60, seed), 1, 1)
    mixture, multipliers = anything(seed, costs)
    certificate = tab.estimate_certificate(data, mixture, multipliers, bound)
    assert certificate.gap >= -1e-8


@given(seeds, st.integers(1, 3))
@few
def test_the_gap_bounds_suboptimality_and_violation(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, states=4, actions=3, costs=costs)
    best = cmdp.solve()
    B = 1.0 + 2.0 * best.multipliers.sum()
    mixture, multipliers = anything(seed, costs, 4, 3)
    multipliers *= min(1.0, B / max(multipliers.sum(), 1e-12))
    certificate = tab.certify(cmdp, mixture, multipliers, B)
    assert best.J_R - certificate.gap - 1e-7 <= certificate.J_R
    violation = float(np.max(-certificate.slack))
    assert violation <= certificate.gap / (B - best.multipliers.sum()) + 1e-7
    # the first bracket is above the optimum for any multipliers
    assert certificate.upper >= best.J_R - 1e-7


@given(seeds, st.integers(1, 3))
@few
def test_the_gap_of_a_saddle_point_is_zero(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, states=4, actions=3, costs=costs)
    best = cmdp.solve()
    B = 1.0 + best.multipliers.sum()
    certificate = tab.certify(cmdp, tab.Mixture.single(best.policy), best.multipliers, B)
    assert certificate.gap == pytest.approx(0.0, abs=1e-6)


def test_the_gap_by_its_formula() -> None:
    cmdp = random_cmdp(8, costs=2)
    mixture, _ = anything(8, 2)
    lam, B = np.array([0.5, 1.5]), 4.0
    J_R, J_C = mixture.returns(cmdp)
    upper = cmdp.best_response(lam)[1] + lam @ cmdp.limits
    expected = upper - (J_R - B * max(0.0, *(J_C - cmdp.limits)))
    assert tab.certify(cmdp, mixture, lam, B).gap == pytest.approx(expected)


def test_negative_multipliers_certify_nothing() -> None:
    # with lambda < 0 the first bracket bounds nothing, and a "gap" below zero would come out
    cmdp = random_cmdp(8)
    cmdp = cmdp.with_limits(cmdp.limits + 3.0)
    best = tab.Mixture.single(cmdp.solve().policy)
    with pytest.raises(InputError, match="multipliers"):
        tab.certify(cmdp, best, np.array([-1.0]), 5.0)
