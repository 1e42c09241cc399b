"""The command line as a user meets it: real processes, real files, one sentence on bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slater import tabular as tab
from slater.cli import COMMANDS, main
from slater.tabular.files import MODEL_FIELDS, load_problem


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def bad(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The error of a call that must fail: exit code 2, one line, no traceback."""
    code, out, err = call(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("slater: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


FIELDS = [
    "algorithm",
    "seed",
    "n",
    "J_R",
    "J_R_star",
    "J_C",
    "limits",
    "gap",
    "lambda_mean",
    "lambda_star",
    "phi",
    "rounds",
    "seconds",
]


@pytest.mark.parametrize("algo", list(tab.ALGORITHMS))
def test_json_has_the_promised_fields(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "tabular", algo, "--cmdp", "paper", "--seed", "3", "--n", "1000", "--json")
    record = json.loads(out)
    assert code == 0
    assert set(FIELDS) <= set(record)
    assert record["algorithm"] == algo
    assert len(record["J_C"]) == len(record["limits"]) == len(record["lambda_star"]) == 1
    assert record["gap"] >= -1e-8
    assert out.count("\n") == 1


def test_a_process_prints_json_and_nothing_else() -> None:
    command = [sys.executable, "-m", "slater.cli", "tabular", "--n", "500", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert json.loads(done.stdout)["n"] == 500
    assert done.stderr == ""


def test_same_seed_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("tabular", "--seed", "5", "--n", "300", "--rounds", "50", "--json")
    first, second = (json.loads(call(capsys, *args)[1]) for _ in range(2))
    del first["seconds"], second["seconds"]
    assert first == second


def test_several_costs_and_modes(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in tab.MODES:
        args = ("--costs", "2", "--n", "5000", "--mode", mode, "--rounds", "60", "--json")
        record = json.loads(call(capsys, "tabular", *args)[1])
        assert len(record["J_C"]) == 2
        assert record["plan"]["mode"] == mode
        assert record["plan"]["required_n"] > 0
    assert max(record["plan"]["tightening"]) > 0  # the last one is exactly-feasible


def test_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "tabular", "--n", "300", "--rounds", "50")
    assert code == 0
    for word in ("reward", "cost", "limit", "duality gap", "never seen"):
        assert word in out


def test_own_model_and_own_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    cmdp = tab.paper_cmdp(rng)
    model = tmp_path / "model.npz"
    fields = {name: np.asarray(getattr(cmdp, name)) for name in (*MODEL_FIELDS, "start")}
    np.savez(model, **fields, behaviour=tab.half_optimal_behaviour(cmdp))
    loaded = load_problem(model)
    assert isinstance(loaded, tuple)
    np.testing.assert_allclose(loaded[0].transition, cmdp.transition, atol=1e-15)
    record = json.loads(call(capsys, "tabular", "--file", str(model), "--n", "500", "--json")[1])
    assert record["J_R_star"] == pytest.approx(cmdp.solve().J_R)

    s = rng.integers(3, size=400)
    a = rng.integers(2, size=400)
    log = tmp_path / "log.npz"
    np.savez(
        log,
        states=s,
        actions=a,
        next_states=(s + a) % 3,
        rewards=a * 1.0,
        costs=(a * (s == 0)).astype(float),
        limits=[1.0],
        discount=0.9,
    )
    record = json.loads(call(capsys, "tabular", "--file", str(log), "--json")[1])
    assert record["n"] == 400
    assert record["J_R"] is None
    assert record["estimate"]["J_C"][0] <= 1.0 + 0.05


def test_bad_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no command 'fly'" in bad(capsys, "fly")
    assert "nope.npz" in bad(capsys, "tabular", "--file", "nope.npz")
    assert "nope" in bad(capsys, "tabular", "nope")
    assert "nan" in bad(capsys, "tabular", "--n", "nan")
    assert "--fast" in bad(capsys, "tabular", "--fast")
    assert "reproduce" in bad(capsys, "reproduce")
    assert "n is 0" in bad(capsys, "tabular", "--n", "0")
    for words in (["train", "bc", "x", "--seed", "1.5"], ["certify", "x", "--candidates", "2.5"],
                  ["reproduce", "worlds", "t", "--seeds", "0", "1.5"]):  # fmt: skip
        assert f"{words[-1]} is no whole number" in bad(capsys, *words)
    assert "seed is -1" in bad(capsys, "tabular", "--seed", "-1")
    assert "mbcl" in bad(capsys, "tabular", "mbcl", "--mode", "nearly-feasible")
    assert "released" in bad(capsys, "tabular", "--preset", "released")
    assert "bound B is -1" in bad(capsys, "tabular", "--multiplier-bound", "-1")
    assert "step" in bad(capsys, "tabular", "--step", "0")
    assert "at least 0" in bad(capsys, "tabular", "--weight-bound", "-2")
    assert "epsilon" in bad(capsys, "tabular", "--mode", "exactly-feasible", "--epsilon", "0.9")
    assert "repeats is 0" in bad(capsys, "reproduce", "figure1", "--repeats", "0")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in bad(
        capsys, "reproduce", "rates", "--quick", "--out", str(tmp_path / "file" / "x")
    )


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cmdp = tab.paper_cmdp(np.random.default_rng(0))
    path = tmp_path / "p.npz"
    good = {n: np.asarray(getattr(cmdp, n)) for n in ("transition", "reward", "costs", "limits", "discount")}

    def error(**change: object) -> str:
        fields = {k: v for k, v in {**good, **change}.items() if v is not None}
        np.savez(path, **fields)  # type: ignore[arg-type]
        return bad(capsys, "tabular", "--file", str(path))

    broken = cmdp.transition.copy()
    broken[2, 1] *= 0.9
    assert "transition[2, 1, :]" in error(transition=broken)
    holed = np.array(cmdp.reward)
    holed[4, 3] = np.nan
    assert "reward[4, 3] is nan" in error(reward=holed)
    assert "costs[0, 0, 0]" in error(costs=cmdp.costs - 2.0)
    assert "no policy meets the limits" in error(limits=[0.0])
    assert "discount is 1" in error(discount=1.0)
    assert "missing reward" in error(reward=None)
    assert "start is state 99" in error(start=99)
    path.write_bytes(b"not a zip")
    assert "cannot be read" in bad(capsys, "tabular", "--file", str(path))
    np.savez(path, **good)
    path.write_bytes(path.read_bytes()[:700])
    assert "cannot be read" in bad(capsys, "tabular", "--file", str(path))
    np.savez(path, transition=np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read" in bad(capsys, "tabular", "--file", str(path))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slater.cli", command, "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    # beside the usage line there is at least one example to copy
    assert done.stdout.count(f"slater {command}") > 1


def test_options_may_come_before_arguments_and_wrong_ones_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # the file is missed, so the arguments were understood
    assert "nowhere.hdf5" in bad(capsys, "train", "--limit", "20", "pdca", "nowhere.hdf5")
    assert "nowhere.hdf5" in bad(capsys, "train", "pdca", "nowhere.hdf5", "--limit", "20")
    assert "did you mean 'pdca'" in bad(capsys, "train", "pdcaa", "nowhere.hdf5", "--limit", "20")
    assert "Did you mean --steps" in bad(capsys, "train", "pdca", "nowhere.hdf5", "--stepsz", "4")
    assert "no place for 'three'" in bad(capsys, "train", "pdca", "two", "three")
    words = bad(capsys, "train", "pdca", "two", "--limit", "a=1", "b=2")
    assert "no place for 'b=2' (an option that takes one value is given again for each" in words
    assert "no run or policy file nowhere" in bad(capsys, "evaluate", "nowhere")
    assert not Path("runs/pdca-nowhere").exists()


def test_help_shows_names_and_all_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train"], ["reproduce", "table2"], ["data", "info"], ["tune"]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
        shown = capsys.readouterr().out
        assert "{None}" not in shown
        assert f"Usage: slater {' '.join(words)}" in shown
        assert "--limit" in shown
    with pytest.raises(SystemExit, match="0"):
        main(["reproduce", "--help"])
    shown = capsys.readouterr().out
    assert all(
        f"  {name} " in shown for name in ("figure1", "rates", "verdicts", "table2", "figure2", "tables")
    )


def test_limits_of_a_finite_problem_are_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("tabular", "plugin", "--seed", "3", "--n", "1000", "--json")
    own = json.loads(call(capsys, *args)[1])
    lower = 0.9 * own["limits"][0]
    record = json.loads(call(capsys, *args, "--limit", f"{lower!r}/discounted")[1])
    assert record["limits"] == [lower]
    assert record["J_R_star"] < own["J_R_star"]
    assert "write for example --limit 2/discounted" in bad(capsys, *args, "--limit", "2")
    assert "limit" in bad(capsys, *args, "--limit", "2/discounted", "--limit", "3/discounted")
