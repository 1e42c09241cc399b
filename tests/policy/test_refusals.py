"""A policy that is not made of numbers is not loaded, and never answers with what is no action."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

from slater.errors import InputError
from slater.policy import Mixture, load, save
from slater.policy.tabular import TableMixture

from ..deep.nets.test_policy import categorical, gaussian
from .made import candidates, sequence

MADE = {
    "gaussian": gaussian(), "categorical": categorical(), "candidates": candidates(0), "sequence": sequence(),
    "mixture": Mixture.uniform([gaussian(1), gaussian(2)]),
}  # fmt: skip


def _entries(policy) -> int:
    return len(getattr(policy, "members", (policy,))[0].obs_mean)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, -3e38, 1e300])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.filterwarnings("error")  # nor is overflow left to a warning of NumPy
def test_what_is_no_observation_gets_no_action(kind, value, deterministic):
    policy, rng = MADE[kind], np.random.default_rng(0)
    x = np.zeros((2, _entries(policy)))
    x[1, 0] = value
    with pytest.raises(InputError, match=r"row 1|entry 0"):
        policy.act(x, rng=rng, deterministic=deterministic)
    with pytest.raises(InputError, match="entry 0"):
        policy.begin(rng=rng, deterministic=deterministic).act(x[1])


@pytest.mark.parametrize("kind", ["gaussian", "categorical", "candidates", "sequence"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_file_with_an_array_that_is_not_finite_is_not_loaded(kind, tmp_path_factory, data):
    """Signed rightly, as a user's own script might write it."""
    path = tmp_path_factory.mktemp("p") / "p.safetensors"
    policy = MADE[kind]
    name = data.draw(st.sampled_from(sorted(policy.tensors())))
    arrays = {key: np.array(array) for key, array in policy.tensors().items()}
    arrays[name].flat[0] = data.draw(st.sampled_from([np.nan, np.inf]))
    save(_With(policy, arrays), path)
    with pytest.raises(InputError, match="finite"):
        load(path)


class _With:
    """A policy's own description beside other arrays."""

    def __init__(self, policy, arrays):
        self.policy, self.arrays = policy, arrays

    def tensors(self):
        return self.arrays

    def description(self):
        return self.policy.description()


def test_a_normaliser_that_divides_by_nothing_is_not_loaded(tmp_path):
    save(replace(gaussian(), obs_std=np.zeros(3, np.float32)), tmp_path / "p.safetensors")
    with pytest.raises(InputError, match="obs_std"):
        load(tmp_path / "p.safetensors")


def test_a_file_without_a_checksum_is_not_loaded(tmp_path):
    path = tmp_path / "p.safetensors"
    save(gaussian(), path)
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["slater"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    del about["sha256"]
    path.write_bytes(to_bytes(arrays, metadata={"slater": json.dumps(about)}))
    with pytest.raises(InputError, match="checksum"):
        load(path)


def test_a_table_refuses_what_is_no_state():
    policy = TableMixture(np.full((1, 3, 2), 0.5), np.ones(1))
    for state in (np.nan, -1, 3, 0.5, 1e300):
        with pytest.raises(InputError, match="state"):
            policy.act(np.array([state]), rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="probabilities"):
        TableMixture(np.full((1, 3, 2), np.nan), np.ones(1))


@pytest.mark.parametrize("value", ["abc", None, [None, 1, 2], [1j, 0, 0], [1, 2], [[[1, 2, 3]]], {}])
def test_what_is_no_array_of_numbers_gets_no_action(value):
    with pytest.raises(InputError):
        gaussian().begin(rng=np.random.default_rng(0)).act(value)
