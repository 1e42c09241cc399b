"""OPE by a learned model, against simulation of the same policy."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from slater.data import Dataset, Metadata
from slater.deep.batches import draw, prepare
from slater.deep.nets.policy import make_policy
from slater.deep.ope.check import check_model, replay
from slater.deep.ope.model import DynamicsModel, counts_episodes, fit_step, make_model, model_values
from slater.limits import resolve_limits

from .problems import pointmass, pointmass_values

GAMMA, STEPS = 0.9, 1500


def fitted(data, limit, copies=2):
    task, device = prepare(data, resolve_limits([limit], data.cost_names), GAMMA)
    fit = make_model(task, (64, 64), copies, 1e-3, STEPS, jax.random.key(0))

    @jax.jit
    def run(fit):
        def step(i, fit):
            batch = draw(device, task, jax.random.fold_in(jax.random.key(1), i), 128)
            return fit_step(fit, batch, GAMMA, 1e-3, STEPS)[0]

        return jax.lax.fori_loop(0, STEPS, step, fit)

    return task, device, run(fit).model


@cache
def pointmass_model() -> tuple:
    return fitted(pointmass(episodes=200), "5")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_episodes_in_the_model_cost_what_they_cost_in_the_world(seed):
    """In the unit of the limit: J <= tau says that the undiscounted episode is within it."""
    task, device, model = pointmass_model()
    assert counts_episodes(task)
    # a policy that stays where the data are: small means, wide noise
    wild = make_policy(task, (8,), jax.random.key(seed), (0.0, 0.5))
    policy = jax.tree.map(lambda leaf: 0.4 * leaf, wild)
    values = model_values(task, model, policy, device.initial[:200], jax.random.key(3))
    assert values.shape == (2, 2)
    returns, cost = pointmass_values(policy.export(task), 300, seed=7)
    said_return, said_cost = task.unscaled(np.asarray(values).mean(axis=0)) * 25 * (1 - GAMMA)
    np.testing.assert_allclose(said_return, returns, atol=0.15 * (1 + abs(returns)))
    np.testing.assert_allclose(said_cost, cost, atol=1.5)
    np.testing.assert_allclose(task.tau / task.scale[1:] * 25 * (1 - GAMMA), 5.0, rtol=1e-5)


def test_equal_episodes_and_a_limit_on_discounted_sums():
    """Cost 1 in every step: estimated at 1/(1-gamma), up to the hundredth that is cut; no variance between
    episodes for the model to explain, and nothing to warn of."""
    n = 400
    data = Dataset.from_arrays(
        observations=np.random.default_rng(0).normal(size=(n, 2)), actions=np.zeros((n, 1)),
        rewards=np.full(n, 2.0), costs=np.ones((n, 1)), terminals=np.zeros(n, bool),
        timeouts=np.arange(n) % 20 == 19, metadata=Metadata(horizon=20),
    )  # fmt: skip
    task, device, model = fitted(data, "5/discounted", copies=1)
    assert not counts_episodes(task)
    policy = make_policy(task, (8,), jax.random.key(0))
    values = model_values(task, model, policy, device.initial, jax.random.key(3))
    np.testing.assert_allclose(task.unscaled(np.asarray(values))[0], [20.0, 10.0], rtol=0.02)
    figures, warning = check_model(task, model, data)
    assert warning is None
    assert figures["utilities"]["cost"]["explained_variance"] is None
    assert abs(figures["utilities"]["cost"]["bias"]) < 1.0


def test_an_end_ends_the_costs():
    """Every step ends its episode: one step's cost, whatever the horizon."""
    n = 300
    data = Dataset.from_arrays(
        observations=np.random.default_rng(0).normal(size=(n, 2)), actions=np.zeros((n, 1)),
        rewards=np.ones(n), costs=np.ones((n, 1)), terminals=np.ones(n, bool), timeouts=np.zeros(n, bool),
        metadata=Metadata(horizon=50),
    )  # fmt: skip
    task, device, model = fitted(data, "5", copies=1)
    policy = make_policy(task, (8,), jax.random.key(0))
    values = model_values(task, model, policy, device.initial, jax.random.key(3))
    np.testing.assert_allclose(np.asarray(values)[0, 1] * 50 * (1 - GAMMA), 1.0, rtol=0.05)


def test_states_stay_within_what_the_data_have_shown():
    _, device, model = pointmass_model()
    assert isinstance(model, DynamicsModel)
    one = jax.tree.map(lambda leaf: leaf[0], model.networks)
    far = device.obs[:50] * 1e6
    s_next, utilities, end = model.step(one, far, device.actions[:50])
    room = 0.1 * (model.high - model.low)
    assert bool(((s_next >= model.low - room - 1e-5) & (s_next <= model.high + room + 1e-5)).all())
    assert bool(((utilities >= model.utility_low) & (utilities <= model.utility_high)).all())
    assert bool(((end >= 0) & (end <= 1)).all())


def test_a_model_of_what_actions_settle_is_trusted():
    """Every utility of logged episodes is reproduced from the first observation and the actions alone."""
    task, _, model = pointmass_model()
    data = pointmass(episodes=200)
    figures, warning = check_model(task, model, data)
    assert warning is None
    assert figures["trusted"]
    assert figures["episodes"] == 200
    for name in ("reward", "c0"):
        assert figures["utilities"][name]["explained_variance"] > 0.8
    np.testing.assert_allclose(figures["utilities"]["c0"]["logged_mean"], data.episodes.costs.mean())
    logged, predicted = replay(task, model, data)
    np.testing.assert_allclose(logged[:, 0], data.episodes.returns)
    np.testing.assert_allclose(figures["utilities"]["reward"]["bias"], (predicted - logged)[:, 0].mean())


def test_a_model_of_luck_is_not_trusted_and_the_warning_names_cost_and_figures():
    data = pointmass(episodes=200, noise=0.4)
    task, _, model = fitted(data, "5")
    figures, warning = check_model(task, model, data)
    found = figures["utilities"]["c0"]
    assert found["explained_variance"] < 0.5
    assert warning is not None
    assert not figures["trusted"]
    assert "cost c0" in warning
    assert f"{max(found['explained_variance'], 0):.0%}" in warning
    assert f"{found['bias']:+.3g}" in warning
    assert "the preset fqe" in warning


def test_a_model_that_explains_nothing_of_the_reward_is_not_trusted():
    """Its costs may be small beside their limits: it cannot tell one episode from another."""
    data = pointmass(episodes=200)
    task, _, model = pointmass_model()
    shuffled = np.random.default_rng(0).permutation(data.actions)
    luck = replace(data, actions=shuffled)
    figures, warning = check_model(replace(task, limits=resolve_limits(["1000"], ("c0",))), model, luck)
    assert figures["utilities"]["reward"]["explained_variance"] < 0
    assert not figures["trusted"]
    assert "of the reward per episode" in warning
