"""Commands around one short run of `bc`: estimates, exit codes, what `--resume` refuses."""

import json

import pytest

from slater import cli
from slater.data import save
from slater.runs import open_run

from .problems import pointmass

SETS = ["batch_size=32", "hidden=16", "gamma=0.9", "keep_every=20"]
QUICK = [part for text in SETS for part in ("--set", text)]


def slater(*args) -> int:
    return cli.main([str(arg) for arg in args])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.npz"
    save(pointmass(), path)
    return path


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "bc"
    line = ["train", "bc", data, "--limit", "2", "--out", out, "--steps", "40", *QUICK]
    assert slater(*line, "--require-limits") == 4  # the data cost far more than 2, and bc clones them
    return out


@pytest.mark.xdist_group("quick_commands")
def test_every_run_ends_with_an_estimate_per_limit(run, capsys):
    result = open_run(run).result
    assert result.estimates is not None
    assert result.keeps_limits is False
    assert result.details["estimate"]["by"] == "model"
    assert any("does not keep the limit on c0" in text for text in result.warnings)
    assert slater("runs", run.parent, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["estimate/c0/episode"] == result.per_episode["c0"]
    assert row["limits kept"] == "no"


@pytest.mark.xdist_group("quick_commands")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["cpq"], "the algorithm cannot change in a run that is resumed: it has bc, not cpq"),
        (["--limit", "5"], "--limit cannot change in a run that is resumed: it has c0=2, not c0=5"),
        (["--seed", "1"], "--seed cannot change"),
        (["--set", "hidden=32"], "--set hidden=32 cannot change a run that is resumed, which has 16"),
        (["--out", "elsewhere"], "--out is for new runs"),
        (["--steps", "30"], "can be extended to more, not cut to 30"),
    ],
)
def test_resume_refuses_by_name_what_it_cannot_change(run, line, words, capsys):
    assert slater("train", "--resume", run, *line) == 2
    assert words in capsys.readouterr().err


@pytest.mark.xdist_group("quick_commands")
def test_resume_with_the_same_values_goes_on(run, data):
    mixture = (run / "mixture.safetensors").read_bytes()
    same = ["bc", data, "--limit", "2", "--seed", "0", "--set", "hidden=16", "--steps", "40"]
    assert slater("train", "--resume", run, *same) == 0
    assert (run / "mixture.safetensors").read_bytes() == mixture
