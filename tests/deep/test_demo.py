"""`slater demo`: from every fifth episode of the sample to a figure, in small, with the real simulator."""

import os
import re

import numpy as np
import pytest

from slater import cli
from slater.commands import demo
from slater.data import load, samples, save
from slater.envs import install
from slater.jobs import sweep

pytest.importorskip("pybullet", reason=install.BULLET)
pytest.importorskip("bullet_safety_gym", reason=install.BULLET)

SMALL = {
    "hidden": (16,), "batch_size": 32, "model_steps": 10, "joint_steps": 9,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    if os.environ.get("SLATER_FULL") != "1":
        whole, part = load(samples.ballcircle()), tmp_path / "part.npz"
        save(whole.subset(np.arange(0, len(whole.episodes), 5)), part)
        monkeypatch.setattr(samples, "ballcircle", lambda: part)
    job = sweep.TrainJob

    def smaller(folder, algorithm, data, limits, settings, **more):
        return job(folder, algorithm, data, limits, {**settings, **SMALL}, **more)

    monkeypatch.setattr(sweep, "TrainJob", smaller)
    monkeypatch.setattr(demo, "EVERY", 20)


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_a_figure_and_says_where(tmp_path, capsys):
    out = tmp_path / "demo"
    command = ["demo", "--steps", "60", "--episodes", "20", "--out", str(out)]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    for words in (
        "Per episode", "discounted", "what was learned, estimated from the log", "the log on average",
        "best logged episode within the limit", str(out / "demo.png"), f"slater report {out}",
    ):  # fmt: skip
        assert words in shown
    assert (out / "demo.png").stat().st_size > 10_000
    assert "Verdict: " in shown
    assert re.search(r"By \d+ of at most 20 episodes", shown)
    assert "<svg" in (out / "certificate.html").read_text()
    # a second call finds the finished run: nothing is trained again
    checkpoint = (out / "checkpoint.safetensors").stat().st_mtime_ns
    (out / "demo.png").unlink()
    assert cli.main(command) == 0
    assert (out / "demo.png").exists()
    assert (out / "checkpoint.safetensors").stat().st_mtime_ns == checkpoint
    # and another limit is another run
    assert cli.main([*command, "--limit", "40"]) == 2
    assert "another run" in capsys.readouterr().err


def test_training_without_data_uses_the_sample_and_says_so(tmp_path, capsys):
    quick = ["--steps", "30", "--set", "hidden=16", "--set", "batch_size=32", "--no-estimate"]
    assert cli.main(["train", "bc", "--limit", "20", "--out", str(tmp_path / "run"), *quick]) == 0
    assert "the sample of bullet/BallCircle" in capsys.readouterr().err
