"""Recorded densities are those of the source: they integrate to one, and weights average to one."""

from __future__ import annotations

import numpy as np
import pytest

from slater.collect.sources import ClippedSource, SquashedSource, UniformSource
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy


def _policy(seed: int, shift: float = 0.0, obs: int = 3, actions: int = 1) -> GaussianPolicy:
    rng = np.random.default_rng(seed)
    weights = tuple(rng.normal(size=size).astype(np.float32) * 0.4 for size in ((obs, 16), (16, 2 * actions)))
    biases = (np.zeros(16, np.float32), np.full(2 * actions, shift, np.float32))
    low, high = np.full(actions, -0.8, np.float32), np.full(actions, 1.1, np.float32)
    return GaussianPolicy(
        weights, biases, np.zeros(obs, np.float32), np.ones(obs, np.float32), low, high, (-5, 1)
    )


@pytest.mark.parametrize("mean_only", [True, False])
@pytest.mark.parametrize("kind", [SquashedSource, ClippedSource])
def test_the_density_integrates_to_one(kind: type, mean_only: bool) -> None:
    """With the probabilities on the bounds, where actions are clipped."""
    source = kind(_policy(0), 0.15, mean_only)
    state = np.random.default_rng(1).normal(size=(1, 3))
    edges = np.linspace(-0.8, 1.1, 2_001)
    middles = ((edges[1:] + edges[:-1]) / 2).astype(np.float32)[:, None]
    states = np.repeat(state, len(middles), axis=0)
    total = source.propensity(states, middles).sum() * (edges[1] - edges[0])
    if kind is ClippedSource:
        bounds = np.array([[-0.8], [1.1]], np.float32)
        total += source.propensity(np.repeat(state, 2, axis=0), bounds).sum()
    assert total == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("mean_only", [True, False])
@pytest.mark.parametrize("kind", [SquashedSource, ClippedSource])
def test_weights_of_a_source_under_another_average_to_one(kind: type, mean_only: bool) -> None:
    """E_b[p(a)/b(a)] = 1 for any p that b covers: actions are drawn from b, so b's densities must be
    right."""
    rng = np.random.default_rng(2)
    behaviour = kind(_policy(0, shift=0.3), 0.3, mean_only)
    other = kind(_policy(0, shift=0.2), 0.25, mean_only)
    states = np.repeat(rng.normal(size=(1, 3)), 20_000, axis=0)
    actions = behaviour.act(states, rng=rng)
    unique, counts = np.unique(actions, return_counts=True)
    own = behaviour.propensity(states[: len(unique)], unique[:, None])
    ratio = other.propensity(states[: len(unique)], unique[:, None]) / own
    mean = np.average(ratio, weights=counts)
    spread = np.sqrt(np.average((ratio - mean) ** 2, weights=counts) / len(actions))
    assert mean == pytest.approx(1.0, abs=4 * spread)
    assert spread < 0.02


def test_wide_policies_are_integrated_as_exactly_as_narrow_ones() -> None:
    """Against draws of the policy's own randomness, for standard deviations before the tanh from .01 to
    2.7."""
    rng = np.random.default_rng(3)
    for log_std in (-4.6, -1.0, 1.0):
        policy = _policy(0)
        weights = (policy.weights[0], np.zeros_like(policy.weights[1]))
        biases = (policy.biases[0], np.array([1.2, log_std], np.float32))
        wide = GaussianPolicy(
            weights, biases, policy.obs_mean, policy.obs_std, -np.ones(1, np.float32), np.ones(1, np.float32),
            (-5, 1),
        )  # fmt: skip
        source = ClippedSource(wide, 0.15)
        drawn = np.tanh(1.2 + np.exp(np.float32(log_std)) * rng.standard_normal(400_000))
        for action in (-0.5, 0.3, 0.8):
            given = np.exp(-0.5 * ((action - drawn) / 0.15) ** 2) / (0.15 * np.sqrt(2 * np.pi))
            found = source.propensity(np.zeros((1, 3)), np.array([[action]], np.float32))[0]
            assert found == pytest.approx(given.mean(), abs=5 * given.std() / np.sqrt(len(given)) + 1e-12)


def test_densities_do_not_depend_on_how_rows_are_grouped() -> None:
    """One row at a time, as the simulator asks, and all rows of the file at once."""
    rng = np.random.default_rng(4)
    source = SquashedSource(_policy(5, obs=20, actions=6), 0.1)
    states = rng.normal(size=(50, 20)).astype(np.float32)
    actions = source.act(states, rng=rng)
    together = source.propensity(states, actions)
    alone = [source.propensity(states[k : k + 1], actions[k : k + 1])[0] for k in range(50)]
    np.testing.assert_allclose(alone, together, rtol=1e-10)


def test_discrete_sources_give_probabilities() -> None:
    """They sum to one, and are those of what is drawn."""
    rng = np.random.default_rng(6)
    weights = (rng.normal(size=(3, 4)).astype(np.float32),)
    policy = CategoricalPolicy(
        weights, (np.zeros(4, np.float32),), np.zeros(3, np.float32), np.ones(3, np.float32)
    )
    for mean_only in (True, False):
        source = UniformSource(policy, 0.2, mean_only)
        states = np.repeat(rng.normal(size=(1, 3)), 50_000, axis=0)
        expected = source.propensity(states[:4], np.arange(4))
        assert expected.sum() == pytest.approx(1.0)
        shares = np.bincount(source.act(states, rng=rng), minlength=4) / len(states)
        np.testing.assert_allclose(shares, expected, atol=0.01)


def test_a_deterministic_source_without_noise_is_refused() -> None:
    """Its actions have no density."""
    with pytest.raises(InputError, match="needs noise above 0"):
        SquashedSource(_policy(0), 0.0, mean_only=True)
