"""Policies as ONNX: the graph, in a real runtime, does what NumPy does."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture
from slater.policy.onnx_file import OPSET, save_onnx

from .made import candidates, layers

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")

ROWS = 10_000


def gaussian(seed: int) -> GaussianPolicy:
    rng = np.random.default_rng(seed)
    weights, biases = zip(*layers(rng, 8, 64, 64, 4), strict=True)
    mean, std = rng.normal(size=8).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32)
    low, high = np.array([-1, -2], np.float32), np.array([1, 3], np.float32)
    return GaussianPolicy(weights, biases, mean, std, low, high, (-5.0, 0.0))


def categorical(seed: int) -> CategoricalPolicy:
    rng = np.random.default_rng(seed)
    weights, biases = zip(*layers(rng, 8, 64, 5), strict=True)
    return CategoricalPolicy(weights, biases, np.zeros(8, np.float32), np.ones(8, np.float32))


def observations(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


class Fixed:
    """A generator that gives one array, as NumPy's policies ask for their noise."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape, dtype=np.float32):
        return self.noise.reshape(shape)

    def gumbel(self, size):
        return self.noise.reshape(size)


def run(path, **inputs):
    (action,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    return action


def test_a_gaussian_drawn_and_mean(tmp_path):
    policy, obs = gaussian(1), observations()
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).standard_normal((ROWS, 2), dtype=np.float32)
    np.testing.assert_allclose(
        run(tmp_path / "p.onnx", observation=obs, noise=noise), policy.act(obs, rng=Fixed(noise)), atol=1e-6
    )
    mean = policy.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(run(tmp_path / "p.onnx", observation=obs, noise=0 * noise), mean, atol=1e-6)


def test_discrete_actions_are_the_same(tmp_path):
    policy, obs = categorical(2), observations()
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).gumbel(size=(ROWS, 5)).astype(np.float32)
    drawn = run(tmp_path / "p.onnx", observation=obs, noise=noise)
    assert drawn.dtype == np.int64
    # equal but where two logits are closer than rounding
    assert np.mean(drawn != policy.act(obs, rng=Fixed(noise))) <= 1e-4


def test_the_best_of_several_proposals(tmp_path):
    policy, obs = candidates(3), observations(2000)
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).standard_normal((2000, 6, 4), dtype=np.float32)
    found, wanted = run(tmp_path / "p.onnx", observation=obs, noise=noise), policy.act(obs, rng=Fixed(noise))
    # another proposal may win where two scores are closer than rounding
    assert np.mean(np.abs(found - wanted).max(axis=1) > 1e-6) <= 1e-3
    mean = policy.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(run(tmp_path / "p.onnx", observation=obs, noise=0 * noise), mean, atol=1e-6)


def test_a_mixture_acts_with_the_member_that_it_is_told(tmp_path):
    import onnx

    members, obs = (gaussian(1), gaussian(2)), observations()
    save_onnx(Mixture(members, np.array([0.25, 0.75])), tmp_path / "m.onnx", contract={"limits": ["cost=20"]})
    noise = np.random.default_rng(1).standard_normal((ROWS, 2), dtype=np.float32)
    for index, member in enumerate(members):
        found = run(tmp_path / "m.onnx", observation=obs, noise=noise, member=np.array(index))
        np.testing.assert_allclose(found, member.act(obs, rng=Fixed(noise)), atol=1e-6)
    model = onnx.load(tmp_path / "m.onnx")
    about = json.loads({p.key: p.value for p in model.metadata_props}["slater"])
    assert about["weights"] == [0.25, 0.75]
    assert about["limits"] == ["cost=20"]
    assert model.opset_import[0].version == OPSET


def test_a_policy_with_memory_is_refused_in_a_sentence(tmp_path):
    class Remembers:
        def description(self):
            return {"kind": "sequence"}

    with pytest.raises(InputError, match="'sequence' cannot be written as ONNX"):
        save_onnx(Remembers(), tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())
