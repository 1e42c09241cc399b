"""Costs are matched by name: an environment may list them in another order than the log."""

from __future__ import annotations

import numpy as np
import pytest

from slater.certify.pools import best_of_runs
from slater.envs import rollout
from slater.envs.install import GYMNASIUM
from slater.errors import InputError
from slater.policy import Mixture, load, save
from slater.runs import open_run

from ..policy.made import sequence

pytest.importorskip("gymnasium", reason=GYMNASIUM)

ENVIRONMENT = """
import gymnasium, numpy as np
class Place(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    def __init__(self, names):
        self.names = self.cost_names = tuple(names)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = np.zeros(3), 0
        return self.x.astype(np.float32), {}
    def step(self, action):
        self.x = 0.9 * self.x + np.append(action, action[0]); self.t += 1
        costs = {"c0": float(self.x[0] > 0), "c1": 2.0, "cost": 5.0}
        info = {"costs": {name: costs[name] for name in self.names}}
        return self.x.astype(np.float32), float(self.x.sum()), False, self.t >= 9, info
def make(names="c0,c1", **options):
    return Place(names.split(","))
"""


@pytest.fixture
def env(tmp_path, monkeypatch):
    (tmp_path / "place_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "place_env:make"


@pytest.mark.parametrize("mixed", [False, True])
def test_a_policy_that_counts_costs_down_does_the_same_in_any_order(env, tmp_path, mixed):
    policy = sequence(costs=2)
    save(Mixture.uniform([policy, sequence(2, 1)]) if mixed else policy, tmp_path / "p.safetensors")
    policy = load(tmp_path / "p.safetensors")  # which knows its names from the file
    ran = [
        rollout(policy, env, episodes=3, env_options={"names": names})
        for names in ("c0,c1", "c1,c0", "cost,c1,c0")
    ]
    for other in ran[1:]:
        np.testing.assert_array_equal(other.returns, ran[0].returns)
        assert other.mean_costs(["c0", "c1"]) == ran[0].mean_costs(["c0", "c1"])


def test_a_cost_that_the_environment_does_not_have_is_named(env):
    with pytest.raises(InputError, match="no cost 'c1'"):
        rollout(sequence(costs=2), env, episodes=1, env_options={"names": "c0,cost"})


def test_runs_with_their_costs_in_another_order_are_pooled_by_name(tmp_path):
    from ..runs.example import write_two_costs

    one, two = (open_run(write_two_costs(tmp_path / "-".join(n), n)) for n in (("a", "b"), ("b", "a")))
    alone = best_of_runs([one], ["a=9", "b=30"])[1]
    both = best_of_runs([one, two], ["a=9", "b=30"])[1]
    assert both.reward == pytest.approx(alone.reward)
    assert both.costs == pytest.approx(alone.costs)
