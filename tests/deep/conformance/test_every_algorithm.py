"""What every algorithm must do, whatever it is: one suite, parametrised over the registry.

A new algorithm gets a line in `QUICK_OF` per preset and one in `LEARNING_OF`; everything else here holds for
it unchanged. What it can do (kinds of actions, number of costs) is read from its class.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jax
import numpy as np
import pytest

import slater.deep as deep
from slater import policy as policies
from slater.deep import checkpoint
from slater.deep.engine.folder import algorithm_of
from slater.deep.engine.iterations import initial_state
from slater.errors import InputError
from slater.policy import Mixture
from slater.runs.metrics import read_metrics

from ..exact import behaviour, random_cmdp
from ..problems import QUICK, pointmass, pointmass_values
from ..runs import StopAt, weights

#: settings that make a run short, per algorithm (name, preset)
QUICK_OF: dict[tuple[str, str | None], dict[str, Any]] = {
    ("pdca", None): {"warm_steps": 10, "model_steps": 10, "joint_steps": 5},
    ("pdca", "fqe"): {"warm_steps": 10, "joint_steps": 5, "ope_steps": 5, "select_steps": 20},
    ("pdca", "paper"): {},
    ("bc", None): {},
    ("bc", "released"): {},
    ("bc-safe", None): {"which": "cost-conditioned"},
    ("coptidice", None): {"epsilon": 0.01, "expectation": "network"},
    ("coptidice", "released"): {},
    ("cpq", None): {"vae_steps": 15, "vae_hidden": (16,)},
    ("cpq", "released"): {"vae_hidden": (16,)},
    ("mbcl", None): {"first_steps": 10, "fqi_steps": 5, "fqe_steps": 5},
    ("cdt", None): {"context": 3, "warmup": 5},
    ("cdt", "released"): {"context": 3, "targets": "data"},
    ("bcq-lag", None): {"warm_steps": 15, "vae_hidden": (16,), "act_samples": 3},
    ("bcq-lag", "released"): {"vae_hidden": (16,)},
    ("bear-lag", None): {"warm_steps": 15, "vae_hidden": (16,), "samples": 3},
    ("bear-lag", "released"): {"vae_hidden": (16,), "samples": 3},
}
#: settings with which an algorithm learns a small problem, for the test of behaviour: a tabular one if it
#: knows discrete actions (discount .8), else the point on a line (discount .9)
LEARNING_OF: dict[str, dict[str, Any]] = {
    "pdca": {"steps": 3500, "warm_steps": 500, "joint_steps": 500, "ope_steps": 250, "batch_size": 128, "hidden": (64,), "eta_slow": 1e-3, "select_steps": 1000, "select_limit": 3, "deflation": 0.01, "polyak": 0.01, "select_copies": 1},  # noqa: E501
    "bc": {"steps": 500, "batch_size": 128, "hidden": (64,)},
    "bc-safe": {"steps": 1500, "batch_size": 128, "hidden": (64,)},
    "coptidice": {"steps": 4000, "batch_size": 256, "hidden": (64,), "eta": 1e-3, "eta_pi": 1e-3, "expectation": "network"},  # noqa: E501
    "cpq": {"steps": 4000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "vae_steps": 500, "eta_pi": 1e-3, "polyak": 0.01},  # noqa: E501
    "mbcl": {"steps": 6500, "batch_size": 128, "hidden": (64,), "first_steps": 500, "fqi_steps": 200, "fqe_steps": 400},  # noqa: E501
    "cdt": {},
    "bcq-lag": {"steps": 4000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "warm_steps": 500, "actor_rate": 1e-3, "polyak": 0.01, "phi": 0.5, "ki": 0.003},  # noqa: E501
    "bear-lag": {"steps": 3000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "warm_steps": 500, "actor_rate": 1e-3, "polyak": 0.01, "samples": 5, "epsilon": 1.0, "ki": 0.003},  # noqa: E501
}  # fmt: skip
#: algorithms that take a limit only to be judged by it
IGNORES_LIMIT = {"bc"}
#: algorithms that only choose among the data's episodes: cheaper under a tighter limit, but no optimum
IMITATES = {"bc-safe"}
#: conditioned on the sums of an episode, which in a random world are luck as much as choice; its own test
#: has a world without luck (test_cdt)
CONDITIONED = {"cdt"}
#: algorithms that estimate every limit in its own unit
IN_ITS_UNIT = {("pdca", None)}
#: SLATER_CONFORMANCE=FILE puts algorithms of other packages here instead of ours; FILE is JSON, as
#: {"NAME": {"quick": {SETTINGS}, "learning": {SETTINGS}, "ignores_limit": false, "imitates": false}}
if outside := os.environ.get("SLATER_CONFORMANCE"):
    entries = json.loads(Path(outside).read_text())
    QUICK_OF = {(name, None): entry.get("quick", {}) for name, entry in entries.items()}
    LEARNING_OF = {name: entry.get("learning", {}) for name, entry in entries.items()}
    IGNORES_LIMIT = {name for name, entry in entries.items() if entry.get("ignores_limit")}
    IMITATES = {name for name, entry in entries.items() if entry.get("imitates")}


#: one process per algorithm: its tests share a run, and what was compiled for it
def _grouped(pairs: list[tuple[str, str | None]]) -> Any:
    marked = [pytest.param(*pair, marks=pytest.mark.xdist_group(pair[0])) for pair in pairs]
    return pytest.mark.parametrize(("name", "preset"), marked)


FULL = os.environ.get("SLATER_FULL") == "1"
every = _grouped(list(QUICK_OF))
#: the presets too with SLATER_FULL=1: they differ from the default in settings, not in the engine's part
every_default = _grouped([pair for pair in QUICK_OF if FULL or pair[1] is None])
#: algorithms that are trained to learn something unless SLATER_FULL=1, which takes all: a minute or more each
LEARNED = ("pdca", "bc-safe")


def _learned() -> list[str]:
    ours = "SLATER_CONFORMANCE" not in os.environ
    return [name for name in LEARNING_OF if FULL or not ours or name in LEARNED]


by_name = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in LEARNING_OF]
)


def kinds(name: str) -> list[tuple[bool, int]]:
    """(discrete, costs) of data that an algorithm must cope with: its kinds of actions, two costs if able."""
    algorithm = deep.find(name)
    wanted = ((False, 1), (True, 2), (False, 2), (True, 1))
    known = [
        (discrete, min(costs, algorithm.most_costs or costs))
        for discrete, costs in wanted
        if ("discrete" if discrete else "continuous") in algorithm.actions
    ]
    return list(dict.fromkeys(known))[:2]


def quick(
    name: str, preset: str | None, out: Path, data: Any, limit: str = "5",
    watcher: deep.Watcher | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    limits = [limit] * data.costs.shape[1]
    return deep.train(
        name, data, limits, out, seed=seed, preset=preset, options={"log_every": 10, "checkpoint_every": 10},
        watcher=watcher, **{**QUICK, **QUICK_OF[name, preset]},
    )  # fmt: skip


@cache
def base(name: str, preset: str | None, kind: int = 0) -> tuple[Path, Any]:
    """A finished quick run, shared by the tests of a process, and its data."""
    discrete, costs = kinds(name)[kind]
    data, out = pointmass(discrete=discrete, costs=costs), Path(mkdtemp()) / "run"
    quick(name, preset, out, data)
    return out, data


def test_the_suite_covers_every_algorithm():
    names = {name for name, _ in QUICK_OF}
    assert names == set(LEARNING_OF)
    assert names <= set(deep.algorithms()) if outside else names == set(deep.algorithms())


@every
def test_trains_and_leaves_policies_that_act(name, preset):
    """On each kind of action it knows, and with two costs if it can; a preset on the first of them."""
    for kind, (discrete, _) in enumerate(kinds(name) if FULL or preset is None else kinds(name)[:1]):
        run, data = base(name, preset, kind)
        mixture, last = (policies.load(run / f"{file}.safetensors") for file in ("mixture", "policy"))
        assert isinstance(mixture, Mixture)
        np.testing.assert_allclose(mixture.weights.sum(), 1.0)
        for policy in (mixture, last):
            actions = policy.act(data.observations[:20], rng=np.random.default_rng(0))
            if discrete:
                assert actions.shape == (20,)
                assert set(actions) <= {0, 1, 2}
            else:
                assert actions.shape == (20, 2)
                assert np.abs(actions).max() <= 1
        rows = read_metrics(run / "metrics.jsonl")
        assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float))


@every_default
def test_a_run_that_was_cut_and_resumed_ends_with_the_same_bits(name, preset, tmp_path):
    run, data = base(name, preset)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        quick(name, preset, tmp_path / "cut", data, watcher=StopAt(30))
    deep.resume(tmp_path / "cut", data)
    assert weights(tmp_path / "cut") == weights(run)


@every_default
def test_another_seed_gives_other_bits(name, preset, tmp_path):
    run, data = base(name, preset)
    quick(name, preset, tmp_path / "other", data, seed=1)
    assert weights(tmp_path / "other") != weights(run)


@every_default
def test_a_limit_means_the_same_in_every_unit(name, preset, tmp_path):
    """5 per episode of 25 steps is 0.2 per step, and 2 discounted by 0.9: the same bits.

    Not the last for an algorithm that estimates whole episodes under a limit on them and discounted sums
    under a limit on those, without converting: `test_model` has its units.
    """
    run, data = base(name, preset)
    for number, limit in enumerate(("0.2/step", "2/discounted")[: 1 if (name, preset) in IN_ITS_UNIT else 2]):
        quick(name, preset, tmp_path / str(number), data, limit)
        assert weights(tmp_path / str(number)) == weights(run), limit


@pytest.mark.parametrize(("name", "preset"), [pair for pair in QUICK_OF if pair[0] in IGNORES_LIMIT])
def test_what_ignores_the_limit_does(name, preset, tmp_path):
    run, data = base(name, preset)
    quick(name, preset, tmp_path / "other", data, "1")
    assert weights(tmp_path / "other") == weights(run)


@every_default
def test_the_numpy_policy_is_the_trained_policy(name, preset, tmp_path):
    """The state's policy and the file's: equal probabilities, or equal means and spreads of drawn actions."""
    for kind in range(len(kinds(name))):
        run, data = base(name, preset, kind)
        algorithm = algorithm_of(deep.read_run(run), data)
        task = algorithm.task(data, [5.0] * len(data.cost_names))
        algorithm = algorithm.informed(data, task)
        like = initial_state(algorithm, task, jax.random.key(0))
        state, _ = checkpoint.restore(run / "checkpoint.safetensors", like)
        pi, loaded = algorithm.policy(state), policies.load(run / "policy.safetensors")
        obs = data.observations[:8]
        policies.save(loaded, tmp_path / "again.safetensors")
        again = policies.load(tmp_path / "again.safetensors")
        one, two = (p.act(obs, rng=np.random.default_rng(3)) for p in (loaded, again))
        np.testing.assert_array_equal(one, two)
        if not hasattr(pi, "choice"):  # a policy of its own kind has a test of its own
            exported = pi.export(task).act(obs, rng=np.random.default_rng(3))
            np.testing.assert_array_equal(exported, one)
            continue
        draws = 1 if task.discrete else 4000
        keys = jax.random.split(jax.random.key(0), draws)
        inside = np.asarray(jax.vmap(pi.choice, (None, 0))((obs - task.obs_mean) / task.obs_std, keys))
        rng = np.random.default_rng(0)
        if task.discrete:
            np.testing.assert_allclose(inside.mean(axis=0), loaded.probabilities(obs), atol=1e-5)
        else:
            outside = np.stack([loaded.act(obs, rng=rng) for _ in range(draws)])
            noise = 6 * np.maximum(inside.std(axis=0), 1e-5) / np.sqrt(draws)
            assert np.all(np.abs(inside.mean(axis=0) - outside.mean(axis=0)) <= noise)
            np.testing.assert_allclose(inside.std(axis=0), outside.std(axis=0), rtol=0.1, atol=1e-5)


@by_name
def test_after_the_shortest_run_that_is_accepted_the_policy_has_been_trained(name, tmp_path):
    """Whatever the phases of its defaults are: a short run shrinks them, or is refused in a sentence."""
    discrete, costs = kinds(name)[0]
    data = pointmass(discrete=discrete, costs=costs)
    small = {"batch_size": 16, "hidden": (16, 16), "gamma": 0.9}
    small |= {"vae_hidden": (16,)} if hasattr(deep.find(name).Config, "vae_hidden") else {}
    for steps in range(1, 20):
        try:
            result = deep.train(name, data, ["5"] * costs, tmp_path / "run", steps=steps, **small)
            break
        except InputError as error:
            assert re.search(rf"{name} needs at least \d+ steps", str(error))  # noqa: PT017
    assert result.steps == steps
    run = deep.read_run(tmp_path / "run")
    algorithm = algorithm_of(run, data)
    task = algorithm.task(data, run.limits)
    algorithm = algorithm.informed(data, task)
    initial = initial_state(algorithm, task, jax.random.key(run.seed))
    state, _ = checkpoint.restore(tmp_path / "run" / "checkpoint.safetensors", initial)
    before, after = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(policy)}
        for policy in (algorithm.policy(initial), algorithm.policy(state))
    )
    still = [leaf for leaf in before if before[leaf].ndim > 1 and np.array_equal(before[leaf], after[leaf])]
    assert not still


@by_name
def test_data_it_cannot_use_are_refused_in_a_sentence(name, tmp_path):
    algorithm = deep.find(name)
    wrong = {"continuous", "discrete"} - set(algorithm.actions)
    for kind in wrong:
        with pytest.raises(InputError, match=f"{name} chooses .* those of this data are {kind}"):
            deep.train(name, pointmass(discrete=kind == "discrete"), ["5"], tmp_path / kind, **QUICK)
    if algorithm.most_costs is not None:
        costs = algorithm.most_costs + 1
        data = pointmass(discrete="discrete" in algorithm.actions, costs=costs)
        with pytest.raises(InputError, match=f"{name} can limit {algorithm.most_costs} cost"):
            deep.train(name, data, ["5"] * costs, tmp_path / "costs", **QUICK)
    with pytest.raises(InputError, match="no setting 'stesp'; did you mean 'steps'"):
        deep.train(name, pointmass(), ["5"], tmp_path / "typo", stesp=3)
    with pytest.raises(InputError, match="No limit is given"):
        deep.train(name, pointmass(), [], tmp_path / "none", **QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n for n in _learned() if n not in IGNORES_LIMIT | CONDITIONED and "discrete" in deep.find(n).actions],
)
def test_tightening_the_limit_lowers_the_cost_and_a_slack_limit_does_not_bind(name, tmp_path):
    """Exact costs of the mixture on a tabular problem, for limits from tight to slack."""
    cmdp = random_cmdp(100)
    data = cmdp.dataset(behaviour(cmdp), 20_000, seed=0)
    values = []
    # 5 is the largest possible cost: no constraint at all; an imitator needs some episodes within its limit
    for limit in (0.7, 1.2, 5.0) if name in IMITATES else (0.25, 0.6, 5.0):
        out = tmp_path / str(limit)
        deep.train(name, data, [f"{limit}/discounted"], out, gamma=0.8, **LEARNING_OF[name])
        values.append(cmdp.J_of(policies.load(out / "mixture.safetensors")))
    reward, cost = np.array(values).T
    noise = 0.03
    assert cost[0] <= cost[1] + noise
    assert cost[1] <= cost[2] + noise
    if name in IMITATES:
        assert cost[0] <= cost[2] - 0.1
        return
    assert cost[0] <= 0.25 * 1.15
    free = type(cmdp)(cmdp.P, cmdp.U, np.array([5.0])).optimum()[1]
    assert reward[2] >= 0.93 * free[0]
    assert reward[2] >= reward[0] - noise


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in _learned() if n not in IGNORES_LIMIT and "discrete" not in deep.find(n).actions]
)
def test_tightening_the_limit_lowers_the_cost_of_continuous_actions(name, tmp_path):
    """Return and cost per episode of the point on a line, simulated, for a tight and a slack limit."""
    data = pointmass(episodes=400, seed=1)
    values = []
    for limit in ("2", "25"):  # of 25 steps, so that 25 is no constraint
        deep.train(name, data, [limit], tmp_path / limit, gamma=0.9, **LEARNING_OF[name])
        values.append(pointmass_values(policies.load(tmp_path / limit / "mixture.safetensors"), 50, seed=0))
    (tight_return, tight_cost), (free_return, free_cost) = values
    assert tight_cost <= 0.5 * free_cost
    assert free_return >= tight_return
    assert free_return >= 1.5 * data.episodes.returns.mean()
