"""PDCA as a whole: every choice of its parts runs and behaves as its mathematics says."""

import warnings

import numpy as np
import pytest
from hypothesis import given

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular.result import data_driven_bound

from .problems import binding_cmdp, fewer, population, random_cmdp, sampled, seeds, without_pair


def test_on_the_population_the_mixture_is_a_saddle_point() -> None:
    cmdp = binding_cmdp(1)
    data = population(cmdp, tab.uniform_policy(4, 3))
    best = cmdp.solve()
    result = tab.PDCA(rounds=400, weights=tab.Box(20.0)).run(data)
    J_R, J_C = result.policy.returns(cmdp)
    assert J_R >= 0.97 * best.J_R
    assert J_C[0] <= cmdp.limits[0] * 1.03
    certificate = tab.certify(cmdp, result.policy, result.multipliers, result.multiplier_bound)
    assert -1e-8 <= certificate.gap <= 0.15 * best.J_R


def test_more_rounds_shrink_the_gap() -> None:
    cmdp = binding_cmdp(2)
    data = population(cmdp, tab.uniform_policy(4, 3))
    gaps = []
    for K in (10, 400):
        result = tab.PDCA(rounds=K, weights=tab.Box(20.0), mixture="uniform").run(data)
        gaps.append(tab.certify(cmdp, result.policy, result.multipliers, result.multiplier_bound).gap)
    assert gaps[1] < 0.5 * gaps[0]


SETTINGS = {
    "per-sample": tab.PDCA(rounds=25, weights=tab.PerSampleBox()),
    "l2": tab.PDCA(rounds=10, weights=tab.L2Ball()),
    "aggregation": tab.PDCA(rounds=25, values=tab.aggregation([0, 1, 1, 2], 3)),
    "exponentiated": tab.PDCA(rounds=25, dual="exponentiated_gradient"),
    "minimax": tab.PDCA(rounds=25, estimator="minimax"),
    "uniform": tab.PDCA(rounds=25, mixture="uniform"),
    "lp": tab.PDCA(rounds=25, mixture="lp"),
    "paper": tab.PDCA.preset("paper", rounds=25, multiplier_bound=20.0),
    "nearly-feasible": tab.PDCA(rounds=25, mode="nearly-feasible"),
    "any-comparator": tab.PDCA(rounds=25, mode="any-comparator"),
    "exactly-feasible": tab.PDCA(rounds=25, mode="exactly-feasible"),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("costs", [1, 2])
def test_every_setting_gives_a_mixture_with_multipliers_in_their_set(name: str, costs: int) -> None:
    cmdp = binding_cmdp(3, costs=costs)
    cmdp = cmdp.with_limits(cmdp.limits + 0.2)
    data = sampled(cmdp, 3000, 3)
    before = data.transitions.copy()
    result = SETTINGS[name].run(data)
    K = SETTINGS[name].rounds
    assert result.rounds == K
    assert result.policy.members.shape == (K, 4, 3)
    assert np.allclose(result.policy.members.sum(axis=2), 1.0)
    assert np.all(result.policy.members >= 0)
    assert result.policy.weights.sum() == pytest.approx(1.0)
    assert result.multipliers.shape == (costs,)
    assert np.all(result.multipliers >= 0)
    trace = result.trace["multipliers"]
    assert trace.shape == (K, costs)
    assert np.all(trace.sum(axis=1) <= result.multiplier_bound * (1 + 1e-12))
    assert result.trace["estimated_costs"].shape == (K, costs)
    assert np.array_equal(data.transitions, before)
    assert (
        tab.estimate_certificate(data, result.policy, result.multipliers, result.multiplier_bound).gap
        >= -1e-8
    )


@given(seeds)
@fewer
def test_the_trace_is_the_greedy_answer_to_the_estimated_costs(seed: int) -> None:
    cmdp = random_cmdp(seed, costs=2)
    data = sampled(cmdp, 500, seed)
    result = tab.PDCA(rounds=15, multiplier_bound=7.0).run(data)
    for h, lam in zip(result.trace["estimated_costs"], result.trace["multipliers"], strict=True):
        expected = np.zeros(2)
        if (h - data.limits).max() > 0:
            expected[np.argmax(h - data.limits)] = 7.0
        assert np.array_equal(lam, expected)
    J = tab.evaluate(data, result.policy.members, data.costs, "high")
    assert np.allclose(J, result.trace["estimated_costs"])


def test_the_multipliers_belong_to_the_mixture() -> None:
    data = sampled(binding_cmdp(4), 1000, 4)
    for output in ("uniform", "tail"):
        result = tab.PDCA(rounds=30, mixture=output).run(data)
        assert result.multipliers == pytest.approx(result.policy.weights @ result.trace["multipliers"])


def test_a_bound_below_the_multiplier_is_warned_about() -> None:
    data = sampled(binding_cmdp(5), 3000, 5)
    _, needed, _ = data_driven_bound(data, data.limits)
    assert needed > 0
    with pytest.warns(UserWarning, match="not above the multiplier"):
        result = tab.PDCA(rounds=2, multiplier_bound=needed * 0.9).run(data)
    assert any("not above the multiplier" in note for note in result.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tab.PDCA(rounds=2, multiplier_bound=needed * 1.1).run(data)


def test_the_automatic_bound_is_above_the_estimated_multiplier() -> None:
    data = sampled(binding_cmdp(6), 3000, 6)
    multipliers = data.model("pessimistic").solve().multipliers
    bound, needed, notes = data_driven_bound(data, data.limits)
    assert needed == pytest.approx(multipliers.sum())
    assert bound == pytest.approx(1 + 2 * multipliers.sum())
    assert notes == ()
    assert tab.PDCA(rounds=1).run(data).multiplier_bound == pytest.approx(bound)


def test_limits_out_of_reach_of_the_data_are_said_to_be() -> None:
    cmdp = binding_cmdp(7)
    low = cmdp.with_limits(np.maximum(cmdp.limits - cmdp.slater_margin() * 5 - 0.3, 0.0))
    result = tab.PDCA(rounds=3).run(sampled(low, 5000, 7))
    assert any("no policy meets the limits" in note for note in result.notes)


def test_a_mode_uses_its_plan() -> None:
    data = sampled(binding_cmdp(8), 5000, 8)
    pdca = tab.PDCA(rounds=3, mode="nearly-feasible", epsilon=0.2, phi=0.25)
    assert pdca.run(data).multiplier_bound == pytest.approx(5.0)
    assert tab.PDCA(rounds=3, mode="any-comparator", epsilon=0.5).run(data).multiplier_bound == pytest.approx(
        10.0
    )
    tight = tab.PDCA(rounds=30, mode="exactly-feasible")
    plan, result = tight.plan(data), tight.run(data)
    assert plan is not None
    assert result.multiplier_bound == pytest.approx(plan.multiplier_bound)
    # the output's program holds the estimated costs under the tightened limits
    J = tab.evaluate(data, result.policy.members, data.costs, "high")
    assert np.all(result.policy.weights @ J <= data.limits - plan.tightening + 1e-7)
    assert any("the theorem asks for K" in note for note in result.notes)
    assert tab.PDCA().plan(data) is None


def test_progress_is_told_every_round() -> None:
    rounds: list[int] = []
    tab.PDCA(rounds=4).run(sampled(binding_cmdp(9), 200, 9), progress=rounds.append)
    assert rounds == [1, 2, 3, 4]


def test_unseen_pairs_are_avoided() -> None:
    # the best action of state 0 was never seen: pessimism keeps the policy off it
    cmdp = binding_cmdp(10)
    best = int(np.argmax(cmdp.q_values(cmdp.solve().policy, cmdp.reward)[0]))
    data = without_pair(sampled(cmdp, 5000, 10), 0, best)
    result = tab.PDCA(rounds=200).run(data)
    weights = result.policy.weights @ result.policy.members[:, 0, best]
    assert weights < 0.01


def test_utilities_beyond_the_unit_interval_scale_with_the_answer() -> None:
    # J_R and B scale with the reward, and the game is the same game
    cmdp = binding_cmdp(11)
    data = population(cmdp, tab.uniform_policy(4, 3))
    large = tab.Counts(
        data.transitions, data.ends, 10 * data.reward, data.costs, data.limits, 0.8, data.start, data.size
    )
    best = cmdp.solve()
    result = tab.PDCA(weights=tab.Box(20.0), rounds=300).run(large)
    J_R, J_C = result.policy.returns(cmdp)
    assert J_R >= 0.95 * best.J_R
    assert J_C[0] <= 1.05 * cmdp.limits[0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rounds": 0}, "rounds"),
        ({"multiplier_bound": 0.0}, "bound B"),
        ({"multiplier_bound": np.nan}, "bound B"),
        ({"step": 0.0}, "step"),
        ({"dual": "newton"}, "newton"),
        ({"estimator": "oracle"}, "oracle"),
        ({"mixture": "best"}, "best"),
        ({"mode": "safe"}, "safe"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, named: str) -> None:
    data = sampled(binding_cmdp(12), 100, 12)
    with pytest.raises(InputError, match=named) as caught:
        tab.PDCA(**{"rounds": 2, **settings}).run(data)
    assert "\n" not in str(caught.value)
