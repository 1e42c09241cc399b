"""Metrics in a file, one JSON object per line: always there, readable while the run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slater.disk import read_json_lines, write_json_lines

#: name of the file in the folder of a run
METRICS = "metrics.jsonl"


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole rows of a metrics file; a last line that is being written is left out."""
    return [row for row in read_json_lines(path) if isinstance(row.get("step"), int)]


@dataclass(frozen=True)
class Metrics:
    """The rows of a run, in order: `step`, `phase`, `loss/...`, `ope/...`, `eval/...`."""

    rows: Sequence[Mapping[str, Any]]

    @property
    def step(self) -> int:
        """Iterations done, by the last row."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def last(self, prefix: str) -> dict[str, Any]:
        """The latest figure of every name that starts with `prefix`; not every row has all of them."""
        found: dict[str, Any] = {}
        for row in self.rows:
            found |= {name: value for name, value in row.items() if name.startswith(prefix)}
        return found

    def having(self, name: str) -> Iterator[Mapping[str, Any]]:
        """The rows that have the figure `name`."""
        return (row for row in self.rows if name in row)


def last_step(folder: Path) -> int:
    """Iterations done in the run in `folder`, from the end of its metrics; 0 if there are none."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 20_000, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):  # the first may be cut by the seek, the last one by who writes it
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


class MetricsFile:
    """Appends rows; on opening, drops rows past `step`, which a resumed run writes again."""

    def __init__(self, path: Path, step: int) -> None:
        write_json_lines(path, [row for row in read_metrics(path) if row["step"] <= step])
        self._file = path.open("a")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row and hand it to the system."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
