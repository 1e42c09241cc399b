"""A family of random tasks: each is what its number says, for ever, and its limits bind."""

import numpy as np
import pytest

from slater.errors import InputError
from slater.experiments.task_family import KINDS, task_of
from slater.experiments.worlds import recorded, world_of


@pytest.mark.parametrize("number", range(24))
def test_a_task_is_drawn_by_its_number_and_its_limits_bind(number):
    world = task_of(number)
    assert isinstance(world, KINDS[number % len(KINDS)])
    assert 10 <= world.horizon <= 100
    assert 100 <= world.episodes <= 300
    log = recorded(world, world.episodes, seed=3)
    again = recorded(task_of(number), world.episodes, seed=3)
    assert log.fingerprint == again.fingerprint
    assert np.isfinite(log.observations).all()
    assert log.discrete == (world.actions is not None)
    costs = log.episodes.costs
    assert costs.shape == (world.episodes, len(world.limits))
    kept = costs <= np.array(world.limits)
    # neither does everybody keep a limit, nor nobody
    assert (kept.mean(axis=0) > 0.05).all()
    assert (kept.mean(axis=0) < 0.95).all()
    assert (costs.mean(axis=0) > 0).all()


def test_tasks_differ_in_all_that_is_drawn():
    tasks = [task_of(number) for number in range(60)]
    assert {shape for task in tasks for shape in task.shapes} == {"crossing", "excess", "rare", "heavy"}
    assert {task.crew for task in tasks} == {"spectrum", "few", "one", "modes"}
    assert {len(task.limits) for task in tasks} == {1, 2}
    assert 5 <= sum(task.actions is not None for task in tasks) <= 40
    assert 2 <= sum(task.hidden for task in tasks) <= 15
    assert len({task.limits for task in tasks}) == 60


def test_worlds_and_tasks_are_found_by_name():
    assert world_of("task-17").limits == task_of(17).limits
    for name in ("task-", "task--1", "task-x", "nowhere"):
        with pytest.raises(InputError, match="there is no world"):
            world_of(name)
