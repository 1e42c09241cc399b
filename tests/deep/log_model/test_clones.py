"""Clones act as the rows that they are given: in two modes where these have two, by weight."""

import jax
import jax.numpy as jnp
import numpy as np

from slater.data import Dataset, Metadata
from slater.deep.log_model.clones import CloneSettings, clone_many, drawn_rows, one_of
from slater.deep.task import state_task
from slater.limits import resolve_limits

SETTINGS = CloneSettings(steps=(800, 800), batch_size=64, hidden=(16, 16), components=3)


def test_rows_are_drawn_as_often_as_their_weights_say():
    rows = np.arange(10)
    assert np.bincount(drawn_rows(rows, 25, 0), minlength=10).min() == 2
    weights = np.array([0.0, 1, 1, 2, 6, 0, 0, 0, 0, 0])
    counts = np.bincount(drawn_rows(rows, 1000, 0, weights), minlength=10)
    np.testing.assert_allclose(counts, 100 * weights, atol=1)


def test_a_clone_of_two_modes_seldom_acts_between_them_and_weights_choose_one():
    """Operators run at -.7 or .7; a band between costs. Their mean is inside it; one Gaussian is there in a
    third of the steps. The second clone has the rows above alone."""
    rng = np.random.default_rng(0)
    n = 3000
    obs = rng.normal(size=(n, 2)).astype(np.float32)
    up = rng.random(n) < 1 / (1 + np.exp(-0.8 * obs[:, 0]))
    actions = np.clip(np.where(up, 0.7, -0.7) + 0.08 * rng.normal(size=n), -1, 1)[:, None].astype(np.float32)
    data = Dataset.from_arrays(
        observations=obs, actions=actions, rewards=np.zeros(n), costs=np.zeros(n), next_observations=obs,
        episode=np.arange(n) // 30, metadata=Metadata(horizon=30, action_low=(-1.0,), action_high=(1.0,)),
    )  # fmt: skip
    task = state_task(data, resolve_limits(["1"], data.cost_names), 0.9)
    train, held = np.arange(2000), np.arange(2000, n)
    weights = [np.ones(n), up.astype(float)]
    rows = np.stack([drawn_rows(train, 2000, 0, w[train]) for w in weights])
    stop = np.stack([drawn_rows(held, 1000, 0, w[held]) for w in weights])
    columns = (jnp.asarray(obs), jnp.asarray(actions), jnp.asarray(rows), jnp.asarray(stop))
    policies, liked = clone_many(task, *columns, SETTINGS)
    both, above = (
        np.asarray(one_of(policies, k).choice(columns[0][2000:], jax.random.key(1)))[:, 0] for k in (0, 1)
    )
    assert np.mean(np.abs(both) < 0.35) < 0.03
    np.testing.assert_allclose(np.mean(both > 0), up[2000:].mean(), atol=0.08)
    # where the state says up, the clone goes up
    assert np.corrcoef(both > 0, obs[2000:, 0])[0, 1] > 0.2
    assert np.mean(above > 0.35) > 0.97
    # and the deterministic action is of a mode
    mean = one_of(policies, 0).export(task).act(obs[2000:], rng=rng, deterministic=True)[:, 0]
    assert np.mean(np.abs(mean) < 0.5) < 0.05
    one, narrow = clone_many(task, *columns, CloneSettings(**{**vars(SETTINGS), "components": 1}))
    single = np.asarray(one_of(one, 0).choice(columns[0][2000:], jax.random.key(1)))[:, 0]
    assert np.mean(np.abs(single) < 0.35) > 0.15
    assert liked[0] > narrow[0] + 0.3
    assert liked[1] > narrow[1] - 0.1
