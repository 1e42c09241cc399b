"""What is particular to a rival: its formulas, its units, and what its preset `released` does wrong."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slater.deep as deep
from slater.data.episodes import Episodes
from slater.deep.algorithms.bc import choose_episodes
from slater.deep.algorithms.coptidice import COptiDICE, COptiDICEConfig
from slater.deep.algorithms.cpq import CPQ, CPQConfig
from slater.deep.algorithms.mbcl import MBCL, MBCLConfig
from slater.deep.batches import draw, prepare
from slater.deep.nets.vae import make_cvae
from slater.errors import InputError
from slater.limits import resolve_limits

from ..problems import QUICK, pointmass


def problem_of(data, limit="5", gamma=0.9):
    return prepare(data, resolve_limits([limit] * len(data.cost_names), data.cost_names), gamma)


def episodes(costs, returns, complete=True):
    n = len(costs)
    return Episodes(
        starts=25 * np.arange(n), stops=25 * np.arange(n) + 25, returns=np.array(returns, float),
        costs=np.array(costs, float)[:, None], terminated=np.zeros(n, bool), complete=np.full(n, complete),
    )  # fmt: skip


# -- which episodes are cloned ----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["20", "0.8/step", "8/discounted"])
def test_an_episode_exactly_at_the_limit_is_safe_in_every_unit(limit):
    task, _ = problem_of(pointmass(), limit)  # 25 steps, discount .9
    chosen = choose_episodes(episodes([19, 20, 21], [1, 1, 1]), task, "safe")
    assert chosen.tolist() == [True, True, False]


def test_no_safe_episode_is_said_with_the_smallest_cost(tmp_path):
    data = pointmass(seed=3)
    least = data.episodes.costs.min()
    if least == 0:
        data = data.subset(data.episodes.costs[:, 0] > 0)
        least = data.episodes.costs.min()
    with pytest.raises(InputError, match=rf"c0 \(limit 0 per episode, smallest {least:g}\)"):
        deep.train("bc-safe", data, ["0"], tmp_path / "run", **QUICK)


def test_incomplete_episodes_are_never_safe():
    task, _ = problem_of(pointmass())
    with pytest.raises(InputError, match="no episode of this data is complete"):
        choose_episodes(episodes([0, 0], [1, 2], complete=False), task, "safe")


# -- COptiDICE --------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(y=st.floats(-5, 4), kind=st.sampled_from(["softchi", "kl"]))
def test_w_inverts_the_derivative_of_f(y, kind):
    algorithm = COptiDICE(COptiDICEConfig(f=kind, alpha=0.5))
    w = algorithm._ratio(jnp.asarray(0.5 * y))
    np.testing.assert_allclose(jax.grad(algorithm._f)(w), y, atol=2e-3)


def test_the_limit_is_normalised_and_the_released_one_never_binds():
    data = pointmass()
    task, _ = problem_of(data, "5")
    right = COptiDICE(COptiDICEConfig()).limits(task)
    np.testing.assert_allclose(right, 5 / 25 * task.scale[1:], rtol=1e-6)
    released = deep.make_config(COptiDICE, {}, "released")
    # costs lie in [0, 1] and weights have mean 1, so no estimate reaches a limit of 1 or more
    assert COptiDICE(released).limits(task)[0] > 1


def test_the_upper_bound_is_above_the_plain_cost():
    """After some steps, E[v w C] >= E[w C]: the worst model in the ball is worse than the data."""
    data = pointmass(discrete=True)
    task, on_device = problem_of(data)
    algorithm = COptiDICE(COptiDICEConfig(**{**QUICK, "epsilon": 0.1, "eta_scalars": 1e-2}))
    state = algorithm.init(task, jax.random.key(0))
    step = jax.jit(lambda state, batch, key: algorithm.update(task, state, batch, key, 0, "train"))
    rows = []
    for k in range(300):
        key = jax.random.key(k)
        state, metrics = step(state, draw(on_device, task, key, 64), key)
        rows.append([float(metrics[name]) for name in ("bound/c0", "ope/c0", "weights/effective_share")])
    bound, plain, share = np.mean(rows[-100:], axis=0)
    assert bound > plain
    assert 0 < share <= 1


# -- CPQ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("penalty", "moves"), [("gradient", True), ("released", False)])
def test_the_penalty_moves_the_cost_critics_unless_released(penalty, moves):
    """One step of the critics from the same state, with a small and with a large alpha."""
    data = pointmass()
    task, on_device = problem_of(data)
    algorithm = CPQ(CPQConfig(**{**QUICK, "vae_hidden": (8,), "penalty": penalty}))
    on_device = algorithm.data(data, task, on_device)
    state = algorithm.init(task, jax.random.key(0))
    batch = draw(on_device, task, jax.random.key(1), 32)
    after = []
    for log_alpha in (-5.0, 5.0):
        start = replace(state, log_alpha=jnp.full(1, log_alpha))
        moved, _ = algorithm._critics(task, start, batch, jax.random.key(2), jax.random.key(3))
        after.append(np.asarray(moved.critics[1][0].mlp.weights[-1]))
    assert np.array_equal(*after) != moves


def test_what_is_unsafe_is_worth_the_least_value():
    """With every action called unsafe, the reward's goal is r + gamma * (least value)."""
    data = pointmass()
    task, transitions = problem_of(data, "0")
    assert task.value_low[0] < 0  # rewards of this problem can be negative
    algorithm = CPQ(CPQConfig(**{**QUICK, "vae_hidden": (8,)}))
    state = algorithm.init(task, jax.random.key(0))
    costly = tuple(
        eqx.tree_at(lambda c: c.mlp.biases[-1], critic, jnp.full(1, 100.0)) for critic in state.target[1]
    )
    state = replace(state, target=(state.target[0], costly))
    batch = draw(algorithm.data(data, task, transitions), task, jax.random.key(1), 32)
    goal, _ = algorithm._goals(task, state, batch, jax.random.key(2))
    np.testing.assert_allclose(goal, batch.u[:, 0] + 0.9 * task.value_low[0], rtol=1e-5)


# -- MBCL and the CVAE ------------------------------------------------------------------------------------


def test_linear_features_are_one_layer_and_the_policy_is_nearly_greedy():
    task, on_device = problem_of(pointmass(discrete=True))
    algorithm = MBCL(MBCLConfig(**{**QUICK, "features": "linear"}))
    state = algorithm.init(task, jax.random.key(0))
    pi = algorithm.policy(state)
    assert len(pi.mlp.weights) == 1
    values = state.q_target.mlp(on_device.obs)
    top = np.sort(np.asarray(values), axis=1)
    clear = top[:, -1] - top[:, -2] > 0.05
    greedy = np.asarray(pi.choice(on_device.obs, jax.random.key(0)))
    assert clear.any()
    np.testing.assert_allclose(
        greedy[clear], np.eye(3)[np.argmax(np.asarray(values)[clear], axis=1)], atol=1e-3
    )


def test_the_cvae_learns_to_tell_unlike_actions():
    """Data actions are a function of the state; after training, others have a larger divergence."""
    import optax

    task, _ = problem_of(pointmass())
    key = jax.random.key(0)
    obs = jax.random.normal(key, (512, task.obs_dim))
    action = 0.8 * jnp.tanh(obs)
    vae, adam = make_cvae(task, (32, 32), 4, key), optax.adam(3e-3)
    opt = adam.init(vae)

    @jax.jit
    def step(vae, opt, key):
        loss, grads = jax.value_and_grad(lambda v: v.loss(obs, action, key))(vae)
        updates, opt = adam.update(grads, opt)
        return optax.apply_updates(vae, updates), opt, loss

    losses = []
    for k in range(300):
        vae, opt, loss = step(vae, opt, jax.random.key(k))
        losses.append(float(loss))
    assert np.mean(losses[-20:]) < 0.5 * losses[0]
    drawn = vae.decode(obs, None, key)
    assert drawn.shape == action.shape
    assert float(jnp.mean((drawn - action) ** 2)) < 0.1
