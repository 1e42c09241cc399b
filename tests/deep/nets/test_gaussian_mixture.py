"""Actions from a mixture of Gaussians: in JAX, in NumPy, on disk; one Gaussian is its smallest case."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater import policy as policies
from slater.deep.nets.imported import network_of
from slater.deep.nets.policy import Gaussian, make_policy
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import resolve_limits
from slater.policy import GaussianMixturePolicy, Mixture

from ..problems import pointmass

OBS = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)


def task_of():
    data = pointmass(episodes=3)
    task = state_task(data, resolve_limits(["5"], data.cost_names), 0.9)
    return replace(
        task, obs_mean=np.array([0.1, 0.3], np.float32), obs_std=np.array([0.5, 2.0], np.float32),
        action_low=np.array([-1.0, -2.0], np.float32), action_high=np.array([1.0, 4.0], np.float32),
    )  # fmt: skip


def made(components=3, seed=0, spread=1.0):
    """A policy with modes apart: the last layer's biases are drawn."""
    policy = make_policy(task_of(), (8,), jax.random.key(seed), (-3.0, 0.0), components)
    bias = spread * jax.random.normal(jax.random.key(seed + 1), policy.mlp.biases[-1].shape)
    return eqx.tree_at(lambda p: p.mlp.biases[-1], policy, bias)


def normalised(obs):
    task = task_of()
    return jnp.asarray((obs - task.obs_mean) / task.obs_std)


def test_the_density_integrates_to_one_in_jax_and_in_numpy():
    policy, task = made(), task_of()
    grid = np.linspace(-0.9985, 0.9985, 400)
    square = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2).astype(np.float32)
    cell = (grid[1] - grid[0]) ** 2
    obs = np.tile(OBS[:1], (len(square), 1))
    density = np.exp(np.asarray(policy.log_prob(normalised(obs), jnp.asarray(square))))
    assert density.sum() * cell == pytest.approx(1.0, abs=0.03)
    raw = task.action_low + (square + 1) / 2 * (task.action_high - task.action_low)
    own = np.exp(policy.export(task).log_probability(obs, raw))
    assert own.sum() * cell * 3.0 == pytest.approx(1.0, abs=0.03)  # the box is 2 x 6, the square 2 x 2


def test_numpy_acts_and_knows_its_density_as_jax_does():
    policy, task = made(), task_of()
    saved = policy.export(task)
    assert isinstance(saved, GaussianMixturePolicy)
    choice = np.asarray(policy.choice(normalised(OBS), jax.random.key(5)))
    raw = task.action_low + (choice + 1) / 2 * (task.action_high - task.action_low)
    half = np.log(0.5 * (task.action_high - task.action_low)).sum()
    inside = np.all(np.abs(choice) < 0.998, axis=1)
    ours = np.asarray(policy.log_prob(normalised(OBS), jnp.asarray(choice)))
    np.testing.assert_allclose(saved.log_probability(OBS, raw)[inside], (ours - half)[inside], atol=2e-3)
    # as many draws at one state: the same distribution
    one = np.tile(OBS[:1], (20_000, 1))
    drawn = np.asarray(policy.choice(normalised(one), jax.random.key(6)))
    drawn = task.action_low + (drawn + 1) / 2 * (task.action_high - task.action_low)
    acted = saved.act(one, rng=np.random.default_rng(0))
    assert acted.dtype == np.float32
    for q in (0.1, 0.3, 0.5, 0.7, 0.9):
        np.testing.assert_allclose(np.quantile(acted, q, axis=0), np.quantile(drawn, q, axis=0), atol=0.15)
    assert np.all((acted >= task.action_low) & (acted <= task.action_high))


def test_deterministic_is_the_mean_of_the_likeliest_component():
    policy, task = made(), task_of()
    log_weight, mean, _ = policy._moments(normalised(OBS))
    likeliest = np.take_along_axis(
        np.asarray(mean), np.asarray(log_weight).argmax(axis=1)[:, None, None], axis=1
    )[:, 0]
    wanted = task.action_low + (np.tanh(likeliest) + 1) / 2 * (task.action_high - task.action_low)
    found = policy.export(task).act(OBS, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_one_component_is_one_gaussian():
    """The smallest case: a mixture whose components are all the same Gaussian, and `components` of 1."""
    assert isinstance(made(1), Gaussian)
    one = made(1)
    last = one.mlp.weights[-1], one.mlp.biases[-1]

    def three(leaf):  # logits of zero, then the same moments three times
        zero = jnp.zeros((*leaf.shape[:-1], 3))
        return jnp.concatenate([zero, leaf, leaf, leaf], axis=-1)

    same = made(3)
    same = eqx.tree_at(
        lambda p: (p.mlp.weights[0], p.mlp.biases[0], p.mlp.weights[-1], p.mlp.biases[-1]),
        same,
        (one.mlp.weights[0], one.mlp.biases[0], three(last[0]), three(last[1])),
    )
    obs, choice = normalised(OBS), one.choice(normalised(OBS), jax.random.key(0))
    np.testing.assert_allclose(same.log_prob(obs, choice), one.log_prob(obs, choice), atol=1e-4)
    other = made(1, seed=3)
    np.testing.assert_allclose(same.divergence(same, obs), 0.0, atol=1e-5)
    task = task_of()
    raw = one.export(task).act(OBS, rng=np.random.default_rng(0))
    np.testing.assert_allclose(
        same.export(task).log_probability(OBS, raw), one.export(task).log_probability(OBS, raw), atol=1e-4
    )
    assert float(jnp.mean(one.divergence(other, obs))) > 0


def test_samples_carry_gradients_into_their_components():
    policy, obs = made(), normalised(OBS)
    grads = jax.grad(lambda p: jnp.mean(p.choice(obs, jax.random.key(0))))(policy)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert float(jnp.abs(grads.mlp.weights[-1]).max()) > 0


def test_saved_and_loaded_it_acts_the_same_bits_alone_and_beside_a_gaussian(tmp_path):
    task = task_of()
    for policy in (made().export(task), Mixture.uniform([made().export(task), made(1).export(task)])):
        policies.save(policy, tmp_path / "p.safetensors")
        back = policies.load(tmp_path / "p.safetensors")
        one, two = (p.act(OBS, rng=np.random.default_rng(4)) for p in (policy, back))
        np.testing.assert_array_equal(one, two)
    saved = made().export(task)
    with pytest.raises(ValueError, match="do not fit"):
        GaussianMixturePolicy.from_tensors(saved.description() | {"components": 2}, saved.tensors())
    with pytest.raises(InputError):
        saved.act(np.zeros((1, 3)), rng=np.random.default_rng(0))


@pytest.mark.parametrize("components", [1, 3])
def test_what_was_exported_comes_back_as_it_was(components):
    task, policy = task_of(), make_policy(task_of(), (8,), jax.random.key(3), (-3.0, 0.0), components)
    back = network_of(policy.export(task), task)
    assert type(back) is type(policy)
    states = jnp.asarray(normalised(OBS))
    one, two = (p.choice(states, jax.random.key(0)) for p in (policy, back))
    np.testing.assert_allclose(one, two, atol=1e-5)
    np.testing.assert_allclose(policy.log_prob(states, one), back.log_prob(states, one), rtol=1e-4, atol=1e-3)


def test_a_policy_of_another_log_acts_in_this_ones_units():
    """Other normalisers and bounds of actions: what is drawn is what the policy in NumPy draws."""
    saved, task = made().export(task_of()), task_of()
    other = replace(
        task, obs_mean=np.array([0.0, 1.0], np.float32), obs_std=np.array([1.5, 0.7], np.float32),
        action_low=np.array([-1.5, -2.0], np.float32), action_high=np.array([1.0, 5.0], np.float32),
    )  # fmt: skip
    network = network_of(saved, other)
    states = jnp.tile((OBS[:1] - other.obs_mean) / other.obs_std, (20_000, 1))
    drawn = network.choice(states, jax.random.key(0))
    plain = saved.act(np.tile(OBS[:1], (20_000, 1)), rng=np.random.default_rng(0))
    plain = 2 * (plain - other.action_low) / (other.action_high - other.action_low) - 1
    for q in (0.1, 0.3, 0.5, 0.7, 0.9):
        np.testing.assert_allclose(np.quantile(drawn, q, axis=0), np.quantile(plain, q, axis=0), atol=0.05)
    # densities are in the same units: their mean over what is drawn is minus the entropy of the histogram
    own = saved.log_probability(np.tile(OBS[:1], (200, 1)), (plain[:200] + 1) / 2 * (
        other.action_high - other.action_low) + other.action_low)  # fmt: skip
    units = np.log((other.action_high - other.action_low) / 2).sum()
    np.testing.assert_allclose(
        network.log_prob(states[:200], jnp.asarray(plain[:200])), own + units, atol=0.05
    )
    for wrong, says in (
        (replace(task, obs_dim=3), "observations of 2 entries"),
        (replace(task, discrete=True), "whether actions are discrete"),
        (replace(task, action_dim=3), "2 entries of an action"),
    ):
        with pytest.raises(InputError, match=says):
            network_of(saved, wrong)
    with pytest.raises(InputError, match="a function cannot be judged from the log alone"):
        network_of(lambda s: s, task)
