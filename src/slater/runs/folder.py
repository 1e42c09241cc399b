"""The folder of a run, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slater.errors import InputError
from slater.runs.metrics import METRICS, Metrics, read_metrics
from slater.runs.record import RECORD, Record, Run, TaskRecord, read_record
from slater.runs.result import RESULT, Result, read_result

__all__ = ["SavedRun", "find_runs", "is_run", "open_run"]


def is_run(folder: str | Path) -> bool:
    """Whether a run was begun in `folder`."""
    return (Path(folder) / RECORD).is_file()


def find_runs(folder: str | Path) -> Iterator[Path]:
    """The folders of all runs below `folder`, at any depth, in order."""
    return (path.parent for path in sorted(Path(folder).rglob(RECORD)))


@dataclass(frozen=True)
class SavedRun:
    """A run as it is in its folder: `record` from the beginning, the rest as far as the run has come."""

    folder: Path
    record: Record

    @property
    def run(self) -> Run:
        """What defines it."""
        return self.record.run

    @property
    def task(self) -> TaskRecord:
        """Sizes, discount, horizon and limits."""
        return self.record.task

    @property
    def env(self) -> str | None:
        """The environment that the run names, else the one that its data name, else None."""
        return self.run.env or self.record.env_id

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return (self.folder / RESULT).is_file()

    @cached_property
    def metrics(self) -> Metrics:
        """The rows so far, as they were when first asked for."""
        return Metrics(read_metrics(self.folder / METRICS))

    @property
    def result(self) -> Result:
        """What came out; an `InputError` if the run is not finished."""
        found = read_result(self.folder)
        if found is None:
            raise InputError(f"the run in {self.folder} is not finished: it has no {RESULT}.")
        return found


def open_run(folder: str | Path) -> SavedRun:
    """The run in `folder`; one sentence if there is none, or if its record cannot be read."""
    return SavedRun(Path(folder), read_record(folder))
