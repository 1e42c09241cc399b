"""The parts of the game, each by a property that defines it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slater.deep.algorithms.o3srl import O3SRL, O3SRLConfig
from slater.deep.game.bellman import advantage, bellman_error, bellman_halves, residual
from slater.deep.game.dual import EXP3, ExponentiatedGradient, ProjectedGradient, project_simplex
from slater.deep.nets.mlp import MLP
from slater.mixing import lp_weights

finite = st.floats(-100, 100, width=32)


@settings(deadline=None)
@given(arrays(np.float32, 20, elements=finite), st.floats(0.1, 10))
def test_bellman_error_is_the_largest_weighted_residual(delta, C):
    """E_D = max over w in [0,C]^n of |mean(w delta)|, attained at a corner: all positive or all negative."""
    corners = [C * np.mean(delta * (delta > 0)), -C * np.mean(delta * (delta < 0))]
    np.testing.assert_allclose(
        float(bellman_error(jnp.asarray(delta), C)), max(corners), rtol=1e-4, atol=1e-4
    )
    rng = np.random.default_rng(0)
    for w in rng.uniform(0, C, (20, 20)):
        assert abs(np.mean(w * delta)) <= max(corners) + 1e-3
    plus, minus = bellman_halves(jnp.asarray(delta))
    np.testing.assert_allclose(float(plus - minus), delta.mean(), rtol=1e-3, atol=1e-3)


def test_the_true_value_has_no_residual_and_the_data_policy_no_advantage():
    u, discount = jnp.array([1.0, 2.0]), jnp.array([0.9, 0.0])
    f_next = jnp.array([5.0, 7.0])
    assert float(jnp.abs(residual(u + discount * f_next, u, f_next, discount)).max()) == 0.0
    assert float(advantage(u, u)) == 0.0


@settings(deadline=None)
@given(arrays(np.float32, 3, elements=finite), st.floats(0.1, 50))
def test_projection_is_the_nearest_point(x, B):
    p = np.asarray(project_simplex(jnp.asarray(x), B))
    assert p.min() >= 0
    assert p.sum() <= B * (1 + 1e-4) + 1e-4
    rng = np.random.default_rng(1)
    others = rng.dirichlet(np.ones(4), 200)[:, :3] * B
    distance = np.linalg.norm(others - x, axis=1)
    assert np.linalg.norm(p - x) <= distance.min() + 1e-3 * (1 + np.abs(x).max())


@pytest.mark.parametrize("player", [ExponentiatedGradient, ProjectedGradient])
def test_every_dual_rises_under_violation_falls_under_slack_and_stays_bounded(player):
    dual = player(3.0, 0.5, 1.0)
    state = dual.init(2)
    for _ in range(60):
        state = dual.update(state, jnp.array([1.0, -1.0]))
        assert float(state.lam.min()) >= 0
        assert float(state.lam.sum()) <= 3.0 + 1e-5
    assert float(state.lam[0]) > 2.5
    assert float(state.lam[1]) < 0.01
    for _ in range(120):
        state = dual.update(state, jnp.array([-1.0, -1.0]))
    assert float(state.lam.max()) < 0.01


@settings(deadline=None)
@given(
    arrays(np.float64, (6, 3), elements=st.floats(0, 10)),
    arrays(np.float64, 2, elements=st.floats(0.1, 10)),
)
def test_lp_weights_keep_limits_where_a_member_does_and_beat_every_safe_member(estimates, tau):
    w = lp_weights(estimates, tau)
    np.testing.assert_allclose(w.sum(), 1)
    assert w.min() >= 0
    safe = np.all(estimates[:, 1:] <= tau, axis=1)
    if safe.any():
        assert np.all(w @ estimates[:, 1:] <= tau + 1e-4 * (1 + tau))
        assert w @ estimates[:, 0] >= estimates[safe, 0].max() - 1e-3


def test_without_a_safe_mixture_the_least_unsafe_is_taken():
    estimates = np.array([[5.0, 3.0], [9.0, 8.0], [1.0, 2.0]])
    np.testing.assert_allclose(lp_weights(estimates, np.array([1.0])), [0, 0, 1])


def test_log_prob_of_a_squashed_gaussian_integrates_to_one():
    from slater.deep.nets.policy import Gaussian

    policy = Gaussian(MLP([1, 4, 2], jax.random.key(0)), (-1.0, 0.0))
    grid = jnp.linspace(-0.9989, 0.9989, 20_001)[:, None]
    density = jnp.exp(policy.log_prob(jnp.zeros_like(grid), grid))
    np.testing.assert_allclose(float(jnp.trapezoid(density, grid[:, 0])), 1.0, atol=0.02)


#: (rewards, costs (., I), limits) of one state's actions, and the multipliers of the saddle point. One cost:
#: reckless or idle, the dual function max(1 - lambda, 0) + lambda/2 is smallest at 1. Two: each costs its
#: own kind, and lambda = (1, 0.5) makes all three actions equal.
GAMES = [
    ([1.0, 0.0], [[1.0], [0.0]], [0.5], [1.0]),
    ([1.0, 0.5, 0.0], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.3, 0.3], [1.0, 0.5]),
]


@pytest.mark.parametrize(("rewards", "costs", "tau", "answer"), GAMES)
def test_exp3_finds_the_multiplier_of_a_small_game(rewards, costs, tau, answer):
    """It hears only the Lagrangian of the arm it played, from a policy that answers as well as it can."""
    R, C, tau = jnp.asarray(rewards), jnp.asarray(costs), jnp.asarray(tau)
    dual = EXP3(2.0, rate=0.05, levels=4, start=2.0)

    def play(state, key):
        key_noise, key_arm = jax.random.split(key)
        value = jnp.max(R - C @ state.lam) + tau @ state.lam  # estimates of it are noisy
        moved = dual.update(state, value + 0.05 * jax.random.normal(key_noise), key_arm)
        return moved, moved.lam

    keys = jax.random.split(jax.random.key(0), 6000)
    state, played = jax.jit(lambda keys: jax.lax.scan(play, dual.init(len(tau)), keys))(keys)
    arms = np.asarray(dual.arms(len(tau)))
    np.testing.assert_allclose(arms[np.argmax(state.memory[:-3])], answer)
    assert np.all(np.isclose(np.asarray(played[3000:]), answer).all(axis=1).mean() > 0.5)
    assert {tuple(row) for row in np.asarray(played).tolist()} <= {tuple(row) for row in arms.tolist()}


@pytest.mark.parametrize(("cost", "least", "most"), [(0.75, 4.0, 5.0), (0.25, 0.0, 1.0)])
def test_o3srls_bandit_hears_whether_the_limit_is_kept(cost, least, most):
    """One policy answers all arms: lambda rises where it costs more than the limit and falls where less,
    whatever its reward, and whatever critics said before they knew anything."""
    player = O3SRL(O3SRLConfig(dual="exp3"))
    before, limit = jnp.array([1e4, -1e4]), jnp.array([0.5])

    def play(state, move):
        number, key = move
        values = jnp.where(number < 5, before, jnp.array([3.0, cost]))
        moved = player.lam.respond(state, player.heard(values, limit, 1e-3), key)
        return moved, moved.lam[0]

    moves = (jnp.arange(2000), jax.random.split(jax.random.key(0), 2000))
    _, played = jax.jit(lambda moves: jax.lax.scan(play, player.lam.init(1), moves))(moves)
    assert least <= float(jnp.mean(played[1500:])) <= most


@pytest.mark.parametrize(("costs", "count"), [(1, 6), (2, 21), (3, 56)])
def test_exp3s_arms_are_a_grid_of_the_players_set(costs, count):
    dual = EXP3(3.0, rate=0.1, start=3.0)
    arms = np.asarray(dual.arms(costs))
    assert len(arms) == len(np.unique(arms, axis=0)) == count
    assert arms.min() == 0
    np.testing.assert_allclose(arms.sum(axis=1).max(), 3.0, rtol=1e-6)
    first = np.asarray(dual.init(costs).lam)
    nearest = np.abs(arms - 3.0 / costs).max(axis=1).min()
    np.testing.assert_allclose(np.abs(first - 3.0 / costs).max(), nearest)


def test_layer_norm_takes_the_scale_out_of_hidden_layers():
    """Hidden weights times 7: another network without it, the same function with it."""
    for layer_norm in (False, True):
        one = MLP([3, 16, 16, 1], jax.random.key(0), layer_norm=layer_norm)
        two = eqx.tree_at(
            lambda m: [*m.weights[:-1], *m.biases[:-1]], one, replace_fn=lambda leaf: 7.0 * leaf
        )
        x = jax.random.normal(jax.random.key(1), (20, 3))
        assert np.allclose(one(x), two(x), rtol=1e-3, atol=1e-3) == layer_norm
