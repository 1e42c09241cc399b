"""What every algorithm must do, whatever it is: one suite, parametrised over the registry.

A new algorithm gets its lines in `table`; everything here holds for it unchanged. What it can do (kinds of
actions, number of costs) is read from its class.
"""

from __future__ import annotations

import json
import os
import re
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
from slater.policy.onnx_file import lone, save_onnx
from slater.runs.metrics import read_metrics

from ..exact import behaviour, random_cmdp
from ..problems import QUICK, pointmass, pointmass_values
from ..runs import StopAt, weights
from .table import (
    CONDITIONED,
    IGNORES_LIMIT,
    IMITATES,
    IN_ITS_UNIT,
    LEARNING_OF,
    OUTSIDE,
    QUICK_OF,
    finished_run,
    kinds,
    quick,
)  # fmt: skip


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
    return [name for name in LEARNING_OF if FULL or OUTSIDE or name in LEARNED]


by_name = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in LEARNING_OF]
)


def test_the_suite_covers_every_algorithm():
    names = {name for name, _ in QUICK_OF}
    assert names == set(LEARNING_OF)
    assert names <= set(deep.algorithms()) if OUTSIDE else names == set(deep.algorithms())


@every
def test_trains_and_leaves_policies_that_act(name, preset):
    """On each kind of action it knows, and with two costs if it can; a preset on the first of them."""
    for kind, (discrete, _) in enumerate(kinds(name) if FULL or preset is None else kinds(name)[:1]):
        run, data = finished_run(name, preset, kind)
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
    run, data = finished_run(name, preset)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        quick(name, preset, tmp_path / "cut", data, watcher=StopAt(30))
    deep.resume(tmp_path / "cut", data)
    assert weights(tmp_path / "cut") == weights(run)


@every_default
def test_another_seed_gives_other_bits(name, preset, tmp_path):
    run, data = finished_run(name, preset)
    quick(name, preset, tmp_path / "other", data, seed=1)
    assert weights(tmp_path / "other") != weights(run)


@every_default
def test_a_limit_means_the_same_in_every_unit(name, preset, tmp_path):
    """5 per episode of 25 steps is 0.2 per step, and 2 discounted by 0.9: the same bits.

    Not the last for an algorithm that estimates whole episodes under a limit on them and discounted sums
    under a limit on those, without converting: `test_model` has its units.
    """
    run, data = finished_run(name, preset)
    for number, limit in enumerate(("0.2/step", "2/discounted")[: 1 if (name, preset) in IN_ITS_UNIT else 2]):
        quick(name, preset, tmp_path / str(number), data, limit)
        assert weights(tmp_path / str(number)) == weights(run), limit


@pytest.mark.parametrize(("name", "preset"), [pair for pair in QUICK_OF if pair[0] in IGNORES_LIMIT])
def test_what_ignores_the_limit_does(name, preset, tmp_path):
    run, data = finished_run(name, preset)
    quick(name, preset, tmp_path / "other", data, "1")
    assert weights(tmp_path / "other") == weights(run)


@every_default
def test_the_numpy_policy_is_the_trained_policy(name, preset, tmp_path):
    """The state's policy and the file's: equal probabilities, or equal means and spreads of drawn actions."""
    for kind in range(len(kinds(name))):
        run, data = finished_run(name, preset, kind)
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


@every_default
def test_the_policy_leaves_as_onnx(name, preset, tmp_path):
    """Of the mixture's first steps, the likeliest actions are the same in a runtime without Python."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")
    run, data = finished_run(name, preset)
    policy = lone(policies.load(run / "mixture.safetensors"))
    save_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    obs = data.observations[:8]
    start = json.loads(session.get_modelmeta().custom_metadata_map["slater"]).get("start", {})
    inputs = {"observation": obs}
    for entry in session.get_inputs()[1:]:
        if entry.name in ("member", "time"):
            inputs[entry.name] = np.array(0)
        elif entry.name == "tokens":
            inputs[entry.name] = np.zeros((8, 0, entry.shape[2]), np.float32)
        else:
            begin = np.float32(start.get(entry.name, 0.0))
            inputs[entry.name] = np.broadcast_to(begin, (8, *entry.shape[1:])).astype(np.float32)
    acts = policy.members[0] if isinstance(policy, Mixture) else policy
    wanted = acts.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(session.run(["action"], inputs)[0], wanted, atol=1e-5)


@by_name
def test_after_the_shortest_run_that_is_accepted_the_policy_has_been_trained(name, tmp_path):
    """Whatever the phases of its defaults are: a short run shrinks them, or is refused in a sentence."""
    discrete, costs = kinds(name)[0]
    data = pointmass(discrete=discrete, costs=costs)
    # the settings of the shared run but for its lengths: what is compiled is the same
    lengths = ("steps", "keep_every", "warmup")
    settings = {**QUICK, **QUICK_OF[name, None]}
    # but for that of the log model, which is no phase of the run
    small = {
        k: v for k, v in settings.items()
        if k not in lengths and (k == "model_steps" or not k.endswith("_steps"))
    }  # fmt: skip
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
