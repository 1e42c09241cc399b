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


def patient_square(cell: Cell) -> Row:
    """Says where it began, and ends when it is told to."""
    import time

    import ray

    folder = Path(cell["folder"])
    with (folder / f"began-{cell['x']}").open("a") as file:
        file.write(ray.get_runtime_context().get_node_id() + "\n")
    while not (folder / "go").exists():
        time.sleep(0.05)
    return {"y": cell["x"] ** 2}


@pytest.mark.skipif(
    not os.environ.get("SLATER_FULL") or find_spec("ray") is None,
    reason="a cluster of two nodes takes a minute to start: SLATER_FULL=1, and pip install 'slater-rl[ray]'",
)
def test_a_node_that_dies_in_the_middle_of_a_cell_changes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes; the one that a cell has begun on is killed; the cell is done again on the other."""
    from ray.cluster_utils import Cluster

    from slater.jobs.engines import run_jobs

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    cells = [{"x": x, "folder": str(tmp_path)} for x in (3, 1, 2)]
    rows, killed = {}, False
    try:
        for ended in run_jobs(patient_square, cells, workers=2, engine="ray"):
            if ended is not None:
                rows[ended[0]["x"]] = ended[1]
            begun = [path for path in tmp_path.glob("began-*") if second.node_id in path.read_text()]
            if begun and not killed:
                cluster.remove_node(second, allow_graceful=False)
                killed = True
                (tmp_path / "go").touch()
    finally:
        cluster.shutdown()
    assert killed
    assert rows == {x: {"y": x**2} for x in (1, 2, 3)}
    assert max(len(path.read_text().splitlines()) for path in tmp_path.glob("began-*")) == 2
