"""The loop: resumes to the bit, survives kills, says what is wrong before or when it happens."""

import json
import os
import time
from multiprocessing.context import ForkServerProcess

import numpy as np
import pytest

import slater.deep as deep
from slater.errors import InputError
from slater.runs.metrics import read_metrics

from ... import children
from ..conformance.table import finished_run
from ..killed import go_on, resume_without_disk
from ..problems import PDCA_QUICK, QUICK, pointmass
from ..runs import StopAt, weights
from ..toy import Toy

OPTIONS = {"log_every": 7, "checkpoint_every": 10}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """The toy algorithm is known, in this test only."""
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "toy", Toy)


@pytest.mark.xdist_group("pdca")
def test_ctrl_c_saves_and_the_resumed_run_ends_with_the_same_bits(tmp_path):
    data = pointmass()
    deep.train("pdca", data, [5], tmp_path / "whole", options=OPTIONS, **PDCA_QUICK)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        deep.train("pdca", data, [5], tmp_path / "cut", options=OPTIONS, watcher=StopAt(20), **PDCA_QUICK)
    for step in (40, 55):
        with pytest.raises(KeyboardInterrupt):
            deep.resume(tmp_path / "cut", data, watcher=StopAt(step))
    deep.resume(tmp_path / "cut", data)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut"))
    for row in (*one, *two):
        del row["seconds"], row["steps_per_second"]
    assert one == two


def test_the_bits_do_not_depend_on_how_often_the_run_looks_up(tmp_path):
    data = pointmass()
    for name, every in (("a", 1), ("b", 60)):
        options = {"log_every": every, "checkpoint_every": every}
        deep.train("toy", data, [5], tmp_path / name, options=options, **QUICK)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


@pytest.mark.slow
def test_kill_9_again_and_again_and_still_the_same_bits(tmp_path):
    """Ten kills of PDCA with SLATER_FULL=1, three of the toy without: files are written alike for all."""
    full = os.environ.get("SLATER_FULL") == "1"
    settings = {**QUICK, "steps": 4000, "keep_every": 400, **({"preset": "paper"} if full else {})}
    options = {"log_every": 20, "checkpoint_every": 20, "estimate": False}

    def start(out: str) -> ForkServerProcess:
        name = "pdca" if full else "toy"
        return children.start(go_on, tmp_path / out, name, pointmass(), options, settings)

    assert children.ended(start("whole")) == 0
    rng = np.random.default_rng(0)
    kills, folder = 0, tmp_path / "killed"
    # only moments after training has begun count: a kill during imports proves nothing
    while kills < (10 if full else 3):
        before = (folder / "metrics.jsonl").stat().st_mtime_ns if (folder / "metrics.jsonl").exists() else 0
        child = start("killed")
        while child.is_alive():
            now = (folder / "metrics.jsonl").stat().st_mtime_ns if (folder / "metrics.jsonl").exists() else 0
            if now > before:
                time.sleep(float(rng.uniform(0, 0.25 if full else 0.1)))
                break
            time.sleep(0.01)
        if not child.is_alive():
            pytest.fail(f"the run ended after {kills} kills: make it longer")
        child.kill()
        child.join()
        kills += 1
    assert children.ended(start("killed")) == 0
    assert weights(folder) == weights(tmp_path / "whole")


def test_a_nan_stops_the_run_with_step_loss_and_checkpoint(tmp_path):
    words = r"loss/clone became NaN .* at step 33; the last good checkpoint is of step 30"
    with pytest.raises(deep.DivergedError, match=words):
        deep.train("toy", pointmass(), [5], tmp_path / "run", options=OPTIONS, **{**QUICK, "gamma": 0.0})
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_an_unwritable_folder_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        deep.train("toy", pointmass(), [5], tmp_path / "file" / "run", **QUICK)


def test_a_full_disk_is_said_and_keeps_the_last_checkpoint(tmp_path):
    data = pointmass()
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", data, [5], tmp_path / "run", options=OPTIONS, watcher=StopAt(20), **QUICK)
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    said = tmp_path / "said.txt"
    assert children.ended(children.start(resume_without_disk, tmp_path / "run", data, said)) == 0
    assert "could not be written" in said.read_text()
    assert "resume" in said.read_text()
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    deep.resume(tmp_path / "run", data)


def test_other_data_and_a_used_folder_are_refused(tmp_path):
    deep.train("toy", pointmass(), [5], tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="fingerprint differs"):
        deep.resume(tmp_path / "run", pointmass(seed=1))
    with pytest.raises(InputError, match="holds a run already"):
        deep.train("toy", pointmass(), [5], tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="not a run"):
        deep.resume(tmp_path / "nowhere", pointmass())


def test_a_damaged_checkpoint_is_refused_in_words(tmp_path):
    data = pointmass()
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", data, [5], tmp_path / "run", options=OPTIONS, watcher=StopAt(20), **QUICK)
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        deep.resume(tmp_path / "run", data)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stepz": 3}, "did you mean 'steps'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"gamma": 1.0}, "gamma"),
        ({"steps": "many"}, "steps must be a whole number"),
        ({"anchor_weight": 0}, "anchor_weight must be positive"),
        ({"reward_scale": -1}, "reward_scale"),
    ],
)
def test_bad_settings_are_one_sentence(settings, words, tmp_path):
    with pytest.raises(InputError, match=words):
        deep.train("pdca", pointmass(), [5], tmp_path / "run", **settings)


@pytest.mark.xdist_group("pdca")
def test_the_record_says_limits_in_all_units_and_the_settings():
    run, _ = finished_run("pdca", None)
    record = json.loads((run / "run.json").read_text())
    (limit,) = record["problem"]["limits"]
    assert limit["episode"] == 5.0
    np.testing.assert_allclose(limit["step"], 5 / 25)
    np.testing.assert_allclose(limit["discounted"], 5 / 25 / (1 - 0.9))
    assert record["config"]["steps"] == PDCA_QUICK["steps"]
    rows = read_metrics(run / "metrics.jsonl")
    assert rows[-1]["step"] == PDCA_QUICK["steps"]
    assert {"lambda/c0", "ope/c0", "slack/c0", "ope/reward"} <= rows[-1].keys()


def test_a_folder_in_use_is_refused_by_train_and_resume_and_named(tmp_path):
    from slater.disk import locked

    out = tmp_path / "run"
    with locked(out):
        with pytest.raises(InputError, match=f"run is in use by process {os.getpid()}"):
            deep.train("toy", pointmass(), [5], out, options=OPTIONS, **QUICK)
        assert not (out / "run.json").exists()
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", pointmass(), [5], out, options=OPTIONS, watcher=StopAt(20), **QUICK)
    with locked(out), pytest.raises(InputError, match="is in use by process"):
        deep.resume(out, pointmass())


def test_a_run_that_is_extended_equals_one_that_was_longer_from_the_start(tmp_path):
    data = pointmass()
    for algorithm, extra in (("toy", {}), ("bc", {"keep_every": 25})):
        long, short = tmp_path / f"{algorithm}-long", tmp_path / f"{algorithm}-short"
        settings = {**QUICK, **extra}
        deep.train(algorithm, data, [5], long, options=OPTIONS, **{**settings, "steps": 90})
        deep.train(algorithm, data, [5], short, options=OPTIONS, **{**settings, "steps": 60})
        deep.resume(short, data, steps=90)
        assert weights(short).keys() >= weights(long).keys()
        for name in ("mixture.safetensors", "policy.safetensors", "checkpoint.safetensors"):
            assert (short / name).read_bytes() == (long / name).read_bytes()
        with pytest.raises(InputError, match="has 90 steps; it can be extended to more, not cut to 70"):
            deep.resume(short, data, steps=70)
        deep.resume(short, data)  # knows that it was extended
        assert (short / "mixture.safetensors").read_bytes() == (long / "mixture.safetensors").read_bytes()
