"""The log that a run learned from, read again as the run read it."""

from __future__ import annotations

from pathlib import Path

from slater.data import Dataset, ReadOptions, load
from slater.runs.record import Run

__all__ = ["load_log"]


def load_log(run: Run | None, path: str | Path | None = None) -> Dataset:
    """The data of `run`, or those at `path` instead; columns and missing values as the run was told.

    What the run was told is of its kind of file: another kind at `path` says what it holds itself.
    """
    source = Path(path if path is not None else run.data if run is not None else "")
    told = run is not None and bool(run.reading) and source.suffix == Path(run.data).suffix
    return load(source, ReadOptions.from_json(run.reading) if run is not None and told else None)
