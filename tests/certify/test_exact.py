"""Bounds on finite problems: right where the answer is known, honest where nothing is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from slater import InputError
from slater import tabular as tab
from slater.certify.exact import certify_counts, cost_interval


def _coin(hits: int, draws: int, discount: float = 0.5) -> tab.Counts:
    """State 0 leads to the costly state 1 (1 a step, for ever) `hits` times of `draws`, else to state 2."""
    transitions = np.zeros((3, 1, 3))
    transitions[0, 0, 1], transitions[0, 0, 2] = hits, draws - hits
    # states 1 and 2 stay where they are, and that is certain
    transitions[1, 0, 1] = transitions[2, 0, 2] = 1e9
    cost = np.array([[0.0], [1.0], [0.0]])
    start = np.array([1.0, 0.0, 0.0])
    zero = np.zeros((3, 1))
    return tab.Counts(transitions, zero, zero, cost[None], np.array([0.5]), discount, start, draws)


@pytest.mark.parametrize(("hits", "draws"), [(0, 50), (3, 50), (40, 50)])
def test_one_pair_with_two_outcomes_is_the_bound_of_chernoff(hits: int, draws: int) -> None:
    error = 0.05
    interval = cost_interval(_coin(hits, draws), np.ones((3, 1)), error=error)
    share = hits / draws

    def over_budget(p: float) -> float:
        parts = [(share, p), (1 - share, 1 - p)]
        return draws * sum(q * math.log(q / r) for q, r in parts if q > 0) - math.log(1 / error)

    # J = discount * p * 1 / (1 - discount) = p
    upper = brentq(over_budget, max(share, 1e-12), 1 - 1e-12)
    lower = brentq(over_budget, 1e-12, share) if hits else 0.0
    assert interval.upper == pytest.approx(upper, abs=2e-3)
    assert interval.lower == pytest.approx(lower, abs=2e-3)
    assert interval.estimate == pytest.approx(share, abs=1e-6)


def test_the_bound_is_the_optimum_that_a_general_solver_finds() -> None:
    rng = np.random.default_rng(0)
    transitions = rng.integers(1, 9, (3, 2, 3)).astype(float)
    cost = rng.random((3, 2))
    start = np.array([1.0, 0.0, 0.0])
    zero = np.zeros((3, 2))
    data = tab.Counts(transitions, zero, zero, cost[None], np.array([0.5]), 0.7, start, 60)
    policy = rng.dirichlet(np.ones(2), 3)
    counts = transitions.reshape(6, 3)
    frequencies = counts / counts.sum(axis=1, keepdims=True)

    def value(logits: np.ndarray) -> float:
        P = np.exp(logits.reshape(6, 3))
        P /= P.sum(axis=1, keepdims=True)
        follow = np.einsum("sa,sat->st", policy, P.reshape(3, 2, 3))
        return float(start @ np.linalg.solve(np.eye(3) - 0.7 * follow, (policy * cost).sum(axis=1)))

    def spent(logits: np.ndarray) -> float:
        P = np.exp(logits.reshape(6, 3))
        P /= P.sum(axis=1, keepdims=True)
        return float((counts * np.log(frequencies / P)).sum())

    budget = {"type": "ineq", "fun": lambda x: math.log(20) - spent(x)}
    interval = cost_interval(data, policy, error=0.05)
    for sign, bound in ((1, interval.upper), (-1, interval.lower)):
        best = minimize(
            lambda x, sign=sign: -sign * value(x), np.log(frequencies).ravel(), constraints=[budget],
            method="SLSQP", options={"maxiter": 500},
        )  # fmt: skip
        assert bound == pytest.approx(-sign * best.fun, abs=5e-3)


def test_what_was_never_seen_may_cost_anything() -> None:
    data = _coin(0, 10_000)
    transitions = np.concatenate([data.transitions, np.zeros((3, 1, 3))], axis=1)
    zero = np.zeros((3, 2))
    data = tab.Counts(transitions, zero, zero, np.zeros((1, 3, 2)), np.array([0.5]), 0.5, data.start, 10_000)
    careful, careless = np.array([[1.0, 0.0]] * 3), np.array([[0.0, 1.0]] * 3)
    assert cost_interval(data, careful, error=0.05).upper < 0.01
    unknown = cost_interval(data, careless, error=0.05)
    assert (unknown.lower, unknown.upper) == pytest.approx((0.0, 2.0))
    assert certify_counts(data, careless).verdict == "abstain"


def test_a_policy_of_half_the_limit_passes_at_5000_transitions_and_one_of_twice_the_limit_fails() -> None:
    rng = np.random.default_rng(5)
    cmdp = tab.paper_cmdp(rng)
    best = cmdp.solve()
    data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp, best), 5000, rng)
    cost = cmdp.returns(best.policy)[1]
    assert certify_counts(data, best.policy, limits=2 * cost, largest_cost=1.0).verdict == "pass"
    assert certify_counts(data, best.policy, limits=2 * cost).verdict == "abstain"
    assert certify_counts(data, best.policy, limits=cost / 2).verdict == "fail"
    near = certify_counts(data, best.policy, limits=cost)
    assert near.verdict == "abstain"
    # more candidates and more confidence ask for wider bounds
    assert certify_counts(data, best.policy, candidates=50).limits[0].upper > near.limits[0].upper


def test_bounds_are_wrong_seldom_enough_on_small_data() -> None:
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng([3, seed])
        P = rng.dirichlet(np.ones(4), size=(4, 2))
        cost = rng.beta(0.3, 0.3, (1, 4, 2))
        cmdp = tab.CMDP(P, rng.random((4, 2)), cost, np.array([0.5]), 0.7)
        data = tab.Counts.rollout(cmdp, tab.uniform_policy(4, 2), 8, 10, rng)
        policy = rng.dirichlet(np.ones(2), 4)
        wrong += cost_interval(data, policy, error=0.1).upper < cmdp.returns(policy)[1][0]
    assert wrong <= 8  # 10% of 40 is 4; more than 8 has probability .015 at the nominal rate


def _walk(rng: np.random.Generator, episodes: int, *, noisy: bool) -> tuple[tab.Counts, tab.CMDP]:
    """A log of a random problem in which the cost of a pair is its mean, or 0 or 1 with that mean."""
    P = rng.dirichlet(np.ones(3), size=(3, 2))
    mean = rng.beta(0.5, 2.0, (3, 2))
    cmdp = tab.CMDP(P, rng.random((3, 2)), mean[None], np.array([0.5]), 0.7)
    n = episodes * 10
    s, a, t = np.zeros(n, int), rng.integers(0, 2, n), np.zeros(n, int)
    state = 0
    for k in range(n):
        s[k] = 0 if k % 10 == 0 else state
        state = t[k] = rng.choice(3, p=P[s[k], a[k]])
    cost = (rng.random(n) < mean[s, a]).astype(float) if noisy else mean[s, a]
    return tab.Counts.from_arrays(
        states=s, actions=a, next_states=t, rewards=np.zeros(n), costs=cost, limits=[0.5], discount=0.7,
        num_states=3, num_actions=2,
    ), cmdp  # fmt: skip


def test_costs_that_vary_are_bounded_and_those_that_do_not_are_known() -> None:
    """Taken as exact, means of few random costs were below the truth in a third of the logs."""
    wrong, narrower = 0, 0
    for seed in range(24):
        rng = np.random.default_rng([4, seed])
        data, cmdp = _walk(rng, 6, noisy=True)
        policy = rng.dirichlet(np.ones(2), 3)
        truth = cmdp.returns(policy)[1][0]
        assert data.costs_vary
        upper = cost_interval(data, policy, error=0.1, largest_cost=1.0).upper
        wrong += upper < truth
        exact = tab.Counts(
            data.transition_counts, data.ends, data.reward, cmdp.costs, data.limits, 0.7, data.start, 60
        )
        narrower += cost_interval(exact, policy, error=0.1, largest_cost=1.0).upper < upper
    assert wrong <= 6
    assert narrower > 12
    assert not _walk(np.random.default_rng(0), 6, noisy=False)[0].costs_vary


def test_starts_without_data_cost_the_most() -> None:
    zero = np.zeros((2, 1))
    transitions = np.zeros((2, 1, 2))
    transitions[0, 0, 0] = 1e6
    data = tab.Counts(
        transitions, zero, zero, np.zeros((1, 2, 1)), np.array([0.5]), 0.9, np.array([0.9, 0.1]), 10**6
    )
    interval = cost_interval(data, np.ones((2, 1)), error=0.05, largest_cost=2.0)
    assert interval.upper == pytest.approx(0.1 * 2.0 / 0.1, rel=0.01)
    assert interval.lower == 0.0


def test_bad_shapes_get_one_sentence() -> None:
    data = _coin(1, 10)
    with pytest.raises(InputError, match="3 states and 1 actions"):
        cost_interval(data, np.ones((2, 1)), error=0.05)
    with pytest.raises(InputError, match="2 limits for 1 costs"):
        certify_counts(data, np.ones((3, 1)), limits=[1.0, 2.0])
    with pytest.raises(InputError, match="stated largest cost"):
        cost_interval(data, np.ones((3, 1)), error=0.05, largest_cost=0.5)
