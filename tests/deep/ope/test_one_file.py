"""A new estimator is one file and a name in a table: the game, the output and the result take it as it is."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import slater.deep as deep
from slater.deep.algorithms.pdca import parts
from slater.deep.ope.base import Estimate, Estimator
from slater.errors import InputError

from ..problems import QUICK, pointmass


@dataclass(frozen=True)
class BySize(Estimator[tuple]):
    """J as if actions alone decided: the log's mean return, and costs by how far actions go to the right."""

    @property
    def policy_steps(self):
        return 1

    def init(self, task, key):
        return ()

    def value(self, task, state, policy, first, key):
        right = jnp.mean(policy.choice(first, key)[:, 0])
        return Estimate(jnp.stack([right, 3.0 + right])[None])

    def careful(self, task, state, data, tick):
        return lambda policy, key: np.asarray(self.value(task, state, policy, data.initial, key).copies)


@pytest.mark.xdist_group("pdca")
def test_one_file_is_an_estimator(tmp_path, monkeypatch):
    settings = {**QUICK, "mixture": "lp", "primal": "gradient", "warm_steps": 10, "joint_steps": 5}
    with pytest.raises(InputError, match="by-size"):
        deep.train("pdca", pointmass(), ["5"], tmp_path / "unknown", estimator="by-size", **settings)
    monkeypatch.setitem(parts.ESTIMATORS, "by-size", lambda config: BySize())
    result = deep.train("pdca", pointmass(), ["5"], tmp_path / "run", estimator="by-size", **settings)
    assert result.members
    for member in result.members:
        assert set(member.estimates) == {"reward", "c0"}
        assert member.estimates["c0"] > 0  # 3 and how far to the right, which is at least -1
    assert result.estimates["c0"] > 0
