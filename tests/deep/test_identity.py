"""Identity covers meaning: a change of anything that a task is made of is another task."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slater.deep as deep
from slater.data import Dataset, Metadata
from slater.deep.log_model.log_model import LogModelSettings, _name
from slater.deep.task import Task, state_task
from slater.errors import InputError
from slater.jobs.sweep import TrainJob, refuse_other_plans
from slater.limits import Limit, Units
from slater.runs import open_run
from slater.runs.held_out import hold_out

from .problems import QUICK, pointmass
from .runs import StopAt
from .toy import Toy

OPTIONS = {"log_every": 10, "checkpoint_every": 10, "estimate": False}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """The toy algorithm is known, in this test only."""
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "toy", Toy)


def _stated(data: Dataset, **metadata) -> Dataset:
    return replace(data, metadata=replace(data.metadata, **metadata))


BOUNDS = {"action_low": (-4.0, -4.0), "action_high": (4.0, 4.0)}


@pytest.mark.parametrize("other", [BOUNDS, {"horizon": 50}])
def test_a_run_is_not_resumed_on_rows_that_mean_something_else(tmp_path, other):
    data = pointmass()
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", data, [5], tmp_path / "run", options=OPTIONS, watcher=StopAt(20), **QUICK)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(InputError, match=r"horizon|action_low"):
        deep.resume(tmp_path / "run", _stated(data, **other), steps=80)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    deep.resume(tmp_path / "run", data)


def test_a_sweep_does_not_take_a_finished_run_of_another_task_for_its_own(tmp_path):
    from slater.data import save

    data = pointmass()
    save(data, tmp_path / "log.npz")
    settings = {**QUICK, "hidden": "16x16"}
    job = TrainJob(tmp_path / "run", "toy", str(tmp_path / "log.npz"), ("5",), settings, options=OPTIONS)
    assert job.run() == {}
    refuse_other_plans([job])
    save(_stated(data, **BOUNDS), tmp_path / "log.npz", overwrite=True)
    with pytest.raises(InputError, match="action_low"):
        refuse_other_plans([job])


@pytest.mark.parametrize("other", [BOUNDS, {"horizon": 50}])
def test_the_cache_of_logs_tells_rows_of_other_meaning_apart(other):
    data = pointmass()
    names = {
        _name(one, state_task(one, (Limit.episode(5, "c0"),), 0.9), LogModelSettings())
        for one in (data, _stated(data, **other))
    }
    assert len(names) == 2


def test_a_log_model_knows_no_limit():
    """The same log under another limit of the same unit has the same model."""
    data = pointmass()
    names = {
        _name(data, state_task(data, (Limit.episode(limit, "c0"),), 0.9), LogModelSettings())
        for limit in (5, 9)
    }
    assert len(names) == 1


TASK = state_task(pointmass(costs=2), (Limit.episode(5, "c0"), Limit.episode(9, "c1")), 0.9)


def _other(draw, value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.integers(1, 99).filter(lambda x: x != value))
    if isinstance(value, Units):
        name = draw(st.sampled_from(["gamma", "horizon"]))
        new = draw(st.floats(0.01, 0.99)) if name == "gamma" else draw(st.none() | st.integers(1, 999))
        return None if new == getattr(value, name) else replace(value, **{name: new})
    if isinstance(value, np.ndarray):
        place = draw(st.integers(0, value.size - 1))
        changed = value.copy()
        changed.flat[place] = np.nextafter(changed.flat[place], np.inf, dtype=value.dtype)
        return changed
    assert isinstance(value, tuple)
    place = draw(st.integers(0, len(value) - 1))
    if isinstance(value[place], Limit):
        new = Limit(draw(st.floats(0, 99)), draw(st.sampled_from(["episode", "step"])), value[place].cost)
    else:
        new = draw(st.text(min_size=1, max_size=4))
    return None if new == value[place] else (*value[:place], new, *value[place + 1 :])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_a_task_is_another_identity(data):
    name = data.draw(st.sampled_from([field.name for field in fields(Task)]))
    changed = _other(data.draw, getattr(TASK, name))
    if changed is None:
        return
    other = replace(TASK, **{name: changed})
    assert other.identity("rows") != TASK.identity("rows")
    # a log model knows no limit, and all else
    same = name in ("limits", "tau")
    assert (other.identity("rows", limits=False) == TASK.identity("rows", limits=False)) == same


def test_an_identity_is_equal_for_equal_tasks_and_covers_rows_and_what_is_missing():
    again = state_task(pointmass(costs=2), (Limit.episode(5, "c0"), Limit.episode(9, "c1")), 0.9)
    assert again.identity("rows") == TASK.identity("rows") != TASK.identity("other rows")
    assert replace(TASK, action_low=None, action_high=None).identity("rows") != TASK.identity("rows")


def _uneven() -> Dataset:
    """Ten episodes of 5 steps and one of 50, actions up to 3 in it alone; nothing is stated."""
    rng = np.random.default_rng(0)
    lengths = [5] * 10 + [50]
    size, ends = sum(lengths), np.cumsum(lengths) - 1
    timeouts = np.zeros(size, dtype=bool)
    timeouts[ends] = True
    actions = rng.uniform(-1, 1, (size, 1))
    actions[-50:] *= 3
    return Dataset.from_arrays(
        observations=rng.standard_normal((size, 2)), actions=actions, rewards=rng.random(size),
        costs=rng.random((size, 1)), terminals=np.zeros(size, bool), timeouts=timeouts,
        next_observations=rng.standard_normal((size, 2)), metadata=Metadata(),
    )  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 0.9))
def test_episodes_that_are_held_out_do_not_change_what_a_limit_means(seed, share):
    """Whichever episodes are kept apart, the longest among them: the horizon, bounds and limits stay."""
    data = _uneven()
    part, _ = hold_out(data, share, seed)
    whole, trained = (state_task(one, (Limit.episode(10, "cost"),), 0.9) for one in (data, part))
    assert trained.units == whole.units
    assert trained.limits == whole.limits
    assert np.array_equal(trained.action_low, whole.action_low)
    assert np.array_equal(trained.action_high, whole.action_high)


def test_a_number_of_actions_is_that_of_the_whole_log():
    data = pointmass(discrete=True)
    data = replace(data, metadata=Metadata())
    actions = np.where(data.actions == 2, 1, data.actions).astype(np.int32)
    actions[0] = 2
    data = replace(data, actions=actions)
    assert data.subset(np.arange(1, len(data.episodes))).num_actions == 3


def test_the_record_says_which_task_it_is_of(tmp_path):
    deep.train("toy", pointmass(), [5], tmp_path / "run", options=OPTIONS, **QUICK)
    task = open_run(tmp_path / "run").task
    assert len(task.identity) == 64
    assert task.action_low == (-1.0, -1.0)


def _finished(folder, seed=0, data=None, **settings):
    data = pointmass() if data is None else data
    deep.train("toy", data, [5], folder, seed=seed, options=OPTIONS, **{**QUICK, **settings})
    (folder / "result.json").unlink()
    return folder


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "members/00000020.safetensors"])
@pytest.mark.parametrize("other", [{"seed": 1}, {"data": pointmass(seed=1)}, {"batch_size": 16}])
def test_files_of_another_run_are_not_taken_for_its_own(tmp_path, name, other):
    run, another = _finished(tmp_path / "run"), _finished(tmp_path / "other", **other)
    before = (run / name).read_bytes()
    (run / name).write_bytes((another / name).read_bytes())
    with pytest.raises(InputError, match="of another run"):
        deep.resume(run, pointmass())
    (run / name).write_bytes(before)
    deep.resume(run, pointmass(), steps=80)


def test_a_member_of_another_step_is_not_taken_for_its_own(tmp_path):
    run = _finished(tmp_path / "run")
    members = run / "members"
    (members / "00000020.safetensors").write_bytes((members / "00000040.safetensors").read_bytes())
    with pytest.raises(InputError, match="of another step"):
        deep.resume(run, pointmass())


def test_a_run_goes_on_with_the_settings_that_it_began_with(tmp_path, monkeypatch):
    """Whatever defaults are now: those are in its record."""
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", pointmass(), [5], tmp_path / "run", options=OPTIONS, watcher=StopAt(20), **QUICK)
    whole = _finished(tmp_path / "whole")
    monkeypatch.setattr(Toy, "config_for", lambda self, dataset: replace(self.config, batch_size=8))
    deep.resume(tmp_path / "run", pointmass())
    one, two = (folder / "policy.safetensors" for folder in (tmp_path / "run", whole))
    assert one.read_bytes() == two.read_bytes()
