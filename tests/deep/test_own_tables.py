"""A CSV log with names of its own goes straight into training; the run knows how it was read."""

import json

import pytest

import slater
from slater.cli import main
from slater.runs import read_run

from .problems import OWN_COLUMNS as COLUMNS
from .problems import pointmass, write_own_log

SETTINGS = ["steps=20", "batch_size=16", "hidden=8"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "log.csv"
    write_own_log(pointmass(episodes=8), path)
    return path


def test_train_from_a_csv_in_one_line_and_resume(table, tmp_path, capsys):
    out = tmp_path / "run"
    line = [
        "train",
        "bc",
        str(table),
        "--columns",
        *COLUMNS,
        "--horizon",
        "25",
        "--limit",
        "5",
        "--no-estimate",
    ]
    line += ["--out", str(out), *(f"--set={text}" for text in SETTINGS)]
    assert main(line) == 2
    assert "the column 'square' is NaN or infinite [1 row: 30]" in capsys.readouterr().err
    assert main([*line, "--drop-missing"]) == 0
    # what reading found is said where the reading is done
    left_out = "rows: is missing here; the row is left out [1 row: 30], numbered from 0"
    assert capsys.readouterr().err.count(left_out) == 1
    run = read_run(out)
    assert run.reading == {
        "columns": {text.partition("=")[0]: text.partition("=")[2].split(",") for text in COLUMNS},
        "horizon": 25, "missing": "drop",
    }  # fmt: skip
    contract = slater.load_policy(out).contract
    assert [entry.name for entry in contract.observations] == ["place", "square"]
    assert [entry.name for entry in contract.actions] == ["push_a", "push_b"]
    # certify and frontier read the log as the run did
    assert main(["certify", str(out)]) == 4
    assert main(["certify", str(out), "--data", str(table)]) == 4
    assert "complete episodes; 50 are needed" in capsys.readouterr().out
    (out / "result.json").unlink()
    assert main(["train", "--resume", str(out)]) == 0
    assert main(["train", "--resume", str(out), "--columns", *COLUMNS[:-1], "episode=place"]) == 2
    error = capsys.readouterr().err
    assert "--columns cannot change" in error
    assert (
        "not observations=place,square actions=push_a,push_b rewards=gain costs=wear episode=place" in error
    )


def test_a_limit_in_a_mistaken_unit_is_said(table, tmp_path, capsys):
    line = ["train", "bc", str(table), "--columns", *COLUMNS, "--limit", "20/step", "--no-estimate"]
    line += ["--drop-missing", "--out", str(tmp_path / "run"), *(f"--set={text}" for text in SETTINGS)]
    assert main(line) == 0
    assert "every episode of the data keeps the limit wear=20/step" in capsys.readouterr().err


def test_a_sweep_says_once_what_reading_found(table, tmp_path, capfd):
    line = ["train", "bc", str(table), "--columns", *COLUMNS, "--limit", "5", "--no-estimate", "--fill"]
    line += ["forward", "--seeds", "2", "--out", str(tmp_path / "sweep")]
    assert main([*line, *(f"--set={text}" for text in SETTINGS)]) == 0
    assert capfd.readouterr().err.count("was missing and has the value of the row before [1 row: 30]") == 1


def test_the_same_in_python(table, tmp_path):
    result = slater.train(
        table, "bc", ["5"], out=tmp_path / "run", columns=COLUMNS, progress=False, estimate=False,
        options={"reading": {"missing": "forward", "horizon": 25}}, steps=20, batch_size=16, hidden=(8,),
    )  # fmt: skip
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["run"]["reading"]["missing"] == "forward"
    assert record["run"]["reading"]["columns"]["costs"] == ["wear"]
    assert result.folder == tmp_path / "run"
    with pytest.raises(slater.InputError, match="a dataset already"):
        slater.train(pointmass(episodes=2), "bc", ["5"], columns=COLUMNS)
