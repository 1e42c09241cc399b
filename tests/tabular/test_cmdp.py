"""The CMDP against brute force, against an independent statement of its program, and by definition."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater import tabular as tab

from .problems import deterministic_policies, few, random_cmdp, random_policy, seeds


@given(seeds)
@few
def test_values_solve_the_bellman_equations_and_agree_with_occupancies(seed: int) -> None:
    cmdp = random_cmdp(seed, costs=2)
    pi = random_policy(np.random.default_rng(seed), 3, 2)
    V, Q = cmdp.state_values(pi, cmdp.reward), cmdp.q_values(pi, cmdp.reward)
    assert np.allclose(V, (pi * Q).sum(axis=1))
    assert np.allclose(Q, cmdp.reward + cmdp.discount * np.einsum("sat,t->sa", cmdp.transition, V))
    J_R, J_C = cmdp.returns(pi)
    assert pytest.approx(float(cmdp.start @ V)) == J_R
    assert pytest.approx([float(cmdp.start @ cmdp.state_values(pi, c)) for c in cmdp.costs]) == J_C


@given(seeds)
@few
def test_the_occupancy_is_the_discounted_sum_of_state_distributions(seed: int) -> None:
    cmdp = random_cmdp(seed)
    pi = random_policy(np.random.default_rng(seed), 3, 2)
    P_pi = np.einsum("sa,sat->st", pi, cmdp.transition)
    total, now = np.zeros(3), cmdp.start.copy()
    for t in range(200):
        total += (1 - cmdp.discount) * cmdp.discount**t * now
        now = now @ P_pi
    d = cmdp.occupancy(pi)
    assert np.allclose(d, total[:, None] * pi, atol=1e-12)
    assert d.sum() == pytest.approx(1.0)


@given(seeds, st.floats(0.0, 5.0))
@few
def test_best_response_against_every_deterministic_policy(seed: int, multiplier: float) -> None:
    cmdp = random_cmdp(seed, states=3, actions=3)
    lam = np.array([multiplier])
    policy, value = cmdp.best_response(lam)

    def lagrangian(pi: np.ndarray) -> float:
        J_R, J_C = cmdp.returns(pi)
        return J_R - float(lam @ J_C)

    assert value == pytest.approx(max(map(lagrangian, deterministic_policies(3, 3))), abs=1e-9)
    assert lagrangian(policy) == pytest.approx(value, abs=1e-9)


@given(seeds, st.integers(0, 3))
@few
def test_the_optimum_against_cvxpy(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, states=4, actions=3, costs=costs)
    d = cp.Variable((4, 3), nonneg=True)
    constraints = [
        cp.sum(d[s])
        == (1 - cmdp.discount) * cmdp.start[s]
        + cmdp.discount * cp.sum(cp.multiply(cmdp.transition[:, :, s], d))
        for s in range(4)
    ]
    limited = [
        cmdp.horizon * cp.sum(cp.multiply(c, d)) <= t for c, t in zip(cmdp.costs, cmdp.limits, strict=True)
    ]
    optimum = cp.Problem(
        cp.Maximize(cmdp.horizon * cp.sum(cp.multiply(cmdp.reward, d))), constraints + limited
    )
    optimum.solve(solver=cp.CLARABEL)
    solution = cmdp.solve()
    assert pytest.approx(optimum.value, abs=1e-6) == solution.J_R
    assert np.all(cmdp.limits + 1e-8 >= solution.J_C)
    assert solution.multipliers == pytest.approx([float(c.dual_value) for c in limited], abs=1e-4)
    assert np.allclose(solution.occupancy, cmdp.occupancy(solution.policy))


@given(seeds)
@few
def test_with_one_cost_the_optimum_mixes_two_deterministic_policies(seed: int) -> None:
    cmdp = random_cmdp(seed)
    values = [cmdp.returns(pi) for pi in deterministic_policies(3, 2)]
    best = -np.inf
    for R1, C1 in values:
        for R2, C2 in values:
            # the largest share of the second policy that the limit allows; an end of [0, 1] if it is slack
            a, b, t = C1[0], C2[0], cmdp.limits[0]
            for share in (0.0, 1.0, (t - a) / (b - a) if abs(b - a) > 1e-12 else 0.0):
                if 0 <= share <= 1 and (1 - share) * a + share * b <= t + 1e-12:
                    best = max(best, (1 - share) * R1 + share * R2)
    assert pytest.approx(best, abs=1e-8) == cmdp.solve().J_R


@given(seeds, st.integers(1, 2))
@few
def test_multipliers_are_the_derivative_of_the_optimum_in_the_limits(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, states=4, actions=3, costs=costs)
    solution, h = cmdp.solve(), 1e-5
    for i in range(costs):
        step = h * np.eye(costs)[i]
        up = (cmdp.with_limits(cmdp.limits + step).solve().J_R - solution.J_R) / h
        down = (solution.J_R - cmdp.with_limits(cmdp.limits - step).solve().J_R) / h
        # J_R* is concave in the limits: a multiplier lies between the two one-sided slopes
        assert up - 1e-4 <= solution.multipliers[i] <= down + 1e-4
        slack = cmdp.limits[i] - solution.J_C[i]
        assert solution.multipliers[i] * slack == pytest.approx(0.0, abs=1e-6)


@given(seeds, st.integers(1, 3))
@few
def test_strong_duality_holds_at_the_optimal_multipliers(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, states=4, actions=3, costs=costs)
    solution = cmdp.solve()
    dual = cmdp.best_response(solution.multipliers)[1] + float(solution.multipliers @ cmdp.limits)
    assert dual == pytest.approx(solution.J_R, abs=1e-6)


@given(seeds, st.integers(1, 3))
@few
def test_phi_by_definition(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, costs=costs)
    phi = cmdp.slater_margin()
    assert phi > 0
    # some policy has that margin on every cost, and no policy has more (minimax over mixtures of costs)
    J_C = cmdp.closest()[1]
    assert np.max(J_C - cmdp.limits) == pytest.approx(-phi * cmdp.horizon, abs=1e-8)
    mu = np.random.default_rng(seed).dirichlet(np.ones(costs), size=50)
    for weights in mu:
        least = -cmdp_of(cmdp, reward=-np.tensordot(weights, cmdp.costs, 1)).best_response(np.zeros(costs))[1]
        assert least - float(weights @ cmdp.limits) <= -phi * cmdp.horizon + 1e-8
    assert cmdp.solve().multipliers.sum() <= 1 / phi + 1e-6


def cmdp_of(cmdp: tab.CMDP, *, reward: np.ndarray) -> tab.CMDP:
    return tab.CMDP(cmdp.transition, reward, cmdp.costs, cmdp.limits, cmdp.discount, cmdp.start)


@given(seeds, st.integers(1, 3))
@few
def test_infeasible_says_by_how_much(seed: int, costs: int) -> None:
    cmdp = random_cmdp(seed, costs=costs)
    short = cmdp.with_limits(np.maximum(cmdp.limits - cmdp.slater_margin() * cmdp.horizon - 0.05, 0.0))
    if short.slater_margin() >= 0:
        return
    with pytest.raises(tab.Infeasible) as caught:
        short.solve()
    error = caught.value
    assert error.excess == pytest.approx(np.max(error.costs - short.limits))
    assert f"{error.excess:.6g}" in str(error)
    assert "\n" not in str(error)
    raised = short.with_limits(short.limits + error.excess + 1e-7).solve()
    assert np.all(short.limits + error.excess + 1e-6 >= raised.J_C)
    with pytest.raises(tab.Infeasible):
        short.with_limits(np.maximum(short.limits + error.excess - 1e-3, 0.0)).solve()


def test_a_cmdp_does_not_change_with_the_arrays_it_was_made_from() -> None:
    P, R, C = np.full((2, 2, 2), 0.5), np.ones((2, 2)), np.ones((1, 2, 2))
    cmdp = tab.CMDP(P, R, C, [5.0], 0.8)
    P[:], R[:], C[:] = 7.0, 7.0, 7.0
    assert cmdp.returns(tab.uniform_policy(2, 2)) == (pytest.approx(5.0), pytest.approx([5.0]))
    with pytest.raises(ValueError, match="read-only"):
        cmdp.reward[0, 0] = 2.0


def test_a_two_state_problem_by_hand() -> None:
    # action 1 earns 1 and costs 1 and stays; action 0 earns and costs nothing: J_R* equals the limit
    P = np.zeros((1, 2, 1)) + 1.0
    cmdp = tab.CMDP(P, [[0.0, 1.0]], [[[0.0, 1.0]]], [2.0], 0.9)
    solution = cmdp.solve()
    assert pytest.approx(2.0) == solution.J_R
    assert solution.policy[0] == pytest.approx([0.8, 0.2])
    assert solution.multipliers == pytest.approx([1.0])
    assert cmdp.slater_margin() == pytest.approx(0.2)
