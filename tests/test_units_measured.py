"""What a policy is measured to cost, in every unit, against what the library converts, prints and decides."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater.data import Dataset, Metadata
from slater.envs.evaluation import Rollout
from slater.errors import InputError
from slater.limits import LARGEST, Limit, Units, limit_table

UNITS = ("episode", "discounted", "step")


@st.composite
def worlds(draw):
    """gamma, T, and the costs of episodes: some ended early, some timed out at T, none without a step."""
    gamma = draw(st.one_of(st.sampled_from([0.0, 0.9, 0.99, 0.999]), st.floats(0.0, 0.99)))
    horizon = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    count = draw(st.integers(1, 6))
    lengths = np.where(
        rng.random(count) < draw(st.sampled_from([0, 0.5, 1])), rng.integers(1, horizon + 1, count), horizon
    )
    costs = [rng.choice([0.0, 1.0, rng.exponential()], size=n) for n in lengths]
    terminated = lengths < horizon  # an episode that ended early ended for good
    return gamma, horizon, costs, terminated


def brute(gamma, horizon, costs, terminated):
    """Every measure by the slow way, step by step; after a timeout, the episode's rate for long enough."""
    endless = []
    for episode, end in zip(costs, terminated, strict=True):
        total = sum(gamma**t * c for t, c in enumerate(episode))
        if not end:
            rate = sum(episode) / len(episode)
            total += sum(
                gamma ** (len(episode) + t) * rate for t in range(20_000 if gamma == 0.999 else 3_000)
            )
        endless.append(total)
    return {
        "episode": sum(map(sum, costs)) / len(costs),
        "step": sum(map(sum, costs)) / sum(map(len, costs)),
        "discounted": sum(endless) / len(costs),
        "normalised": (1 - gamma) * sum(endless) / len(costs),
    }


def rolled(gamma, costs, terminated):
    sums = np.array([np.sum(c) for c in costs])
    discounted = np.array([np.sum(c * gamma ** np.arange(len(c))) for c in costs])
    lengths = np.array([len(c) for c in costs])
    return Rollout(
        env_id="none", env_options={}, cost_names=("wear",), seed=0, deterministic=False, discount=gamma,
        returns=sums, discounted_returns=discounted, cost=sums, discounted_cost=discounted,
        costs=sums[:, None], discounted_costs=discounted[:, None], lengths=lengths,
        terminated=np.array(terminated), seconds=1.0,
    )  # fmt: skip


def logged(horizon, costs, terminated):
    flags = np.concatenate([np.eye(1, len(c), len(c) - 1, dtype=bool)[0] for c in costs])
    ended = np.repeat(terminated, [len(c) for c in costs])
    size = len(flags)
    return Dataset.from_arrays(
        observations=np.arange(size)[:, None], actions=np.zeros((size, 1)), rewards=np.zeros(size),
        costs=np.concatenate(costs), terminals=flags & ended, timeouts=flags & ~ended, cost_names=["wear"],
        metadata=Metadata(horizon=horizon),
    )  # fmt: skip


@given(world=worlds())
def test_measures_are_the_sums_of_the_slow_way(world):
    gamma, horizon, costs, terminated = world
    measured = rolled(gamma, costs, terminated).measured("wear", horizon)
    for unit, value in brute(*world).items():
        assert measured[unit] == pytest.approx(value, rel=1e-6, abs=1e-9), unit


@given(world=worlds(), unit=st.sampled_from(UNITS), bound=st.floats(0, 30))
def test_an_episode_is_above_a_limit_if_it_alone_measures_above_it(world, unit, bound):
    gamma, horizon, costs, terminated = world
    limit = Limit(bound, unit, "wear")
    alone = [
        rolled(gamma, [one], [end]).measured("wear", horizon)[unit]
        for one, end in zip(costs, terminated, strict=True)
    ]
    share = rolled(gamma, costs, terminated).share_above(limit, horizon)
    assert share == np.mean(np.array(alone) > bound)


@given(world=worlds(), rate=st.floats(1e-3, 10))
def test_at_a_constant_rate_measured_converted_and_printed_are_one_number(world, rate):
    """Episodes of full length that cost the same in every step: the assumption of every conversion."""
    gamma, horizon, costs, _ = world
    flat = [np.full(horizon, rate) for _ in costs]
    measured = rolled(gamma, flat, np.zeros(len(flat), bool)).measured("wear", horizon)
    units = Units(gamma, horizon)
    for unit in UNITS:
        limit = Limit(measured[unit], unit, "wear")
        for to in (*UNITS, "normalised"):
            assert units.convert(limit, to) == pytest.approx(measured[to], rel=1e-9)
        row = limit_table([limit], units).splitlines()[1].replace("*", "").split()[1:]
        printed = dict(zip(("episode", "step", "discounted"), map(float, row), strict=True))
        for to, value in printed.items():
            assert value == pytest.approx(measured[to], rel=1e-5)


@given(gamma=st.floats(0.0, 1.0), horizon=st.integers(1, 60), rate=st.floats(1e-3, 10))
def test_where_critics_stop_at_timeouts_a_constant_rate_is_the_sum_over_one_episode(gamma, horizon, rate):
    """The other setting of `Units`, in which gamma may be 1: the discounted sum ends with the episode."""
    units = Units(gamma, horizon, bootstrap_timeouts=False)
    total = sum(gamma**t * rate for t in range(horizon))
    true = {"episode": rate * horizon, "step": rate, "discounted": total}
    for unit in UNITS:
        limit = Limit(true[unit], unit, "wear")
        for to in UNITS:
            assert units.convert(limit, to) == pytest.approx(true[to], rel=1e-6)
        if gamma < 1:
            assert units.convert(limit, "normalised") == pytest.approx((1 - gamma) * total, rel=1e-6)


@given(world=worlds(), data=st.data())
def test_what_evaluate_prints_beside_a_limit_is_measured_in_its_unit(world, data):
    """Each verdict of `slater evaluate`: the number, the word, and the share of episodes above the limit."""
    from slater.commands.evaluate import _verdicts

    gamma, horizon, costs, terminated = world
    unit = data.draw(st.sampled_from(UNITS))
    true = brute(*world)[unit]
    bound = data.draw(st.sampled_from([0.0, 0.5 * true, 2 * true + 1e-6]))
    ran = rolled(gamma, costs, terminated)
    (verdict,) = _verdicts(ran, [Limit(bound, unit, "wear")], {"wear": 1.0}, horizon)
    assert verdict["mean"] == pytest.approx(true, rel=1e-6, abs=1e-9)
    if true > 1e-9:
        assert (verdict["status"] == "within") == (bound > true)
    alone = [brute(gamma, horizon, [c], [end])[unit] for c, end in zip(costs, terminated, strict=True)]
    clear = [value for value in alone if abs(value - bound) > 1e-6 * (1 + value)]
    if len(clear) == len(alone):
        assert verdict["episodes_above"] == np.mean(np.array(alone) > bound)


@given(world=worlds(), share=st.sampled_from([0.98, 1.0, 1.02]))
def test_a_log_is_judged_in_the_unit_of_the_limit(world, share):
    """One episode at a time: its own cost, in any unit, is a limit that it keeps; a little less is not."""
    gamma, horizon, costs, terminated = world
    units = Units(gamma, horizon)
    for episode, end in zip(costs, terminated, strict=True):
        table = logged(horizon, [episode], [end]).episodes
        total = float(np.float64(np.float32(episode).sum(dtype=np.float64)))
        if total == 0:
            continue
        own = {"episode": total, "step": total / len(episode)}
        own["discounted"] = units.rescale(total, "episode", "discounted")
        for unit in UNITS:
            kept = table.keep([Limit(own[unit] * share, unit)], units)
            assert kept.tolist() == [share >= 1], unit


def test_huge_limits_are_refused_in_one_sentence_and_large_ones_convert():
    for text in ("1e300", "cost=2e15/step", "inf", "1e16/discounted"):
        with pytest.raises(InputError, match=r"1e\+15"):
            Limit.parse(text)
    with pytest.raises(InputError, match="beyond any cost"):
        Limit.episode(1e300)
    units = Units(0.9999, 10**6)
    for unit in UNITS:
        for to in UNITS:
            assert math.isfinite(units.convert(Limit(LARGEST, unit), to))


def test_the_table_and_the_rollout_say_which_discounted_sum_is_meant():
    assert "go on beyond the episode" in limit_table([Limit.episode(5, "c")], Units(0.9, 10))
    stopping = Units(0.9, 10, bootstrap_timeouts=False)
    assert "end with the episode" in limit_table([Limit.episode(5, "c")], stopping)
    shown = rolled(0.9, [np.ones(4)], [False]).describe()
    assert "discounted sums end with the episode" in shown
