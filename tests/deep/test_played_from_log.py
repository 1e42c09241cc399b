"""A game that is played from the log: where it starts, what holds it, when its parts move."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.algorithms.pdca.schedule import Schedule
from slater.deep.batches import draw, prepare
from slater.deep.game.dual import EXP3, PID, ExponentiatedGradient, ProjectedGradient
from slater.deep.game.primal import AnchoredGradient
from slater.deep.nets.policy import Categorical, Gaussian, make_policy
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import resolve_limits

from .exact import random_cmdp
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


def test_a_schedule_in_parts_is_starts_and_whole_rounds_and_does_not_depend_on_the_number_of_steps():
    schedule = Schedule(steps=100, warm=10, fit=0, joint=5, ope=1, start_rounds=3)
    phases, step = [], 0
    while step < 100:
        phase, step_after = schedule.phase(step)
        phases.append((phase, step_after - step))
        step = step_after
    part = [("start", 1), *[("joint", 5), ("ope", 1)] * 3]
    assert phases[0] == ("warm", 10)
    assert phases[1 : 1 + 2 * len(part)] == 2 * part
    ends = [done for done in range(101) if schedule.ends_round(done)]
    assert ends[:4] == [17, 23, 29, 36]
    assert [schedule.part(done - 1) for done in ends[:4]] == [0, 0, 0, 1]
    moves = [int(step) for step in range(10, 100) if bool(schedule.moves_dual(jnp.asarray(step))[0])]
    starts = [10, 29, 48, 67, 86]
    assert [step for step in moves if step not in starts] == [done - 1 for done in ends]
    longer = Schedule(steps=1000, warm=10, fit=0, joint=5, ope=1, start_rounds=3)
    assert all(schedule.phase(step) == longer.phase(step) for step in range(94))


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


def test_what_is_auto_follows_the_log():
    config = PDCAConfig(hidden=(8,), gamma=0.9)
    found = PDCA(config).config_for(pointmass(episodes=4))
    parts = (found.estimator, found.mixture, found.primal, found.dual, found.levels)
    assert parts == ("rollouts", "posterior", "anchored", "exponentiated_gradient", False)
    plain = PDCA(replace(config, mixture="lp")).config_for(pointmass(episodes=4))
    assert (plain.estimator, plain.primal, plain.dual) == ("fqe", "gradient", "projected_gradient")
    one_hot = random_cmdp(0).dataset(np.full((10, 5), 1 / 5), 50, 0)
    exact = PDCA(config).config_for(one_hot)
    assert (exact.estimator, exact.mixture, exact.primal) == ("fqe", "lp", "natural")
    for name, part in (("estimator", "rollouts"), ("primal", "anchored")):
        with pytest.raises(InputError, match="take mixture posterior"):
            replace(config, mixture="lp", **{name: part})


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
