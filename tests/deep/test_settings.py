"""Settings that no machine can take, and settings that are said twice, are refused in a sentence."""

from __future__ import annotations

import pytest

from slater import cli
from slater.data import save

from .problems import pointmass


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.npz"
    save(pointmass(), path)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "batch_size=1e9"], "batch_size"),
        (["--set", "batch_size=inf"], "batch_size must be a whole number"),
        (["--set", "steps=inf"], "steps must be a whole number"),
        (["--set", "steps=nan"], "steps must be a whole number"),
        (["--set", "steps=nan", "--steps", "5"], "steps is given twice"),
        (["--set", "steps=5", "--steps", "5"], "steps is given twice"),
        (["--set", "eta=1", "--set", "eta=2"], "eta is given twice"),
        (["--set", "gamma=0.9", "--sweep", "gamma=0.8,0.9"], "gamma is given twice"),
        (["--sweep", "steps=4,5", "--steps", "5"], "steps is given twice"),
        (["--sweep", "limit=4,5"], "limit is given twice"),
        (["--sweep", "seed=4,5", "--seed", "3"], "seed is given twice"),
        (["--sweep", "seed=4,5", "--seeds", "3"], "seed"),
        (["--set", "hidden=1e9x1e9"], "memory"),
    ],
)
def test_settings_that_cannot_be_or_contradict_each_other(log, tmp_path, capsys, words, said):
    line = ["train", "bc", str(log), "--limit", "5", "--out", str(tmp_path / "run"), *words]
    assert cli.main(line) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
