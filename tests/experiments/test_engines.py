"""Engines: the same rows from processes, fresh processes and Ray; what dies is said."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from slater.errors import InputError
from slater.jobs.cells import run_cells
from slater.jobs.engines import Cell, Engine, Row


def square(cell: Cell) -> Row:
    if cell["x"] == 13:
        os._exit(9)
    if cell["x"] == 14:
        raise InputError("fourteen is not wanted.")
    return {"y": cell["x"] ** 2, "process": os.getpid()}


def test_fresh_processes_are_one_per_cell(tmp_path: Path) -> None:
    rows = run_cells(square, [{"x": x} for x in (3, 1, 2)], tmp_path, workers=2, engine="fresh")
    assert [row["y"] for row in rows] == [9, 1, 4]
    assert len({row["process"] for row in rows} | {os.getpid()}) == 4


def test_a_killed_process_costs_its_own_cell_only(tmp_path: Path) -> None:
    cells = [{"x": 13}, {"x": 2}]
    dead, alive = run_cells(square, cells, tmp_path, workers=1, engine="fresh")
    assert "killed" in dead["failed"]
    assert alive["y"] == 4
    # only the whole cell was written
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("engine", ["pool", "fresh"])
def test_an_error_in_a_cell_reaches_the_caller(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fourteen"):
        run_cells(square, [{"x": 14}], tmp_path, workers=1, engine=engine)


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'slater-rl[ray]'")
def test_ray_gives_the_rows_of_local_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    cells = [{"x": x} for x in (3, 1, 2)]
    rows = run_cells(square, cells, tmp_path / "ray", workers=1, engine="ray")
    assert [row["y"] for row in rows] == [9, 1, 4]
    assert os.getpid() not in {row["process"] for row in rows}
    # finished cells are not run again, whatever ran them
    assert run_cells(square, cells, tmp_path / "ray", workers=1, engine="fresh") == rows


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'slater-rl[ray]'")
def test_a_cluster_that_does_not_answer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "no-scheme://nowhere")
    with pytest.raises(InputError, match="Ray cannot use no-scheme://nowhere"):
        run_cells(square, [{"x": 1}], tmp_path, engine="ray")
