"""The reader of tables: one row per step, columns found by name or by a small column map.

Without a map these names are looked for: obs_*, action or action_*, reward, cost or cost_*, terminal,
timeout, episode, next_obs_*, next_known, propensity, source, and time or timestamp (only checked); the
writers use them. The names of LeRobot's columns (v3) are known too. A column may also be a list per row.
Observations may be text, flags or times, and actions text: they become numbers by `slater.encoding`, which
the metadata keep. Where the rows come from is the business of `table_sources`. The notes of our writers
(metadata, cost names, fingerprint) are in the schema of a Parquet file, and beside a CSV file, which has no
place for them (NAME.csv.json); a table without notes is read as it is, and its horizon and bounds are told by
options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Column
from slater.data.findings import Findings
from slater.data.formats.base import BLOCK_ROWS, Notes, Reader, ReadOptions, damaged, listing
from slater.data.formats.table_coding import Coding, in_order, is_list
from slater.data.formats.table_layout import cost_columns, find_roles, lerobot_info, notes_beside, pyarrow
from slater.data.formats.table_sources import CsvSource, ParquetSource, table_source
from slater.data.formats.table_values import (
    Survey,
    flags_of_text,
    is_number,
    labels_of_text,
    not_numbers,
    numbers_of,
)
from slater.encoding import as_text
from slater.errors import InputError

_TEXT = ("episode", "source", "time")
_FLAGS = ("terminals", "timeouts", "next_known")


class TableReader(Reader):
    """Reads a table batch by batch: a file, a folder of Parquet files, or a frame in memory."""

    def __init__(self, table: Path | Any, options: ReadOptions) -> None:
        self._arrow, self._source = pyarrow(), table_source(table)
        self.name, self.format = self._source.name, self._source.kind
        self._roles: dict[str, list[str]] = {}
        self._coding = Coding()
        self._restarts = False
        self._amounts = options.discrete is False or options.action_low is not None
        self._schema, names = self._source.schema, list(self._source.schema.names)
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{self.name}: the column {twice!r} is there twice; rename one.")
        if names and names[0].lstrip().lower().startswith(("<html", "<!doctype", "<?xml")):
            raise InputError(
                f"{self.name} is a page of the web, not a table; where it is from may ask to sign in first."
            )
        if 2 * sum(map(is_number, names)) > len(names):
            raise InputError(
                f"{self.name}: its first line is {listing(names)}, which are no names of columns; add a line "
                "with names above it."
            )
        notes = self._read_notes(table)
        self._roles, self._passed_over = find_roles(names, options)
        if notes is not None and "costs" not in options.columns:
            own = cost_columns(notes.cost_names)
            if set(own) <= set(names):  # in the order of the notes; numbered columns were sorted
                self._roles["costs"] = own
        if not {"observations", "actions", "rewards", "costs"} & self._roles.keys():
            raise InputError(
                f"{self.name} has the columns {listing(names)}; say which is which in a column map: "
                "observations=...,... actions=... rewards=... costs=... terminals=... episode=..."
            )
        encoded = notes is None or "observations" in options.columns
        if encoded and "observations" in self._roles:
            self._roles["observations"] = in_order(self._roles["observations"], options.like)
        decide = partial(Coding.of, encoded=encoded, amounts=self._amounts, like=options.like)
        self._coding = self._guard(partial(decide, self._source, self._roles))
        self.columns = {role: self._column(role) for role in self._roles}
        if self._source.parts > 1 and "episode" in self._roles:
            self._restarts = self._guard(self._labels_restart)
        self.labels = {role: tuple(names) for role, names in self._roles.items() if role not in _FLAGS}
        if isinstance(table, Path) and (frames := lerobot_info(table).get("fps")):
            self.metadata = replace(self.metadata, step=1.0 / float(frames))
        costs = self._roles.get("costs", [])
        if len(costs) > 1:
            self.cost_names = tuple(name.removeprefix("cost_") for name in costs)
        if notes is not None:
            self.adopt(notes, own_costs="costs" not in options.columns)
        self._name_entries(encoded, notes is None or "actions" in options.columns)

    def _name_entries(self, encoded: bool, acted: bool) -> None:
        """Put what the columns are called, and how they were encoded, into the metadata."""
        actions, told = self._roles.get("actions", []), self.metadata
        if encoded and self._coding.encodings:
            entries = tuple(entry for encoding in self._coding.encodings for entry in encoding.entries)
            self.labels = {**self.labels, "observations": entries, "next_observations": entries}
            told = replace(told, columns=tuple(self._coding.encodings))
        choices = self._coding.choices
        if choices:
            self.discrete = True
            told = replace(told, action_names=choices, num_actions=told.num_actions or len(choices))
        elif acted and actions and not is_list(self._field(actions[0])):
            told = replace(told, action_names=tuple(actions))
        self.metadata = told
        phrases = [", ".join(self._source.recognised)] if self._source.recognised else []
        odd = [str(encoding) for encoding in self._coding.encodings if encoding.kind != "number"]
        phrases += [f"as numbers: {', '.join(odd)}"] if odd else []
        phrases += [f"actions are {len(choices)} choices: {listing(choices)}"] if choices else []
        self.recognised = "; ".join(phrases)

    def _read_notes(self, table: Path | Any) -> Notes | None:
        """What our writers phrases of the file, in its schema (Parquet) or beside it (CSV)."""
        text = None
        if isinstance(self._source, ParquetSource):
            text = self._guard(self._source.notes)
        elif isinstance(self._source, CsvSource) and notes_beside(table).is_file():
            text = self._guard(notes_beside(table).read_bytes)
        return None if text is None else Notes.parse(self.name, text)

    def _guard(self, action: Any) -> Any:
        """Run something of pyarrow; what it raises on a bad file becomes one sentence."""
        try:
            return action()
        except InputError as error:
            raise error if str(error).startswith(self.name) else InputError(f"{self.name}: {error}") from None
        except (self._arrow.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
            if isinstance(self._source, CsvSource):
                self._explain_text(self._source)
            kinds = {"csv": "CSV table", "parquet": "Parquet file"}
            damaged(self.name, error, kinds.get(self.format, "table"))

    def _explain_text(self, source: CsvSource) -> None:
        """Name the column and row where a CSV table has text in place of a number, if that is wrong."""
        roles = {n: role for role, names in self._roles.items() for n in names}
        coded = {encoding.name for encoding in self._coding.encodings if encoding.kind != "number"}
        numeric = {n: role for n, role in roles.items() if role not in (*_FLAGS, *_TEXT) and n not in coded}
        found: dict[str, list[tuple[int, str]]] = {}
        texts, row = dict.fromkeys(numeric, self._arrow.string()), 0
        try:
            for batch in source.batches(BLOCK_ROWS, list(numeric), texts):
                for name in numeric:
                    for place, text in enumerate(batch.column(name).to_pylist(), row):
                        if (text or "").strip() not in source.nulls and not is_number(text, source.decimal):
                            found.setdefault(name, []).append((place, text))
                row += batch.num_rows
        except (self._arrow.ArrowException, OSError, ValueError, KeyError):
            return  # it is not even a table
        for name, odd in found.items():
            raise InputError(not_numbers(self.name, name, numeric[name], odd[0][1], odd[0][0], len(odd)))

    def note(self, findings: Findings) -> None:
        """Say which columns with the name of a role were not taken for it."""
        for role, names in self._passed_over.items():
            message = f"not read: {listing(names)}; if that is meant, map it, {role}={','.join(names)}"
            findings.add("warning", role, message)
        roles = [role for role in self._roles if role not in ("next_observations", "episode", "time")]
        for role, other in combinations(roles, 2):
            if both := sorted(set(self._roles[role]) & set(self._roles[other])):
                findings.add("warning", role, f"and {other} are both read from {listing(both)}")
        for encoding in self._coding.encodings:
            if len({value.lower() for value in encoding.values}) < len(encoding.values):
                alike = f"has values that differ in capitals only: {listing(encoding.values)}"
                findings.add("warning", "observations", f"the column {encoding.name!r} {alike}")
        if self._restarts:
            message = "the labels begin again in every file of the folder: those of each file count by"
            findings.add("warning", "episode", f"{message} themselves")

    # -- types -----------------------------------------------------------------------------------------------

    def _field(self, name: str) -> Any:
        return self._schema.field(name).type

    def _read_types(self) -> dict[str, Any]:
        """What the text of a CSV file is read as: numbers as such, so that one odd block changes no type."""
        types: dict[str, Any] = {}
        text, number = self._arrow.string(), self._arrow.float64()
        coded = dict(zip(self._roles.get("observations", []), self._coding.encodings, strict=False))
        coded |= dict(zip(self._roles.get("next_observations", []), self._coding.encodings, strict=False))
        for role, names in self._roles.items():
            for name in names:
                kind = coded[name].kind if name in coded else "number"
                if role in (*_FLAGS, "source", "episode") or kind in ("flag", "category"):
                    types[name] = text  # 1 and 01 are two labels
                elif kind == "cycle":
                    types[name] = self._field(name)
                elif role == "actions" and self._coding.choices:
                    types[name] = text
                elif role == "actions" and len(names) == 1 and not (self._amounts or self._odd(name)):
                    continue  # whole or not: as it is found
                elif role != "time":
                    types[name] = number
        return types

    @property
    def _coded(self) -> bool:
        """Whether observations are more than the numbers of their columns."""
        coding = self._coding
        return bool(coding.parsed) or any(one.kind != "number" for one in coding.encodings)

    def _odd(self, name: str) -> bool:
        """Whether a column holds text that is not what it is read as."""
        return Survey.text(self._arrow.types, self._field(name))

    def _column(self, role: str) -> Column:
        names, rows = self._roles[role], self._source.rows
        lists = [self._field(name) for name in names if is_list(self._field(name))]
        if lists:
            if len(names) > 1:
                raise InputError(f"{self.name}: {role} mixes list columns with others; give one list column.")
            width = getattr(lists[0], "list_size", None) or self._first_list_width(names[0])
            return Column(rows, (width,), np.dtype(lists[0].value_type.to_pandas_dtype()))
        if role in _TEXT:
            return Column(rows, (), self._number_type(self._field(names[0])))
        texts = role in _FLAGS or (role == "actions" and bool(self._coding.choices))
        if role in ("observations", "next_observations") and self._coded:
            width = sum(len(encoding.entries) for encoding in self._coding.encodings)
            if len(names) == len(self._coding.encodings):
                return Column(rows, (width,), np.dtype(np.float64))
        if texts and (self.format == "csv" or Survey.text(self._arrow.types, self._field(names[0]))):
            return Column(rows, (), np.dtype(np.float64))
        dtypes = []
        for part, (path, schema) in enumerate(self._source.schemas):
            for name in names:
                kind = self._arrow.float64() if name in self._read_types() and self.format == "csv" else None
                dtypes.append(self._number_type(kind or schema.field(name).type))
                if dtypes[-1].kind not in "biuf":
                    raise InputError(not_numbers(path, name, role, self._first_value(name, part), 0, 0))
        return Column(rows, () if len(names) == 1 else (len(names),), np.result_type(*dtypes))

    def _number_type(self, kind: Any) -> np.dtype[Any]:
        types = self._arrow.types
        if types.is_duration(kind) or types.is_null(kind) or types.is_decimal(kind):  # null: NaN in every row
            return np.dtype(np.float64)
        if types.is_temporal(kind):
            return np.dtype("datetime64[ns]")
        try:
            found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            return np.dtype(object)
        return found

    def _first_value(self, name: str, part: int) -> str:
        batch = self._guard(lambda: next(self._source.batches(1, [name], part=part), None))
        return "" if batch is None or batch.num_rows == 0 else str(batch.column(name)[0].as_py())

    def _first_list_width(self, name: str) -> int:
        for batch in self._source.batches(1, [name]):
            values = batch.column(name)
            if len(values):
                return len(values[0].as_py() or ())
        return 0

    # -- rows ------------------------------------------------------------------------------------------------

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Batches as the table gives them."""
        for part in range(self._source.parts) if self._restarts else (None,):
            for block in self._blocks(rows, part):
                if part is not None:
                    labels = block["episode"].tolist()
                    own = [None if label is None else f"{part}/{label}" for label in labels]
                    block["episode"] = np.array(own, dtype=object)
                yield block

    def _blocks(self, rows: int, part: int | None) -> Iterator[dict[str, NDArray[Any]]]:
        wanted = list(dict.fromkeys(name for names in self._roles.values() for name in names))
        batches = self._guard(lambda: self._source.batches(rows, wanted, self._read_types(), part))
        while (batch := self._guard(lambda: next(batches, None))) is not None:
            if batch.num_rows:
                decoded = partial(self._values, batch)
                yield self._guard(lambda values=decoded: {role: values(role) for role in self._roles})

    def _labels_restart(self) -> bool:
        """Whether the files of a folder number their episodes each by itself, rather than as one table.

        One table cut into files has a label in two files only where one ends and the next begins; and if all
        of it is one label, its files are episodes that nobody numbered.
        """
        (name,), seen, before = self._roles["episode"], set[Any](), None
        for part in range(self._source.parts):
            own: dict[Any, None] = {}
            for batch in self._source.batches(BLOCK_ROWS, [name], part=part):
                own |= dict.fromkeys(batch.column(name).unique().to_pylist())
            first = next(iter(own), None)
            if part and (seen & (own.keys() - {first}) or (first in seen and first != before)):
                return True
            seen |= own.keys()
            before = list(own)[-1] if own else before
        return len(seen) == 1

    def _values(self, batch: Any, role: str) -> NDArray[Any]:
        names = self._roles[role]
        if len(names) == 1 and is_list(batch.column(names[0]).type):
            values, width = batch.column(names[0]), self.columns[role].tail[0]
            if values.null_count or any(len(v) != width for v in values):
                raise InputError(
                    f"{self.name}: the lists of {names[0]} differ in length; each needs {width} numbers."
                )
            return np.asarray(values.flatten().to_numpy(zero_copy_only=False).reshape(-1, width))
        encodings = self._coding.encodings if role in ("observations", "next_observations") else []
        if len(encodings) == len(names) and self._coded:
            pairs = zip(names, encodings, strict=True)
            parts = [e.encode(numbers_of(self._arrow, batch.column(name))) for name, e in pairs]
            return np.concatenate(parts, axis=1)
        columns = []
        for name in names:
            values = batch.column(name)
            if role == "actions" and self._coding.choices:
                place = {choice: float(index) for index, choice in enumerate(self._coding.choices)}
                texts = [as_text(value).strip() for value in values.to_pylist()]
                columns.append(np.array([place.get(text, np.nan) for text in texts]))
            elif role in _FLAGS and Survey.text(self._arrow.types, values.type):
                columns.append(flags_of_text(values.to_pylist()))
            elif role == "episode" and isinstance(self._source, CsvSource):
                columns.append(labels_of_text(values.to_pylist(), self._source.nulls))
            else:
                columns.append(numbers_of(self._arrow, values))
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
