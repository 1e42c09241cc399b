"""Small things that ended in a traceback or were taken in silence."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slater import InputError, cli
from slater.policy import GaussianPolicy, save
from slater.runs import open_run
from slater.runs.evaluations import EVALUATIONS, Evaluation, add_evaluation, read_evaluations

from .example import RESULT, write_run, write_two_costs


def _refused(capsys, *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e300", "5,nan"])
def test_a_frontier_is_solved_for_limits_that_are_numbers(tmp_path, capsys, text):
    write_run(tmp_path / "run")
    assert "limit" in _refused(capsys, "frontier", tmp_path / "run", "--limits", text)


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize("place", ["mixture_estimates", "mixture_per_episode", "estimates", "weight"])
def test_a_result_holds_finite_numbers(tmp_path, capsys, place, value):
    text = json.dumps(RESULT)
    if place == "weight":
        text = text.replace('"weight": 0.75', f'"weight": {value}')
    else:
        name, number = {"estimates": ("reward", "3.0"), "mixture_estimates": ("reward", "2.5")}.get(
            place, ("reward", "5.0")
        )
        text = text.replace(f'"{name}": {number}', f'"{name}": {value}')
    write_run(tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(text)
    with pytest.raises(InputError, match="not readable as a result"):
        open_run(tmp_path / "run").result.status  # noqa: B018
    assert "not readable as a result" in _refused(capsys, "frontier", tmp_path / "run")


def test_a_stray_line_hides_nothing_that_comes_after_it(tmp_path):
    for seed in range(3):
        add_evaluation(tmp_path, Evaluation("mixture", "e", 5, seed, False, None, {}, {}, {}, "d", 0))
        with (tmp_path / EVALUATIONS).open("a") as file:
            file.write(("not JSON", "[1]", '{"other": 1}')[seed] + "\n")
    assert [one.seed for one in read_evaluations(tmp_path)] == [0, 1, 2]


def _policy(path):
    weight, side = np.zeros((2, 2), np.float32), np.ones(1, np.float32)
    mean, std = np.zeros(2, np.float32), np.ones(2, np.float32)
    save(GaussianPolicy((weight,), (np.zeros(2, np.float32),), mean, std, -side, side, (-5.0, 0.0)), path)
    return path


def test_an_export_into_a_folder_that_is_not_there_is_one_sentence(tmp_path, capsys):
    pytest.importorskip("onnx", reason="pip install 'slater-rl[onnx]'")
    policy = _policy(tmp_path / "p.safetensors")
    assert "there is no folder" in _refused(capsys, "export", policy, "--onnx", tmp_path / "no" / "p.onnx")
    assert "is a folder" in _refused(capsys, "export", policy, "--onnx", tmp_path)


def test_folders_that_cannot_be_made_are_one_sentence(tmp_path, capsys):
    run = write_two_costs(tmp_path / "run", ("a", "b"))
    (tmp_path / "file").write_text("")
    for words in (["mix", run, "--limit", "a=9", "--limit", "b=30"], ["frontier", run]):
        assert "file" in _refused(capsys, *words, "--out", tmp_path / "file" / "x")


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.0, 1.0), (-0.5, 1.5)])
def test_shares_of_members_are_shares(tmp_path, weights):
    members = [{**m, "weight": w} for m, w in zip(RESULT["members"], weights, strict=True)]
    write_run(tmp_path, result={**RESULT, "members": members})
    with pytest.raises(InputError, match="shares of its members sum to"):
        open_run(tmp_path).result  # noqa: B018


def test_paths_that_cannot_be_are_one_sentence(tmp_path, capsys):
    pytest.importorskip("onnx", reason="pip install 'slater-rl[onnx]'")
    policy = _policy(tmp_path / "p.safetensors")
    assert "too long" in _refused(capsys, "export", policy, "--onnx", tmp_path / ("x" * 300 + ".onnx"))


def test_the_folder_of_a_mixture_says_where_its_policy_is(tmp_path, capsys):
    _policy(tmp_path / "mixture.safetensors")
    assert "mixture.safetensors" in _refused(capsys, "evaluate", tmp_path, "--env", "x")
    write_run(tmp_path / "run")
    assert "the margin is nan" in _refused(capsys, "frontier", tmp_path / "run", "--margin", "nan")
