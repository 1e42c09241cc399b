"""Mixing real runs: the policies that they kept are read back and act, within other limits than they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slater
import slater.deep
from slater import InputError
from slater.certify.pools import best_of_runs, mix_runs, pool_of_run, pool_of_runs
from slater.cli import main
from slater.data import Dataset, save
from slater.errors import InputWarning
from slater.policy import Mixture, load
from slater.runs import open_run
from slater.runs.held_out import read_held_out

from ..runs.example import RECORD, RESULT, write_run

T = 10
SETTINGS = {
    "steps": 80, "hidden": "8", "batch_size": 16, "model_steps": 20, "joint_steps": 10,
    "keep_every": 10,
}  # fmt: skip


def _log(episodes: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    size = episodes * T
    state = rng.standard_normal((size, 2))
    action = rng.uniform(-1, 1, (size, 1))
    ends = np.arange(size) % T == T - 1
    return Dataset.from_arrays(
        observations=state, actions=action, rewards=action[:, 0], costs=(action > 0).astype(float),
        terminals=np.zeros(size, bool), timeouts=ends, next_observations=np.roll(state, -1, axis=0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that held episodes out."""
    place = tmp_path_factory.mktemp("mix")
    save(_log(), place / "log.npz")
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    args = ["train", "pdca", str(place / "log.npz"), "--limit", "5", "--hold-out", "0.25", *settings]
    assert main([*args, "--out", str(place / "run")]) == 0
    return place / "run"


def test_runs_that_do_not_fit_are_refused_and_doubts_are_said(tmp_path: Path) -> None:
    def run(name: str, task: dict[str, Any], fingerprint: str = "ab", result: Any = None) -> Any:
        folder = write_run(tmp_path / name, result=result)
        record = {**RECORD, "problem": {**RECORD["problem"], **task}}
        record["run"] = {**RECORD["run"], "fingerprint": fingerprint}
        (folder / "run.json").write_text(json.dumps(record))
        return open_run(folder)

    one = run("one", {})
    assert len(pool_of_runs([one, run("same", {})])) == 2
    for number, task in enumerate(({"discrete": True}, {"obs_dim": 9}, {"action_dim": 3}, {"horizon": 100})):
        with pytest.raises(InputError, match="pool runs of one task"):
            pool_of_runs([one, run(str(number), task)])
    with pytest.warns(InputWarning, match="of different data"):
        pool_of_runs([one, run("elsewhere", {}, "cd")])
    doubted = run("doubted", {}, result={**RESULT, "trusted": False})
    with pytest.warns(InputWarning, match="doubted failed their check"):
        pool_of_runs([doubted])


def test_a_run_that_holds_out_says_a_verdict_and_remembers(run: Path) -> None:
    kept = json.loads((run / "held_out.json").read_text())
    assert len(kept["episodes"]) == 10
    assert open_run(run).run.fingerprint == kept["training"]


def test_python_and_sweeps_hold_the_same_episodes_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run.parent / "log.npz"
    kept = read_held_out(run)
    quick: dict[str, Any] = {"steps": 2, "hidden": (8,), "batch_size": 16, "estimate": False}
    result = slater.train(log, "bc", ["5"], out=tmp_path / "py", hold_out=0.25, progress=False, **quick)
    assert read_held_out(tmp_path / "py") == kept
    assert "30 logged episodes" in slater.certify(result, fit=False).evidence_from  # those that trained
    args = ["train", "bc", str(log), "--limit", "5", "--hold-out", "0.25", "--seeds", "2", "--engine", "vmap"]
    settings = ["--steps", "2", "--set", "hidden=8", "--set", "batch_size=16", "--no-estimate"]
    assert main([*args, *settings, "--out", str(tmp_path / "sweep")]) == 0
    assert [read_held_out(tmp_path / "sweep" / f"seed={seed}") for seed in (0, 1)] == [kept, kept]
    said = capsys.readouterr().out
    assert "verdicts, which share the error (10 episodes were held out)" in said
    assert "seed=1: ABSTAIN" in said
    whole = slater.load(log)
    assert slater.deep.resume(tmp_path / "py", whole, steps=3).steps == 3  # which leaves out what it kept
    with pytest.raises(InputError, match=r"share of episodes to hold out is 1\.5"):
        slater.train(log, "bc", ["5"], out=tmp_path / "bad", hold_out=1.5, progress=False, **quick)
    assert not (tmp_path / "bad").exists()


def test_a_mixture_for_another_limit_is_written_and_acts(run: Path, tmp_path: Path) -> None:
    candidates = pool_of_run(open_run(run)).candidates
    assert len(candidates) == len(open_run(run).result.members)
    limit = float(np.median([candidate.costs[0] for candidate in candidates])) + 0.5
    point = mix_runs([run], [limit], tmp_path / "mixed")
    mixture = load(tmp_path / "mixed" / "mixture.safetensors")
    assert isinstance(mixture, Mixture)
    assert len(mixture.members) == len(point.weights)
    action = mixture.act(np.zeros((5, 2)), rng=np.random.default_rng(0))
    assert action.shape == (5, 1)
    record = json.loads((tmp_path / "mixed" / "mix.json").read_text())
    assert record["limits"] == [limit]
    assert sum(record["weights"].values()) == pytest.approx(1.0)


def test_the_run_mixed_anew_is_what_its_members_are(run: Path) -> None:
    mixture, point = best_of_runs([open_run(run)], [100.0], margin=0.0)
    richest = max(pool_of_run(open_run(run)).candidates, key=lambda candidate: candidate.reward)
    assert point.weights == {richest.name: pytest.approx(1.0)}
    assert len(mixture.members) == 1
    with pytest.raises(InputError, match="given twice"):
        best_of_runs([open_run(run), open_run(run)], [100.0])
