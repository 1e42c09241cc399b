"""The bank of tasks: scores from cells, what is shipped, and what verdicts on other cells are worth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from slater import InputError
from slater.certify.estimates import made_with
from slater.cli import main
from slater.deep.ope.posterior import deviations_at
from slater.experiments import bank
from slater.experiments.bank import judged, rates, read_calibration, scores


def cell(task: str, seed: int = 0, error: float = 1.0, past: tuple[str, ...] = ()) -> dict[str, Any]:
    """Of `worlds`: two clones and a policy of the game, which is the mixture; errors in deviations."""
    rng = np.random.default_rng([seed, *map(ord, task)])
    rows = []
    for kind, weight in (("clone of the log", 0.0), ("clone of group 1", 0.0), ("iterate", 1.0)):
        mean = rng.uniform(2, 8)
        rows.append([kind, weight, [5.0, mean], [1.0, 1.0], [5.0, mean + error * rng.standard_normal()]])
    (_, _, said, wide, true) = rows[-1]
    return {
        "cell": {"world": task, "episodes": 100, "seed": seed, "settings": {}}, "limits": [10.0],
        "said": said, "true": true, "bc_safe": [4.0, 3.0], "bc_safe_said": [[4.0, 3.1], [1.0, 0.5]],
        "posterior": {
            "confidence": 0.95, "at_most": {"cost": said[1] + deviations_at(0.95) * wide[1]},
            "past": list(past),
        },
        "members": rows,
    }  # fmt: skip


def of_estimates(row: dict[str, Any]) -> dict[str, Any]:
    """The same policies as a cell of `estimates` has them."""
    members = [[k, n, *said, *true, 20.0, *wide] for n, (k, _, said, wide, true) in enumerate(row["members"])]
    return {
        "cell": {"data": row["cell"]["world"]}, "limit_per_episode": row["limits"][0],
        "estimated": row["said"], "measured": [*row["true"], 20.0], "weights": {"step 2": 1.0},
        "posterior": row["posterior"], "members": members,
    }  # fmt: skip


def test_a_cell_has_the_worst_score_of_every_class() -> None:
    row = cell("task-0")
    policies = judged(row)
    assert [p.what for p in policies] == ["clone", "clone", "other", "output", "bc-safe"]
    # the mixture is one policy of the game, so that is what it is
    assert [p.kind for p in policies] == ["clone", "clone", "played", "played", "clone"]
    np.testing.assert_allclose(policies[3].deviation, policies[2].deviation, rtol=1e-6)
    found = scores(policies)
    errors = [true[1] - said[1] for _, _, said, _, true in row["members"]]
    assert found["clone"] == pytest.approx([max(*errors[:2], -0.2), max(*np.negative(errors[:2]), 0.2), 3])
    assert found["played"][0] == pytest.approx(errors[2], abs=1e-6)
    assert found["mixture"][:2] == pytest.approx(found["played"][:2])
    assert "in-sample" not in found
    # the same numbers from a log of a simulator
    same = scores(judged(of_estimates({**row, "bc_safe_said": None})))
    for kind, numbers in scores(judged({**row, "bc_safe_said": None})).items():
        assert same[kind] == pytest.approx(numbers)
    assert judged(cell("task-0", past=("cost",))) == []


def test_verdicts_under_a_bank_are_wrong_about_as_often_as_they_say() -> None:
    record = {
        "settings": {}, "said": "", "tasks": {f"t{k}": scores(judged(cell(f"t{k}"))) for k in range(79)}
    }  # fmt: skip
    calibration = read_calibration(record)
    others = [cell(f"t{k}", 1) for k in range(400)]
    table = {(row["what"], row["confidence"]): row for row in rates(others, (0.9, 0.95), calibration)}
    for (what, confidence), row in table.items():
        assert row["pass"] + row["fail"] + row["abstain"] == row["policies"]
        assert row["interval"][0] <= 1 - confidence, what
        assert row["room passes"] <= row["room"]
    assert table["output", 0.9]["pass"] >= table["output", 0.95]["pass"] > 50
    # errors twice as large as in the bank are found out
    wrong = rates([cell(f"t{k}", 1, error=6.0) for k in range(400)], (0.9,), calibration)
    assert next(row for row in wrong if row["what"] == "output")["interval"][0] > 0.02


def test_the_command_sums_up_what_is_there_and_judges_cells(tmp_path, capsys) -> None:
    rows = [cell(f"task-{k}") for k in range(20)] + [cell("task-20", past=("cost",))]
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["reproduce", "bank", "--tasks", "0", "0", "--out", str(tmp_path)]) == 0
    assert "| imitations of a part of the log | 20 | 3 |" in capsys.readouterr().out
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["settings"] == made_with()
    assert set(record["tasks"]) == {f"task-{k}" for k in range(20)}
    words = ["reproduce", "bank", "--judge", str(tmp_path)]
    assert main([*words, "--calibration", str(tmp_path / "calibration.json")]) == 0
    assert "| output | 95% | 20 |" in capsys.readouterr().out
    (tmp_path / "settings.json").write_text("{}")
    assert main(["reproduce", "bank", "--tasks", "0", "0", "--out", str(tmp_path)]) == 2
    assert "begun with another default" in capsys.readouterr().err


def test_bad_input_gets_one_sentence(tmp_path, capsys) -> None:
    with pytest.raises(InputError, match="holds no cell"):
        bank.run(tmp_path, ())
    for args, says in (
        (["--tasks", "5", "3"], "--tasks is 5 3"),
        (["--judge", str(tmp_path / "none")], "holds no cells"),
        (["--calibration", "x.json"], "--judge"),
    ):
        assert main(["reproduce", "bank", *args]) == 2
        assert says in capsys.readouterr().err
