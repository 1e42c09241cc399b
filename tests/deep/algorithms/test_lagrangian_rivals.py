"""BCQ-Lag and BEAR-Lag: the PID multiplier, the critics they share, and their policies."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slater.deep as deep
from slater import policy as policies
from slater.deep.algorithms.bcq_lag import BCQLag
from slater.deep.algorithms.bear_lag import mmd
from slater.deep.algorithms.lagrangian import Twins, excess
from slater.deep.algorithms.registry import make_config
from slater.deep.batches import prepare
from slater.deep.engine.folder import algorithm_of
from slater.deep.game.dual import PID
from slater.errors import InputError
from slater.limits import resolve_limits

from ..conformance.table import finished_run
from ..problems import pointmass

QUICK = {
    "steps": 20, "batch_size": 16, "hidden": (16,), "vae_hidden": (16,), "gamma": 0.9, "warm_steps": 8,
    "samples": 3,
}  # fmt: skip
update = jax.jit(PID.update, static_argnums=0)  # of a player, compiled once per player and number of costs
errors = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(errors)
def test_pid_is_the_closed_form_while_nothing_saturates(sequence):
    """One cost, far from its bounds: lambda = start + ki sum e + kp e + kd (e - e_before)_+."""
    player = PID(1000.0, kp=0.5, ki=0.1, kd=0.2, start=100.0)
    state, total, before = player.init(1), 0.0, 0.0
    for e in sequence:
        state = update(player, state, jnp.array([e]))
        total += e
        expected = 100.0 + 0.1 * total + 0.5 * e + 0.2 * max(e - before, 0.0)
        np.testing.assert_allclose(state.lam[0], expected, rtol=1e-5)
        before = e


@settings(max_examples=30, deadline=None)
@given(errors, st.integers(1, 3))
def test_pid_stays_in_its_set(sequence, costs):
    player = PID(2.0, kp=0.5, ki=0.3, kd=0.2)
    state = player.init(costs)
    for e in sequence:
        state = update(player, state, jnp.full(costs, e) * jnp.arange(1, costs + 1))
        assert np.all(np.asarray(state.lam) >= 0)
        assert float(state.lam.sum()) <= 2.0 + 1e-5


def test_pid_does_not_wind_up():
    """However long the limit was broken, the integral falls from B with the first step that keeps it."""
    player = PID(1.0, kp=0.0, ki=0.1, kd=0.0)
    state = player.init(1)
    for _ in range(1000):
        state = update(player, state, jnp.array([1.0]))
    np.testing.assert_allclose(state.lam, 1.0)
    for k in range(1, 11):
        state = update(player, state, jnp.array([-1.0]))
        np.testing.assert_allclose(state.lam, 1.0 - 0.1 * k, atol=1e-5)


def test_twins_are_pessimistic_about_reward_and_about_every_cost():
    dataset = pointmass(costs=2)
    task, _ = prepare(dataset, resolve_limits([5.0, 5.0], dataset.cost_names), 0.9)
    twins = Twins(make_config(BCQLag, QUICK))
    nets = twins.init(task, jax.random.key(0)).online
    s, a = jnp.asarray(dataset.observations[:50]), jnp.asarray(dataset.actions[:50])
    v = twins.values(nets, s, a)
    for u, (one, two) in enumerate(nets):
        q = np.stack([one(s, a), two(s, a)])
        mean = q.mean(axis=0)
        assert np.all((v[u] <= mean + 1e-6) if u == 0 else (v[u] >= mean - 1e-6))
        assert np.all((q.min(axis=0) - 1e-6 <= v[u]) & (v[u] <= q.max(axis=0) + 1e-6))
    lam = jnp.array([0.3, 2.0])
    score = twins.score(nets, lam, s, a)
    np.testing.assert_allclose(score, v[0] - 0.3 * v[1] - 2.0 * v[2], atol=1e-5)
    many = jnp.stack([a, -a, 0.5 * a], axis=1)
    best = twins.best(nets, lam, s, many)
    scores = np.stack([twins.score(nets, lam, s, many[:, k]) for k in range(3)], axis=1)
    np.testing.assert_array_equal(best, np.asarray(many)[np.arange(50), scores.argmax(axis=1)])


def test_the_excess_is_in_units_of_the_limit():
    """Twice the discounted limit is 1, whatever the scale of the cost and the unit the limit is given in."""
    dataset = pointmass()
    config = make_config(BCQLag, {**QUICK, "margin": 0.0})
    for text in ("5", "2/discounted", "0.2/step"):
        task, _ = prepare(dataset, resolve_limits([text], dataset.cost_names), 0.9)
        np.testing.assert_allclose(task.tau, 2.0, rtol=1e-6)  # 5 of 25 steps at gamma .9
        for cost, expected in ((4.0, 1.0), (2.0, 0.0), (3.0, 0.5), (90.0, 1.0)):
            e, _ = excess(task, config, jnp.array([[cost]]))
            np.testing.assert_allclose(e, expected, atol=1e-6)


def test_the_judge_of_a_cost_is_no_critic_that_the_policy_climbs():
    """Critics that are all wrong about a cost do not move the multiplier's estimate; as released they do."""
    dataset = pointmass()
    task, _ = prepare(dataset, resolve_limits(["5"], dataset.cost_names), 0.9)
    s, a = jnp.zeros((4, task.obs_dim)), jnp.zeros((4, task.action_dim))
    for judge, moves in (("own", False), ("critics", True)):
        twins = Twins(make_config(BCQLag, {**QUICK, "judge": judge}))
        state = twins.init(task, jax.random.key(0))
        wrong = jax.tree.map(lambda x: x + 1.0, state.target)
        before, after = (twins.costs(s_, s, a) for s_ in (state, replace(state, target=wrong)))
        assert bool(jnp.any(before != after)) == moves


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 2.0))
def test_mmd_is_zero_for_the_same_samples_and_grows_with_distance(seed, shift):
    x = jax.random.normal(jax.random.key(seed), (4, 6, 2))
    np.testing.assert_allclose(mmd(x, x, 1.0), 1e-3, atol=1e-3)
    near, far = mmd(x, x + 0.5 * shift, 1.0), mmd(x, x + shift, 1.0)
    assert np.all(far > near)
    # two points: k(x,x) = k(y,y) = 1, so MMD^2 = 2 - 2 exp(-d^2/2)
    p, q = jnp.zeros((1, 1, 1)), jnp.full((1, 1, 1), shift)
    np.testing.assert_allclose(mmd(p, q, 1.0), np.sqrt(2 - 2 * np.exp(-(shift**2) / 2)), atol=1e-3)


@pytest.mark.xdist_group("bcq-lag")
@pytest.mark.parametrize("costs", [1, 2])
def test_the_numpy_policy_of_bcq_is_the_trained_one(costs):
    folder, dataset = finished_run("bcq-lag", None, costs - 1)
    assert len(dataset.cost_names) == costs
    algorithm = algorithm_of(deep.read_run(folder))
    task, _ = prepare(dataset, resolve_limits([5.0] * costs, dataset.cost_names), 0.9)
    from slater.deep import checkpoint

    like = algorithm.init(task, jax.random.key(0))
    state, _ = checkpoint.restore(folder / "checkpoint.safetensors", like)
    net, policy = algorithm.policy(state), policies.load(folder / "policy.safetensors")
    obs = ((dataset.observations[:30] - task.obs_mean) / task.obs_std).astype(np.float32)
    z = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    v = net.vae.decode(obs, z)
    inside = jnp.clip(v + net.phi * jnp.tanh(net.perturbation(jnp.concatenate([obs, v], axis=-1))), -1, 1)
    np.testing.assert_allclose(policy.propose(obs, z), inside, atol=1e-5)
    score = algorithm.twins.score(net.critics, net.lam, obs, inside)
    np.testing.assert_allclose(policy.score(obs, np.asarray(inside)), score, atol=1e-4)
    # of its proposals it takes the best one
    actions = policy.act(dataset.observations[:30], rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    count = algorithm.config.act_samples
    assert count > 1
    drawn = np.clip(rng.standard_normal((30 * count, 4), dtype=np.float32), -0.5, 0.5)
    repeated = np.repeat(obs, count, axis=0)
    proposals = policy.propose(repeated, drawn)
    scores = policy.score(repeated, proposals).reshape(30, count)
    np.testing.assert_allclose(
        actions, proposals.reshape(30, count, 2)[np.arange(30), scores.argmax(axis=1)], atol=1e-6
    )


@pytest.mark.parametrize("name", ["bcq-lag", "bear-lag"])
def test_discrete_actions_are_refused_in_one_sentence(name, tmp_path):
    with pytest.raises(InputError, match="continuous"):
        deep.train(name, pointmass(discrete=True), [5.0], tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="margin"):
        deep.train(name, pointmass(), [5.0], tmp_path / "run", **{**QUICK, "margin": 1.5})
