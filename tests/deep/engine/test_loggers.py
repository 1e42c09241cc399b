"""TensorBoard, Weights & Biases and Trackio get the rows of the metrics file, with the real packages."""

import builtins
import json
import os
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import slater.deep as deep
from slater import cli
from slater.data import save
from slater.deep.engine.loggers import TensorBoard, WeightsAndBiases
from slater.errors import InputError
from slater.runs.metrics import read_metrics
from slater.runs.record import read_record

from ..problems import QUICK, pointmass
from ..toy import Toy


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "toy", Toy)


def scalars(folder: Path) -> dict[tuple[int, str], float]:
    """(step, tag) -> value of all event files, read as TFRecords."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.glob("events*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                found[event.step, value.tag] = value.simple_value
    return found


def test_tensorboard_holds_every_figure_of_the_metrics(tmp_path):
    pytest.importorskip("tensorboardX", reason="pip install 'slater-rl[tensorboard]'")
    out = tmp_path / "run"
    options = {"log_every": 20}
    deep.train("toy", pointmass(), [5], out, watcher=TensorBoard(out), options=options, **QUICK)
    found = scalars(out / "tensorboard")
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == [20, 40, 60]
    for row in rows:
        assert found[row["step"], "loss/clone"] == pytest.approx(row["loss/clone"], rel=1e-6)


def test_wandb_works_offline_without_an_account(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'slater-rl[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    watcher = WeightsAndBiases("tests", out)
    deep.train("toy", pointmass(), [5], out, watcher=watcher, options={"log_every": 20}, **QUICK)
    # the settings as they were decided, those of the run's record
    decided, sent = read_record(out).config, dict(watcher._run.config)
    assert {name: str(sent[name]) for name in decided} == {n: str(value) for n, value in decided.items()}
    (record,) = out.glob("wandb/offline-run-*/*.wandb")
    for _ in range(60):  # wandb's own process writes the file a moment after the run has ended
        if b"loss/clone" in record.read_bytes():
            break
        time.sleep(0.5)
    assert b"loss/clone" in record.read_bytes()


def test_trackio_keeps_every_figure_on_this_machine(tmp_path):
    """In a process of its own: the package chooses its folder when it is imported."""
    pytest.importorskip("trackio", reason="pip install 'slater-rl[trackio]'")
    script = f"""
import slater.deep as deep
from slater.deep.algorithms import registry
from slater.deep.engine.loggers import Trackio
from tests.deep.problems import QUICK, pointmass
from tests.deep.toy import Toy
from pathlib import Path
registry._REGISTRY["toy"] = Toy
out = Path({str(tmp_path / "run")!r})
deep.train("toy", pointmass(), [5], out, watcher=Trackio("tests", out), options={{"log_every": 20}}, **QUICK)
"""
    place = {"TRACKIO_DIR": str(tmp_path / "kept"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, **place}, timeout=300)
    (file,) = (tmp_path / "kept").glob("*.db")
    with closing(sqlite3.connect(file)) as kept:
        rows = kept.execute("select step, metrics from metrics order by step").fetchall()
    found = {}
    for step, metrics in rows:  # the last step has the mixture's estimates in a row of their own
        found.setdefault(step, {}).update(json.loads(metrics))
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert found[row["step"]]["loss/clone"] == pytest.approx(row["loss/clone"])


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["--tensorboard"], "tensorboardX", "tensorboard"),
        (["--wandb", "project"], "wandb", "wandb"),
        (["--trackio", "project"], "trackio", "trackio"),
    ],
)
def test_without_the_package_the_line_to_install_it_is_said(
    arguments, package, extra, tmp_path, monkeypatch, capsys
):
    real = builtins.__import__

    def absent(name, *rest, **more):
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    save(pointmass(), tmp_path / "data.npz")
    out = tmp_path / "run"
    command = ["train", "pdca", str(tmp_path / "data.npz"), "--limit", "5", "--out", str(out), *arguments]
    assert cli.main(command) == 2
    assert f"pip install 'slater-rl[{extra}]'" in capsys.readouterr().err
    assert not out.exists()


def test_a_project_that_cannot_be_reached_is_one_sentence(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install 'slater-rl[wandb]'")

    def refuse(**options):
        raise wandb.errors.UsageError("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", refuse)
    out = tmp_path / "run"
    with pytest.raises(InputError, match="WANDB_MODE=offline"):
        deep.train("toy", pointmass(), [5], out, watcher=WeightsAndBiases("tests", out), **QUICK)
