"""Where a table of Parquet or CSV files keeps things, for its reader and its writer alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slater.errors import InputError

__all__ = ["cost_columns", "folder_keys", "notes_beside", "parquet_files", "pyarrow"]


def pyarrow() -> Any:
    """The package, with its readers of Parquet and CSV; without it, the line that installs it."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet and CSV need pyarrow: pip install 'slater-rl[tables]'.") from None
    return pyarrow


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and below it, in the order of their names, numbers by size."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in (".parquet", ".pq")]
    shown = [path for path in found if not path.name.startswith((".", "_")) and path.is_file()]
    return sorted(shown, key=lambda path: _natural_parts(path.relative_to(folder).as_posix()))


def _natural_parts(text: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts if part]


def folder_keys(root: Path, path: Path) -> dict[str, int | str]:
    """What the folders between `root` and a file say, as in day=3/part-0.parquet."""
    keys: dict[str, int | str] = {}
    for part in path.relative_to(root).parts[:-1] if path != root else ():
        name, equals, value = part.partition("=")
        if equals and name:
            keys[name] = int(value) if value.isdigit() else value
    return keys


def notes_beside(path: Path) -> Path:
    """Where the notes on a CSV file are."""
    return path.with_name(path.name + ".json")


def cost_columns(cost_names: Sequence[str]) -> list[str]:
    """The columns that the costs are written to."""
    return ["cost"] if tuple(cost_names) == ("cost",) else [f"cost_{name}" for name in cost_names]
