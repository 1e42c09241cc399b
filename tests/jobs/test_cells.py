"""Cells: resumed where they stopped, whatever the moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slater.disk import locked
from slater.errors import InputError
from slater.jobs.cells import finished_rows, prepare, run_cells
from slater.jobs.engines import Cell, Row


def square(cell: Cell) -> Row:
    (Path(cell["log"]) / f"{cell['x']}-{os.getpid()}").touch()
    if cell["x"] == 13:
        raise ValueError("unlucky")
    return {"y": cell["x"] ** 2}


def cells(log: Path, values: list[int]) -> list[Cell]:
    log.mkdir(exist_ok=True)
    return [{"x": x, "log": str(log)} for x in values]


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    with pytest.raises(ValueError, match="unlucky"):
        run_cells(square, cells(log, [1, 2, 3, 13]), out, workers=1)
    ran, finished = len(list(log.iterdir())), len(finished_rows(out))
    rows = run_cells(square, cells(log, [1, 2, 3, 4]), out, workers=2)
    assert [row["y"] for row in rows] == [1, 4, 9, 16]
    again = len(list(log.iterdir())) - ran
    assert again == 4 - finished


@pytest.mark.parametrize("cut", ["", '{"key": "{\\"x\\"'])
def test_a_line_cut_by_a_kill_costs_one_cell_and_no_other(tmp_path: Path, cut: str) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    run_cells(square, cells(log, [1, 2]), out, workers=1)
    path = out / "cells.jsonl"
    whole = path.read_text()
    # without its closing newline the last record is still whole; after half a record, only that cell is lost
    path.write_text(whole.removesuffix("\n") if not cut else whole.splitlines()[0] + "\n" + cut)
    assert len(finished_rows(out)) == (1 if cut else 2)
    run_cells(square, cells(log, [1, 2, 3]), out, workers=1)
    assert sorted(row["y"] for row in finished_rows(out).values()) == [1, 4, 9]


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = run_cells(square, cells(tmp_path / "log", [3, 1, 2]), tmp_path / "a", workers=1)
    two = run_cells(square, cells(tmp_path / "log", [3, 1, 2]), tmp_path / "b", workers=2)
    assert one == two


def test_unwritable_folder_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        prepare(tmp_path / "file" / "out")


def test_a_second_process_in_the_folder_of_a_search_or_an_experiment_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        run_cells(square, cells(tmp_path / "log", [1]), tmp_path / "out", workers=1)
    assert not list((tmp_path / "log").iterdir())
