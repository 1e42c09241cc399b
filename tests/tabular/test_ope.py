"""Off-policy evaluation: point estimates, intervals, and the standard error."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given

from slater import tabular as tab
from slater.tabular.ope import MinimaxEstimator, ModelEstimator

from .problems import (
    deterministic_cmdp,
    few,
    fewer,
    population,
    random_cmdp,
    random_policy,
    sampled,
    seeds,
    without_pair,
)

S, A = 3, 2


@given(seeds)
@few
def test_the_behaviour_policy_is_worth_what_the_data_show(seed: int) -> None:
    # on the population E_mu[U] = (1 - gamma) J_U(mu); the estimate of mu's value is that mean
    cmdp = random_cmdp(seed)
    mu = random_policy(np.random.default_rng(seed), S, A)
    data = population(cmdp, mu)
    assert np.allclose(data.behaviour, mu)
    mean = data.horizon * float(np.sum(data.distribution * data.costs[0]))
    assert tab.evaluate(data, mu[None], data.costs, "high")[0, 0] == pytest.approx(mean)
    assert ModelEstimator(data).costs(mu)[0] == pytest.approx(mean)


@given(seeds)
@few
def test_complete_episodes_of_the_behaviour_policy_average_to_its_value(seed: int) -> None:
    # episodes that truly end: the empirical model of the empirical policy reproduces the mean return
    rng = np.random.default_rng(seed)
    rows, returns = [], []
    for _ in range(30):
        s, G, t = 0, 0.0, 0
        while True:
            a, follow, r = int(rng.integers(2)), int(rng.integers(3)), 0.0
            end = bool(rng.random() < 0.3)
            r = float(s + a) / 3
            G += r
            rows.append((s, a, follow, r, end))
            if end:
                break
            s, t = follow, t + 1
        returns.append(G)
    s, a, follow, r, end = map(np.array, zip(*rows, strict=True))
    # a discount near one, since only the undiscounted mean is reproduced exactly
    data = tab.Counts.from_arrays(
        states=s,
        actions=a,
        next_states=follow,
        rewards=r,
        costs=r,
        limits=[1.0],
        discount=1 - 1e-7,
        terminals=end,
        num_states=3,
        num_actions=2,
    )
    assert tab.evaluate(data, data.behaviour[None], data.costs, "low")[0, 0] == pytest.approx(
        np.mean(returns), rel=1e-4
    )


@given(seeds)
@few
def test_evaluation_on_the_population_is_exact(seed: int) -> None:
    cmdp, rng = random_cmdp(seed, costs=2), np.random.default_rng(seed)
    data = population(cmdp, random_policy(rng, S, A))
    policies = np.array([random_policy(rng, S, A) for _ in range(3)])
    J = tab.evaluate(data, policies, data.costs, "high")
    assert J.shape == (3, 2)
    assert np.allclose(J, [cmdp.returns(pi)[1] for pi in policies])


@given(seeds)
@few
def test_the_interval_contains_the_truth_on_the_population_with_a_pair_missing(seed: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    data = without_pair(population(cmdp, random_policy(rng, S, A)), 1, 0)
    pi = random_policy(rng, S, A)
    for U, truth in ((cmdp.reward, cmdp.returns(pi)[0]), (cmdp.costs[0], cmdp.returns(pi)[1][0])):
        low, high = tab.identification_interval(data, pi, U)
        assert low < high
        assert low - 1e-9 <= truth <= high + 1e-9
        # a policy that avoids the missing pair is identified
        pi_safe = pi.copy()
        pi_safe[1] = [0.0, 1.0]
        low, high = tab.identification_interval(data, pi_safe, U)
        assert low == pytest.approx(high)
        assert low == pytest.approx(float(cmdp.start @ cmdp.state_values(pi_safe, U)))


def consistent_range(data: tab.Counts, pi: np.ndarray, U: np.ndarray) -> tuple[float, float]:
    """The ends of `f(s0, pi)` over f in the box with no Bellman residual on the data's pairs."""
    f = cp.Variable((S, A))
    V = cp.sum(cp.multiply(pi, f), axis=1)
    low, high = data.value_box(U)
    constraints = [f >= low, f <= high]
    constraints += [
        f[s, a] == U[s, a] + data.discount * (data.kernel[s, a] @ V) for s, a in np.argwhere(data.seen)
    ]
    value = data.start @ V
    ends = []
    for goal in (cp.Minimize(value), cp.Maximize(value)):
        problem = cp.Problem(goal, constraints)
        problem.solve(solver=cp.CLARABEL)
        ends.append(float(problem.value))
    return ends[0], ends[1]


@given(seeds)
@few
def test_the_interval_is_the_range_of_values_without_residual(seed: int) -> None:
    data = without_pair(sampled(random_cmdp(seed), 80, seed), 1, 0)
    pi = random_policy(np.random.default_rng(seed), S, A)
    assert tab.identification_interval(data, pi, data.costs[0]) == pytest.approx(
        consistent_range(data, pi, data.costs[0]), abs=1e-5
    )


def test_the_standard_error_is_the_deviation_over_fresh_datasets() -> None:
    cmdp, rng = random_cmdp(11, states=4, actions=2), np.random.default_rng(11)
    mu = random_policy(rng, 4, 2)
    mixture = tab.Mixture(np.array([random_policy(rng, 4, 2) for _ in range(3)]), np.array([0.2, 0.3, 0.5]))
    estimates, errors = [], []
    for _ in range(400):
        data = tab.Counts.sample(cmdp, mu, 3000, rng)
        J = tab.evaluate(data, mixture.members, data.costs, "high")[:, 0]
        estimates.append(mixture.weights @ J)
        errors.append(tab.standard_error(data, mixture, data.costs[0]))
    # the deviation of 400 draws is itself known to about 4 percent
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.15)
    assert np.mean(estimates) == pytest.approx(
        mixture.returns(cmdp)[1][0], abs=5 * np.mean(errors) / 20 + 1e-3
    )


def test_the_standard_error_shrinks_with_the_root_of_n_and_vanishes_without_chance() -> None:
    cmdp = random_cmdp(12)
    single = tab.Mixture.single(tab.uniform_policy(S, A))
    small = tab.standard_error(sampled(cmdp, 2_000, 1), single, cmdp.costs[0])
    large = tab.standard_error(sampled(cmdp, 200_000, 1), single, cmdp.costs[0])
    assert small / large == pytest.approx(10.0, rel=0.2)
    certain = sampled(deterministic_cmdp(12), 2_000, 1)
    assert tab.standard_error(certain, single, certain.costs[0]) == pytest.approx(0.0, abs=1e-7)


@given(seeds)
@fewer
def test_the_papers_loss_finds_the_model_estimate_in_its_exact_form_only(seed: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    data = population(cmdp, random_policy(rng, S, A))
    pi = random_policy(rng, S, A)
    truth = cmdp.returns(pi)[1]
    assert MinimaxEstimator(data, tab.Box(5.0)).costs(pi) == pytest.approx(truth, abs=1e-5)
    # without chance the printed form agrees, on what the policy can reach
    certain = population(deterministic_cmdp(seed), tab.uniform_policy(S, A))
    assume(certain.seen.all())
    exact = ModelEstimator(certain).costs(pi)
    assert MinimaxEstimator(certain, tab.PerSampleBox(5.0)).costs(pi) == pytest.approx(exact, abs=1e-5)


def test_the_per_sample_loss_is_biased_for_random_transitions() -> None:
    # the fact that makes it no default: infinite data do not help
    rng = np.random.default_rng(0)
    biases = []
    for seed in range(5):
        cmdp = random_cmdp(seed, states=4)
        data = population(cmdp, tab.uniform_policy(4, 2))
        pi = np.eye(2)[rng.integers(2, size=4)]
        biases.append(
            abs(MinimaxEstimator(data, tab.PerSampleBox(5.0)).costs(pi)[0] - cmdp.returns(pi)[1][0])
        )
    assert max(biases) > 0.01


@given(seeds)
@few
def test_the_pessimistic_model_and_the_pessimistic_evaluation_agree(seed: int) -> None:
    # costs of different sizes: an unseen pair is as bad as the worst of its own cost, not of another
    cmdp = random_cmdp(seed, costs=2)
    costs = cmdp.costs * np.array([1.0, 8.0])[:, None, None]
    cmdp = tab.CMDP(cmdp.transition, cmdp.reward - 0.5, costs, cmdp.limits, cmdp.discount, cmdp.start)
    data = without_pair(sampled(cmdp, 200, seed), 1, 0)
    pi = random_policy(np.random.default_rng(seed), S, A)
    J_R, J_C = data.model("pessimistic").returns(np.vstack([pi, np.full((2, A), 1 / A)]))
    assert tab.evaluate(data, pi[None], data.reward[None], "low")[0, 0] == pytest.approx(J_R)
    assert tab.evaluate(data, pi[None], data.costs, "high")[0] == pytest.approx(J_C)
