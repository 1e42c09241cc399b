"""Policies that a run kept are read from their files: no data, no JAX, and no run's own policy is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import slater
from slater import cli
from slater.data import save
from slater.envs.install import GYMNASIUM
from slater.policy import load
from slater.runs import open_run

from .problems import QUICK_WORDS, pointmass
from .test_commands import ENVIRONMENT

pytestmark = pytest.mark.xdist_group("quick_commands")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that held episodes out, and whose data are gone."""
    place = tmp_path_factory.mktemp("kept")
    save(pointmass(), place / "log.npz")
    (place / "line_env.py").write_text(ENVIRONMENT)
    words = ["train", "bc", place / "log.npz", "--hold-out", "0.25", "--out", place / "run", *QUICK_WORDS]
    assert cli.main([str(word) for word in words]) == 0
    (place / "log.npz").unlink()
    return place / "run"


@pytest.fixture
def env(run, monkeypatch):
    pytest.importorskip("gymnasium", reason=GYMNASIUM)
    monkeypatch.syspath_prepend(str(run.parent))
    return "line_env:make"


def test_members_of_a_run_that_held_episodes_out_are_measured_without_its_data(run, env, capsys):
    assert cli.main(["evaluate", str(run), "--members", "--env", env, "--episodes", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["members"]) == len(open_run(run).result.members)
    assert open_run(run).measured_kept().keys() == {m.step for m in open_run(run).result.members}


def test_mixing_and_running_kept_policies_need_neither_data_nor_jax(run, env, tmp_path):
    code = (
        "import sys; from slater import cli\n"
        "run, out, env = sys.argv[1:]\n"
        "assert cli.main(['mix', run, '--limit', '30', '--out', out]) == 0\n"
        "for policy, *more in ((run,), (run, '--members'), (out + '/mixture.safetensors',)):\n"
        "    assert cli.main(['evaluate', policy, *more, '--env', env, '--episodes', '2']) == 0\n"
        "sys.exit('jax' in sys.modules)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(
        [sys.executable, "-c", code, str(run), str(tmp_path / "mixed"), env], check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    mixed = load(tmp_path / "mixed" / "mixture.safetensors")
    kept = [open_run(run).kept_policy(member) for member in open_run(run).result.members]
    obs = pointmass().observations[:20]
    rng = np.random.default_rng(0)
    actions = [policy.act(obs, rng=rng, deterministic=True).tobytes() for policy in kept]
    for member in mixed.members:
        assert member.act(obs, rng=rng, deterministic=True).tobytes() in actions


def test_a_mixture_is_not_written_over_a_run(run, tmp_path, capsys):
    before = {path: path.read_bytes() for path in run.glob("*") if path.is_file()}
    assert cli.main(["mix", str(run), "--limit", "30", "--out", str(run)]) == 2
    assert "holds a run" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cli.main(["mix", str(run), "--limit", "30", "--out", str(tmp_path / "file")]) == 2
    assert {path: path.read_bytes() for path in run.glob("*") if path.is_file()} == before


def test_an_extension_that_is_refused_leaves_the_result(run, tmp_path, capsys):
    """Other data, fewer steps, a damaged checkpoint: all are found before anything is written."""
    before = (run / "result.json").read_bytes(), (run / "run.json").read_bytes()
    save(pointmass(seed=1), tmp_path / "other.npz")
    save(pointmass(), tmp_path / "log.npz")
    kept = (run / "checkpoint.safetensors").read_bytes()
    for data, steps, damage in (("other", 90, b""), ("log", 10, b""), ("log", 90, b"damaged")):
        (run / "checkpoint.safetensors").write_bytes(kept + damage)
        words = ["train", "bc", tmp_path / f"{data}.npz", "--resume", run, "--steps", steps]
        assert cli.main([str(word) for word in words]) == 2
        assert ((run / "result.json").read_bytes(), (run / "run.json").read_bytes()) == before
    (run / "checkpoint.safetensors").write_bytes(kept)
    capsys.readouterr()


def test_a_time_limit_below_the_datas_is_said_and_decides_nothing(run, env, tmp_path, monkeypatch, capsys):
    short = ENVIRONMENT.replace("self.t >= 25", "self.t >= 5")
    (tmp_path / "short_env.py").write_text(short)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["evaluate", str(run), "--episodes", "3", "--json", "--env"]
    assert cli.main([*words, "short_env:make"]) == 0
    out, err = capsys.readouterr()
    assert "cut by the environment's time limit" in err
    assert [limit["status"] for limit in json.loads(out)["limits"]] == ["not known"]
    assert cli.main([*words, env]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["limits"][0]["status"] != "not known"


def test_an_exported_file_says_the_unit_of_its_estimates(run, tmp_path):
    onnx = pytest.importorskip("onnx", reason="pip install 'slater-rl[onnx]'")
    assert cli.main(["export", str(run), "--onnx", str(tmp_path / "p.onnx")]) == 0
    (entry,) = onnx.load(tmp_path / "p.onnx").metadata_props
    about = json.loads(entry.value)
    result = open_run(run).result
    assert about["estimates"] == {"unit": "per episode", **result.per_episode}
    assert about["limit_status"] == result.limit_status


def test_a_kept_file_in_the_place_of_another_is_noticed(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    kept = sorted((copy / "policies").iterdir())
    assert [load(path).contract.steps for path in kept] == [int(path.stem) for path in kept]
    kept[-1].write_bytes(kept[0].read_bytes())
    assert cli.main(["mix", str(copy), "--limit", "30", "--out", str(tmp_path / "mixed")]) == 2
    assert "is not the policy that the run kept there" in capsys.readouterr().err


def test_a_policy_file_elsewhere_is_measured_as_its_run_is(run, env, tmp_path, capsys):
    """Discount, horizon and limits are in the file."""
    shutil.copy(run / "mixture.safetensors", tmp_path / "p.safetensors")
    found = []
    for policy in (run, tmp_path / "p.safetensors"):
        assert cli.main(["evaluate", str(policy), "--env", env, "--episodes", "3", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    for answer in found:
        del answer["policy"], answer["seconds"], answer["steps_per_second"]
    assert found[0] == found[1]
    assert found[0]["limits"]
    assert slater.evaluate(tmp_path / "p.safetensors", env, episodes=1).discount == 0.9


@pytest.mark.parametrize(
    ("setting", "code"),
    [("batch_size=32.0", 0), ("hidden=16x16", 0), ("keep_every=7", 2), ("steps=90", 2), ("no=1", 2)],
)
def test_a_setting_of_a_resumed_run_is_compared_as_a_number(run, tmp_path, setting, code, capsys):
    shutil.copytree(run, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["run"]["estimate"] = False  # which would be of another fit
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    save(pointmass(), tmp_path / "log.npz")
    line = ["train", "bc", tmp_path / "log.npz", "--resume", tmp_path / "run", "--steps", "61"]
    assert cli.main([str(word) for word in [*line, "--set", setting]]) == code
    assert "Traceback" not in capsys.readouterr().err
