"""What every algorithm must do, whatever it is: one suite, parametrised over the registry.

A new algorithm gets its quick settings in `QUICK_OF`; everything else here holds for it unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slater.deep as deep
from slater import policy as policies
from slater.deep.metrics import read_metrics
from slater.policy import Mixture

from ..exact import behaviour, random_cmdp
from ..problems import QUICK, pointmass

#: settings that make a run short, per algorithm (name, preset)
QUICK_OF: dict[tuple[str, str | None], dict[str, Any]] = {
    ("pdca", None): {"warm_steps": 10, "joint_steps": 5, "ope_steps": 5, "select_steps": 20},
    ("pdca", "paper"): {},
}
#: settings with which an algorithm learns a small tabular problem, for the tests of behaviour
LEARNING_OF: dict[str, dict[str, Any]] = {
    "pdca": {
        "steps": 3500, "warm_steps": 500, "joint_steps": 500, "ope_steps": 250, "batch_size": 128,
        "hidden": (64,), "eta_slow": 1e-3, "select_steps": 1000, "select_limit": 3, "deflation": 0.01,
        "polyak": 0.01, "select_copies": 1,
    },
}  # fmt: skip

every = pytest.mark.parametrize(("name", "preset"), list(QUICK_OF))
kinds = pytest.mark.parametrize(("discrete", "costs"), [(False, 1), (True, 2)])


def quick(name: str, preset: str | None, out: Path, data: Any, **changes: Any) -> dict[str, Any]:
    settings = {**QUICK, **QUICK_OF[name, preset], **changes}
    seed = settings.pop("seed", 0)
    limits = [5.0] * data.costs.shape[1]
    return deep.train(
        name, data, limits, out, seed=seed, preset=preset, options={"log_every": 10}, **settings
    )


def test_the_suite_covers_every_algorithm():
    assert {name for name, _ in QUICK_OF} == set(deep.algorithms()) == set(LEARNING_OF)


@every
@kinds
def test_trains_and_leaves_policies_that_act(name, preset, discrete, costs, tmp_path):
    data = pointmass(discrete=discrete, costs=costs)
    result = quick(name, preset, tmp_path / "run", data)
    mixture = policies.load(tmp_path / "run" / "mixture.safetensors")
    last = policies.load(tmp_path / "run" / "policy.safetensors")
    assert isinstance(mixture, Mixture)
    weights = [member["weight"] for member in result["members"]]
    np.testing.assert_allclose(sum(weights), 1.0)
    for policy in (mixture, last):
        actions = policy.act(data.observations[:20], rng=np.random.default_rng(0))
        if discrete:
            assert actions.shape == (20,)
            assert set(actions) <= {0, 1, 2}
        else:
            assert actions.shape == (20, 2)
            assert np.abs(actions).max() <= 1
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float))


@every
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name, preset, tmp_path):
    data = pointmass()
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        quick(name, preset, tmp_path / out, data, seed=seed)
    a, b, c = ((tmp_path / out / "checkpoint.safetensors").read_bytes() for out in "abc")
    assert a == b
    assert a != c


@every
def test_the_numpy_policy_is_the_trained_policy(name, preset, tmp_path):
    import jax

    from slater.deep import checkpoint
    from slater.deep.problem import prepare
    from slater.limits import resolve_limits

    data = pointmass(discrete=True)
    quick(name, preset, tmp_path / "run", data)
    algorithm = deep.read_run(tmp_path / "run").make()
    config = algorithm.config
    problem, _ = prepare(
        data, resolve_limits([5.0], data.cost_names), config.gamma,
        normalise_observations=config.normalise_observations,
    )  # fmt: skip
    like = algorithm.init(problem, jax.random.key(0))
    state, _ = checkpoint.restore(tmp_path / "run" / "checkpoint.safetensors", like)
    obs = data.observations[:50]
    inside = algorithm.policy(state).choice((obs - problem.obs_mean) / problem.obs_std, jax.random.key(0))
    outside = policies.load(tmp_path / "run" / "policy.safetensors").probabilities(obs)
    np.testing.assert_allclose(np.asarray(inside), outside, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LEARNING_OF))
def test_tightening_the_limit_lowers_the_cost_and_a_slack_limit_does_not_bind(name, tmp_path):
    """Exact costs of the mixture on a tabular problem, for limits from tight to slack."""
    cmdp = random_cmdp(100)
    data = cmdp.dataset(behaviour(cmdp), 20_000, seed=0)
    values = []
    for limit in (0.25, 0.6, 5.0):  # 5 is the largest possible cost: no constraint at all
        out = tmp_path / str(limit)
        deep.train(name, data, [f"{limit}/discounted"], out, gamma=0.8, **LEARNING_OF[name])
        values.append(cmdp.J_of(policies.load(out / "mixture.safetensors")))
    reward, cost = np.array(values).T
    noise = 0.03
    assert cost[0] <= cost[1] + noise
    assert cost[1] <= cost[2] + noise
    assert cost[0] <= 0.25 * 1.15
    free = type(cmdp)(cmdp.P, cmdp.U, np.array([5.0])).optimum()[1]
    assert reward[2] >= 0.93 * free[0]
    assert reward[2] >= reward[0] - noise
