"""A policy with a memory of its own: acting, files, ONNX and rows of a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slater.errors import InputError
from slater.history import History
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture, load, save
from slater.policy.remembering import RememberingPolicy

from .made import layers

STEPS = 6
OBS = np.random.default_rng(5).normal(size=(STEPS, 2)).astype(np.float32) + 3


def made(seed: int = 0, discrete: bool = False) -> RememberingPolicy:
    """Two entries, two actions; so sharp that what is remembered shows."""
    rng = np.random.default_rng(seed)
    history = History(2, 2 if discrete else None, (3.0, 3.0, 0.1, 0.2), (1.0, 2.0, 0.5, 0.5), STEPS)
    seen = 2 + history.size
    mean, std = np.zeros(seen, np.float32), np.full(seen, 0.3, np.float32)
    if discrete:
        weights, biases = zip(*layers(rng, seen, 16, 2), strict=True)
        return RememberingPolicy(CategoricalPolicy(weights, biases, mean, std), history)
    weights, biases = zip(*layers(rng, seen, 16, 4), strict=True)
    low, high = np.array([-1, -1], np.float32), np.array([1, 1], np.float32)
    return RememberingPolicy(GaussianPolicy(weights, biases, mean, std, low, high, (-5.0, -2.0)), history)


def episode(policy, observations=OBS, **options) -> np.ndarray:
    actor = policy.begin(rng=np.random.default_rng(0), deterministic=True)
    return np.array([actor.act(row, **options) for row in observations])


@pytest.mark.parametrize("discrete", [False, True])
def test_the_actor_sees_what_a_log_of_its_episode_says(discrete):
    policy = made(discrete=discrete)
    actions = episode(policy)
    before, _ = policy.history.along(OBS, actions, np.array([0]), np.array([STEPS]))
    seen = np.concatenate([OBS, before], axis=1)
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(policy.policy.act(seen, rng=rng, deterministic=True), actions, atol=1e-6)
    # alone, an observation is the first of an episode: the past is what makes the difference
    np.testing.assert_allclose(policy.act(OBS[:1], rng=rng, deterministic=True)[0], actions[0], atol=1e-6)
    if not discrete:
        assert np.abs(policy.act(OBS, rng=rng, deterministic=True) - actions)[2:].max() > 0.01
        side_by_side = policy.begin(rng=rng, deterministic=True)
        both = np.array([side_by_side.batch(np.stack([row, row])) for row in OBS])
        np.testing.assert_allclose(both, np.stack([actions, actions], axis=1), atol=1e-6)


def test_files_keep_the_memory(tmp_path):
    policy = made()
    save(policy, tmp_path / "p.safetensors")
    np.testing.assert_array_equal(episode(load(tmp_path / "p.safetensors")), episode(policy))
    save(Mixture.uniform([made(1), made(2)]), tmp_path / "m.safetensors")
    np.testing.assert_array_equal(episode(load(tmp_path / "m.safetensors").members[1]), episode(made(2)))


def test_rows_of_a_table_need_their_episodes():
    policy = Mixture.uniform([made()])
    rows = np.concatenate([OBS, OBS])
    found = policy.predict(rows, episode=np.repeat(["a", "b"], STEPS), deterministic=True)
    np.testing.assert_allclose(found, np.concatenate([episode(made())] * 2), atol=1e-6)
    with pytest.raises(InputError, match="remembers its episode: give whole episodes"):
        policy.predict(rows)


@pytest.mark.parametrize("discrete", [False, True])
def test_onnx_has_the_memory_as_input_and_output(tmp_path, discrete):
    pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")
    from slater.policy.onnx_file import save_onnx
    from slater.policy.onnx_policy import OnnxPolicy

    policy = made(discrete=discrete)
    save_onnx(policy, tmp_path / "p.onnx")
    np.testing.assert_allclose(episode(OnnxPolicy(str(tmp_path / "p.onnx"))), episode(policy), atol=1e-5)
    members = (made(1, discrete), made(2, discrete))
    save_onnx(Mixture(members, np.array([0.0, 1.0])), tmp_path / "m.onnx")
    found = episode(OnnxPolicy(str(tmp_path / "m.onnx")))
    np.testing.assert_allclose(found, episode(members[1]), atol=1e-5)
    other = replace(members[0], history=replace(members[0].history, horizon=9))
    with pytest.raises(InputError, match="remember different things"):
        save_onnx(Mixture.uniform([other, members[1]]), tmp_path / "n.onnx")
