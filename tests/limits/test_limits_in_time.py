"""Limits in people's units: so much a week, where it is known how long a step takes."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slater
from slater.cli import main
from slater.data import Metadata, load, save
from slater.errors import InputError
from slater.limits import Limit, Units, duration, limit_table, resolve_limits

from ..data.make import walk
from ..deep.problems import QUICK


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h", 3600),
        ("15min", 900),
        ("0.5 s", 0.5),
        ("1d", 86400),
        ("2 days", 172800),
        ("1 week", 604800),
        (60, 60),
    ],
)
def test_durations_as_people_write_them(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["1m", "h", "", "1 fortnight", "-1h", "0s", "nan", "1e400h", 0, True, None])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InputError, match="15min"):
        duration(text)


@given(
    value=st.floats(0, 1e6), unit=st.sampled_from(["hour", "day", "week", "month", "year"]),
    step=st.sampled_from(["1s", "15min", "1h", "1d"]), horizon=st.integers(1, 1000),
)  # fmt: skip
def test_so_much_a_week_is_a_rate_per_step(value, unit, step, horizon):
    limit = Limit.parse(f"{value!r}/{unit}", step=duration(step))
    seconds = {"hour": 3600, "day": 86400, "week": 604800, "month": 2629746, "year": 31556952}[unit]
    units = Units(0.9, horizon)
    assert units.per_step(limit) == pytest.approx(value * duration(step) / seconds)
    assert units.episode(limit) == pytest.approx(value * duration(step) * horizon / seconds)
    assert Limit.parse(str(limit)) == limit  # the text says all of it
    assert f"/{unit}@" in str(limit)


def test_without_the_length_of_a_step_a_week_says_nothing():
    with pytest.raises(InputError, match=r"10/week.*how long a step is.*10/week@1h"):
        resolve_limits("10/week", ("cost",))
    (limit,) = resolve_limits("10/week", ("cost",), step=3600)
    assert (limit.unit, limit.value) == ("step", pytest.approx(10 / 168))
    assert str(limit) == "cost=10/week@1h"
    assert "cost (10/week@1h)" in limit_table([limit], Units(0.9, 10))
    assert resolve_limits({"a": "10/week@2h", "b": 3}, ("a", "b"), step=3600)[0].value == pytest.approx(
        20 / 168
    )
    assert str(resolve_limits("7/days@1.5h", ("a",))[0]) == "a=7/day@1.5h"


def test_the_length_of_a_step_is_kept_with_the_data_and_used(tmp_path, capsys):
    save(walk(metadata=Metadata(horizon=10)), tmp_path / "a.hdf5")
    assert main(["data", "convert", str(tmp_path / "a.hdf5"), str(tmp_path / "b.npz"), "--step", "1h"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load(tmp_path / "b.npz")
    assert data.metadata.step == 3600
    result = slater.train(
        data, "bc", {"cost": "20/day"}, out=tmp_path / "run", progress=False, estimate=False, **QUICK
    )
    (limit,) = result.limits
    assert limit.given == "cost=20/day@1h"
    assert limit.episode == pytest.approx(20 / 24 * 10)
    assert slater.runs.open_run(tmp_path / "run").run.limit_texts == ("cost=20/day@1h",)
    capsys.readouterr()
    assert main(["data", "info", str(tmp_path / "b.npz"), "--limit", "20/day"]) == 0
    assert "20/day@1h" in capsys.readouterr().out
    words = ["data", "info", str(tmp_path / "a.hdf5"), "--limit", "20/day", "--json"]
    assert main(words) == 2
    assert "--step" in capsys.readouterr().err
    assert main([*words, "--step", "1h"]) == 0


def test_a_limit_that_one_episode_in_a_hundred_keeps_is_remarked_upon():
    data = walk(episodes=200, falls=False)
    costs = np.zeros_like(data.costs)
    costs[20:] = 1.0  # the first two episodes cost nothing
    episodes = replace(data, costs=costs).episodes
    (doubt,) = episodes.doubts([Limit.episode(5, "cost")], Units(0.9, 10))
    assert doubt.startswith("2 of 200 episodes of the data keep the limit cost=5")
    costs[40:] = 0.0
    assert not replace(data, costs=costs).episodes.doubts([Limit.episode(5, "cost")], Units(0.9, 10))
