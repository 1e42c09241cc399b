"""The bank that calibrates Tier 3: rows under the gates, rates from lines, and what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slater import InputError
from slater.certify.calibration import calibration_gate, read_calibration
from slater.cli import main
from slater.experiments.bank import FILE, SETTINGS, read_lines, run
from slater.experiments.bank_policies import BankPlan, RunPlan
from slater.experiments.bank_rates import bank_rows, summary
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
                    "name": f"t{task}", "task": f"task {task}", "policy": f"p{number}", "kind": "clone",
                    "imitates": number % 4 > 0, "episodes_of_log": 100,
                    "fingerprint": "f", "horizon": 100, "outside": 0.5 if number == 1 else 0.0, "seed": 0,
                    "means": (costs.mean() + rng.normal(0, 2, 2)).tolist(), "spreads": [2.0, 2.0],
                    "checks": [
                        {"limit": x, "passes": task != 6, "error": 0.1, "weights": [0.5, 0.5],
                         "cost_error": 0.05}
                        for x in (10.0, 20.0, 40.0)
                    ],
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
    assert set(found["rates"]) == {"imitation", "other"}
    assert found["calibrations"]["imitation"][0]["policies"] == 105
    assert found["calibrations"]["other"][0]["policies"] == 35
    for row in found["rates"]["imitation"][:2]:
        # estimators that err by their spread: nothing that the exact interval of the rate would rule out
        assert row["too_low_interval"][0] <= 1 - row["confidence"]
        assert row["too_low_interval"][0] <= row["too_low"] <= row["too_low_interval"][1]
        assert sum(one["too_low"] for one in row["by_task"].values()) == row["too_low_counts"][0]
        assert sum(one["gated"] for one in row["by_task"].values()) == row["gated"]
        assert row["false_pass_counts"][0] <= row["too_low_counts"][0]
        assert row["passes"] > 20
    record = json.loads(json.dumps(found))
    few = read_calibration(record, 0.9, imitates=True)
    assert few is not None
    assert "105 policies of 7 tasks; 120" in calibration_gate(few, 0.1).reason
    usable = read_calibration(summary(_lines(policies=30), draws=1), 0.9, imitates=True)
    assert usable is not None
    assert usable.confidence >= 0.9  # a stricter one where the loosest was wrong too often
    assert calibration_gate(usable, 0.1).passed
    # repeated draws of 200 episodes under the betting bound
    assert {row["episodes"] for row in found["rollouts"]} == {20, 50, 100}
    assert all(row["false_pass_interval"][0] <= 1 - row["confidence"] for row in found["rollouts"])
    draw_bank(tmp_path / "bank", _lines(), found)
    assert (tmp_path / "bank.png").stat().st_size > 5000


def test_a_bank_that_is_done_is_read_and_the_last_line_of_a_policy_counts(tmp_path: Path) -> None:
    lines = _lines(2, 5)
    newer = {**lines[0], "costs": [1.0] * 60}
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in [*lines, newer]))
    (tmp_path / SETTINGS).write_text(json.dumps({"estimators": {"version": 1}}))
    assert len(read_lines(tmp_path)) == 10
    assert next(line for line in read_lines(tmp_path) if line["policy"] == "p0")["costs"] == [1.0] * 60
    assert run(tmp_path)["policies"] == 10
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["tasks"] == 2
    assert record["calibrations"] == {"imitation": [], "other": []}  # two tasks calibrate nothing
    assert record["settings"] == {"version": 1}


def test_bad_input_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="both"):
        run(tmp_path, behaviours=tmp_path)
    assert main(["reproduce", "bank", "--episodes", "1", "--out", str(tmp_path)]) == 2
    assert "--episodes is 1" in capsys.readouterr().err
    for name in ("a.safetensors", "a.hdf5"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="b: not in both"):
        run(tmp_path / "bank", behaviours=tmp_path, data=tmp_path, tasks=["a", "b"])
    out = tmp_path / "begun"
    out.mkdir()
    (out / SETTINGS).write_text("{}")
    with pytest.raises(InputError, match="begun with other settings"):
        run(out, behaviours=tmp_path, data=tmp_path)


def test_a_bank_of_nothing_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    for options in ({}, {"behaviours": tmp_path / "none", "data": tmp_path / "none"}):
        with pytest.raises(InputError, match=r"holds no bank|not in both"):
            run(tmp_path / "bank", **options)
    assert not (tmp_path / "bank").exists()


SHORT = {"batch_size": 16, "hidden": (8,)}
GAME = {
    **SHORT, "steps": 40, "model_steps": 8, "warm_steps": 4, "joint_steps": 3
}  # fmt: skip
#: the runs of a game compile for long, so that they are part of the whole test only
RUNS = (
    RunPlan("bc-safe", 0, 1, {**SHORT, "steps": 10}),
    *((RunPlan("pdca", 1, 2, GAME),) if os.environ.get("SLATER_FULL") else ()),
)
TINY = BankPlan(
    runs=RUNS,
    multipliers=(0.0,), clone_steps=8, clones_every=9, shakes=(0.1,),
)  # fmt: skip


@pytest.mark.slow
def test_one_command_makes_judges_runs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole bank of one small log: every kind of policy, judged and run; stopped, and gone on with."""
    from slater.certify import estimators
    from slater.collect.recording import Recording, record_behaviour
    from slater.data import save

    small = estimators.CERTIFYING
    monkeypatch.setattr(
        estimators, "CERTIFYING",
        replace(
            small, ensemble=replace(small.ensemble, copies=2, steps=20, hidden=(8,), outcome_hidden=(8,)),
            clones=replace(small.clones, steps=8, chunk=8, hidden=(8,)),
        ),
    )  # fmt: skip
    source = Path(__file__).parents[2] / "behaviours"
    (tmp_path / "data").mkdir()
    save(
        record_behaviour(source / "ballrun.safetensors", Recording(episodes=6)),
        tmp_path / "data" / "ballrun.hdf5",
    )
    out = tmp_path / "bank"
    options = {"behaviours": source, "data": tmp_path / "data", "episodes": 3, "plan": TINY}

    class Stopped(Exception):
        pass

    def stop(text: str) -> None:
        if "bc-safe" in text:
            raise Stopped

    with pytest.raises(Stopped):
        run(out, tick=stop, **options)
    before = read_lines(out)
    assert before
    record = run(out, **options)
    lines = read_lines(out)
    assert lines[: len(before)] == before  # what was there is as it was
    kinds = {line["kind"] for line in lines}
    members = {f"member of {x.algorithm}" for x in RUNS}
    assert kinds == {"source", "shaken", "clone", "in-sample", *members}
    assert all(line["imitates"] == (line["kind"] not in ("shaken", "member of pdca")) for line in lines)
    assert record["policies"] == len(lines) == len({line["policy"] for line in lines})
    assert all(len(line["costs"]) >= 3 for line in lines)
    assert run(out, **options)["policies"] == len(lines)  # nothing is done twice
    assert read_lines(out) == lines
