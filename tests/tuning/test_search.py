"""`slater tune`: held-out data in the training's units, honest choices, real small searches."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slater import cli
from slater.data import Dataset, save
from slater.deep import algorithms, find, train
from slater.deep.batches import on_device
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import resolve_limits
from slater.policy import load
from slater.runs import read_run
from slater.tuning.search import (
    Judge,
    best,
    candidates,
    parse_search,
    refuse_unjudged,
    split_episodes,
)

from ..deep.problems import OWN_COLUMNS, pointmass, pointmass_values, write_own_log
from ..deep.toy import Toy

SMALL = {
    "batch_size": "32", "hidden": "16", "gamma": "0.9", "joint_steps": "5",
    "model_steps": "10",
}  # fmt: skip


@pytest.fixture
def data() -> Dataset:
    return pointmass(costs=2)


def test_held_out_rows_are_in_the_units_of_training(data: Dataset) -> None:
    kept, held = split_episodes(data, 0.25, 3)
    assert len(kept.episodes) + len(held.episodes) == len(data.episodes)
    assert kept.horizon == held.horizon == data.horizon
    task = state_task(kept, resolve_limits(["c0=5", "c1=5"], data.cost_names), 0.99)
    rows = on_device(held, task)
    expected = (held.observations - task.obs_mean) / task.obs_std
    np.testing.assert_allclose(rows.obs, expected, atol=1e-4)
    np.testing.assert_allclose(rows.actions, held.actions, atol=1e-5)
    np.testing.assert_allclose(rows.utilities[:, 0], held.rewards * task.scale[0], atol=1e-5)
    np.testing.assert_allclose(rows.utilities[:, 1:], held.costs * task.scale[1:], atol=1e-5)


class Remembering(Toy):
    """An algorithm whose policy is no plain network."""

    name = "remembering"

    def policy(self, state: Any) -> Any:
        return {"memory": state.pi}


def test_a_policy_that_cannot_be_judged_is_refused_before_training(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "remembering", Remembering)
    with pytest.raises(InputError, match="cannot judge the policy of remembering"):
        refuse_unjudged("remembering", {"hidden": "16"}, None, data)
    refuse_unjudged("pdca", {"hidden": "16"}, None, data)


def test_the_choice_is_safe_first() -> None:
    rows = [
        {"reward": 9.0, "excess": 0.01}, {"reward": 3.0, "excess": -0.5}, {"reward": 5.0, "excess": 0.0},
    ]  # fmt: skip
    assert best(rows) == 2
    assert best([{"reward": 9.0, "excess": 0.3}, {"reward": 1.0, "excess": 0.2}]) == 1


def test_candidates_are_the_grid_or_a_seeded_part_of_it() -> None:
    space = parse_search("pdca", ["multiplier_bound=1,2,5", "anchor_weight=0.03,0.1"])
    grid = candidates("pdca", None, {}, space, None, 0)
    assert len(grid) == 6
    part = candidates("pdca", None, {}, space, 3, 1)
    assert part == candidates("pdca", None, {}, space, 3, 1)
    assert len(part) == 3
    assert all(point in grid for point in part)
    spaces = [name for name in algorithms() if find(name).search_space]
    assert {"pdca", "coptidice", "cpq", "bear-lag", "mbcl"} <= set(spaces)
    for name in spaces:
        assert len(candidates(name, None, {}, parse_search(name, []), None, 0)) > 1


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (["C"], "is not NAME=V1,V2"),
        (["dual_rate=1", "dual_rate=2"], "twice"),
        (["stepz=1,2"], "did you mean 'steps'"),
        (["dual_rate=-1"], "dual_rate must be positive"),
        (["B=1"], "pdca has no setting 'B'"),
    ],
)
def test_bad_spaces_are_refused_before_training(search: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        candidates("pdca", None, {}, parse_search("pdca", search), None, 0)


def test_estimates_of_a_cloned_policy_are_near_what_the_data_did(tmp_path: Path) -> None:
    data = pointmass(episodes=200)
    kept, held = split_episodes(data, 0.3, 0)
    settings = {"steps": 400, "hidden": (32,), "batch_size": 128, "gamma": 0.9}
    train("bc", kept, ["5"], tmp_path / "run", options={"estimate": False}, **settings)
    # a model counts whole episodes under a limit on them: of the policy itself, which is not quite the data's
    cost = pointmass_values(load(tmp_path / "run" / "mixture.safetensors"), 400, seed=0)[1]
    estimate = Judge(steps=400, members=2)(tmp_path / "run", kept, held)
    assert estimate["costs"]["c0"] == pytest.approx(cost / 25 * 10, rel=0.2)
    # 5 per episode of 25 steps is .2 per step, 2 discounted at .9
    assert estimate["tau"]["c0"] == pytest.approx(2.0)
    assert estimate["excess"] == pytest.approx(estimate["costs"]["c0"] / 2.0 - 1, rel=1e-4)


@pytest.mark.slow
def test_tune_searches_resumes_and_gives_a_command_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_own_log(pointmass(), Path("log.csv"))
    reading = ["--columns", *OWN_COLUMNS, "--horizon", "25", "--drop-missing"]
    words = [
        "tune", "pdca", "log.csv", *reading, "--limit", "6", "--search", "multiplier_bound=1,5",
        "--preset", "paper",
        "--steps", "40", "--set", "batch_size=32", "--set", "hidden=16", "--set", "gamma=0.9",
        "--set", "keep_every=10", "--estimate-steps", "50", "--estimate-members", "2", "--out", "tuned",
    ]  # fmt: skip
    assert cli.main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["candidates"]) == 2
    assert [line["chosen"] for line in answer["candidates"]].count("*") == 1
    assert answer["estimate"]["members"] == 2
    # 6 per episode of 25 steps, and what is estimated as a discounted sum at gamma = .9 in that unit
    (line,) = [line for line in answer["candidates"] if line["chosen"]]
    assert line["limit of wear"] == 6.0
    assert line["wear per episode"] == pytest.approx(answer["estimate"]["costs"]["wear"] * (1 - 0.9) * 25)
    assert "reward per episode" in line
    before = Path("tuned/cells.jsonl").read_bytes()
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert Path("tuned/cells.jsonl").read_bytes() == before
    best_settings = json.loads(Path("tuned/best.json").read_text())
    assert best_settings["command"] in shown
    for name in ("tune.csv", "tune.md"):
        assert "multiplier_bound" in Path("tuned", name).read_text()
    assert cli.main(shlex.split(best_settings["command"])[1:]) == 0
    record = json.loads(Path("runs/tuned/run.json").read_text())
    assert read_run(Path("runs/tuned")).reading["missing"] == "drop"
    assert record["config"]["multiplier_bound"] == float(best_settings["settings"]["multiplier_bound"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pdca", "nowhere.npz", "--limit", "5"], "nowhere.npz"),
        (["pdca", "data.npz"], "limit"),
        (["wild", "data.npz", "--limit", "5"], "wild"),
        (["pdca", "data.npz", "--limit", "c0=5", "--limit", "c1=5", "--held-out", "1.5"], "held-out share"),
        (
            ["pdca", "data.npz", "--limit", "5", "--set", "dual_rate=2", "--search", "dual_rate=1,2"],
            "both fixed and searched",
        ),
        (["pdca", "data.npz", "--limit", "5", "--samples", "0"], "samples is 0"),
        (["pdca", "data.npz", "--limit", "5", "--estimate-steps", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], expected: str, data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    save(data, "data.npz")
    assert cli.main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
