"""The bank that calibrates Tier 3: rows under the gates, rates from lines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slater import InputError
from slater.certify.estimates import read_calibration
from slater.cli import main
from slater.experiments.bank import FILE, bank_rows, read_lines, run, summary
from slater.report.bank import draw_bank


def _lines(tasks: int = 7, policies: int = 20, seed: int = 0) -> list[dict[str, Any]]:
    """A bank whose estimators err by their spread."""
    rng = np.random.default_rng(seed)
    lines = []
    for task in range(tasks):
        for number in range(policies):
            truth = rng.uniform(1, 60)
            costs = np.clip(rng.normal(truth, 5, 200 if number == 0 else 50), 0, 100)
            lines.append(
                {
                    "task": f"task {task}", "policy": f"p{number}", "kind": "shaken", "episodes_of_log": 100,
                    "fingerprint": "f", "horizon": 100, "outside": 0.5 if number == 1 else 0.0, "seed": 0,
                    "means": (costs.mean() + rng.normal(0, 2, 2)).tolist(), "spreads": [2.0, 2.0],
                    "checks": [{"limit": x, "passes": task != 6, "error": 0.1} for x in (10.0, 20.0, 40.0)],
                    "costs": costs.tolist(),
                }
            )  # fmt: skip
    return lines


def test_rows_meet_the_gates_as_they_are_now() -> None:
    rows = bank_rows(_lines())
    assert len(rows) == 7 * 20 * 3
    assert not any(row.gated for row in rows if row.policy == "p1")  # outside the log
    assert not any(row.gated for row in rows if row.task == "task 6")  # the check failed
    assert sum(row.gated for row in rows) > 300


def test_the_summary_calibrates_and_its_rates_are_at_most_nominal(tmp_path: Path) -> None:
    found = summary(_lines(), draws=1)
    assert (found["policies"], found["tasks"], found["episodes"]) == (140, 7, 50)
    for row in found["rates"][:2]:
        assert row["too_low"] <= 1 - row["confidence"] + 1e-9
        low, high = row["too_low_interval"]
        assert low <= row["too_low"] <= high
    usable = read_calibration(json.loads(json.dumps(found)), 0.9)
    assert usable is not None
    assert usable.confidence == 0.9
    # repeated draws of 200 episodes under the betting bound
    assert {row["episodes"] for row in found["rollouts"]} == {20, 50, 100}
    assert all(row["false_pass_interval"][0] <= 1 - row["confidence"] for row in found["rollouts"])
    draw_bank(tmp_path / "bank", _lines(), found)
    assert (tmp_path / "bank.png").stat().st_size > 5000


def test_a_bank_that_is_done_is_read_and_the_last_line_of_a_policy_counts(tmp_path: Path) -> None:
    lines = _lines(2, 5)
    newer = {**lines[0], "costs": [1.0] * 60}
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in [*lines, newer]))
    assert len(read_lines(tmp_path)) == 10
    assert next(line for line in read_lines(tmp_path) if line["policy"] == "p0")["costs"] == [1.0] * 60
    assert run([], tmp_path)["policies"] == 10
    assert json.loads((tmp_path / "calibration.json").read_text())["tasks"] == 2


def test_bad_input_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="folder of their datasets"):
        run([], tmp_path, behaviours=tmp_path)
    assert main(["reproduce", "bank", "--episodes", "1", "--out", str(tmp_path)]) == 2
    assert "--episodes is 1" in capsys.readouterr().err


def test_a_bank_of_nothing_is_refused_and_leaves_no_folder(tmp_path):
    for options in ({}, {"behaviours": tmp_path / "none", "data": tmp_path / "none"}):
        with pytest.raises(InputError, match=r"there is nothing to judge|is in both"):
            run([], tmp_path / "bank", **options)
    assert not (tmp_path / "bank").exists()
