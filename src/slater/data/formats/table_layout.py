"""Where a table of Parquet or CSV files keeps things, for its reader and its writer alike; and the writer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Block
from slater.data.fingerprint import OPTIONAL_FIELDS
from slater.data.formats.base import Notes, ReadOptions, Writer, expand_names, mapped_roles
from slater.data.formats.table_values import entries_of
from slater.disk import read_json
from slater.errors import InputError, optional


def pyarrow() -> Any:
    """The package, with its readers of Parquet and CSV; without it, the line that installs it."""
    arrow = optional("pyarrow", "Parquet and CSV need pyarrow", "tables")
    for part in ("csv", "feather", "json", "parquet"):
        import_module(f"pyarrow.{part}")
    return arrow


def lerobot_info(folder: Path) -> dict[str, Any]:
    """What a dataset of LeRobot (v3) says of itself in meta/info.json; {} for any other folder."""
    file = folder / "meta" / "info.json"
    record = read_json(file, "what LeRobot says of a dataset") if file.is_file() else {}
    version = str(record.get("codebase_version", "")) if "features" in record else ""
    if version and not version.startswith("v3"):
        raise InputError(
            f"{folder} is a LeRobot dataset of {version}; convert it to v3.0 with lerobot first."
        )
    return record if version else {}


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and below it, in the order of their names, numbers by size."""
    rows = folder / "data" if lerobot_info(folder) else folder  # beside its rows are those of its `meta`
    found = [path for path in rows.rglob("*") if path.suffix.lower() in (".parquet", ".pq")]
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


#: role -> names that are looked for; the first that is present is taken, a plain name before a pattern
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "obs_*", "observation.state"),
    "actions": ("actions", "action", "action_*"),
    "rewards": ("reward", "rewards", "next.reward"),
    "costs": ("cost", "costs", "cost_*"),
    "terminals": ("terminal", "terminals", "terminated"),
    "timeouts": ("timeout", "timeouts", "truncated"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_obs_*"),
    "next_known": ("next_known",),
    "episode": ("episode", "episode_index"),
    "propensity": ("propensity",),
    "source": ("source",),
    "time": ("time", "timestamp"),
}


def find_roles(
    names: Sequence[str], options: ReadOptions
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The columns of each role, by the map or by their names; and those called so that were not taken."""
    roles: dict[str, list[str]] = {}
    for role, candidates in _DEFAULTS.items():
        for candidate in candidates:
            matches = [name for name in names if name.startswith(candidate[:-1])]
            if candidate in names:
                roles.setdefault(role, [candidate])
            elif candidate.endswith("*") and matches and role not in roles:
                roles[role] = expand_names(role, (candidate,), entries_of(matches))
    chosen = mapped_roles("the table", roles, options)
    rest = [role for role, wanted in chosen.items() if tuple(wanted) == ("*",)]
    found = {role: expand_names(role, wanted, names) for role, wanted in chosen.items() if role not in rest}
    read = {name for wanted in found.values() for name in wanted}
    for role in rest:  # everything that is nothing else
        nameless = ("__index_level_", "Unnamed: ")  # what pandas calls the numbers of its rows
        found[role] = [n for n in names if n and n not in read and not n.startswith(nameless)]
    passed_over: dict[str, list[str]] = {}
    for role, candidates in _DEFAULTS.items():
        if role in found and role not in options.columns and candidates[-1].endswith("*"):
            like = [n for n in names if n.startswith(candidates[-1][:-1]) and n not in read]
            passed_over |= {role: like} if like else {}
    return found, passed_over


class TableWriter(Writer):
    """Writes Parquet (with page checksums) or CSV under a temporary name, then renames it."""

    def __init__(self, path: Path, notes: Notes) -> None:
        super().__init__(path, notes)
        self._arrow = pyarrow()
        self._csv = path.suffix.lower() in (".csv", ".tsv")
        self._writer: Any = None

    def write(self, rows: Block) -> None:
        """Append rows as a record batch."""
        columns = _named("obs", rows["observations"]) | _named("action", rows["actions"])
        columns["reward"] = rows["rewards"]
        for index, name in enumerate(cost_columns(self._notes.cost_names)):
            columns[name] = rows["costs"][:, index]
        columns |= {"terminal": rows["terminals"], "timeout": rows["timeouts"]}
        columns |= _named("next_obs", rows["next_observations"]) | {"next_known": rows["next_known"]}
        columns |= {name: rows[name] for name in OPTIONAL_FIELDS if name in rows}
        if self._csv:
            columns |= {name: x.astype(np.int8) for name, x in columns.items() if x.dtype == np.bool_}
        with self._writing():
            table = self._arrow.table(columns)
            if self._writer is None:
                self._writer = self._open(table.schema)
            self._writer.write_table(table)

    def _open(self, schema: Any) -> Any:
        if self._csv:
            delimiter = "\t" if self._path.suffix.lower() == ".tsv" else ","
            options = self._arrow.csv.WriteOptions(delimiter=delimiter)
            return self._arrow.csv.CSVWriter(self._partial, schema, write_options=options)
        return self._arrow.parquet.ParquetWriter(self._partial, schema, write_page_checksum=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._arrow.ArrowException) as error:
            raise InputError(f"{self._path} cannot be written: {error}.") from None

    def finish(self, fingerprint: str) -> None:
        """Add the notes, in a Parquet file or beside another, and put the file in its place."""
        notes = self._notes.to_text(fingerprint)
        with self._writing():
            if not self._csv:
                self._writer.add_key_value_metadata({"slater": notes})
            self._writer.close()
            if self._csv:
                notes_beside(self._path).write_text(notes)
            os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Remove the partial file."""
        if self._writer is not None:
            self._writer.close()
        self._partial.unlink(missing_ok=True)


def _named(prefix: str, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    if array.ndim == 1:
        return {prefix: array}
    return {f"{prefix}_{index}": array[:, index] for index in range(array.shape[1])}
