"""Behaviours are found by how episodes acted, and never by what came of it."""

from dataclasses import replace

import numpy as np
import pytest

from slater.deep.log_model.behaviours import LEAST_EPISODES, find_behaviours
from slater.deep.log_model.fitting import Log
from slater.deep.log_model.log_model import settings_of
from slater.deep.task import state_task
from slater.limits import resolve_limits

from .made import mixed_log


def acted(gains, episodes=40, length=30, seed=0):
    """What `find_behaviours` takes of episodes that act a = gain . s + noise, one policy after the other."""
    rng = np.random.default_rng(seed)
    gains = np.repeat(np.asarray(gains), episodes, axis=0)
    obs = rng.normal(size=(len(gains) * length, 2))
    episode = np.repeat(np.arange(len(gains)), length)
    actions = np.sum(gains[episode] * obs, axis=1, keepdims=True) + 0.3 * rng.normal(size=(len(obs), 1))

    def likelihoods(rows, turn):
        """Under clones that are linear regressions."""
        found = []
        for own in rows:
            clone = np.linalg.lstsq(obs[own], actions[own], rcond=None)[0]
            square = (actions - obs @ clone)[:, 0] ** 2
            size = square[own].mean()
            found.append(np.bincount(episode, -0.5 * square / size - 0.5 * np.log(size)) / length)
        return np.stack(found, axis=1)

    return {
        "obs": obs, "residuals": actions - obs @ np.linalg.lstsq(obs, actions, rcond=None)[0],
        "episode": episode, "judged": np.ones(len(gains), bool), "held": np.zeros(len(gains), bool),
        "likelihoods": likelihoods,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_policies_without_names_are_told_apart(seed):
    found = find_behaviours(**acted([[0.5, 0.0], [0.0, 0.5]], seed=seed), most=2)
    assert not found.named
    assert found.names == ("group 1", "group 2")
    policy = np.repeat([0, 1], 40)
    assert np.all(found.labels[policy == 0] == found.labels[0])
    assert np.all(found.labels[policy == 1] == 1 - found.labels[0])
    # more groups than policies split a policy, and mix none
    more = find_behaviours(**acted([[0.5, 0.0], [0.0, 0.5]], seed=seed))
    for group in range(len(more)):
        assert len(set(policy[more.labels == group])) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_behaviour_is_one_group_whatever_its_noise(seed):
    found = find_behaviours(**acted([[0.5, 0.2]], episodes=80, seed=seed))
    assert len(found) == 1
    assert np.all(found.labels == 0)


def test_sources_that_the_log_names_are_its_behaviours():
    log = acted([[0.5, 0.0], [0.0, 0.5], [0.3, 0.3]], 12)
    names = np.array(["b"] * 12 + ["a"] * 12 + ["rare"] * 3 + ["a"] * 9)
    log["judged"][0] = False
    found = find_behaviours(**log, source=names)
    assert found.named
    assert found.names == ("a", "b")  # three episodes are too few to say anything
    assert LEAST_EPISODES > 3
    assert found.labels[0] == -1  # cut off
    assert np.all(found.labels[names == "rare"] == -1)
    assert np.all(found.labels[names == "a"] == 0)


def test_few_episodes_are_one_behaviour():
    assert len(find_behaviours(**acted([[0.5, 0.0], [0.0, 0.5]], episodes=9))) == 1


def test_groups_do_not_change_with_what_came_of_episodes():
    """The same rows with rewards and costs of other rows: the same behaviours of the same episodes."""
    data = mixed_log(60)
    # a half that acts otherwise
    bold = np.repeat(np.arange(60) % 2, data.episodes.lengths)[:, None]
    data = replace(data, actions=np.where(bold, np.abs(data.actions), -np.abs(data.actions)))
    order = np.random.default_rng(0).permutation(data.size)
    other = replace(data, rewards=data.rewards[order], costs=data.costs[order])
    found = []
    for log in (data, other):
        task = state_task(log, resolve_limits(["flag=2", "damage=3"], log.cost_names), 0.9)
        found.append(Log.of(log, task, settings_of(log, 500, (16, 16))).behaviours())
    assert len(found[0]) > 1
    np.testing.assert_array_equal(found[0].labels, found[1].labels)
    np.testing.assert_array_equal(found[0].held, found[1].held)
    for group in range(len(found[0])):
        assert len(set((np.flatnonzero(found[0].labels == group) % 2).tolist())) == 1
