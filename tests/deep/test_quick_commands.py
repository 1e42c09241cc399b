"""Commands around one short run of `bc`: estimates, exit codes, what `--resume` refuses."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from slater import InputError, cli, load_policy
from slater.data import load, save
from slater.envs import install
from slater.policy import save as save_policy
from slater.runs import open_run
from slater.runs.folder import kept_path

from .problems import pointmass
from .test_commands import ENVIRONMENT

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
    assert result.status == "above"
    assert result.details["estimate"]["by"] == "the log model"
    assert any("does not keep the limit on c0" in text for text in result.warnings)
    assert slater("runs", run.parent, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["estimate/c0/episode"] == result.per_episode["c0"]
    assert row["limits kept"] == "above"


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


@pytest.mark.xdist_group("quick_commands")
def test_a_policy_file_says_what_it_expects(run, data, capsys):
    saved = open_run(run)
    assert slater("policy", "info", run / "mixture.safetensors", "--json") == 0
    contract = json.loads(capsys.readouterr().out)
    dataset = load(data)
    assert [entry["low"] for entry in contract["observations"]] == dataset.observations.min(axis=0).tolist()
    assert contract["limits"] == ["c0=2"]
    assert contract["fingerprint"] == dataset.fingerprint
    assert any(
        "estimated per episode from the data by the log model: c0" in text for text in contract["judged"]
    )
    assert slater("policy", "info", run) == 0
    shown = capsys.readouterr().out
    assert "observation 0: " in shown
    assert "each episode is played by one policy" in shown
    assert len(repr(saved.result.policy)) < 120
    # every kept policy can be loaded, without JAX
    for member in saved.result.members:
        kept = saved.kept_policy(member)
        assert kept.contract is not None
        assert slater("policy", "info", kept_path(run, member.step)) == 0


@pytest.mark.xdist_group("quick_commands")
def test_a_policy_refuses_what_is_not_finite_and_tells_what_is_far_from_the_data(run, data):
    policy = load_policy(run)
    actor = policy.begin(rng=np.random.default_rng(0))
    seen = load(data).observations[0]
    assert np.isfinite(actor.act(seen, check="raise")).all()
    bad = seen.copy()
    bad[1] = np.nan
    with pytest.raises(InputError, match="entry 1 of the observation is nan"):
        actor.act(bad)
    with pytest.raises(InputError, match=r"shape \(batch, 2\)"):
        actor.act(seen[:1])
    far = seen + np.float32(1e4)
    actor.act(far)
    with pytest.warns(UserWarning, match="far outside the data: observation 0 is 1"):
        actor.act(far, check="warn")
    with pytest.raises(InputError, match="far outside the data"):
        actor.act(far, check="raise")


@pytest.mark.xdist_group("quick_commands")
def test_what_is_measured_is_kept_with_the_run_beside_its_estimates(run, tmp_path, capsys, monkeypatch):
    pytest.importorskip("gymnasium", reason=install.GYMNASIUM)
    (tmp_path / "here_env.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)  # the module is found in the current folder
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    env = "here_env:make"
    assert slater("evaluate", run, "--env", env, "--episodes", "3", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert slater("runs", run.parent, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["measured/c0"] == answer["limits"][0]["mean"]
    assert row["measured in"] == "here_env:make, 3 episodes"
    assert row["estimate/c0/episode"] == open_run(run).result.per_episode["c0"]
    assert slater("compare", run, "--env", env, "--episodes", "3", "--json") == 0
    captured = capsys.readouterr()
    (line,) = json.loads(captured.out)
    assert captured.err == ""  # measured before in the same way: not done again
    assert line["measured/c0"] == row["measured/c0"]
    assert line["measured/c0 ±"] is not None
    assert line["limits kept"] == "above"
    assert slater("compare", run) == 0
    assert "measured/c0" in capsys.readouterr().out
    assert slater("compare", tmp_path) == 2


@pytest.mark.xdist_group("quick_commands")
def test_a_policy_file_alone_runs_in_the_environment_of_its_data(run, tmp_path, capsys, monkeypatch):
    pytest.importorskip("gymnasium", reason=install.GYMNASIUM)
    (tmp_path / "its_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy, lone = load_policy(run), tmp_path / "lone.safetensors"
    save_policy(policy, lone)
    assert slater("evaluate", lone, "--episodes", "2") == 2
    assert "give the environment with --env" in capsys.readouterr().err
    save_policy(policy, lone, replace(policy.contract, env_id="its_env:make"))
    assert slater("evaluate", lone, "--episodes", "2", "--json") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["episodes"]) == 2
    assert captured.err == ""  # nothing is left of a bar that was not drawn
