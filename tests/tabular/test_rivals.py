"""The rivals: each against the program that it solves, and at large n against the truth."""

import dataclasses
import itertools

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular.mbcl import FittedQ
from slater.tabular.occupancy import project_occupancy, solve_occupancy_qp

from .problems import (
    binding_cmdp,
    deterministic_policies,
    few,
    fewer,
    population,
    random_cmdp,
    random_policy,
    sampled,
    seeds,
    without_pair,
)

S, A = 4, 3

QUICK: dict[str, tab.Algorithm] = {
    "pdca": tab.PDCA(rounds=20),
    "pdca-exact": tab.PDCA(rounds=20, mode="exactly-feasible"),
    "mbcl": tab.MBCL(rounds=20),
    "mbcl-linear": tab.MBCL(rounds=5, values=tab.aggregation([0, 1, 1, 2], A)),
    "coptidice": tab.COptiDICE(),
    "pdocrl": tab.PDOCRL(rounds=20),
    "wsac": tab.WSAC(rounds=20),
    "plugin": tab.PlugIn(),
    "acrab": tab.ACrab(rounds=20),
    "mabo": tab.MABO(),
    "prorl": tab.PRORL(),
}


def generous(seed: int) -> tab.CMDP:
    cmdp = binding_cmdp(seed)
    return cmdp.with_limits(cmdp.limits + 0.1)


# -- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_the_same_data_give_the_same_result_and_stay_untouched(name: str) -> None:
    data = without_pair(sampled(generous(1), 800, 1), 2, 1)
    # the sparse counts as the array that they stand for
    fields = ["transitions", *(f.name for f in dataclasses.fields(data) if f.name != "transition_counts")]
    before = {f: np.array(getattr(data, f)) for f in fields}
    first, second = QUICK[name].run(data), QUICK[name].run(data)
    for f in fields:
        assert np.array_equal(before[f], getattr(data, f)), f
    assert np.array_equal(first.policy.members, second.policy.members)
    assert np.array_equal(first.policy.weights, second.policy.weights)
    assert np.array_equal(first.multipliers, second.multipliers)
    assert first.notes == second.notes


@pytest.mark.parametrize("name", QUICK)
def test_the_utilities_of_unseen_pairs_are_not_known(name: str) -> None:
    data = without_pair(sampled(generous(1), 800, 1), 2, 1)
    reward, costs = data.reward.copy(), data.costs.copy()
    reward[2, 1], costs[:, 2, 1] = 1.0 - reward[2, 1], 1.0 - costs[:, 2, 1]
    other = dataclasses.replace(data, reward=reward, costs=costs)
    first, second = QUICK[name].run(data), QUICK[name].run(other)
    assert np.array_equal(first.policy.members, second.policy.members)
    assert np.array_equal(first.multipliers, second.multipliers)
    certificates = [
        tab.estimate_certificate(d, first.policy, first.multipliers, first.multiplier_bound)
        for d in (data, other)
    ]
    assert certificates[0].gap == certificates[1].gap
    assert np.array_equal(data.model().reward, other.model().reward)
    assert np.array_equal(data.model().costs, other.model().costs)


@pytest.mark.parametrize("name", tab.ALGORITHMS)
@pytest.mark.parametrize("costs", [0, 1, 2])
def test_every_algorithm_gives_a_policy_for_any_number_of_costs(name: str, costs: int) -> None:
    cmdp = random_cmdp(6, states=S, actions=A, costs=costs)
    cmdp = cmdp.with_limits(cmdp.limits + 0.3)
    data = without_pair(sampled(cmdp, 600, 2), 1, 1)
    played = name in ("pdca", "acrab", "mbcl", "pdocrl", "wsac")
    settings = {"rounds": 10} if played else {}
    result = tab.ALGORITHMS[name](**settings).run(data)
    assert result.algorithm == name
    assert result.policy.members.shape[1:] == (S, A)
    assert np.allclose(result.policy.members.sum(axis=2), 1.0)
    assert np.all(result.policy.members >= 0)
    assert result.multipliers.shape == (costs,)
    assert tab.certify(cmdp, result.policy, result.multipliers, result.multiplier_bound).gap >= -1e-8


# -- MBCL and the plug-in program -----------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algorithm", [tab.PlugIn(), tab.MBCL()], ids=["plugin", "mbcl"])
def test_at_large_n_they_approach_the_optimum(algorithm: tab.Algorithm, seed: int) -> None:
    cmdp = binding_cmdp(seed)
    best = cmdp.solve()
    data = sampled(cmdp, 1_000_000, seed)
    J_R, J_C = algorithm.run(data).policy.returns(cmdp)
    assert pytest.approx(best.J_R, rel=0.01) == J_R
    assert J_C[0] <= cmdp.limits[0] * 1.01


@given(seeds)
@fewer
def test_the_plug_in_solves_the_empirical_problem(seed: int) -> None:
    cmdp = random_cmdp(seed, costs=2)
    cmdp = cmdp.with_limits(cmdp.limits + 0.3)
    data = sampled(cmdp, 500, seed)
    result, solution = tab.PlugIn().run(data), data.model("pessimistic").solve()
    assert np.array_equal(result.policy.members[0], solution.policy[:3])
    assert np.array_equal(result.multipliers, solution.multipliers)
    J_R = tab.evaluate(data, result.policy.members, data.reward[None], "low")[0, 0]
    assert pytest.approx(solution.J_R, abs=1e-7) == J_R


def test_the_plug_in_comes_as_close_as_it_can_and_says_so() -> None:
    cmdp = binding_cmdp(4)
    low = cmdp.with_limits(np.maximum(cmdp.limits - cmdp.slater_margin() * 5 - 0.2, 0.0))
    data = sampled(low, 5000, 4)
    result = tab.PlugIn().run(data)
    J_C = tab.evaluate(data, result.policy.members, data.costs, "high")[0]
    assert J_C[0] - data.limits[0] == pytest.approx(data.model("pessimistic").closest()[0], abs=1e-5)
    assert "exceeds a limit" in result.notes[0]


@given(seeds)
@few
def test_fitted_q_finds_the_fixed_points_of_the_empirical_model(seed: int) -> None:
    data = without_pair(sampled(random_cmdp(seed), 200, seed), 1, 0)
    low, high = data.value_box(data.reward)
    fitted = FittedQ(data, tab.Tabular())
    Q = fitted.iterate(data.reward, low, (low, high))
    target = np.where(data.seen, data.reward + data.discount * data.kernel @ Q.max(axis=1), low)
    assert np.allclose(Q, target, atol=1e-8)
    pi = random_policy(np.random.default_rng(seed), 3, 2)
    Q = fitted.evaluate(pi, data.costs[0], high, (0.0, high))
    target = np.where(data.seen, data.costs[0] + data.discount * data.kernel @ (pi * Q).sum(axis=1), high)
    assert np.allclose(Q, target, atol=1e-8)


@given(seeds)
@fewer
def test_fitted_q_with_one_feature_per_pair_is_tabular(seed: int) -> None:
    data = sampled(random_cmdp(seed), 2000, seed)
    box = data.value_box(data.reward)
    linear = FittedQ(data, tab.Linear(np.eye(6).reshape(3, 2, 6)))
    tabular = FittedQ(data, tab.Tabular())
    if data.seen.all():
        assert np.allclose(
            linear.iterate(data.reward, 0.0, box), tabular.iterate(data.reward, 0.0, box), atol=1e-3
        )


def test_mbcl_stops_by_its_gap_and_its_gap_is_that_of_the_certificate() -> None:
    data = sampled(binding_cmdp(5), 5000, 5)
    result = tab.MBCL(tolerance=0.05, rounds=2000).run(data)
    gaps = result.trace["estimated_gap"]
    assert gaps[-1] <= 0.05
    assert np.all(gaps[:-1] > 0.05)
    assert np.all(gaps >= -1e-8)
    certificate = tab.estimate_certificate(data, result.policy, result.multipliers, result.multiplier_bound)
    assert certificate.gap == pytest.approx(gaps[-1], abs=1e-6)
    assert result.policy.members.shape[0] == result.rounds
    # it starts at B / (I + 1), as its authors do
    assert result.trace["multipliers"][0] == pytest.approx([result.multiplier_bound / 2])


def test_the_released_mbcl_is_stricter_by_its_mistake_in_units() -> None:
    # on the problems of the released code, where every limit can be met
    shares = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        cmdp = tab.sparse_cmdp(rng)
        data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp), 5000, rng)
        released = tab.MBCL.preset("released", rounds=100).run(data)
        assert released.multiplier_bound == 1.0
        assert released.notes == ("released settings",)
        shares.append([r.policy.returns(cmdp)[1][0] / 0.5 for r in (released, tab.MBCL().run(data))])
    released, ours = np.mean(shares, axis=0)
    assert released < 0.8 * ours
    assert ours == pytest.approx(1.0, abs=0.1)


# -- COptiDICE ------------------------------------------------------------------------------------


def reference_of(data: tab.Counts, model: tab.CMDP) -> np.ndarray:
    behaviour = np.vstack([data.behaviour, np.full((2, data.num_actions), 1 / data.num_actions)])
    d = model.occupancy(behaviour).ravel() + 1e-6
    return d / d.sum()


@given(seeds)
@few
def test_the_quadratic_program_is_feasible_and_optimal(seed: int) -> None:
    cmdp = random_cmdp(seed, costs=2)
    rng = np.random.default_rng(seed)
    dD = cmdp.occupancy(random_policy(rng, 3, 2)).ravel()
    alpha = 0.1
    w, multipliers = solve_occupancy_qp(cmdp, dD, cmdp.reward.ravel(), alpha, cmdp.limits)
    assert np.all(w >= 0)
    assert dD @ w == pytest.approx(1.0, abs=1e-6)
    flow, inflow = cmdp.flow
    assert flow @ (w * dD) == pytest.approx(inflow, abs=1e-6)
    C = cmdp.costs.reshape(2, -1)
    assert np.all(cmdp.horizon * C @ (w * dD) <= cmdp.limits + 1e-5)
    x = cp.Variable(6, nonneg=True)
    goal = (dD * cmdp.reward.ravel()) @ x - alpha * cp.sum(cp.multiply(dD, cp.square(x - 1))) / 2
    limit = cmdp.horizon * ((C * dD) @ x) <= cmdp.limits
    problem = cp.Problem(cp.Maximize(goal), [flow.toarray() @ cp.multiply(dD, x) == inflow, limit])
    problem.solve(solver=cp.CLARABEL)
    ours = dD * cmdp.reward.ravel() @ w - alpha * dD @ (w - 1) ** 2 / 2
    assert ours == pytest.approx(problem.value, abs=1e-5)
    # in J-units, lambda is the same number for normalised values and limits
    assert multipliers == pytest.approx(np.asarray(limit.dual_value) * cmdp.horizon, abs=1e-2)


@given(seeds)
@few
def test_a_strong_regulariser_returns_the_behaviour_policy(seed: int) -> None:
    cmdp = random_cmdp(seed)
    mu = random_policy(np.random.default_rng(seed), 3, 2)
    free = cmdp.with_limits([10.0])
    assert np.allclose(project_occupancy(free, mu), mu, atol=1e-3)
    data = population(free, mu)
    policy = tab.COptiDICE(alpha=1e4).run(data).policy.members[0]
    assert np.allclose(policy, mu, atol=1e-2)


@given(seeds)
@few
def test_projection_puts_a_policy_under_the_limits(seed: int) -> None:
    cmdp = random_cmdp(seed, states=S, actions=A, costs=2)
    pi = cmdp.best_response(np.zeros(2))[0] * 0.9 + 0.1 / A
    assert np.all(cmdp.returns(project_occupancy(cmdp, pi))[1] <= cmdp.limits + 1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_vanishing_regulariser_approaches_the_plug_in(seed: int) -> None:
    data = sampled(binding_cmdp(seed), 5000, seed)
    best = data.model("pessimistic").solve()
    losses = []
    for alpha in (1.0, 0.1, 1e-5):
        result = tab.COptiDICE(alpha=alpha).run(data)
        J_R = tab.evaluate(data, result.policy.members, data.reward[None], "low")[0, 0]
        J_C = tab.evaluate(data, result.policy.members, data.costs, "high")[0, 0]
        assert data.limits[0] + 1e-3 >= J_C
        losses.append(best.J_R - J_R)
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] == pytest.approx(0.0, abs=5e-3)
    assert result.multipliers == pytest.approx(best.multipliers, abs=0.02)


def test_coptidice_relaxes_limits_out_of_reach_and_says_so() -> None:
    cmdp = binding_cmdp(4)
    low = cmdp.with_limits(np.maximum(cmdp.limits - cmdp.slater_margin() * 5 - 0.2, 0.0))
    data = sampled(low, 5000, 4)
    result = tab.COptiDICE().run(data)
    assert any("relaxed" in note for note in result.notes)
    J_C = tab.evaluate(data, result.policy.members, data.costs, "high")[0, 0]
    assert J_C - data.limits[0] <= data.model("pessimistic").closest()[0] + 0.05


# -- the unconstrained three ----------------------------------------------------------------------


def without_costs(data: tab.Counts) -> tab.Counts:
    return dataclasses.replace(data, costs=data.costs[:0], limits=data.limits[:0])


def test_acrab_is_pdca_without_costs() -> None:
    data = sampled(binding_cmdp(1), 1000, 1)
    acrab = tab.ACrab(rounds=50).run(data)
    pdca = tab.PDCA(rounds=50).run(without_costs(data))
    assert np.array_equal(acrab.policy.members, pdca.policy.members)
    assert np.array_equal(acrab.policy.weights, pdca.policy.weights)
    assert acrab.multipliers == pytest.approx([0.0])


@given(seeds)
@few
def test_mabo_is_the_optimal_policy_of_the_empirical_model(seed: int) -> None:
    data = without_pair(sampled(random_cmdp(seed), 300, seed), 1, 0)
    policy = tab.MABO().run(data).policy.members
    J = tab.evaluate(data, policy, data.reward[None], "low")[0, 0]
    everything = np.array(list(deterministic_policies(3, 2)))
    assert pytest.approx(tab.evaluate(data, everything, data.reward[None], "low").max(), abs=1e-8) == J


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_large_n_they_approach_the_unconstrained_optimum(seed: int) -> None:
    cmdp = binding_cmdp(seed)
    best = cmdp.best_response(np.zeros(1))[1]
    data = sampled(cmdp, 500_000, seed)
    for algorithm, share in ((tab.PRORL(), 0.97), (tab.MABO(), 0.999), (tab.ACrab(), 0.97)):
        J_R = algorithm.run(data).policy.returns(cmdp)[0]
        assert share * best <= J_R <= best + 1e-8, algorithm


def test_prorl_without_regulariser_is_the_linear_program() -> None:
    cmdp = binding_cmdp(3)
    data = population(cmdp, tab.uniform_policy(S, A))
    J_R = tab.PRORL(alpha=1e-8).run(data).policy.returns(cmdp)[0]
    assert pytest.approx(cmdp.best_response(np.zeros(1))[1], abs=1e-4) == J_R


def test_prorl_against_cvxpy() -> None:
    data = sampled(binding_cmdp(5), 300, 5)
    alpha, Bw = 0.05, 20.0
    rho = data.distribution
    w, v = cp.Variable((S, A), nonneg=True), (data.reward_scale + alpha * Bw) * data.horizon
    mass = cp.multiply(rho, w)
    residual = [
        (1 - data.discount) * data.start[s]
        + data.discount * cp.sum(cp.multiply(data.kernel[:, :, s], mass))
        - cp.sum(mass[s])
        for s in range(S)
    ]
    goal = cp.sum(cp.multiply(data.reward, mass)) - alpha * cp.sum(cp.multiply(rho, cp.square(w))) / 2
    problem_ = cp.Problem(cp.Maximize(goal - v * cp.norm1(cp.hstack(residual))), [w <= Bw])
    problem_.solve(solver=cp.CLARABEL)
    expected = rho * w.value
    policy = tab.PRORL(alpha=alpha).run(data).policy.members[0]
    for s, a in itertools.product(range(S), range(A)):
        if expected[s].sum() > 1e-3:
            assert policy[s, a] == pytest.approx(expected[s, a] / expected[s].sum(), abs=5e-3)


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "named"),
    [
        (tab.COptiDICE(alpha=0.0), "alpha"),
        (tab.PRORL(alpha=-1.0), "alpha"),
        (tab.MBCL(rounds=0), "rounds"),
        (tab.MBCL(multiplier_bound=-1.0), "bound"),
        (tab.PlugIn(unseen="hopeful"), "hopeful"),  # type: ignore[arg-type]
        (tab.MBCL(unseen="hopeful"), "hopeful"),  # type: ignore[arg-type]
    ],
    ids=["alpha-0", "alpha-negative", "rounds", "bound-negative", "plugin-unseen", "mbcl-unseen"],
)
def test_settings_out_of_range_are_refused(algorithm: tab.Algorithm, named: str) -> None:
    data = sampled(binding_cmdp(1), 200, 1)
    with pytest.raises(InputError, match=named) as caught:
        algorithm.run(data)
    assert "\n" not in str(caught.value)
