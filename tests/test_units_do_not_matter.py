"""Units and names do not matter: the same is learned from a log in whatever units and order it says it."""

import csv
import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slater
from slater.data import load
from slater.deep.task import normalised, scaled_actions, state_task
from slater.limits import Limit, resolve_limits

from .deep.problems import QUICK, pointmass

DATA = pointmass(costs=2)
LIMITS = {"c0": 5, "c1": "0.1/step"}
GAMMA = 0.9
#: single precision, and the factors are no powers of two
ROUNDING = 1e-3


def in_other_units(data, observations=1.0, actions=1.0, rewards=1.0, costs=1.0):
    """The same log with observations, actions, rewards and costs times factors."""
    seen = {
        name: (getattr(data, name) * observations).astype(np.float32)
        for name in ("observations", "next_observations")
    }
    bounds = {
        name: tuple(float(b) for b in getattr(data, name) * actions) for name in ("action_low", "action_high")
    }
    return replace(
        data,
        **seen,
        actions=(data.actions * actions).astype(np.float32),
        rewards=(data.rewards * rewards).astype(np.float32),
        costs=(data.costs * costs).astype(np.float32),
        metadata=replace(data.metadata, **bounds),
    )


def task_of(data, limits):
    return state_task(data, resolve_limits(limits, data.cost_names), GAMMA)


factors = st.floats(-6, 6).map(lambda power: 10.0**power)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(observations=factors, actions=factors, rewards=factors, costs=factors)
def test_the_task_is_the_same_in_all_units(observations, actions, rewards, costs):
    """What networks see, what critics sum and what limits mean behind the door of `state_task`."""
    other = in_other_units(DATA, observations, actions, rewards, costs)
    limits = {"c0": 5 * costs, "c1": Limit.per_step(0.1 * costs)}
    one, two = task_of(DATA, LIMITS), task_of(other, limits)
    np.testing.assert_allclose(two.tau, one.tau, rtol=ROUNDING)
    np.testing.assert_allclose(two.value_low, one.value_low, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(two.value_high, one.value_high, rtol=ROUNDING, atol=ROUNDING)
    seen = normalised(other.observations, two), normalised(DATA.observations, one)
    np.testing.assert_allclose(*seen, atol=10 * ROUNDING)
    acted = scaled_actions(other.actions, two), scaled_actions(DATA.actions, one)
    np.testing.assert_allclose(*acted, atol=ROUNDING)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.text("0123456789", max_size=30),
    digits=st.integers(2, 24),
    order=st.permutations(["wear", "heat"]),
)
def test_a_table_with_longer_labels_and_its_costs_in_another_order_is_the_same_log(
    tmp_path_factory, prefix, digits, order
):
    rows = np.arange(DATA.size)
    episode = np.searchsorted(DATA.episodes.stops, rows, side="right")
    costs = dict(zip(("wear", "heat"), DATA.costs.T, strict=True))
    columns = {
        "trip": [f"{prefix}{number:0{digits}d}" for number in episode],
        "x": DATA.observations[:, 0], "v": DATA.observations[:, 1], "push": DATA.actions[:, 0],
        "reward": DATA.rewards, **{name: costs[name] for name in order},
    }  # fmt: skip
    text = io.StringIO()
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    path = tmp_path_factory.mktemp("labels") / "log.csv"
    path.write_text(text.getvalue())
    names = {"observations": ["x", "v"], "actions": "push", "episode": "trip"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = load(path, columns={**names, "costs": order})
    assert len(read.episodes) == len(DATA.episodes)
    by_name = dict(zip(read.cost_names, read.costs.T, strict=True))
    for name, values in costs.items():
        np.testing.assert_array_equal(by_name[name], values)
    one, two = (
        state_task(data, resolve_limits({"wear": 5, "heat": "0.1/step"}, data.cost_names), GAMMA)
        for data in (read, replace(read, costs=read.costs[:, ::-1].copy(), cost_names=read.cost_names[::-1]))
    )
    np.testing.assert_array_equal(one.tau, two.tau[::-1])
    assert one.limits == two.limits[::-1]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), fraction=st.floats(0.1, 0.8))
def test_what_a_limit_means_does_not_depend_on_what_is_held_out(seed, fraction):
    lengths = np.random.default_rng(seed).integers(3, 26, len(DATA.episodes))
    kept = np.concatenate([np.arange(s, s + n) for s, n in zip(DATA.episodes.starts, lengths, strict=True)])
    ends = np.zeros(len(kept), bool)
    ends[np.cumsum(lengths) - 1] = True
    names = ("observations", "actions", "rewards", "costs", "terminals", "next_observations", "next_known")
    ragged = replace(
        DATA, **{name: getattr(DATA, name)[kept] for name in names}, timeouts=ends,
        metadata=replace(DATA.metadata, horizon=None),
    )  # fmt: skip
    part, _ = ragged.split(fraction, seed)
    whole, rest = task_of(ragged, LIMITS), task_of(part, LIMITS)
    assert rest.units == whole.units
    assert rest.limits == whole.limits


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Train quickly; actions of the policy on the first observations, in the units of the first log."""

    def train(data, limits, algorithm="bc", observations=1.0, actions=1.0):
        folder = tmp_path_factory.mktemp("run") / "run"
        result = slater.train(data, algorithm, limits, out=folder, progress=False, estimate=False, **QUICK)
        member = result.policy.members[0]
        seen = (DATA.observations[:64] * observations).astype(np.float32)
        return member.act(seen, rng=np.random.default_rng(0), deterministic=True) / actions, result

    return train


@pytest.mark.parametrize(("observations", "actions"), [(1e6, 1.0), (1e-6, 1.0), (1e-6, 1e6), (1e6, 1e-6)])
def test_the_policy_is_the_same_up_to_rounding(learned, observations, actions):
    expected, first = learned(DATA, LIMITS)
    other = in_other_units(DATA, observations=observations, actions=actions)
    found, second = learned(other, LIMITS, observations=observations, actions=actions)
    np.testing.assert_allclose(found, expected, atol=5e-3)
    assert [limit.given for limit in second.limits] == [limit.given for limit in first.limits]


def test_costs_in_another_order_give_the_same_policy(learned):
    turned = replace(DATA, costs=DATA.costs[:, ::-1].copy(), cost_names=DATA.cost_names[::-1])
    expected, first = learned(DATA, LIMITS, "bc-safe")
    found, second = learned(turned, LIMITS, "bc-safe")
    np.testing.assert_array_equal(found, expected)
    assert {limit.cost: limit.given for limit in second.limits} == {
        limit.cost: limit.given for limit in first.limits
    }
