"""A new algorithm is one file: found without a list, with its label, space and presets on its class."""

import sys

import pytest

import slater.deep
from slater import policy
from slater.deep.algorithms import registry
from slater.experiments.published import published_for
from slater.experiments.tables import _label
from slater.tuning.search import candidates, parse_search

from ..problems import QUICK, pointmass

FILE = '''
"""Clones the data, every row alike."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from slater.deep import Algorithm, Config, PolicyNetwork, make_policy, register


@dataclass(frozen=True)
class PlainConfig(Config):
    """Settings."""

    rate: float = 1e-3
    """learning rate"""


class PlainState(eqx.Module):
    """The clone and its optimiser."""

    pi: PolicyNetwork
    opt: tuple


@register
class Plain(Algorithm[PlainConfig, PlainState]):
    """A clone."""

    name = "plain"
    label = "Plain Clone"
    published_as = "CPQ"
    search_space: ClassVar = {"rate": ("1e-4", "1e-3")}
    presets: ClassVar = {"fast": {"rate": 1e-2}}
    Config = PlainConfig

    def init(self, task, key):
        pi = make_policy(task, self.config.hidden, key)
        return PlainState(pi, optax.adam(self.config.rate).init(pi))

    def update(self, task, state, batch, key, step, phase):
        loss, grads = jax.value_and_grad(lambda pi: -jnp.mean(pi.log_prob(batch.s, batch.a)))(state.pi)
        updates, opt = optax.adam(self.config.rate).update(grads, state.opt)
        return PlainState(optax.apply_updates(state.pi, updates), opt), {"loss/clone": loss}

    def policy(self, state):
        return state.pi
'''


@pytest.fixture
def plain(tmp_path, monkeypatch):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "plain_clone.py").write_text(FILE)
    registry.algorithms()  # ours register themselves when they are imported, once
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    package = sys.modules["slater.deep.algorithms"]  # the name in `slater.deep` is a function
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield
    sys.modules.pop("slater.deep.algorithms.plain_clone", None)


def test_one_file_is_an_algorithm(plain, tmp_path):
    assert "plain" in registry.algorithms()
    assert slater.deep.make_algorithm("plain", preset="fast").config.rate == 1e-2
    assert parse_search("plain", []) == {"rate": ("1e-4", "1e-3")}
    assert len(candidates("plain", None, {}, parse_search("plain", []), None, 0)) == 2
    row = {"algorithm": "plain", "preset": None, "settings": {}, "episodes": 1, "deterministic": False}
    assert _label({**row, "versions": {"slater": "0"}}, [{}]) == "Plain Clone"
    assert published_for("plain", "BallRun") == published_for("cpq", "BallRun")
    result = slater.deep.train("plain", pointmass(), ["5"], tmp_path / "run", **QUICK)
    assert result.algorithm == "plain"
    policy.load(tmp_path / "run" / "mixture.safetensors")
