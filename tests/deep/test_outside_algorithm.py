"""The example package, installed as a third party would, through every door that our own algorithms use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slater.data import save
from slater.envs import install

from .problems import pointmass
from .test_commands import ENVIRONMENT

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "slater_example_algorithm"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which the package is installed, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True)
    paths = [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def slater(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slater.cli", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)


def test_train_resume_and_evaluate_find_the_package(installed, tmp_path):
    data = tmp_path / "data.npz"
    save(pointmass(), data)
    shown = slater(installed, "train", "penalised-clone", "--settings")
    assert "bound on the sum of multipliers" in shown.stdout
    train = ["train", "penalised-clone", data, "--limit", "5", "--out", tmp_path / "run", "--steps", "40"]
    sets = [x for s in ("batch_size=16", "hidden=16", "gamma=0.9") for x in ("--set", s)]
    done = slater(installed, *train, *sets)
    assert done.returncode == 0, done.stderr
    before = (tmp_path / "run" / "mixture.safetensors").read_bytes()
    # as if it had been killed before its end: the checkpoint is there, the results are not
    for name in ("mixture.safetensors", "policy.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    done = slater(installed, "train", "--resume", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "mixture.safetensors").read_bytes() == before
    pytest.importorskip("gymnasium", reason=install.GYMNASIUM)
    (tmp_path / "line_env.py").write_text(ENVIRONMENT)
    elsewhere = {**installed, "PYTHONPATH": os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])}
    done = slater(
        elsewhere, "evaluate", tmp_path / "run", "--env", "line_env:make", "--episodes", "3", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["limits"][0]["limit"] == 5.0


def test_without_the_package_the_name_is_unknown():
    done = slater(dict(os.environ), "train", "penalised-clone", "--settings")
    assert done.returncode == 2
    assert "there is no algorithm 'penalised-clone'" in done.stderr


@pytest.mark.slow
def test_the_package_passes_the_conformance_suite(installed):
    environment = {**installed, "SLATER_CONFORMANCE": str(EXAMPLE / "conformance.json")}
    which = [] if os.environ.get("SLATER_FULL") else ["-m", "not slow"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/deep/conformance",
        *which,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
