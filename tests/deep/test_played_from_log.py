"""A game that is played from the log: where it starts, what holds it, when its parts move."""

from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca.schedule import TURN, Schedule
from slater.deep.batches import draw, prepare
from slater.deep.game.dual import EXP3, PID, ExponentiatedGradient, ProjectedGradient
from slater.deep.game.player import ModelPlayer
from slater.deep.game.primal import AnchoredGradient
from slater.deep.log_model.dynamics import DynamicsSettings, random_dynamics
from slater.deep.nets.policy import Categorical, Gaussian, make_policy
from slater.deep.ope.rollouts import values_of
from slater.deep.task import state_task
from slater.limits import resolve_limits

from .problems import Preference, pointmass


def actions_of(discrete):
    data = pointmass(episodes=3, discrete=discrete)
    return state_task(data, resolve_limits(["5"], data.cost_names), 0.9)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_divergence_is_the_mean_log_ratio_of_what_the_first_would_do(discrete):
    task = actions_of(discrete)
    one, two = (make_policy(task, (8,), jax.random.key(k), (-3.0, 0.0)) for k in (0, 1))
    assert isinstance(one, Categorical if discrete else Gaussian)
    obs = jnp.array([[0.3, -0.5]])
    np.testing.assert_allclose(one.divergence(one, obs), 0.0, atol=1e-6)
    many = jnp.repeat(obs, 200_000, axis=0)
    if discrete:
        chance = one.choice(obs, jax.random.key(0))[0]
        choices = jax.nn.one_hot(
            jax.random.categorical(jax.random.key(2), jnp.log(chance), shape=(200_000,)), 3
        )
    else:
        choices = one.choice(many, jax.random.key(2))
    ratio = one.log_prob(many, choices) - two.log_prob(many, choices)
    error = float(jnp.std(ratio)) / 200_000**0.5
    assert float(one.divergence(two, obs)[0]) == pytest.approx(float(ratio.mean()), abs=6 * error + 1e-6)


def test_the_anchored_player_ends_at_its_start_times_the_exponential_of_z():
    """Mirror descent from the start: the minimiser is known in closed form."""
    task = actions_of(discrete=True)
    weight, z = 0.5, Preference(jnp.array([0.2, 1.0, 0.6]))
    player = AnchoredGradient((8,), 0.02, 1e-3, anchor_weight=weight)
    start = make_policy(task, (8,), jax.random.key(3))
    state = player.start(start)
    data = dict.fromkeys(("u", "discount", "s_next", "returns", "s0"))
    batch = SimpleNamespace(s=jnp.zeros((4, 2)), a=jnp.eye(3)[jnp.array([0, 1, 2, 1])], **data)
    update = jax.jit(lambda state: player.update(task, state, z, batch, jax.random.key(0)))
    for _ in range(400):
        state, told = update(state)
    size = float(jnp.mean(jnp.abs(z.f(batch.s, batch.a))))
    before = start.choice(batch.s, jax.random.key(0))[0]
    wanted = jax.nn.softmax(jnp.log(before) + z.values / (weight * size))
    np.testing.assert_allclose(state.policy.choice(batch.s, jax.random.key(0))[0], wanted, atol=2e-3)
    assert np.isfinite(told["loss/pi"])
    np.testing.assert_array_equal(state.anchor.mlp.weights[0], start.mlp.weights[0])


@pytest.mark.parametrize(
    "player",
    [ProjectedGradient(5.0, 0.5), ExponentiatedGradient(5.0, 0.5),
     PID(5.0, 0.5, 0.1, 0.1), EXP3(5.0, 0.1)],
    ids=lambda player: type(player).__name__,
)  # fmt: skip
def test_a_dual_player_can_be_put_at_prices_and_goes_on_from_there(player):
    state = player.init(2)
    prices = jnp.array([1.0, 2.0])
    put = player.restart(state, prices)
    np.testing.assert_allclose(put.lam, prices, rtol=1e-5)
    assert jax.tree.map(jnp.shape, put) == jax.tree.map(jnp.shape, state)
    if not isinstance(player, EXP3):
        assert float(player.update(put, jnp.array([0.5, 0.5])).lam.sum()) > 3.0
        assert float(player.update(put, jnp.array([-0.5, -0.5])).lam.sum()) < 3.0


def test_a_schedule_is_parts_of_starts_and_whole_rounds():
    schedule = Schedule(joint=30, rounds=2)
    phases, step = [], 0
    while step < 126:
        phase, step_after = schedule.phase(step)
        phases.append((phase, step_after - step))
        step = step_after
    part = [
        ("start", 1),
        *[("play", 1), ("climb", TURN - 1), ("play", 1), ("climb", 29 - TURN), ("ope", 1)] * 2,
    ]
    assert phases == 2 * part
    ends = [done for done in range(127) if schedule.ends_round(done)]
    assert ends == [32, 63, 95, 126]
    assert [schedule.part(done - 1) for done in ends] == [0, 0, 1, 1]
    assert [int(schedule.rounds_over(jnp.asarray(done - 1))) for done in ends] == [1, 2, 3, 4]
    # two starts, then the second goes on: what was searched for in one half never is in the other
    two = replace(schedule, starts=2)
    assert [two.start(63 * part) for part in range(4)] == [0, 1, 1, 1]
    assert [two.half(63 * part + 62) for part in range(4)] == [0, 1, 1, 1]


@pytest.fixture(scope="module", params=[False, True], ids=["continuous", "discrete"])
def world(request):
    """A task, dynamics at random, in which utilities depend on states and actions, and first states."""
    task = actions_of(request.param)
    dynamics = random_dynamics(
        task, DynamicsSettings(networks=2, hidden=(16,), outcome_hidden=(16,), levels=0)
    )

    def width(d):
        return d.utility_low, d.utility_high, d.low, d.high

    bounds = (jnp.full(2, -1.0), jnp.ones(2), jnp.full(2, -3.0), jnp.full(2, 3.0))
    dynamics = eqx.tree_at(width, dynamics, bounds)
    strong = [10.0 * weight for weight in dynamics.outcomes.weights]
    dynamics = eqx.tree_at(lambda d: list(d.outcomes.weights), dynamics, strong)
    return task, dynamics, jax.random.normal(jax.random.key(5), (64, 2))


def climbed(world, anchor_weight, rounds=12):
    task, dynamics, first = world
    player = ModelPlayer((16,), 3e-3, 3e-3, (-3.0, 0.0), 2, 1, 64, anchor_weight)
    state, lam, key = player.init(task, jax.random.key(1)), jnp.array([0.7]), jax.random.key(2)
    start = state.policy
    play = eqx.filter_jit(lambda s, k: player.play(task, s, dynamics, 0, first, k))
    climb = eqx.filter_jit(lambda s, k: player.climb(s, lam, k))
    for turn in range(rounds):
        state = play(state, jax.random.fold_in(key, turn))
        for step in range(24):
            state, told = climb(state, jax.random.fold_in(key, 1000 * turn + step))
            assert all(np.isfinite(float(x)) for x in told.values())

    def lagrangian(policy):
        found = values_of(task, dynamics, policy, jnp.tile(first, (8, 1)), jax.random.key(3))
        return float(found[0] @ jnp.array([1.0, -0.7]))  # by the half that it was played in

    return start, state, lagrangian


def test_the_player_climbs_the_lagrangian_of_what_the_model_says(world):
    start, state, lagrangian = climbed(world, anchor_weight=0.01)
    assert lagrangian(state.policy) > lagrangian(start) + 0.1
    # V is what follows: of the same unit as the sums it is regressed on, and better than none
    played = state.played
    left = played.to_go / played.size - state.critic(played.states)
    assert float(jnp.mean(left**2)) < 0.8 * float(jnp.mean((played.to_go / played.size) ** 2))


def test_a_player_that_is_held_stays_at_its_start(world):
    start, state, _ = climbed(world, anchor_weight=100.0, rounds=4)
    seen = state.played.states[:256, :-1]
    assert float(jnp.mean(state.policy.divergence(start, seen))) < 0.01
    np.testing.assert_array_equal(state.anchor.mlp.weights[0], start.mlp.weights[0])


def test_a_started_player_is_held_to_its_candidate(world):
    task, *_ = world
    player = ModelPlayer((16,), 3e-3, 3e-3, (-3.0, 0.0), 2, 1, 64, 0.1)
    state, other = player.init(task, jax.random.key(1)), player.init(task, jax.random.key(9)).policy
    found = player.start(state, other)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, state)
    for own, wanted in zip(
        jax.tree.leaves((found.policy, found.anchor)), 2 * jax.tree.leaves(other), strict=True
    ):
        np.testing.assert_array_equal(own, wanted)


@pytest.mark.parametrize("components", [1, 3])
def test_no_divergence_is_less_than_the_mean_log_ratio(components):
    """Exact for one Gaussian; of a mixture the bound that holds a player must not be too small."""
    task = actions_of(discrete=False)
    one, two = (make_policy(task, (8,), jax.random.key(k), (-3.0, 0.0), components) for k in (0, 1))
    obs = jnp.array([[0.3, -0.5]])
    many = jnp.repeat(obs, 20_000, axis=0)
    choices = one.choice(many, jax.random.key(2))
    ratio = one.log_prob(many, choices) - two.log_prob(many, choices)
    error = float(jnp.std(ratio)) / 20_000**0.5
    assert float(one.divergence(two, obs)[0]) >= float(ratio.mean()) - 6 * error
    np.testing.assert_allclose(one.divergence(one, obs), 0.0, atol=1e-6)


def test_times_and_sums_to_go_are_those_of_the_episodes():
    data = pointmass(episodes=10)
    task, rows = prepare(data, resolve_limits(["5"], data.cost_names), 0.9)
    assert task.units.horizon == 25
    time, to_go = np.asarray(rows.time), np.asarray(rows.to_go)
    np.testing.assert_array_equal(time[:26], [*range(25), 0])
    utilities = np.asarray(rows.utilities, np.float64)
    np.testing.assert_allclose(to_go[25], utilities[25:50].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(to_go[49], utilities[49], atol=1e-5)
    batch = draw(rows, task, jax.random.key(0), 8)
    assert batch.time.shape == (8,)
    assert batch.to_go.shape == (8, 2)
