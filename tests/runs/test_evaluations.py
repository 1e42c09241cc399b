"""What was measured about a run: of which policy, in which unit, and beside which other runs."""

import dataclasses
import json

import numpy as np
import pytest

from slater import cli
from slater.envs.episode import is_scalar_cost
from slater.envs.evaluation import Rollout
from slater.errors import InputError
from slater.limits import Limit
from slater.runs import open_run
from slater.runs.evaluations import Evaluation, add_evaluation

from .example import LIMIT, RECORD, RESULT, write_run


def ran(costs, lengths, *, deterministic=False) -> Rollout:
    costs, lengths = np.array(costs, float), np.array(lengths)
    return Rollout(
        env_id="here:env", env_options={}, cost_names=("cost",), seed=0, deterministic=deterministic,
        discount=0.99, returns=costs, discounted_returns=costs, cost=costs, discounted_cost=costs,
        costs=costs[:, None], discounted_costs=costs[:, None], lengths=lengths,
        terminated=lengths < 200, seconds=1.0,
    )  # fmt: skip


def measure(folder, costs=(5.0, 7.0), lengths=(200, 200), **options):
    saved = open_run(folder)
    file = folder / "mixture.safetensors"
    add_evaluation(
        folder, Evaluation.of("mixture", file, ran(costs, lengths, **options), saved.task, limits=None)
    )


def rows(capsys, *words):
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "mixture.safetensors").write_bytes(b"as it was")
    return tmp_path / "run"


def test_a_measurement_is_of_the_mixture_that_was_there(folder, capsys):
    """A run that is extended has another mixture: what the old one did in episodes says nothing about it."""
    measure(folder)
    assert open_run(folder).measured().means["cost"] == 6.0
    (row,) = rows(capsys, "runs", folder.parent)
    assert row["measured/cost"] == 6.0
    (folder / "mixture.safetensors").write_bytes(b"after more steps")
    assert open_run(folder).measured() is None
    (row,) = rows(capsys, "runs", folder.parent)
    assert "measured/cost" not in row
    measure(folder, costs=(1.0, 3.0))
    assert open_run(folder).measured().means["cost"] == 2.0
    assert len(open_run(folder).evaluations) == 2


def test_likeliest_actions_are_another_policy_and_named_so(folder, capsys):
    measure(folder, deterministic=True, costs=(1.0, 1.0))
    (row,) = rows(capsys, "runs", folder.parent)
    assert row["measured in"] == "here:env, 2 episodes, likeliest actions"
    measure(folder)
    measure(folder, deterministic=True, costs=(1.0, 1.0))
    (row,) = rows(capsys, "runs", folder.parent)
    assert row["measured in"] == "here:env, 2 episodes"
    assert row["measured/cost"] == 6.0


def test_compare_judges_episodes_in_the_unit_of_the_limit(folder, capsys):
    """Episodes that end early cost little as a sum, and much per step lived."""
    limit = {**LIMIT, "given": "cost=0.1/step"}
    record = {**RECORD, "problem": {**RECORD["problem"], "limits": [limit]}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "result.json").write_text(json.dumps({**RESULT, "limits": [limit]}))
    measure(folder, costs=(10.0, 12.0), lengths=(20, 20))
    (row,) = rows(capsys, "compare", folder)
    assert row["measured/cost"] < limit["episode"]
    assert row["kept in episodes"] == "above"
    measure(folder, costs=(1.0, 1.0), lengths=(20, 20))
    (row,) = rows(capsys, "compare", folder)
    assert row["kept in episodes"] == "within"


def test_only_runs_that_differ_in_the_seed_alone_are_averaged(tmp_path, capsys):
    def run(name, seed, steps=200, fingerprint="ab"):
        folder = write_run(tmp_path / name, result={**RESULT, "seed": seed})
        own = {**RECORD["run"], "seed": seed, "fingerprint": fingerprint}
        config = {**RECORD["config"], "steps": steps}
        (folder / "run.json").write_text(json.dumps({**RECORD, "run": own, "config": config}))

    run("a", 0)
    run("b", 1, steps=400)  # trained twice as long
    run("c", 1, fingerprint="cd")  # other data
    run("d", 0)  # the same seed again
    lines = rows(capsys, "compare", tmp_path)
    assert not [line for line in lines if line["run"].startswith("mean")]
    run("d", 2)
    (line,) = [line for line in rows(capsys, "compare", tmp_path) if line["run"].startswith("mean")]
    assert line["run"] == f"mean of 2 seeds, as {tmp_path / 'a'}"


def test_a_cost_of_another_name_is_not_taken_for_a_sum_of_costs():
    """A log's one cost may be called otherwise in an environment that has one too, and nowhere else."""
    assert is_scalar_cost(["wear"], ["cost"])
    assert is_scalar_cost(["wear"], [])
    assert is_scalar_cost(["cost"], ["left", "right"])
    assert not is_scalar_cost(["left"], ["left", "right"])
    for names in (["wear"], ["left", "wear"]):
        with pytest.raises(InputError, match="no cost 'wear'; it has left, right"):
            is_scalar_cost(names, ["left", "right"])


def test_sums_of_episodes_that_were_cut_short_do_not_say_within(folder, capsys):
    """A time limit below the data's: what is summed over 20 of 200 steps keeps any limit."""
    short = dataclasses.replace(ran((5.0, 7.0), (20, 20)), terminated=np.zeros(2, bool))
    add_evaluation(
        folder, Evaluation.of("mixture", folder / "mixture.safetensors", short, open_run(folder).task, None)
    )
    (row,) = rows(capsys, "compare", folder)
    assert row["kept in episodes"] == "not known"
    assert short.status(Limit.episode(20, "cost"), 200) == "not known"
    assert short.status(Limit.episode(5, "cost"), 200) == "above"
    assert short.status(Limit.episode(20, "cost"), 20) == "within"
    assert short.status(Limit.per_step(0.1, "cost"), 200) == "above"
    ended = ran((5.0, 7.0), (20, 20))  # by the task itself
    assert ended.status(Limit.episode(20, "cost"), 200) == "within"
