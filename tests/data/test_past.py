"""Does the past matter? Worlds in which it does, and worlds in which it only looks so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import slater.data
from slater.data import Dataset
from slater.data.past import remedy, with_history
from slater.errors import InputError
from slater.experiments.worlds import recorded, world_of


@cache
def log(world: str, seed: int = 0) -> Dataset:
    return recorded(world_of(world), 100, seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_wears_is_noticed_and_what_is_seen_to_wear_is_not_complained_about(seed):
    assert log("wear", seed).hidden == ("cost",)
    assert log("wearseen", seed).hidden == ()


@pytest.mark.parametrize("world", ["resonance", "days", "gamble", "rare"])
def test_noise_modes_and_rare_events_are_no_past(world):
    assert log(world).hidden == ()


def test_a_disturbance_that_is_not_seen_is_noticed():
    hidden = world_of("task-56")
    assert recorded(hidden, hidden.episodes, 0).hidden == ("the next observation",)


def test_the_check_names_the_remedy(tmp_path):
    slater.data.save(log("wear"), tmp_path / "wear.npz")
    (found,) = slater.data.inspect(tmp_path / "wear.npz").warnings
    assert "history" in found.message
    assert found.message + "." == remedy(("cost",))
    assert not slater.data.load(tmp_path / "wear.npz", history=True).hidden


def test_the_memory_is_what_was_observed_and_done_before_the_step():
    data = log("wear")
    seen = with_history(data)
    history = seen.metadata.history
    assert history is not None
    assert with_history(seen) is seen
    assert seen.observations.shape == (data.size, 3 + 1 + 3 * 4)
    memory = seen.observations[:50, 3:]
    rows = np.concatenate([data.observations, data.actions], axis=1)[:50]
    rows = (rows - np.float32(history.centre)) / np.float32(history.spread)
    np.testing.assert_array_equal(memory[0], 0)
    np.testing.assert_allclose(memory[:, 0], np.arange(50) / 50, atol=1e-6)
    np.testing.assert_allclose(memory[7, 1:5], rows[:7].sum(axis=0) / 50, atol=1e-6)
    np.testing.assert_allclose(memory[1, 5:9], rows[0] / 3, atol=1e-6)
    # what follows a row is the next row's, and an episode begins with nothing
    np.testing.assert_array_equal(seen.next_observations[:49, 3:], memory[1:])
    np.testing.assert_array_equal(seen.observations[50, 3:], 0)
    with pytest.raises(InputError, match="the policy remembers observations of 2 entries"):
        with_history(log("gamble").subset([0]), replace(history, entries=2))
