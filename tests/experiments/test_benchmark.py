"""Table 2 and Figure 2, run for real in a tiny size: outputs, the same numbers again, kills, bad input."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slater import cli
from slater.data import Dataset, Metadata, samples, save
from slater.envs import install
from slater.experiments.benchmark import AlgorithmSpec, make_cells, parse_algorithms
from slater.experiments.measuring import measure
from slater.experiments.task_data import TaskData
from slater.policy import GaussianPolicy, Mixture, with_limits

needs_bullet = pytest.mark.skipif(
    find_spec("pybullet") is None or find_spec("bullet_safety_gym") is None, reason=install.BULLET
)
needs_rwrl = pytest.mark.skipif(find_spec("dm_control") is None, reason=install.RWRL)

TINY = ["--set", "hidden=16", "--set", "batch_size=32"]


def finished(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["row"] for line in (out / "cells.jsonl").read_text().splitlines()]


@pytest.mark.slow
@needs_bullet
def test_table2_from_the_sample_and_one_cell_again(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce", "table2", "--budget", "quick", "--algorithms", "bc", "pdca:paper", "cdt-x",
        "--steps", "40", "--episodes", "2", "--curve-every", "20", "--curve-episodes", "1", *TINY,
        "--set", "pdca:paper:keep_every=20", "--workers", "2", "--out", "table",
    ]  # fmt: skip
    assert cli.main(words) == 2
    assert "there is no algorithm 'cdt-x'" in capsys.readouterr().err
    words.remove("cdt-x")
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "PDCA (paper)" in shown
    out = Path("table")
    for name in ("table2.csv", "table2.md", "table2.png", "table2.svg", "report.html", "settings.json"):
        assert (out / name).stat().st_size > 100
    rows = {row["preset"]: row for row in finished(out)}
    # the paper's mixture: all kept policies, uniformly; rollouts at the interval of the curves
    (result,) = rows["paper"]["results"]
    assert result["members"] == 2
    assert [point[0] for point in result["curve"]] == [20, 40]
    assert result["normalised_cost"] == result["cost"] / 20
    # nothing is run twice
    before = (out / "cells.jsonl").read_bytes()
    assert cli.main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["means"]) == 2
    assert (out / "cells.jsonl").read_bytes() == before
    # the one command of a cell gives its numbers again
    command = shlex.split(rows["paper"]["command"])
    assert command[0] == "slater"
    assert cli.main(command[1:]) == 0
    (again,) = finished(Path("again"))
    assert again["results"] == rows["paper"]["results"]


@pytest.mark.slow
@needs_bullet
def test_a_killed_cell_goes_on_from_its_checkpoint(tmp_path):
    def words(out: str) -> list[str]:
        return [
            "reproduce", "table2", "--budget", "quick", "--algorithms", "pdca:paper", "--steps", "2500",
            "--episodes", "1", "--curve-every", "2500", "--curve-episodes", "1", *TINY,
            "--set", "keep_every=1250", "--workers", "1", "--out", str(tmp_path / out),
        ]  # fmt: skip

    started = subprocess.Popen(
        [sys.executable, "-m", "slater.cli", *words("killed")], start_new_session=True,
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.time() + 400
    while not (found := list((tmp_path / "killed").glob("runs/*/checkpoint.safetensors"))):
        assert started.poll() is None
        assert time.time() < deadline
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (found[0].parent / "result.json").exists()
    begun = (found[0].parent / "run.json").stat().st_mtime_ns
    assert cli.main(words("killed")) == 0
    assert (found[0].parent / "run.json").stat().st_mtime_ns == begun
    assert cli.main(words("whole")) == 0
    (one,), (other,) = finished(tmp_path / "killed"), finished(tmp_path / "whole")
    assert one["results"] == other["results"]


@needs_bullet
def test_a_failed_cell_is_said_and_tried_again(tmp_path, capsys):
    words = [
        "reproduce", "table2", "--budget", "quick", "--algorithms", "pdca:paper", "--steps", "20",
        "--episodes", "1", "--curve-every", "20", "--curve-episodes", "1", *TINY,
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert cli.main([*words, "--set", "eta_fast=1e30"]) == 2
    error = capsys.readouterr().err
    assert "every cell failed" in error
    assert "became NaN" in error
    assert finished(tmp_path / "out") == []


@needs_rwrl
def test_figure2_draws_curves_with_its_limits(tmp_path, capsys):
    from slater.envs import make

    env, rng = make("rwrl/cartpole?costs=slider_pos"), np.random.default_rng(0)
    columns: dict[str, list[Any]] = {name: [] for name in ("o", "a", "r", "c", "n", "e")}
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        ended = False
        while not ended:
            action = rng.uniform(-1, 1, 1).astype(np.float32)
            after, reward, _, ended, info = env.step(action)
            values = (observation, action, reward, info["cost"], after, ended)
            for name, value in zip("oarcne", values, strict=True):
                columns[name].append(value)
            observation = after
    data = Dataset.from_arrays(
        observations=columns["o"], actions=columns["a"], rewards=columns["r"], costs=columns["c"],
        terminals=np.zeros(len(columns["r"])), timeouts=columns["e"], next_observations=columns["n"],
        cost_names=("slider_pos",), metadata=Metadata(env_id="rwrl/cartpole?costs=slider_pos", horizon=1000),
    )  # fmt: skip
    save(data, tmp_path / "cartpole.hdf5")
    out = tmp_path / "out"
    words = [
        "reproduce", "figure2", "--data", str(tmp_path), "--algorithms", "pdca:paper-rwrl", "--steps", "40",
        "--seeds", "1", "--episodes", "1", "--curve-every", "20", "--curve-episodes", "1", *TINY, "--out",
        str(out), "--json",
    ]  # fmt: skip
    assert cli.main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    # walker, of the same budget, has no data: left out with the line that makes it
    (sentence,) = answer["left_out"]
    assert f"slater behaviours data walker --folder {tmp_path}" in sentence
    (line,) = answer["means"]
    assert line["limit"] == "0.05/step"
    assert line["cost_per_step_mean"] == pytest.approx(line["normalised_cost_mean"] * 0.05)
    for name in ("figure2.csv", "figure2-curves.csv", "figure2.md", "figure2.png", "figure2.svg"):
        assert (out / name).stat().st_size > 100
    assert "PDCA outperforms COptiDICE" in (out / "figure2.md").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["table3"], "there is no slater reproduce 'table3'"),
        (["table2", "--tasks", "cartpole"], "belongs to slater reproduce figure2"),
        (["table2", "--tasks", "Cycling"], "there is no task 'Cycling'"),
        (
            ["table2", "--data", "{empty}", "--tasks", "BallRun"],
            "slater behaviours data ballrun --folder {empty}",
        ),
        (["table2", "--data", "{empty}", "--tasks", "antcircle"], "SafetyAntCircle-v0-200-5728.hdf5"),
        (["table2", "--data", "{empty}"], "{empty} has no data for BallRun"),
        (["table2", "--data", "{wrong}", "--tasks", "BallRun"], "says that it is from bullet/BallCircle"),
        (["table2", "--budget", "quick", "--set", "nonsense=1"], "fits none of the algorithms"),
        (["table2", "--budget", "quick", "--set", "hidden"], "is not NAME=VALUE"),
        (["table2", "--budget", "quick", "--steps", "0"], "steps"),
        (["table2", "--budget", "quick", "--seeds", "0"], "seeds is 0"),
        (["table2", "--budget", "huge"], "budget"),
        (["tables", "{empty}", "--out", "{empty}"], "not a folder of slater reproduce"),
    ],
)
def test_bad_input_is_one_sentence(words, expected, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "ballrun.hdf5").symlink_to(samples.ballcircle())
    names = {"empty": tmp_path / "empty", "wrong": tmp_path / "wrong"}
    filled = [word.format(**names) for word in words]
    out = ["--out", str(tmp_path / "out")] if filled[0] == "table2" else []
    assert cli.main(["reproduce", *filled, *out, *(["--workers", "1"] if out else [])]) == 2
    error = capsys.readouterr().err
    assert expected.format(**names) in error.replace("\n", " ")
    assert "Traceback" not in error


def test_settings_go_to_the_algorithms_that_have_them():
    spec, _ = parse_algorithms(["pdca", "pdca:paper"], ["pdca:dual_rate=3", "gamma=0.9"], 10)
    assert dict(spec.settings) == {"steps": "10", "dual_rate": "3", "gamma": "0.9"}


def constant(value: float, size: int = 8) -> GaussianPolicy:
    """A policy of BallCircle that always pushes the same way, with hardly any noise."""
    bias = np.array([value, value, -20.0, -20.0], dtype=np.float32)
    zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)
    low = -np.ones(2, np.float32)
    return GaussianPolicy((np.zeros((size, 4), np.float32),), (bias,), zeros, ones, low, -low, (-20.0, -20.0))


@needs_bullet
def test_a_mixture_is_worth_the_weighted_mean_of_its_members():
    how: dict[str, Any] = {"episodes": 2, "deterministic": True, "discount": 0.99}
    one, other = constant(0.3), constant(-2.0)
    mixed = measure(Mixture((one, other), np.array([0.25, 0.75])), "bullet/BallCircle", seed=5, **how)
    first = measure(one, "bullet/BallCircle", seed=5, **how)
    second = measure(other, "bullet/BallCircle", seed=10_005, **how)
    for name in ("return", "cost", "discounted_cost"):
        assert mixed[name] == pytest.approx(0.25 * first[name] + 0.75 * second[name])
    assert mixed["members"] == 2
    errors = (0.25 * first["return_se"]) ** 2 + (0.75 * second["return_se"]) ** 2
    assert mixed["return_se"] == pytest.approx(np.sqrt(errors))


@dataclass(frozen=True)
class Adjustable(GaussianPolicy):
    """A policy that serves all limits, as those of a transformer do."""

    target: float = 0.0

    def with_limits(self, limits: list[float]) -> Adjustable:
        return replace(self, target=limits[0])


def test_an_algorithm_that_serves_all_limits_is_trained_once_per_seed():
    source = TaskData("BallCircle", "x", "own", "f", "bullet/BallCircle", 1, 1, 200)
    limits = {"BallCircle": ("10", "20", "40")}
    one, many = AlgorithmSpec("cdt", None, {}, True), AlgorithmSpec("pdca", None, {})
    cells = make_cells([source], [one, many], limits, [0, 1], {})
    assert [cell["limits"] for cell in cells if cell["algorithm"] == "cdt"] == [["10", "20", "40"]] * 2
    assert [cell["limits"] for cell in cells if cell["algorithm"] == "pdca"] == [["10"], ["20"], ["40"]] * 2
    plain = constant(0.0)
    policy = Adjustable(**{f.name: getattr(plain, f.name) for f in fields(GaussianPolicy)})
    mixture = with_limits(Mixture.uniform([policy, policy]), [40.0])
    assert [member.target for member in mixture.members] == [40.0, 40.0]
