"""Metrics in a file, one JSON object per line: always there, readable while the run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slater.disk import write_atomic

__all__ = ["MetricsFile", "read_metrics"]


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; a last line that is being written is left out."""
    rows: list[dict[str, Any]] = []
    if Path(path).is_file():
        for line in Path(path).read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


class MetricsFile:
    """Appends rows; on opening, drops rows past `step`, which a resumed run writes again."""

    def __init__(self, path: Path, step: int) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= step]
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = path.open("a")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row and hand it to the system."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
