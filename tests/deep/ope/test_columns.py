"""Policies that the log gave are kept beside a run's own, once, with their own range of noise."""

import jax
import jax.numpy as jnp
import numpy as np

from slater.data import Dataset, Metadata
from slater.deep.algorithms.base import Member
from slater.deep.engine.folder import RunFolder
from slater.deep.nets.policy import make_policy
from slater.deep.ope.cloning import CloneSettings, clone_many, drawn_rows, log_densities
from slater.deep.ope.cohorts import find_cohorts
from slater.deep.task import state_task
from slater.limits import resolve_limits
from slater.runs.result import Member as SavedMember
from slater.runs.result import from_log

from ..problems import pointmass
from . import worlds


def test_columns_of_the_log_are_kept_once_and_read_back_as_they_were(tmp_path):
    data = pointmass(episodes=3)
    task = state_task(data, resolve_limits(["5"], data.cost_names), 0.9)
    own, wide = (make_policy(task, (8,), jax.random.key(k), (-5.0, k + 0.5)) for k in (0, 1))
    (tmp_path / "members").mkdir()
    folder = RunFolder(tmp_path, "one")
    folder.keep(own, Member(10))
    state = {"x": jnp.zeros(2)}
    for _ in range(2):  # a run that is finished again
        folder.keep_columns([(wide, "clone of a"), (own, "in-sample policy of multiplier 1")], state, 12)
    assert [member.step for member in folder.members] == [10, 13, 14]
    again = RunFolder(tmp_path, "one")
    again.load(state)
    assert again.members == folder.members
    policies = again.policies(own)
    assert [policy.log_std_range for policy in policies] == [(-5.0, 0.5), (-5.0, 1.5), (-5.0, 0.5)]
    np.testing.assert_array_equal(policies[1].mlp.weights[0], wide.mlp.weights[0])
    assert from_log(folder.members[1].kind)
    assert not from_log("fallback")
    assert SavedMember(13, "clone of a", 1.0).name == "an imitation of a of the log"


def test_named_sources_are_cohorts_and_a_fifth_of_each_is_held_out():
    data = worlds.gamble().log([worlds.bold(share) for share in (0.1, 0.9)], 30, 0, named=True)
    task = state_task(data, resolve_limits(["1"], data.cost_names), 0.9)
    cohorts = find_cohorts(data, task, CloneSettings())
    assert cohorts.names == ("policy 0", "policy 1")
    assert cohorts.named
    assert [len(cohorts.episodes(k)) for k in range(2)] == [30, 30]
    assert [len(cohorts.episodes(k, held=True)) for k in range(2)] == [6, 6]
    described = cohorts.describe(data)
    np.testing.assert_allclose(described[1]["return"], data.episodes.returns[30:].mean())


def test_rows_are_drawn_as_often_as_their_weights_say():
    rows = np.arange(10)
    assert np.bincount(drawn_rows(rows, 25, 0), minlength=10).min() == 2
    weights = np.array([0.0, 1, 1, 2, 6, 0, 0, 0, 0, 0])
    counts = np.bincount(drawn_rows(rows, 1000, 0, weights), minlength=10)
    np.testing.assert_allclose(counts, 100 * weights, atol=1)


def test_a_clone_that_agrees_with_recorded_densities_is_nearer_to_the_policy_that_acted():
    """Actions tanh(N(sin 3s, .5)) between -2 and 2, 200 rows to learn from: their noise hides the sine."""
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, size=(1200, 1))
    noise = rng.normal(size=s.shape)
    squashed = np.tanh(np.sin(3 * s) + 0.5 * noise)
    # density of the action in its own units: before the tanh, the tanh, the bounds
    density = np.exp(-0.5 * noise**2) / np.sqrt(2 * np.pi) / 0.5 / (1 - squashed**2) / 2
    data = Dataset.from_arrays(
        observations=s, actions=2 * squashed, rewards=np.zeros(1200), costs=np.zeros(1200),
        next_observations=s, episode=np.arange(1200) // 10, propensity=density[:, 0],
        metadata=Metadata(horizon=10, action_low=(-2.0,), action_high=(2.0,)),
    )  # fmt: skip
    task = state_task(data, resolve_limits(["1"], data.cost_names), 0.9)
    found = log_densities(data, task)
    np.testing.assert_allclose(np.nanmean(found), np.log(2 * density).mean(), rtol=0.02)
    columns = [
        jnp.asarray((s - task.obs_mean) / task.obs_std, jnp.float32),
        jnp.asarray(squashed, jnp.float32),
    ]
    rows, held = jnp.arange(200)[None], jnp.arange(200, 1200)[None]
    settings = CloneSettings(steps=600, chunk=200, hidden=(16, 16), batch_size=64)
    away = []
    for densities in (None, jnp.asarray(found)):
        _, liked = clone_many(task, *columns, rows, held, settings, densities)
        away.append(np.nanmean(found[200:]) - liked[0])
    assert away[1] < 0.5 * away[0], away
