"""In-sample critics against exact values: sums up to a horizon, of the best and the cheapest continuation."""

from functools import cache

import jax
import numpy as np
import pytest

from slater.deep.batches import draw, prepare
from slater.deep.game.in_sample import InSampleCritics, clone_weights
from slater.limits import resolve_limits

from ..exact import GAMMA, random_cmdp

LENGTH = 5


@cache
def fitted(expectile: float):
    """Q (2, T, S, A) of reward and cost in raw sums, by networks, and exactly for the best continuation."""
    cmdp = random_cmdp(3, states=3, actions=3)
    data = cmdp.dataset(np.full((3, 3), 1 / 3), 12_000, seed=0, length=LENGTH)
    task, device = prepare(data, resolve_limits(["2"], data.cost_names), GAMMA)
    critics = InSampleCritics((1, -1), (64,), learning_rate=3e-3, expectile=expectile, copies=1, polyak=0.02)
    state = critics.init(task, jax.random.key(0))

    def step(state, key):
        batch = critics.seen(task, draw(device, task, key, 256))
        return critics.update(state, batch)[0], None

    keys = jax.random.split(jax.random.key(1), 2500)
    state, _ = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(state, keys)
    Q, exact = np.zeros((2, LENGTH, 3, 3)), np.zeros((2, LENGTH + 1, 3, 3))
    unit = LENGTH * (1 - GAMMA)
    for t, s, a in np.ndindex(LENGTH, 3, 3):
        obs = (np.eye(3)[s] - task.obs_mean) / task.obs_std
        seen = np.append(obs, 2 * t / LENGTH - 1)[None].astype(np.float32)
        for k in range(2):
            value = critics.value(state.q, k, seen, np.eye(3, dtype=np.float32)[[a]])
            Q[k, t, s, a] = float(value[0]) * unit / task.scale[k]
    for t in reversed(range(LENGTH)):
        V = np.stack([exact[0, t + 1].max(axis=1), exact[1, t + 1].min(axis=1)])
        if expectile == 0.5:
            V = exact[:, t + 1].mean(axis=2)
        exact[:, t] = cmdp.U + np.einsum("sat,kt->ksa", cmdp.P, V)
    Q[:, 0, 1:] = exact[:, 0, 1:] = 0.0  # no episode starts there
    gains = critics.gains(state, critics.seen(task, draw(device, task, jax.random.key(2), 512)))
    return Q, exact[:, :LENGTH], np.asarray(gains)


@pytest.mark.parametrize(("expectile", "error"), [(0.5, 0.1), (0.97, 0.15)])
def test_they_find_the_sums_to_the_horizon_of_the_log_and_of_the_best_that_it_allows(expectile, error):
    Q, exact, gains = fitted(expectile)
    assert np.abs(Q - exact).max() < error
    if expectile == 0.5:
        assert np.abs(gains.mean(axis=0)).max() < 0.06  # an action of the log is worth its mean
    else:
        assert np.mean(gains < 0.06) > 0.9  # hardly any action is better than the best
        worse = fitted(0.5)[0]
        assert np.mean(Q[0] - worse[0]) > 0.1  # more reward,
        assert np.mean(worse[1] - Q[1]) > 0.1  # and less cost than the log's policy goes on with


def test_weights_of_a_clone_are_the_same_in_any_unit_and_have_a_cap():
    gain = np.random.default_rng(0).normal(size=200).astype(np.float32)
    weights = np.asarray(clone_weights(gain, 3.0, 100.0))
    np.testing.assert_allclose(np.asarray(clone_weights(50 * gain, 3.0, 100.0)), weights, rtol=1e-4)
    assert weights.max() == pytest.approx(100.0, rel=1e-3)
    raw = np.asarray(clone_weights(gain, 3.0, 100.0, in_units=False))
    np.testing.assert_allclose(raw, np.minimum(np.exp(3 * gain), 100), rtol=1e-4)
