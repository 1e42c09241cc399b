"""The reader of Parquet and CSV: one row per step, columns found by name or by a small column map.

Without a map these names are looked for: obs_*, action or action_*, reward, cost or cost_*, terminal,
timeout, episode, next_obs_*, next_known, propensity, source, and time or timestamp (only checked); the
writers use them. A Parquet column may also be a list per row, and a folder of Parquet files is one table:
its files in the order of their names, with the keys of folders such as day=3 as columns. The notes
(metadata, cost names, fingerprint) are in the schema of a Parquet file, and beside a CSV file
(NAME.csv.json), which has no place for them; a CSV file without notes is read as it is, and its horizon
and bounds are told by options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Column
from slater.data.findings import Findings
from slater.data.formats.base import (
    BLOCK_ROWS,
    Notes,
    Reader,
    ReadOptions,
    damaged,
    expand_names,
    listing,
    mapped_roles,
)
from slater.data.formats.table_layout import cost_columns, folder_keys, notes_beside, parquet_files, pyarrow
from slater.data.formats.table_values import (
    entries_of,
    flags_of_text,
    is_number,
    labels_of_text,
    not_numbers,
    times_of,
)
from slater.errors import InputError

__all__ = ["TableReader"]

#: role -> names that are looked for; the first that is present is taken, a plain name before a pattern
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "obs_*"),
    "actions": ("actions", "action", "action_*"),
    "rewards": ("reward", "rewards"),
    "costs": ("cost", "costs", "cost_*"),
    "terminals": ("terminal", "terminals", "terminated"),
    "timeouts": ("timeout", "timeouts", "truncated"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_obs_*"),
    "next_known": ("next_known",),
    "episode": ("episode",),
    "propensity": ("propensity",),
    "source": ("source",),
    "time": ("time", "timestamp"),
}
_TEXT = ("episode", "source", "time")
_FLAGS = ("terminals", "timeouts", "next_known")


class TableReader(Reader):
    """Reads a Parquet or CSV file batch by batch."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._arrow = pyarrow()
        self._path = path
        self.name = str(path)
        self.format = "csv" if path.suffix.lower() in (".csv", ".tsv") else "parquet"
        self._files = parquet_files(path) if path.is_dir() else [path]
        self._roles: dict[str, list[str]] = {}
        self._passed_over: dict[str, list[str]] = {}
        self._restarts = False
        self._schemas: list[Any] = []  # of each file
        self._discrete = options.discrete
        self._bounded = options.action_low is not None
        schema, rows = self._guard(self._schema)
        names = self._guard(lambda: list(schema.names))
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{path}: the column {twice!r} is there twice; rename one.")
        notes = self._read_notes()
        self._roles = self._find(names, options)
        if notes is not None and "costs" not in options.columns:
            own = cost_columns(notes.cost_names)
            if set(own) <= set(names):  # in the order of the notes; numbered columns were sorted
                self._roles["costs"] = own
        if not {"observations", "actions", "rewards", "costs"} & self._roles.keys():
            raise InputError(
                f"{path} has the columns {listing(names)}; say which is which in a column map: "
                "observations=...,... actions=... rewards=... costs=... terminals=... episode=..."
            )
        if self.format == "csv":
            schema = self._guard(lambda: self._csv_reader().schema)
        self.columns = {role: self._column(role, schema, rows) for role in self._roles}
        if len(self._files) > 1 and "episode" in self._roles:
            self._restarts = self._guard(self._labels_restart)
        self.labels = {role: tuple(names) for role, names in self._roles.items() if role not in _FLAGS}
        costs = self._roles.get("costs", [])
        if len(costs) > 1:
            self.cost_names = tuple(name.removeprefix("cost_") for name in costs)
        if notes is not None:
            self.adopt(notes, own_costs="costs" not in options.columns)

    def _read_notes(self) -> Notes | None:
        """What our writers said of the file, in its schema (Parquet) or beside it (CSV)."""
        beside = notes_beside(self._path)
        if self.format == "parquet":
            text = self._guard(self._parquet_notes)
        else:
            text = self._guard(beside.read_bytes) if beside.is_file() else None
        return None if text is None else Notes.parse(self._path, text)

    def _guard(self, action: Any) -> Any:
        """Run something of pyarrow; what it raises on a bad file becomes one sentence."""
        try:
            return action()
        except InputError:
            raise
        except (self._arrow.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
            if self.format == "csv":
                self._explain_text()
            damaged(self._path, error, "CSV table" if self.format == "csv" else "Parquet file")

    def _explain_text(self) -> None:
        """Name the column and row where a CSV table has text in place of a number, if that is wrong."""
        roles = {n: role for role, names in self._roles.items() for n in names}
        numeric = {name: role for name, role in roles.items() if role not in (*_FLAGS, *_TEXT)}
        found: dict[str, tuple[int, str, int]] = {}
        try:
            row = 0
            for batch in self._csv_reader(texts=tuple(numeric)):
                for name in numeric:
                    for place, text in enumerate(batch.column(name).to_pylist()):
                        if text is not None and text.strip() not in self._nulls and not is_number(text):
                            first = found.get(name, (row + place, text, 0))
                            found[name] = (*first[:2], first[2] + 1)
                row += batch.num_rows
        except (self._arrow.ArrowException, OSError, ValueError, KeyError):
            return  # it is not even a table
        for name, (first_row, text, count) in found.items():
            raise InputError(not_numbers(self._path, name, numeric[name], text, first_row, count))

    def _schema(self) -> tuple[Any, int | None]:
        if self.format == "csv":
            return self._csv_reader(first=True).schema, None
        total, schema = 0, None
        for path in self._files:
            with self._arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                own = file.schema_arrow.remove_metadata()
                for name, value in folder_keys(self._path, path).items():
                    if name not in own.names:
                        own = own.append(self._arrow.field(name, self._arrow.scalar(value).type))
                if schema is not None and set(own.names) != set(schema.names):
                    raise InputError(f"{path} has other columns than {self._files[0]}: {listing(own.names)}.")
                self._schemas.append(own)
                schema, total = schema or own, total + file.metadata.num_rows
        return schema, total

    def _parquet_notes(self) -> bytes | None:
        if self._path.is_dir():  # each file has notes of its own, which are not those of the whole
            return None
        with self._arrow.parquet.ParquetFile(self._path) as file:
            found: bytes | None = (file.metadata.metadata or {}).get(b"slater")
        return found

    def _find(self, names: list[str], options: ReadOptions) -> dict[str, list[str]]:
        roles: dict[str, list[str]] = {}
        for role, candidates in _DEFAULTS.items():
            for candidate in candidates:
                matches = [name for name in names if name.startswith(candidate[:-1])]
                if candidate in names:
                    roles[role] = [candidate]
                elif candidate.endswith("*") and matches:
                    roles[role] = expand_names(role, (candidate,), entries_of(matches))
                if role in roles:
                    break
        chosen, _ = mapped_roles(roles, options)
        found = {role: expand_names(role, wanted, names) for role, wanted in chosen.items()}
        read = {name for wanted in found.values() for name in wanted}
        for role, candidates in _DEFAULTS.items():
            if role in found and role not in options.columns:
                prefix = candidates[-1].removesuffix("*")
                like = [
                    n for n in names if candidates[-1] != prefix and n.startswith(prefix) and n not in read
                ]
                self._passed_over |= {role: like} if like else {}
        return found

    def note(self, findings: Findings) -> None:
        """Say which columns with the name of a role were not taken for it."""
        for role, names in self._passed_over.items():
            message = f"not read: {listing(names)}; if that is meant, map it, {role}={','.join(names)}"
            findings.add("warning", role, message)
        if self._restarts:
            message = (
                "the labels begin again in every file of the folder: those of each file count by themselves"
            )
            findings.add("warning", "episode", message)

    def _csv_reader(self, first: bool = False, texts: tuple[str, ...] = ()) -> Any:
        """A streaming CSV reader; numbers are read as such, so that one odd block cannot change a type.

        texts: columns to read as text whatever they hold.
        """
        arrow = self._arrow
        types = {}
        if not first:
            for role, names in self._roles.items():
                if role == "time" or (role == "actions" and len(names) == 1 and not self._continuous):
                    continue
                text = role in (*_FLAGS, "source", "episode")  # 1 and 01 are two labels
                types.update({name: arrow.string() if text else arrow.float64() for name in names})
        types.update({name: arrow.string() for name in texts})
        delimiter = "\t" if self._path.suffix.lower() == ".tsv" else ","
        return arrow.csv.open_csv(
            self._path,
            read_options=arrow.csv.ReadOptions(use_threads=False, block_size=8 * 2**20),
            parse_options=arrow.csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow.csv.ConvertOptions(column_types=types),
        )

    @property
    def _nulls(self) -> set[str]:
        """What stands for a missing value in a CSV file."""
        return set(self._arrow.csv.ConvertOptions().null_values)

    @property
    def _continuous(self) -> bool:
        return self._discrete is False or self._bounded

    def _column(self, role: str, schema: Any, rows: int | None) -> Column:
        types = [schema.field(name).type for name in self._roles[role]]
        lists = [t for t in types if self._is_list(t)]
        if lists:
            if len(types) > 1:
                raise InputError(
                    f"{self._path}: {role} mixes list columns with others; give one list column."
                )
            width = getattr(lists[0], "list_size", None) or self._first_list_width(self._roles[role][0])
            return Column(rows, (width,), np.dtype(lists[0].value_type.to_pandas_dtype()))
        if self.format == "csv" and role in _FLAGS:
            return Column(rows, (), np.dtype(np.float64))
        if role in _TEXT:
            return Column(rows, (), self._number_type(types[0]))
        dtypes = []
        for path, own in zip(self._files, self._schemas or [schema], strict=True):
            for name in self._roles[role]:
                dtypes.append(self._number_type(own.field(name).type))
                if dtypes[-1].kind not in "biuf":
                    raise InputError(not_numbers(path, name, role, self._first_value(name, path), 0, 0))
        tail = () if len(types) == 1 else (len(types),)
        return Column(rows, tail, np.result_type(*dtypes))

    def _number_type(self, kind: Any) -> np.dtype[Any]:
        if self._arrow.types.is_temporal(kind):
            return np.dtype("datetime64[ns]")
        if kind == self._arrow.null():  # a column without any value: NaN in every row
            return np.dtype(np.float64)
        try:
            found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            return np.dtype(object)
        return found

    def _is_list(self, kind: Any) -> bool:
        types = self._arrow.types
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    def _first_value(self, name: str, path: Path) -> str:
        batches = self._batches(1) if self.format == "csv" else self._parquet_batches(path, 1)
        batch = self._guard(lambda: next(batches, None))
        return "" if batch is None or batch.num_rows == 0 else str(batch.column(name)[0].as_py())

    def _first_list_width(self, name: str) -> int:
        for batch in self._batches(1):
            values = batch.column(name)
            if len(values):
                return len(values[0].as_py() or ())
        return 0

    def _batches(self, rows: int) -> Iterator[Any]:
        if self.format == "csv":
            yield from self._csv_reader()
            return
        for path in self._files:
            yield from self._parquet_batches(path, rows)

    def _parquet_batches(self, path: Path, rows: int, only: Sequence[str] = ()) -> Iterator[Any]:
        keys = folder_keys(self._path, path)
        wanted = list(only or dict.fromkeys(name for names in self._roles.values() for name in names))
        with self._arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            own = [name for name in wanted if name in file.schema_arrow.names]
            # a list column is named by its path in the file, so all columns are asked for if there is one
            flat = not any(self._is_list(file.schema_arrow.field(name).type) for name in own)
            batches = file.iter_batches(batch_size=rows, columns=own if flat else None, use_threads=False)
            for batch in batches:
                for name in wanted:
                    if name not in own:
                        constant = self._arrow.repeat(self._arrow.scalar(keys[name]), batch.num_rows)
                        batch = batch.append_column(name, constant)
                yield batch

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Batches as the file gives them."""
        if not self._restarts:
            yield from self._blocks(self._batches(rows))
            return
        for number, path in enumerate(self._files):
            for block in self._blocks(self._parquet_batches(path, rows)):
                labels = [
                    None if label is None else f"{number}/{label}" for label in block["episode"].tolist()
                ]
                yield {**block, "episode": np.array(labels, dtype=object)}

    def _blocks(self, batches: Iterator[Any]) -> Iterator[dict[str, NDArray[Any]]]:
        while True:
            batch = self._guard(lambda: next(batches, None))
            if batch is None:
                return
            if batch.num_rows:
                yield self._guard(partial(self._columns_of, batch))

    def _labels_restart(self) -> bool:
        """Whether the files of a folder number their episodes each by itself, rather than as one table.

        One table cut into files has a label in two files only where one ends and the next begins; and if all
        of it is one label, its files are episodes that nobody numbered.
        """
        seen: set[Any] = set()
        before: Any = None
        for number, path in enumerate(self._files):
            own: dict[Any, None] = {}
            for batch in self._parquet_batches(path, BLOCK_ROWS, self._roles["episode"]):
                own |= dict.fromkeys(batch.column(self._roles["episode"][0]).unique().to_pylist())
            first = next(iter(own), None)
            if number and (seen & (own.keys() - {first}) or (first in seen and first != before)):
                return True
            seen |= own.keys()
            before = list(own)[-1] if own else before
        return len(seen) == 1

    def _columns_of(self, batch: Any) -> dict[str, NDArray[Any]]:
        return {role: self._values(batch, role) for role in self._roles}

    def _values(self, batch: Any, role: str) -> NDArray[Any]:
        parts = []
        for name in self._roles[role]:
            values = batch.column(name)
            if self._is_list(values.type):
                width = self.columns[role].tail[0]
                if values.null_count or any(len(v) != width for v in values):
                    raise InputError(
                        f"{self._path}: the lists of {name} differ in length; each needs {width} numbers."
                    )
                parts.append(values.flatten().to_numpy(zero_copy_only=False).reshape(-1, width))
            elif self.format == "csv" and role in _FLAGS:
                parts.append(flags_of_text(values.to_pylist()))
            elif self.format == "csv" and role == "episode":
                parts.append(labels_of_text(values.to_pylist(), self._nulls))
            elif self._arrow.types.is_temporal(values.type) and not self._arrow.types.is_duration(
                values.type
            ):
                parts.append(times_of(self._arrow, values))
            else:
                array = values.to_numpy(zero_copy_only=False)
                parts.append(array.astype(np.float64) if values.type == self._arrow.null() else array)
        return parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
