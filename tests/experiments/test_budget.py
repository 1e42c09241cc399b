"""Equal processor time: speeds, scaled schedules, and a table in which time decides."""

from __future__ import annotations

import json
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from slater import cli
from slater.data import load
from slater.data.samples import ballcircle
from slater.envs import install
from slater.experiments import budget
from slater.experiments.benchmark import AlgorithmSpec, CellWork, make_cells, parse_algorithms
from slater.experiments.task_data import TaskData, bare_copy, find_task_data


@pytest.mark.parametrize(
    ("fixed", "rate", "most"), [(5.0, 0.01, 100_000), (20.0, 0.5, 100_000), (1.0, 1e-4, 3_000)]
)
def test_a_speed_is_what_trials_took(fixed: float, rate: float, most: int) -> None:
    """A straight line is found again; the budget holds what it says, the authors' number at most."""
    tried: list[int] = []

    def trial(steps: int) -> float:
        tried.append(steps)
        return fixed + rate * steps

    speed = budget.measure_speed(trial, 180.0, most)
    assert speed.per_iteration == pytest.approx(rate)
    assert speed.fixed == pytest.approx(fixed)
    assert speed.iterations(180.0, most) == pytest.approx(min((180.0 - fixed) / rate, most), abs=1)
    assert max(tried) <= most
    assert sum(fixed + rate * steps for steps in tried) < 3 * 180.0


def test_what_every_schedule_compiles_anew_does_not_count_as_iterations() -> None:
    """Each number of iterations is compiled once per process: 10 s here, beside .001 s per iteration."""
    compiled: set[int] = set()

    def trial(steps: int) -> float:
        new = steps not in compiled
        compiled.add(steps)
        return 10.0 * new + 0.001 * steps

    speed = budget.measure_speed(trial, 60.0, 100_000)
    assert speed.per_iteration == pytest.approx(0.001)
    assert speed.iterations(60.0, 100_000) == pytest.approx(50_000, abs=1)


def test_a_budget_too_short_for_a_trial_gives_what_was_tried() -> None:
    speed = budget.measure_speed(lambda steps: 10.0 + steps, 1.0, 1_000)
    assert speed.iterations(1.0, 1_000) == 128


def test_speeds_are_measured_once(tmp_path: Path) -> None:
    speed = budget.Speed(1.0, 0.5, 32)
    asked: list[int] = []

    def measure() -> budget.Speed:
        asked.append(1)
        return speed

    for _ in range(2):
        assert budget.known_speed(tmp_path / "speeds" / "one.json", measure) == speed
    assert len(asked) == 1


def test_schedules_are_scaled_to_what_is_reached() -> None:
    """Half of PDCA's iterations: half of every phase; what the user set stays."""
    from slater.deep import find, make_config

    whole = make_config(find("pdca"), {}, None)
    settings = budget.scaled("pdca", None, whole.steps // 2, {"hidden": "16"})
    half = make_config(find("pdca"), settings, None)
    assert half.hidden == (16,)
    for name in vars(whole):
        value = getattr(whole, name)
        if (name.endswith("_steps") or name == "keep_every") and isinstance(value, int):
            assert getattr(half, name) == pytest.approx(value / 2, abs=1), name
    assert budget.authors_steps("bc", None) == 100_000
    assert budget.authors_steps("pdca", "paper") == 100_000
    assert budget.authors_steps("pdca", None) == whole.steps


def test_one_model_for_all_limits_has_one_budget_and_in_a_second_row_all() -> None:
    source = TaskData("BallRun", "x", "own", "0" * 64, "bullet/BallRun", 1, 1, 100)
    specs = [AlgorithmSpec("bc", None, {}, acts_likeliest=True), AlgorithmSpec("cdt", None, {}, True, True)]
    limits = {"BallRun": ("10", "20", "40")}
    cells = make_cells([source], specs, limits, [0], {"budget_seconds": 60.0}, "both")
    assert [(cell["algorithm"], len(cell["limits"]), cell["budget_seconds"]) for cell in cells] == [
        ("bc", 1, 60.0), ("bc", 1, 60.0), ("bc", 1, 60.0), ("cdt", 3, 60.0), ("cdt", 3, 180.0),
    ]  # fmt: skip
    assert all(cell["deterministic"] == [True, False] for cell in cells)
    assert parse_algorithms(["pdca", "cpq"], [], None)[1].acts_likeliest


def test_a_bare_copy_has_no_names_and_no_densities(tmp_path: Path) -> None:
    whole = load(ballcircle())
    source = TaskData("BallCircle", str(ballcircle()), "own", whole.fingerprint, "", 1, 1, 200)
    copy = bare_copy(source, tmp_path)
    bare = load(copy.path)
    assert bare.source is None
    assert bare.propensity is None
    assert len(bare) == len(whole)
    assert bare_copy(source, tmp_path) == copy


@pytest.mark.skipif(
    find_spec("pybullet") is None or find_spec("bullet_safety_gym") is None, reason=install.BULLET
)
def test_a_table_with_equal_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seconds for a cell, which is what it takes; its command repeats it with the settings found."""
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce", "table2", "--budget", "equal", "--minutes", "0.05", "--bare", "--data", "sample",
        "--tasks", "BallCircle", "--algorithms", "bc", "--limits", "20", "--episodes", "2",
        "--set", "hidden=128x128", "--acting", "both", "--workers", "1", "--out", "out",
    ]  # fmt: skip
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "0.05 minutes of one core (BallCircle" in shown
    (line,) = (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    row = json.loads(line)["row"]
    assert 0.3 * 3.0 < row["processor_seconds"] < 4.0 * 3.0
    assert [result["deterministic"] for result in row["results"]] == [True, False]
    assert int(row["fitted"]["steps"]) < 100_000
    command = shlex.split(row["command"])
    assert command[command.index("--steps") + 1] == row["fitted"]["steps"]
    assert "--bare" in command
    assert cli.main([*words, "--steps", "10"]) == 2
    assert "leave out --steps" in capsys.readouterr().err
    words[words.index("0.05")] = "0"
    assert cli.main(words) == 2
    assert "a budget of 0 minutes is none" in capsys.readouterr().err
    assert cli.main(["reproduce", "table2", "--minutes", "3"]) == 2
    assert "--minutes belongs to --budget equal" in capsys.readouterr().err
    assert cli.main(["reproduce", "figure2", "--budget", "equal"]) == 2
    assert "figure2 has no budget 'equal'" in capsys.readouterr().err


@pytest.mark.skipif(
    find_spec("fsspec") is None or find_spec("pybullet") is None, reason="needs fsspec and a simulator"
)
def test_a_worker_that_shares_no_folder_makes_its_own_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data by address, bare; the planner's folder is not where the work is done."""
    import fsspec

    monkeypatch.setenv("SLATER_DATA", str(tmp_path / "copies"))
    fsspec.filesystem("memory").put_file(str(ballcircle()), "/logs/ballcircle.hdf5")
    found, _ = find_task_data(["BallCircle"], "memory://logs")
    planned = bare_copy(found[0], tmp_path / "out" / "data")
    work = CellWork("table2", str(tmp_path / "out"), "memory://logs", (planned,), bare=True)
    specs = parse_algorithms(["bc"], ["hidden=8"], 5)
    common = {"episodes": 1, "curve_every": None, "curve_episodes": 1}
    (cell,) = make_cells([planned], specs, {"BallCircle": ["20"]}, [0], common, "draws")
    shutil.rmtree(tmp_path / "out")
    row = work(cell)
    assert row["results"][0]["limit"] == "20"
    assert "--data memory://logs" in row["command"]
