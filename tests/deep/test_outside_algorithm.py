"""The example package, installed as a third party would, through every door that our own algorithms use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slater import cli
from slater.data import save
from slater.deep.algorithms import registry
from slater.envs import install

from .problems import pointmass
from .test_commands import ENVIRONMENT

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "slater_example_algorithm"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source)
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "install", *offline]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True)
    return folder / "site"


def outside(site: Path) -> dict[str, str]:
    """The environment of a process that has the package."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def found_here(site, monkeypatch) -> None:
    """The package can be imported in this process, during this test."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def slater(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.mark.xdist_group("example package")
def test_train_resume_and_evaluate_find_the_package(site, found_here, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data.npz"
    save(pointmass(), data)
    assert slater("train", "penalised-clone", "--settings") == 0
    assert "bound on the sum of multipliers" in capsys.readouterr().out
    words = ["train", "penalised-clone", data, "--limit", "5", "--out", tmp_path / "run"]
    train = [*words, "--steps", "40", "--no-estimate"]
    sets = [x for s in ("batch_size=16", "hidden=16", "gamma=0.9") for x in ("--set", s)]
    # in a process of its own, as a user would; then in this one, which has the package on its path
    command = [sys.executable, "-m", "slater.cli", *map(str, train), *sets]
    done = subprocess.run(command, env=outside(site), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    before = (tmp_path / "run" / "mixture.safetensors").read_bytes()
    # as if it had been killed before its end: the checkpoint is there, the results are not
    for name in ("mixture.safetensors", "policy.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    assert slater("train", "--resume", tmp_path / "run") == 0
    assert (tmp_path / "run" / "mixture.safetensors").read_bytes() == before
    pytest.importorskip("gymnasium", reason=install.GYMNASIUM)
    (tmp_path / "outside_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    capsys.readouterr()
    assert slater("evaluate", tmp_path / "run", "--env", "outside_env:make", "--episodes", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["limits"][0]["limit"] == 5.0


def test_without_the_package_the_name_is_unknown(capsys):
    assert slater("train", "penalised-clone", "--settings") == 2
    assert "there is no algorithm 'penalised-clone'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("example package")
def test_the_package_passes_the_conformance_suite(site):
    environment = {**outside(site), "SLATER_CONFORMANCE": str(EXAMPLE / "conformance.json")}
    which = [] if os.environ.get("SLATER_FULL") else ["-m", "not slow"]
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command = [*pytest_here, "tests/deep/conformance", *which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
