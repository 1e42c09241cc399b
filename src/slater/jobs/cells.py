"""Experiments as independent cells: run over all cores, written as they finish, resumed where they stopped.

A cell is a set of plain settings; its result is a plain record. Finished cells are appended to
`cells.jsonl` in the output folder, so a stopped experiment loses at most the cells under way. A cell whose
row has the field `failed` (a sentence) is reported and not written: the next run tries it again.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from slater import __version__
from slater.disk import append_json_line, locked, read_json_lines
from slater.errors import InputError
from slater.jobs.engines import Cell, Engine, Row, run_jobs
from slater.progress import PlainProgress


def prepare(out: Path) -> Path:
    """Make the output folder, or say why it cannot be written, before any work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"the output folder {out} cannot be written ({error.strerror}).") from None
    return out


def write_settings(out: Path, name: str, settings: dict[str, Any]) -> None:
    """`settings.json`: what was run, by which version, on what kind of machine, when."""
    record = {
        "experiment": name,
        "settings": settings,
        "version": __version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    (out / "settings.json").write_text(json.dumps(record, indent=2) + "\n")


def run_cells(
    work: Callable[[Cell], Row],
    cells: Sequence[Cell],
    out: Path,
    *,
    workers: int | None = None,
    engine: Engine = "pool",
    progress_of: Callable[[Cell], float] | None = None,
) -> list[Row]:
    """The rows of all cells, in the order of `cells`; those already in `out` are not run again.

    `work` must be picklable; it runs in worker processes, one per core unless `workers` (see
    `slater.jobs.engines`). `progress_of` says how much of a cell under way is done, from 0 to 1. The folder
    is locked meanwhile: a second process is refused.
    """
    path = prepare(out) / "cells.jsonl"
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}")
    columns = (*words, TimeElapsedColumn(), TimeRemainingColumn())
    with locked(out), PlainProgress(*columns, console=Console(stderr=True)) as progress:
        path.touch()
        done, keys = _finished(path), [_key(cell) for cell in cells]
        todo = [cell for cell, key in zip(cells, keys, strict=True) if key not in done]
        if done and todo and len(todo) < len(cells):
            progress.console.print(f"resuming: {len(cells) - len(todo)} of {len(cells)} cells are in {path}")
        task = progress.add_task(out.name, total=len(cells), count="")

        def show() -> None:
            open_cells = [cell for cell, key in zip(cells, keys, strict=True) if key not in done]
            parts = sum(map(progress_of, open_cells)) if progress_of else 0.0
            count = len(cells) - len(open_cells)
            progress.update(task, completed=count + parts, count=f"{count}/{len(cells)} cells")

        show()
        with closing(run_jobs(work, todo, workers=workers or os.cpu_count() or 1, engine=engine)) as ended:
            for answer in ended:
                if answer is not None:
                    row = {**answer[0], **answer[1]}
                    done[_key(answer[0])] = row
                    if "failed" not in row:
                        _keep(path, {"key": _key(answer[0]), "row": row})
                show()
    return [done[key] for key in keys]


def finished_rows(out: Path) -> dict[str, Row]:
    """Every row that the folder holds, by a text that names its cell, in the order in which cells
    finished.
    """
    return _finished(out / "cells.jsonl")


def _keep(path: Path, record: dict[str, Any]) -> None:
    try:
        append_json_line(path, record)
    except OSError as error:
        raise InputError(
            f"a finished cell could not be written to {path} ({error.strerror}); make room and run the same "
            "again: only cells that are not in it are done anew."
        ) from error


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _finished(path: Path) -> dict[str, Row]:
    # a line that was being written when the run was killed is none: its cell runs again
    return {record["key"]: record["row"] for record in read_json_lines(path)}
