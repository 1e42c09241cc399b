"""The log's dynamics say what the log shows: chances of flags, means of heavy tails, ends, and no noise where
there is none."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.log_model.columns import MOST_LEVELS, NAMES, POSITIVE, TWO_VALUES, count_levels, levels_of
from slater.deep.log_model.dynamics import (
    Rows,
    _halves,
    _levelled,
    fit_dynamics,
    random_dynamics,
)
from slater.deep.task import state_task
from slater.limits import resolve_limits

from ..exact import GAMMA, ExactCMDP, random_cmdp
from .made import FLAG, HAZARD, HORIZON, SETTINGS, fitted, random_episodes, rows_of

pytestmark = pytest.mark.xdist_group("dynamics")


def rollouts(dynamics, rows, seed=0):
    first = jnp.asarray(rows["obs"][np.random.default_rng(seed).integers(len(rows["obs"]), size=256)])
    return (np.asarray(part) for part in random_episodes(dynamics, first, jax.random.key(seed)))


def test_kinds_of_columns_and_of_costs_are_found():
    *_, dynamics = fitted()
    assert np.asarray(dynamics.level_count).tolist() == [2, 0, 0]
    assert np.asarray(dynamics.links).tolist()[1:] == [TWO_VALUES, POSITIVE]
    assert count_levels(np.array([[0.0], [1.0], [2.0]] * 20)).tolist() == [3]
    assert count_levels(np.arange(60.0)[:, None]).tolist() == [0]
    assert count_levels(np.zeros((60, 1))).tolist() == [0]  # a constant has no chances
    assert float(dynamics.ends) == 1.0
    assert levels_of(np.eye(3)) == NAMES
    for other in (np.eye(3)[:, :2], 2 * np.eye(3)):  # one row is on nowhere; on is not 1
        assert levels_of(np.repeat(other, 5, axis=0)) == MOST_LEVELS
    assert levels_of(np.eye(3)[:, :2]) == 0  # and seen too seldom


def test_a_rare_flag_is_up_as_often_in_rollouts_as_in_the_log():
    _, _, rows, dynamics = fitted()
    states, _ = rollouts(dynamics, rows)
    values = np.unique(rows["obs"][:, 0])
    assert set(np.unique(states[..., 0])) == set(values)  # a flag is up or down, and nothing between
    up = (states[:, 1:, :, 0] == values[1]).mean()  # over networks, each of its own bootstrap
    logged = (rows["next_obs"][:, 0] == values[1]).mean()
    assert 0.6 * logged < up < 1.6 * logged
    assert abs(logged - FLAG) < 0.01


def test_mean_utilities_over_a_networks_rows_are_the_logs_heavy_tails_too():
    _, _, rows, dynamics = fitted()
    device = Rows(**{name: jnp.asarray(rows[name], jnp.float32) for name in Rows._fields})
    every = jnp.tile(jnp.arange(len(rows["obs"])), (SETTINGS.networks, 1))
    levelled = _levelled(dynamics, device, every)

    def means(own):
        def one(network):
            _, outcomes, level = network
            return own.outcome(outcomes, level, device.obs, device.actions, device.next_obs)[0].mean(axis=0)

        return np.asarray(jax.vmap(one)(own.networks))

    logged = rows["utilities"].mean(axis=0)
    np.testing.assert_allclose(means(levelled), np.tile(logged, (SETTINGS.networks, 1)), rtol=5e-3, atol=2e-4)
    # as fitted each network has the mean of its own bootstrap of episodes
    sums = np.abs(means(dynamics) / logged - 1)[:, 1:]
    assert sums.max() < 0.5
    # and the cost is where it comes from: a > 0
    bold = rows["actions"][:, 0] > 0
    network = jax.tree.map(lambda leaf: leaf[0], levelled.networks)
    said = np.asarray(
        levelled.outcome(network[1], network[2], device.obs, device.actions, device.next_obs)[0]
    )
    assert said[bold, 2].mean() > 5 * said[~bold, 2].mean()


def test_a_column_without_noise_stays_without_and_one_of_noise_keeps_it():
    _, task, _, dynamics = fitted()
    s = jnp.tile(jnp.array([[dynamics.levels[0, 0], 0.5, 0.3]]), (2000, 1))
    a = jnp.full((2000, 1), 0.4)
    for number in range(SETTINGS.networks):
        network = jax.tree.map(lambda leaf, n=number: leaf[n], dynamics.networks)
        after, _, _ = eqx.filter_jit(dynamics.step)(network, s, a, jax.random.key(number))
        raw = np.asarray(after) * task.obs_std + task.obs_mean
        start = 0.5 * task.obs_std[1] + task.obs_mean[1]
        move = float(dynamics.unit[1]) * task.obs_std[1]
        assert raw[:, 1].std() < 0.15 * move
        np.testing.assert_allclose(raw[:, 1].mean(), 0.9 * start + 0.3 * 0.4, atol=0.15 * move)
        np.testing.assert_allclose(raw[:, 2].std(), 1.0, rtol=0.15)
        np.testing.assert_allclose(raw[:, 2].mean(), 0.0, atol=0.3)


def test_episodes_end_as_early_as_the_logs_and_never_where_none_ended():
    data, _, rows, dynamics = fitted()
    _, alive = rollouts(dynamics, rows)
    expected = (1 - (1 - HAZARD) ** HORIZON) / HAZARD
    np.testing.assert_allclose(data.episodes.lengths.mean(), expected, rtol=0.1)
    # each network has the lengths of its own half of the episodes
    np.testing.assert_allclose(alive.mean(axis=2).sum(axis=1).mean(), data.episodes.lengths.mean(), rtol=0.1)
    immortal = eqx.tree_at(lambda d: d.ends, dynamics, 0.0 * dynamics.ends)
    assert np.all(next(iter(list(rollouts(immortal, rows))[1:])) == 1.0)


def test_states_and_utilities_stay_within_what_the_data_have_shown():
    _, _, rows, dynamics = fitted()
    far = jnp.asarray(rows["obs"][:50]) * 1e6
    network = jax.tree.map(lambda leaf: leaf[0], dynamics.networks)
    after, utilities, end = eqx.filter_jit(dynamics.step)(
        network, far, jnp.asarray(rows["actions"][:50], jnp.float32), jax.random.key(0)
    )
    assert bool(((after >= dynamics.low) & (after <= dynamics.high)).all())
    assert bool(((utilities[:, 1:] >= 0) & (utilities[:, 1:] <= dynamics.utility_high[1:] + 1e-6)).all())
    assert bool(((end >= 0) & (end <= 1)).all())


def test_networks_learn_from_halves_of_the_episodes_that_share_none():
    episode = np.repeat(np.arange(31), 7)
    own = _halves(episode, np.arange(len(episode)), 4, np.random.default_rng(0))
    first, second = (set(episode[rows].tolist()) for rows in own[:2])
    assert not first & second
    assert first | second == set(range(31))
    assert [set(episode[rows].tolist()) for rows in own[2:]] == [first, second]
    for rows in own:  # every row of its half, the smaller half filled up
        assert set(rows.tolist()) >= set(np.flatnonzero(np.isin(episode, episode[rows])).tolist())
    one = _halves(np.zeros(5, int), np.arange(5), 2, np.random.default_rng(0))
    assert sorted(one[0]) == sorted(one[1]) == list(range(5))


def test_a_fit_is_the_same_bits_and_held_out_episodes_train_nothing():
    data, task, rows, _ = fitted()
    settings = replace(SETTINGS, steps=(16, 16))
    episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)
    held = np.arange(len(data.episodes)) % 4 == 0
    one, likelihood = fit_dynamics(task, rows, episode, held, settings)
    two, _ = fit_dynamics(task, rows, episode, held, settings)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    assert likelihood.shape == (SETTINGS.networks,)
    shape = jax.tree.map(jnp.shape, random_dynamics(task, settings))
    assert shape == jax.tree.map(jnp.shape, one)
    spoiled = rows | {"utilities": np.where(held[episode][:, None], 1e3, rows["utilities"])}
    # the last look decides which network is kept; with one look alone held-out rows could not show
    first = fit_dynamics(task, spoiled, episode, held, settings)[0]
    np.testing.assert_array_equal(first.states.weights[0], one.states.weights[0])


def test_where_observations_are_one_hot_the_next_state_is_one_of_them_with_its_chance():
    """Chances are those of the log's counts, the state that nobody saw has none, costs are those of pairs."""
    small, seen = random_cmdp(100, states=4, actions=2), [0, 1, 3, 4]
    P, U = np.zeros((5, 2, 5)), np.zeros((2, 5, 2))
    P[2, :, 0], P[np.ix_(seen, [0, 1], seen)], U[:, seen] = 1.0, small.P, small.U
    cmdp = ExactCMDP(P, U, small.tau)
    data = cmdp.dataset(np.full((5, 2), 0.5), 10_000, 0)
    task = state_task(data, resolve_limits(["0.5/discounted"], data.cost_names), GAMMA)
    rows = {**rows_of(data, task), "actions": np.eye(2, dtype=np.float32)[data.actions]}
    episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)
    settings = replace(SETTINGS, levels=NAMES, steps=(1_500, 1_500))
    dynamics, _ = fit_dynamics(task, rows, episode, episode[::25] % 4 == 0, settings)
    s, after = (x.argmax(axis=1) for x in (data.observations, data.next_observations))
    counts = np.zeros((5, 2, 5))
    np.add.at(counts, (s, data.actions, after), 1)
    chances = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
    network = jax.tree.map(lambda leaf: leaf[0], dynamics.networks)
    device = Rows(**{name: jnp.asarray(rows[name], jnp.float32) for name in Rows._fields})
    known = eqx.filter_jit(dynamics.log_likelihood)(network[0], device)[0]
    np.testing.assert_allclose(known.mean(), np.log(chances[s, data.actions, after]).mean(), atol=0.02)
    for state in seen:
        for action in (0, 1):
            place = np.flatnonzero((s == state) & (data.actions == action))[0]
            one, a = (jnp.tile(rows[name][place], (4_000, 1)) for name in ("obs", "actions"))
            moved, utilities, _ = eqx.filter_jit(dynamics.step)(network, one, a, jax.random.key(0))
            raw = np.asarray(moved) * task.obs_std + task.obs_mean
            np.testing.assert_allclose(raw.sum(axis=1), 1.0, atol=1e-5)
            np.testing.assert_allclose(np.sort(raw, axis=1)[:, -1], 1.0, atol=1e-5)
            assert raw[:, 2].max() < 0.5
            np.testing.assert_allclose(raw.mean(axis=0), chances[state, action], atol=0.08)
            said = np.asarray(utilities).mean(axis=0) / task.scale
            np.testing.assert_allclose(said, cmdp.U[:, state, action], atol=0.08)
