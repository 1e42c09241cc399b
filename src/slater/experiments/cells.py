"""Experiments as independent cells: run over all cores, written as they finish, resumed where they stopped.

A cell is a set of plain settings; its result is a plain record. Finished cells are appended to
`cells.jsonl` in the output folder, so a stopped experiment loses at most the cells under way.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from slater import __version__
from slater.errors import InputError

__all__ = ["Cell", "Row", "prepare", "run_cells", "write_settings"]

Cell = dict[str, Any]
Row = dict[str, Any]


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
    work: Callable[[Cell], Row], cells: Sequence[Cell], out: Path, *, workers: int | None = None
) -> list[Row]:
    """The rows of all cells, in the order of `cells`; those already in `out` are not run again.

    `work` must be a module-level function; it runs in worker processes, one per core unless `workers`.
    """
    path = prepare(out) / "cells.jsonl"
    done = _finished(path)
    keys = [_key(cell) for cell in cells]
    todo = [cell for cell, key in zip(cells, keys, strict=True) if key not in done]
    if done and todo and len(todo) < len(cells):
        Console(stderr=True).print(f"resuming: {len(cells) - len(todo)} of {len(cells)} cells are in {path}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        path.open("a") as file,
        ProcessPoolExecutor(
            min(workers or os.cpu_count() or 1, max(len(todo), 1)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_single_thread,
        ) as pool,
    ):
        task = progress.add_task(out.name, total=len(cells), completed=len(cells) - len(todo))
        futures = {pool.submit(work, cell): cell for cell in todo}
        try:
            for future in as_completed(futures):
                row = {**futures[future], **future.result()}
                done[_key(futures[future])] = row
                file.write(json.dumps({"key": _key(futures[future]), "row": row}) + "\n")
                file.flush()
                progress.advance(task)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return [done[key] for key in keys]


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _finished(path: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                # the line that was being written when the run was killed; its cell runs again
                continue
            rows[record["key"]] = record["row"]
    return rows


def _single_thread() -> None:
    """Cells run side by side, one per core; threads inside a cell would only fight over them."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
