"""Players that stay with the data, and critics that know the time: what they end at is known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.batches import Batch, draw, prepare
from slater.deep.game.critics import TimedCritics
from slater.deep.game.dual import Fixed
from slater.deep.game.primal import TrustRegion, WeightedRegression
from slater.deep.nets.policy import make_policy
from slater.deep.task import Task
from slater.errors import InputError
from slater.limits import Units, resolve_limits

from .problems import Preference, pointmass

GAMMA = 0.9


def pointmass_task(discrete=False):
    data = pointmass(episodes=10, discrete=discrete)
    return prepare(data, resolve_limits(["5"], data.cost_names), GAMMA)


def played(player, task, start, z, batch, steps):
    """The state of `player` after `steps` iterations from `start`, all on the same rows."""
    step = jax.jit(
        lambda state: jax.lax.fori_loop(
            0, steps, lambda i, own: player.update(task, own, z, batch, jax.random.key(i))[0], state
        )
    )
    return step(player.start(start))


def rows_of(actions, **columns):
    count = len(actions)
    empty = {name: jnp.zeros(count) for name in Batch._fields}
    return Batch(**(empty | {"s": jnp.zeros((count, 2)), "a": actions} | columns))


def test_the_weighted_player_ends_at_the_policy_of_the_data_times_the_exponential_of_z():
    task, _ = pointmass_task(discrete=True)
    z, temperature = Preference(jnp.array([0.2, 1.0, 0.6])), 0.7
    taken = np.repeat([0, 1, 2], [5, 2, 3])
    batch = rows_of(jnp.eye(3)[taken])
    player = WeightedRegression((8,), 0.02, 1e-3, temperature=temperature, hold=0.0)
    state = played(player, task, make_policy(task, (8,), jax.random.key(3)), z, batch, 500)
    gain = np.asarray(z.values)[taken]
    wanted = jax.nn.softmax(jnp.log(jnp.array([0.5, 0.2, 0.3])) + z.values / (temperature * gain.std()))
    np.testing.assert_allclose(state.policy.choice(batch.s, jax.random.key(0))[0], wanted, atol=2e-3)


def test_a_weighted_player_that_is_held_stays_between_its_start_and_the_rows():
    task, _ = pointmass_task(discrete=True)
    z, start = Preference(jnp.array([0.2, 1.0, 0.6])), make_policy(task, (8,), jax.random.key(3))
    batch = rows_of(jnp.eye(3)[jnp.array([0, 1, 2, 1])])
    left = []
    for hold in (0.0, 1.0, 100.0):
        player = WeightedRegression((8,), 0.02, 1e-3, hold=hold)
        state = played(player, task, start, z, batch, 300)
        left.append(float(state.policy.divergence(start, batch.s)[0]))
    assert left[0] > left[1] > left[2]
    assert left[2] < 1e-3


def test_a_trust_region_ends_at_its_divergence_whatever_the_size_of_z():
    task, _ = pointmass_task(discrete=True)
    start, batch = make_policy(task, (8,), jax.random.key(3)), rows_of(jnp.eye(3))
    for spread in (0.05, 0.5):  # of values against the size of f
        z = Preference(jnp.array([1.0 - spread, 1.0, 1.0 + spread]))
        player = TrustRegion((8,), 0.003, 1e-3, divergence=0.2, rate=0.02)
        state = played(player, task, start, z, batch, 3000)
        assert float(state.policy.divergence(start, batch.s)[0]) == pytest.approx(0.2, rel=0.15)
        moved = state.policy.choice(batch.s, jax.random.key(0))[0]
        before = start.choice(batch.s, jax.random.key(0))[0]
        assert moved[2] > before[2]
        assert moved[0] < before[0]


def chain(steps):
    """A task, and all rows of its one episode of `steps` steps: a reward of 1, a cost of t / 10 at time t."""
    task, _ = pointmass_task()
    task = replace(task, units=Units(GAMMA, steps))
    time = jnp.arange(float(steps))
    utilities = jnp.stack([jnp.ones(steps), time / 10.0], axis=1)
    to_go = jnp.cumsum(utilities[::-1], axis=0)[::-1]
    states = jnp.zeros((steps, 2))
    batch = rows_of(
        jnp.zeros((steps, task.action_dim)), s=states, s_next=states, u=utilities,
        discount=jnp.full(steps, GAMMA), time=time, to_go=to_go, returns=jnp.zeros((steps, 2)),
    )  # fmt: skip
    return task, batch, np.asarray(to_go) / (steps * (1.0 - GAMMA))


def values(critics, task, state, batch):
    seen = critics.seen(task, batch)
    return np.stack([critic(seen.s, seen.a) for critic in (state.f[0], state.g[0][0])], axis=1)


def test_timed_critics_find_the_sum_up_to_the_horizon_in_the_unit_of_the_limit():
    """Where the state never changes only the time can tell what is to come, and nothing comes after T."""
    task, batch, wanted = chain(5)
    assert isinstance(task, Task)
    critics = TimedCritics((32,), 3e-3, 1000.0, polyak=0.1)
    state = critics.init(task, *jax.random.split(jax.random.key(0)))
    policy = make_policy(task, (8,), jax.random.key(1))

    def update(number, state):
        key, own = jax.random.split(jax.random.key(number))
        acted = batch._replace(a=policy.choice(batch.s, own))  # data of the policy itself: no pessimism
        return critics.update(task, state, policy, acted, key)[0]

    state = jax.jit(lambda state: jax.lax.fori_loop(0, 4000, update, state))(state)
    np.testing.assert_allclose(values(critics, task, state, batch), wanted, atol=0.2)
    begun = critics.init(task, *jax.random.split(jax.random.key(2)))
    warm = jax.jit(
        lambda state: jax.lax.fori_loop(0, 3000, lambda _, own: critics.warm(task, own, batch)[0], state)
    )
    begun = warm(begun)
    np.testing.assert_allclose(values(critics, task, begun, batch), wanted, atol=0.05)


def test_timed_critics_stop_at_an_end_and_at_the_horizon_alone():
    task, batch, _ = chain(5)
    critics = TimedCritics((8,), 1e-3, 10.0)
    ended = batch._replace(discount=batch.discount.at[2].set(0.0))
    assert critics.seen(task, ended).discount.tolist() == [1.0, 1.0, 0.0, 1.0, 0.0]
    endless = replace(task, units=Units(GAMMA, None))
    with pytest.raises(InputError, match="take critic squared"):
        critics.init(endless, *jax.random.split(jax.random.key(0)))


def test_times_and_sums_to_go_are_those_of_the_episodes():
    task, data = pointmass_task()
    assert task.units.horizon == 25
    time, to_go = np.asarray(data.time), np.asarray(data.to_go)
    np.testing.assert_array_equal(time[:26], [*range(25), 0])
    utilities = np.asarray(data.utilities, np.float64)
    np.testing.assert_allclose(to_go[25], utilities[25:50].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(to_go[49], utilities[49], atol=1e-5)
    batch = draw(data, task, jax.random.key(0), 8)
    assert batch.time.shape == (8,)
    assert batch.to_go.shape == (8, 2)


def test_a_fixed_multiplier_stays_where_it_is_put():
    player = Fixed(5.0, 1.0)
    state = player.init(2)
    np.testing.assert_allclose(state.lam, [0.5, 0.5])
    put = player.restart(state, jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(player.update(put, jnp.array([1.0, -1.0])).lam, [1.0, 2.0])


@pytest.mark.parametrize("name", ["trust_region", "weighted"])
def test_players_from_the_log_need_the_study_of_it(name):
    config = PDCAConfig(hidden=(8,), gamma=0.9, primal=name)
    assert PDCA(config).schedule.start_rounds == config.start_rounds
    with pytest.raises(InputError, match="take mixture bounds"):
        replace(config, mixture="lp")
