"""Limits: units, the conversion table, parsing, resolving."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater.errors import InputError
from slater.limits import Limit, Units, limit_records, limit_table, resolve_limits

values = st.floats(0, 1e6, allow_nan=False)
names = st.sampled_from(["speed", "heat", "torque"])
limits = st.builds(
    Limit, values, st.sampled_from(["episode", "discounted", "step"]), st.one_of(st.none(), names)
)
settings = st.builds(Units, st.floats(0, 0.9999), st.integers(1, 5000), st.booleans())


@pytest.mark.parametrize(
    ("horizon", "kappa", "endless"),
    [(100, 0.634, 1.0), (200, 0.433, 1 / 2), (300, 0.317, 1 / 3), (500, 0.199, 1 / 5), (1000, 0.100, 1 / 10)],
)
def test_the_conversion_table_at_gamma_099(horizon, kappa, endless):
    limit = Limit.episode(1)
    stops = Units(0.99, horizon, bootstrap_timeouts=False)
    goes_on = Units(0.99, horizon, bootstrap_timeouts=True)
    assert stops.convert(limit, "discounted") == pytest.approx(kappa, abs=5e-4)
    assert goes_on.convert(limit, "discounted") == pytest.approx(endless, rel=1e-12)
    # normalised occupancy cost: (1-g) c kappa when critics stop, c/T when they go on
    assert stops.convert(limit, "normalised") == pytest.approx(
        0.01 * stops.convert(limit, "discounted"), rel=1e-12
    )
    assert goes_on.convert(limit, "normalised") == pytest.approx(1 / horizon, rel=1e-12)


@given(rate=st.floats(0, 10), gamma=st.floats(0, 0.999), horizon=st.integers(1, 400))
def test_a_constant_cost_rate_meets_its_limit_in_every_unit_at_once(rate, gamma, horizon):
    """Sum the rate the slow way; each unit of the same limit must give exactly that sum."""
    units = Units(gamma, horizon, bootstrap_timeouts=False)
    limit = Limit.per_step(rate)
    discounted = sum(rate * gamma**t for t in range(horizon))
    assert units.episode(limit) == pytest.approx(rate * horizon, rel=1e-9)
    assert units.convert(limit, "discounted") == pytest.approx(discounted, rel=1e-9, abs=1e-12)
    assert units.convert(limit, "normalised") == pytest.approx((1 - gamma) * discounted, rel=1e-9, abs=1e-12)


@given(limit=limits, units=settings, to=st.sampled_from(["episode", "discounted", "step"]))
def test_converting_there_and_back_changes_nothing(limit, units, to):
    there = Limit(units.convert(limit, to), to)
    assert units.convert(there, limit.unit) == pytest.approx(limit.value, rel=1e-9, abs=1e-12)


@given(limit=limits, units=settings)
def test_a_limit_in_its_own_unit_is_returned_to_the_bit(limit, units):
    assert units.convert(limit, limit.unit) == limit.value


@given(limit=limits)
def test_the_text_of_a_limit_reads_back_as_the_same_limit(limit):
    assert Limit.parse(str(limit)) == limit


def test_undiscounted_estimators_that_stop_at_timeouts_need_no_conversion():
    units = Units(1.0, 200, bootstrap_timeouts=False)
    assert units.convert(Limit.episode(20), "discounted") == 20
    with pytest.raises(InputError, match="gamma = 1"):
        units.convert(Limit.episode(20), "normalised")


def test_gamma_near_one_keeps_its_digits():
    units = Units(1 - 1e-12, 1000, bootstrap_timeouts=False)
    assert units.convert(Limit.episode(20), "discounted") == pytest.approx(20, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("20", Limit.episode(20)),
        ("20/episode", Limit.episode(20)),
        ("5/discounted", Limit.discounted(5)),
        ("0.05/step", Limit.per_step(0.05)),
        (" speed = 20 ", Limit.episode(20, "speed")),
        ("heat=5/step", Limit.per_step(5, "heat")),
        ("1e-2/Step", Limit.per_step(0.01)),
    ],
)
def test_command_line_spellings(text, limit):
    assert Limit.parse(text) == limit


@pytest.mark.parametrize(
    "text", ["", "x", "20/hour", "-1", "nan", "inf", "=20", "a=b=3", "20/step/step", "speed=", "20 30"]
)
def test_a_limit_that_cannot_be_read_is_quoted_in_the_error(text):
    with pytest.raises(InputError) as caught:
        Limit.parse(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_impossible_settings_are_refused():
    for arguments in [
        (1.0, 200, True),
        (1.5, 200, True),
        (-0.1, 200, True),
        (0.9, 0, True),
        (math.nan, 2, True),
    ]:
        with pytest.raises(InputError):
            Units(*arguments)
    with pytest.raises(InputError):
        Units(0.9, None, bootstrap_timeouts=False)
    with pytest.raises(InputError):
        Limit.episode(-1)
    with pytest.raises(InputError):
        Limit.episode(True)


def test_without_a_horizon_only_episode_limits_are_refused():
    units = Units(0.8, None)
    assert units.convert(Limit.per_step(0.1), "discounted") == pytest.approx(0.5)
    assert units.convert(Limit.discounted(0.5), "normalised") == pytest.approx(0.1)
    with pytest.raises(InputError, match="horizon"):
        units.convert(Limit.episode(20), "discounted")


@given(order=st.permutations(["speed", "heat", "torque"]))
def test_named_limits_come_back_in_the_order_of_the_costs(order):
    given_limits = [f"{name}={index}" for index, name in enumerate(order)]
    resolved = resolve_limits(given_limits, ("speed", "heat", "torque"))
    assert [limit.cost for limit in resolved] == ["speed", "heat", "torque"]
    assert all(order[int(limit.value)] == limit.cost for limit in resolved)


def test_unnamed_limits_follow_the_order_of_the_costs():
    assert resolve_limits(["20", "5/step"], ("a", "b")) == (Limit.episode(20, "a"), Limit.per_step(5, "b"))
    assert resolve_limits([20], ("cost",)) == (Limit.episode(20, "cost"),)


@pytest.mark.parametrize(
    "one", ["20", 20, 20.0, np.float32(20), np.array(20), Limit.episode(20), {"cost": 20}, {"cost": "20"}]
)
def test_one_limit_needs_no_list(one):
    assert resolve_limits(one, ("cost",)) == (Limit.episode(20, "cost"),)


def test_a_dict_names_the_costs_in_any_order():
    given = {"b": "0.5/step", "a": Limit.discounted(3)}
    assert resolve_limits(given, ("a", "b")) == (Limit.discounted(3, "a"), Limit.per_step(0.5, "b"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("20", "1 limit for 2 costs"),  # and never a limit of 2 and one of 0
        (20, "1 limit for 2 costs"),
        (Limit.episode(20), "1 limit for 2 costs"),
        ({"a": 20}, "No limit for the cost b"),
        ({"a": 20, "b": 3, "c": 4}, "names a cost that the data does not have"),
        ({"a": 20, "b": "a=3"}, "is for 'b' and names 'a'"),
        ({"a": [20], "b": 3}, "A limit is a number"),
        ({1: 20, "b": 3}, "names a cost that the data does not have"),
        ([["20", "30"]], "A limit is a number"),
        ([None, 3], "A limit is a number"),
        (True, "A limit is a number"),
        (object(), "Limits are a number"),
        (b"20", "Limits are a number"),
    ],
)
def test_other_forms_of_limits_are_refused_in_a_sentence(given, words):
    with pytest.raises(InputError, match=words):
        resolve_limits(given, ("a", "b"))


@pytest.mark.parametrize(
    ("given_limits", "word"),
    [
        ([], "No limit is given"),
        (["20"], "1 limit for 2 costs"),
        (["a=1"], "No limit for the cost b"),
        (["a=1", "a=2", "b=3"], "two limits"),
        (["a=1", "b=2", "c=3"], "does not have"),
        (["a=1", "2"], "named and some are not"),
        (["1", "2", "3"], "3 limits for 2 costs"),
    ],
)
def test_missing_repeated_and_unknown_limits_are_named(given_limits, word):
    with pytest.raises(InputError, match=word):
        resolve_limits(given_limits, ("a", "b"))


def test_thresholds_and_the_table_of_a_run():
    limits = resolve_limits(["speed=20", "heat=0.05/step"], ("speed", "heat"))
    units = Units(0.99, 200)
    np.testing.assert_allclose(units.thresholds(limits), [10, 5])
    table = limit_table(limits, units)
    assert "20*" in table
    assert "0.05*" in table
    assert "an episode has 200 steps; discounted sums count a step 0.99 of the one before and go on" in table
    assert limit_records(limits, units)[1]["discounted"] == pytest.approx(5)
    assert limit_records([Limit.discounted(1)], Units(0.9, None))[0]["episode"] is None


@given(st.floats(-1e6, 1e6), st.floats(0.5, 0.999), st.integers(1, 2000))
def test_a_sum_is_rescaled_as_a_limit_is(value: float, gamma: float, horizon: int) -> None:
    units = Units(gamma, horizon)
    there = units.rescale(value, "discounted", "episode")
    assert units.rescale(there, "episode", "discounted") == pytest.approx(value)
    assert there == pytest.approx(value * (1 - gamma) * horizon)  # the same rate per step
    if value >= 0:
        assert there == units.episode(Limit.discounted(value))
