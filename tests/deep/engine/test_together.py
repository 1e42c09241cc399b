"""Many runs as one program: what each would have been alone, stopped and gone on with, one of them broken."""

import os
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import slater.deep as deep
from slater import cli
from slater.data import save
from slater.deep.engine.stacked import Planned, train_together
from slater.deep.engine.training import make_run
from slater.runs.metrics import read_metrics

from ..problems import PDCA_QUICK, QUICK, pointmass
from ..runs import weights
from ..toy import Toy

OPTIONS = {"log_every": 10, "checkpoint_every": 10}


class Fragile(Toy):
    """The toy; its loss turns to NaN at iteration 33 under a limit above 5 per episode."""

    name = "fragile"
    limits_are_tau = True

    def update(self, task, state, batch, key, step, phase):
        state, metrics = super().update(task, state, batch, key, step, phase)
        breaks = (task.tau[0] > 2.1) & (step == 33)
        return state, {"loss/clone": jnp.where(breaks, jnp.nan, metrics["loss/clone"])}


@pytest.fixture(autouse=True)
def fragile(monkeypatch):
    """Known in this test only."""
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "fragile", Fragile)


class StopAt(deep.Watcher):
    """Asks to stop, as Ctrl-C does, at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progressed(self, row) -> None:
        if row["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def plans(out: Path, data, limits=("2", "5"), seeds=(0, 1), watcher=None) -> list[Planned]:
    """A grid of runs; the first one has the watcher."""
    found: list[Planned] = []
    for limit in limits:
        for seed in seeds:
            run = make_run("fragile", data, [limit], seed=seed, preset=None, options=OPTIONS, settings=QUICK)
            heard = (watcher if not found else None) or deep.Watcher()
            found.append(Planned(run, out / f"{limit}-{seed}", heard))
    return found


#: the default has four phases to compile, twice: with SLATER_FULL=1 only
@pytest.mark.xdist_group("pdca")
@pytest.mark.parametrize("preset", ["paper", None] if os.environ.get("SLATER_FULL") == "1" else ["paper"])
def test_a_sweep_as_one_program_gives_what_runs_give_alone(preset, tmp_path, capsys):
    """The same draws; only the rounding of matrix products differs."""
    data, settings = pointmass(), QUICK if preset else PDCA_QUICK
    save(data, tmp_path / "data.npz")
    arguments = ["--sweep", "limit=2,5", "--seed", "1", "--engine", "vmap", "--log-every", "10"]
    arguments += ["--preset", preset] if preset else []
    arguments += [part for name, value in settings.items() for part in ("--set", f"{name}={_text(value)}")]
    out = tmp_path / "sweep"
    assert cli.main(["train", "pdca", str(tmp_path / "data.npz"), *arguments, "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("done") == 2
    one, two = tmp_path / "alone", out / "limit=5-seed=1"
    deep.train("pdca", data, ["5"], one, seed=1, preset=preset, options={"log_every": 10}, **settings)
    assert {p.relative_to(one) for p in one.rglob("*")} == {p.relative_to(two) for p in two.rglob("*")}
    a, b = (load_file(folder / "checkpoint.safetensors") for folder in (one, two))
    for name, leaf in a.items():
        np.testing.assert_allclose(b[name], leaf, rtol=1e-5, atol=1e-6, err_msg=name)
    rows_a, rows_b = (read_metrics(folder / "metrics.jsonl") for folder in (one, two))
    for row_a, row_b in zip(rows_a, rows_b, strict=True):
        assert row_a.keys() == row_b.keys()
        for name in (name for name in row_a if name.startswith("loss/")):
            assert row_a[name] == pytest.approx(row_b[name], rel=1e-4, abs=1e-6), name
    # the limit is each run's own
    assert deep.read_run(out / "limit=2-seed=1").limit_texts == ("c0=2",)
    other = read_metrics(out / "limit=2-seed=1" / "metrics.jsonl")
    assert other[-1]["slack/c0"] < rows_b[-1]["slack/c0"]


def _text(value) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_stopped_runs_go_on_and_end_with_the_same_bits(tmp_path):
    """Also where a kill left one of them a checkpoint behind the others."""
    data = pointmass()
    assert train_together(plans(tmp_path / "whole", data), data) == {}
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
        train_together(plans(tmp_path / "cut", data, watcher=StopAt(20)), data)
    behind = tmp_path / "cut" / "2-1"
    early = (behind / "checkpoint.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        train_together(plans(tmp_path / "cut", data, watcher=StopAt(40)), data)
    (behind / "checkpoint.safetensors").write_bytes(early)
    assert train_together(plans(tmp_path / "cut", data), data) == {}
    for run in ("2-0", "5-1"):
        assert weights(tmp_path / "cut" / run) == weights(tmp_path / "whole" / run)
    last = read_metrics(behind / "metrics.jsonl")[-1]["loss/clone"]
    assert last == pytest.approx(read_metrics(tmp_path / "whole" / "2-1" / "metrics.jsonl")[-1]["loss/clone"])
    before = weights(tmp_path / "cut")
    assert train_together(plans(tmp_path / "cut", data), data) == {}  # nothing is left to do
    assert weights(tmp_path / "cut") == before


def test_a_run_that_diverges_is_left_behind_and_the_others_go_on(tmp_path):
    data = pointmass()
    failures = train_together(plans(tmp_path, data, limits=("2", "8"), seeds=(0,)), data)
    assert list(failures) == [tmp_path / "8-0"]
    assert "at step 33; the last good checkpoint is of step 30" in failures[tmp_path / "8-0"]
    assert (tmp_path / "2-0" / "result.json").exists()
    assert not (tmp_path / "8-0" / "result.json").exists()
    assert read_metrics(tmp_path / "2-0" / "metrics.jsonl")[-1]["step"] == QUICK["steps"]


def test_data_that_do_not_fit_and_a_lone_run_are_refused_in_a_sentence(tmp_path, capsys):
    data = pointmass()
    save(data, tmp_path / "data.store")
    sets = ["--set", "gamma=0.9", "--set", "hidden=16"]
    words = ["train", "pdca", str(tmp_path / "data.store"), "--limit", "5", "--out", str(tmp_path / "run")]
    assert cli.main([*words, "--seeds", "2", "--engine", "vmap", "--memory", "1e-5", *sets]) == 2
    assert "need all data in memory" in capsys.readouterr().err
    assert cli.main([*words, "--engine", "vmap", *sets]) == 2
    assert "is for sweeps" in capsys.readouterr().err
