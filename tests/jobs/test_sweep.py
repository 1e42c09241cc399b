"""Sweeps: what a folder holds is what was asked for, whoever asks and how often."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slater import cli
from slater.data import save
from slater.errors import InputError
from slater.jobs.sweep import TrainJob, grid

from .. import children
from ..deep.problems import pointmass
from ..deep.runs import weights

TINY = [
    "--set", "batch_size=32", "--set", "hidden=16", "--set", "gamma=0.9", "--no-estimate", "--processes", "2",
]  # fmt: skip
UNJUDGED = {"estimate": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.npz"
    save(pointmass(), path)
    return path


def sweep(data, out, *more, steps="20") -> int:
    words = ["train", "bc", data, "--steps", steps, "--out", out, *TINY, *more]
    return cli.main([str(word) for word in words])


def test_a_sweep_over_seeds_runs_every_seed_and_another_plan_is_refused_by_what_differs(
    data, tmp_path, capsys
):
    out = tmp_path / "sweep"
    assert sweep(data, out, "--limit", "5", "--sweep", "seed=0,1") == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["seed=0", "seed=1"]
    assert [json.loads((out / f"seed={k}" / "run.json").read_text())["run"]["seed"] for k in (0, 1)] == [0, 1]
    assert weights(out / "seed=0") != weights(out / "seed=1")
    before = weights(out)
    # the same again, written in another way: nothing to do
    assert sweep(data, out, "--limit", "5.0", "--seeds", "2") == 0
    capsys.readouterr()
    for changed, words in (
        (["--limit", "9", "--seeds", "2"], "limits c0=5, not c0=9"),
        (["--limit", "5", "--seeds", "3", "--set", "keep_every=7"], "keep_every 2500, not 7"),
        (["--limit", "5", "--seeds", "2", "--log-every", "7"], "log_every 100, not 7"),
    ):
        assert sweep(data, out, *changed) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "seed=0 holds another run" in error
    assert not (out / "seed=2").exists()
    assert weights(out) == before


def test_seeds_in_two_places_and_seeds_that_are_none_are_refused():
    assert [point["seed"] for point in grid(["seed=3,1"], None)] == ["3", "1"]
    assert len(list(grid(["limit=1,2"], range(2)))) == 4
    with pytest.raises(InputError, match="give one of the two"):
        list(grid(["seed=0,1"], range(2)))
    with pytest.raises(InputError, match="the seed 'x'"):
        list(grid(["seed=x"], None))


def test_a_second_process_in_a_sweeps_folder_is_refused(data, tmp_path, capsys):
    from slater.disk import locked

    with locked(tmp_path / "sweep"):
        assert sweep(data, tmp_path / "sweep", "--limit", "5", "--seeds", "1") == 2
    assert "is in use by process" in capsys.readouterr().err


def test_a_job_is_the_run_that_the_command_makes(data, tmp_path):
    settings = {"batch_size": "32", "hidden": "16", "gamma": "0.9", "steps": 20}
    job = TrainJob(tmp_path / "job", "bc", str(data), ("5",), settings, options=UNJUDGED)
    assert job.run() == {}
    assert sweep(data, tmp_path / "sweep", "--limit", "5", "--seeds", "1") == 0
    assert weights(tmp_path / "sweep" / "seed=0") == weights(tmp_path / "job")
    bad = TrainJob(tmp_path / "bad", "bc", str(data), ("5",), {"stesp": 3})
    assert "did you mean 'steps'" in bad.run()["failed"]


def test_workers_end_when_their_sweep_is_killed_and_the_same_command_goes_on(data, tmp_path):
    """The workers of a killed parent save and end by themselves; a new sweep waits for them."""
    whole, out = tmp_path / "whole", tmp_path / "sweep"
    assert sweep(data, whole, "--limit", "5", "--seeds", "2", steps="1500") == 0
    words = ["train", "bc", data, "--steps", "1500", "--out", out, *TINY, "--limit", "5", "--seeds", "2"]
    parent = children.start_command(words)
    try:
        until = time.monotonic() + 120
        while not list(out.glob("*/run.json")) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.join()
    assert list(out.glob("*/run.json"))
    assert sweep(data, out, "--limit", "5", "--seeds", "2", steps="1500") == 0
    for seed in ("seed=0", "seed=1"):
        assert weights(out / seed) == weights(whole / seed)


def test_the_folder_of_a_run_is_not_a_place_for_a_sweep_of_another(data, tmp_path: Path):
    settings = {"steps": 20, "gamma": 0.9, "hidden": (16,)}
    job = TrainJob(tmp_path / "seed=0", "bc", str(data), ("5",), settings, options=UNJUDGED)
    assert job.run() == {}
    other = TrainJob(
        tmp_path / "seed=0", "bc-safe", str(data), ("5",), {"steps": 20, "gamma": 0.9}, options=UNJUDGED
    )
    from slater.jobs.sweep import refuse_other_plans

    refuse_other_plans([job])
    with pytest.raises(InputError, match="algorithm bc, not bc-safe"):
        refuse_other_plans([other])
