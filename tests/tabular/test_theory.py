"""The three theorems as plans: their formulas, and what they refuse."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular.theory import MOST_OF_MARGIN

from .problems import few, random_cmdp, sampled, seeds

epsilons, phis = st.floats(0.01, 0.5), st.floats(0.01, 1.0)


def data_of(seed: int, costs: int = 1, n: int = 2000) -> tab.Counts:
    return sampled(random_cmdp(seed, costs=costs), n, seed)


@given(seeds, epsilons, phis)
@few
def test_theorem_1(seed: int, eps: float, phi: float) -> None:
    data = data_of(seed)
    plan = tab.make_plan(data, "nearly-feasible", epsilon=eps, phi=phi)
    assert plan.multiplier_bound == pytest.approx(1 + 1 / phi)
    assert plan.tightening == pytest.approx([0.0])
    assert plan.required_rounds == pytest.approx(
        2 * math.log(2) * (1 + 2 * plan.multiplier_bound) ** 2 * data.horizon**4 / eps**2
    )


@given(seeds, epsilons)
@few
def test_theorem_2_needs_no_margin(seed: int, eps: float) -> None:
    data = data_of(seed)
    plan = tab.make_plan(data, "any-comparator", epsilon=eps)
    assert plan.multiplier_bound == pytest.approx(data.horizon / eps)
    assert plan.tightening == pytest.approx([0.0])
    assert math.isnan(plan.phi)


@given(seeds, epsilons, phis, st.integers(1, 3))
@few
def test_theorem_3(seed: int, eps: float, phi: float, costs: int) -> None:
    data = data_of(seed, costs)
    plan = tab.make_plan(data, "exactly-feasible", epsilon=eps, phi=phi)
    assert plan.multiplier_bound == pytest.approx(5 / phi)
    assert plan.tightening == pytest.approx([phi * eps] * costs)


@pytest.mark.parametrize(
    ("mode", "eps_power", "phi_power"),
    [("nearly-feasible", 2, 2), ("any-comparator", 4, 0), ("exactly-feasible", 2, 2)],
)
def test_the_sizes_scale_as_the_theorems_say(mode: tab.theory.Mode, eps_power: int, phi_power: int) -> None:
    data = data_of(3)

    def n(eps: float, phi: float, C: float = 5.0) -> float:
        return tab.make_plan(data, mode, epsilon=eps, phi=phi, weight_bound=C).required_size

    def log(eps: float, C: float = 5.0) -> float:
        # the log-cardinality of grids of width eps for F, Pi and W, and the union over costs
        grids = math.log1p(data.horizon / eps) + math.log1p(1 / eps) + math.log1p(C / eps)
        return 6 * grids + math.log(1 / 0.01)

    assert n(0.05, 0.1) / n(0.1, 0.1) == pytest.approx(2**eps_power * log(0.05) / log(0.1))
    assert n(0.1, 0.05) / n(0.1, 0.1) == pytest.approx(2**phi_power)
    assert n(0.1, 0.1, 10.0) / n(0.1, 0.1) == pytest.approx(2 * log(0.1, 10.0) / log(0.1))
    power = 6 if mode == "any-comparator" else 4
    assert n(0.1, 0.1) == pytest.approx(
        5 * log(0.1) * data.horizon**power / (0.1**eps_power * 0.1**phi_power)
    )


def test_phi_is_estimated_and_said_to_be() -> None:
    data = data_of(5)
    plan = tab.make_plan(data, "nearly-feasible")
    assert plan.phi == pytest.approx(data.model("pessimistic").slater_margin())
    assert any("phi" in note and "estimated" in note for note in plan.notes)


def test_the_default_tightening_is_the_sampling_error_at_level_delta() -> None:
    cmdp = random_cmdp(6, costs=2)
    cmdp = cmdp.with_limits(cmdp.limits + 0.5)
    data = sampled(cmdp, 20_000, 6)
    policy = data.model("pessimistic").solve().policy[:3]
    for delta in (0.01, 0.1):
        plan = tab.make_plan(data, "exactly-feasible", delta=delta)
        errors = [tab.standard_error(data, tab.Mixture.single(policy), c) for c in data.costs]
        # the error is split over the two costs
        assert plan.tightening == pytest.approx(norm.isf(delta / 2) * np.array(errors))
        assert plan.epsilon * plan.phi == pytest.approx(plan.tightening.max())


def test_the_tightening_leaves_room_and_says_when_the_data_are_too_few() -> None:
    cmdp = random_cmdp(6)
    data = sampled(cmdp, 150, 6)
    plan = tab.make_plan(data, "exactly-feasible", delta=1e-6)
    assert plan.tightening[0] == pytest.approx(MOST_OF_MARGIN * plan.phi * data.horizon)
    assert any("less than" in note for note in plan.notes)
    data.model("pessimistic", data.limits - plan.tightening).solve()  # still feasible


@pytest.mark.parametrize("phi", [0.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("mode", ["nearly-feasible", "exactly-feasible"])
def test_a_margin_out_of_range_is_refused(mode: tab.theory.Mode, phi: float) -> None:
    with pytest.raises(InputError, match="phi"):
        tab.make_plan(data_of(1), mode, phi=phi)


@pytest.mark.parametrize("mode", ["nearly-feasible", "exactly-feasible"])
def test_no_slater_margin_is_refused_and_the_way_out_named(mode: tab.theory.Mode) -> None:
    cmdp = random_cmdp(1)
    data = sampled(cmdp.with_limits(np.maximum(cmdp.limits - cmdp.slater_margin() * 5 - 0.1, 0.0)), 5000, 1)
    with pytest.raises(InputError, match="any-comparator"):
        tab.make_plan(data, mode)
    assert tab.make_plan(data, "any-comparator").multiplier_bound > 0


def test_theorem_3_refuses_epsilon_above_one_half() -> None:
    with pytest.raises(InputError, match="1/2"):
        tab.make_plan(data_of(1), "exactly-feasible", epsilon=0.51, phi=0.1)
    tab.make_plan(data_of(1), "nearly-feasible", epsilon=0.51, phi=0.1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mode": "best-effort"}, "best-effort"),
        ({"mode": "any-comparator", "epsilon": 0.0}, "epsilon"),
        ({"mode": "any-comparator", "epsilon": math.nan}, "epsilon"),
        ({"mode": "any-comparator", "delta": 0.0}, "delta"),
        ({"mode": "any-comparator", "delta": 1.0}, "delta"),
    ],
)
def test_other_nonsense_is_refused(arguments: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        tab.make_plan(data_of(1), **arguments)


@pytest.mark.parametrize("mode", tab.MODES)
def test_a_problem_without_costs_has_a_plan(mode: tab.theory.Mode) -> None:
    plan = tab.make_plan(sampled(random_cmdp(2, costs=0), 200, 2), mode)
    assert plan.tightening.shape == (0,)
    assert plan.multiplier_bound > 0
