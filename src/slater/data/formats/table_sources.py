"""Tables as people have them, behind one interface: names, types, and rows in batches of Arrow.

CSV in the dialects that programs write (commas, semicolons, tabs or bars between columns; decimal points or
commas; UTF-8, UTF-16 or latin-1; compressed or not), Parquet files and folders of them, JSON lines, Feather,
Excel sheets, and frames in memory (pandas, Polars, Arrow).
"""

from __future__ import annotations

import codecs
import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slater.data.formats.base import damaged, listing
from slater.data.formats.table_layout import folder_keys, parquet_files, pyarrow
from slater.errors import InputError, optional

for _name in ("cp1252", "latin-1", "utf-16"):
    codecs.lookup(_name)  # loaded now: what a file says must not decide what code is loaded
_SNIFFED = 2**18
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
#: types that text is read as, by column; record batches of Arrow
Types = Mapping[str, Any] | None
Rows = Iterator[Any]
Names = Sequence[str]


class TableSource(ABC):
    """An open table. rows: how many, None if not known yet. recognised: what was found of its form."""

    name: str
    kind: str
    rows: int | None = None
    recognised: tuple[str, ...] = ()
    #: of each file that the table is made of: what a person calls it, and its columns with their types
    schemas: list[tuple[str, Any]]

    @property
    def schema(self) -> Any:
        """The columns with their types, as Arrow has them."""
        return self.schemas[0][1]

    @property
    def parts(self) -> int:
        """How many files the table is made of."""
        return len(self.schemas)

    @abstractmethod
    def batches(self, rows: int, columns: Names, types: Types = None, part: int | None = None) -> Rows:
        """Record batches of the wanted columns; types: what text is read as; part: of one file only."""


class MemorySource(TableSource):
    """A table that is in memory already."""

    kind = "table"

    def __init__(self, name: str, table: Any, recognised: tuple[str, ...] = ()) -> None:
        self.name, self._table, self.recognised = name, table, recognised
        self.rows, self.schemas = table.num_rows, [(name, table.schema)]

    def batches(self, rows: int, columns: Names, types: Types = None, part: int | None = None) -> Rows:
        """Slices of the table."""
        yield from self._table.select(list(columns)).combine_chunks().to_batches(max_chunksize=rows)


class ParquetSource(TableSource):
    """A Parquet file, or a folder of them as one table: in the order of names, folders' keys as columns."""

    kind = "parquet"

    def __init__(self, path: Path) -> None:
        self._arrow, self.name, self._path = pyarrow(), str(path), path
        self._files = parquet_files(path) if path.is_dir() else [path]
        self.schemas, self.rows = [], 0
        for file in self._files:
            with self._arrow.parquet.ParquetFile(file, page_checksum_verification=True) as opened:
                own = opened.schema_arrow.remove_metadata()
                for name, value in folder_keys(path, file).items():
                    if name not in own.names:
                        own = own.append(self._arrow.field(name, self._arrow.scalar(value).type))
                self.rows += opened.metadata.num_rows
            if self.schemas and set(own.names) != set(self.schema.names):
                raise InputError(
                    f"{file} has other columns than {self._files[0]}: {listing(own.names)}; give all files "
                    "the same columns, or one of them by its own path."
                )
            self.schemas.append((str(file), own))
        self.recognised = (f"{len(self._files)} Parquet files",) if len(self._files) > 1 else ()

    def notes(self) -> bytes | None:
        """What our writer put into the schema; of a folder nothing, since each file has notes of its own."""
        if self._path.is_dir():
            return None
        with self._arrow.parquet.ParquetFile(self._path) as file:
            return (file.metadata.metadata or {}).get(b"slater")

    def batches(self, rows: int, columns: Names, types: Types = None, part: int | None = None) -> Rows:
        """Batches as the files have them."""
        for path in self._files if part is None else [self._files[part]]:
            keys = folder_keys(self._path, path)
            with self._arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                own = [name for name in columns if name in file.schema_arrow.names]
                # a list column is named by its path in the file, so all columns are asked for if there is one
                nested = any(self._arrow.types.is_nested(file.schema_arrow.field(name).type) for name in own)
                only = None if nested else own
                for batch in file.iter_batches(batch_size=rows, columns=only, use_threads=False):
                    for name in columns:
                        if name not in own:
                            constant = self._arrow.repeat(self._arrow.scalar(keys[name]), batch.num_rows)
                            batch = batch.append_column(name, constant)
                    yield batch


class CsvSource(TableSource):
    """A text file with a line per row; its dialect is told from its beginning."""

    kind = "csv"

    def __init__(self, path: Path) -> None:
        self._arrow, self.name, self._path = pyarrow(), str(path), path
        self._packed = _packed(path)
        with self._arrow.input_stream(str(path), compression=self._packed) as stream:
            start = stream.read(_SNIFFED)
        self._encoding = _encoding_of(start)
        text = start.decode(self._encoding, errors="ignore").lstrip("\ufeff")
        lines = text.splitlines()[: -1 if len(start) == _SNIFFED else None]
        self._skipped = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
        lines = lines[self._skipped :]
        self._delimiter = _delimiter_of(lines, "\t" if ".tsv" in path.name.lower() else ",")
        rows = csv.reader(lines[1:], delimiter=self._delimiter)
        cells = [cell.strip() for row in rows for cell in row]
        marks = {m[1] for m in (re.fullmatch(r"[+-]?\d*([.,])\d+([eE][+-]?\d+)?", c) for c in cells) if m}
        self.decimal = "," if marks == {","} else "."
        self.recognised = self._said(path)
        self.schemas = [(self.name, self._open({}).schema)]

    def _said(self, path: Path) -> tuple[str, ...]:
        between = {",": "", ";": "semicolons", "\t": "tabs", "|": "bars"}
        phrases = [
            f"compressed ({self._packed})" if self._packed else "",
            "" if self._encoding == "utf-8" else f"text in {self._encoding}",
            between[self._delimiter] and f"{between[self._delimiter]} between columns",
            "decimal commas" if self.decimal == "," else "",
            f"{self._skipped} line{'s' * (self._skipped > 1)} of comments" if self._skipped else "",
        ]
        return tuple(word for word in phrases if word)

    @property
    def nulls(self) -> set[str]:
        """What stands for a missing value."""
        return set(self._arrow.csv.ConvertOptions().null_values)

    def _open(self, types: Mapping[str, Any]) -> Any:
        arrow = self._arrow.csv
        return arrow.open_csv(
            self._arrow.input_stream(str(self._path), compression=self._packed),
            read_options=arrow.ReadOptions(
                use_threads=False, block_size=8 * 2**20, encoding=self._encoding, skip_rows=self._skipped
            ),
            parse_options=arrow.ParseOptions(delimiter=self._delimiter),
            convert_options=arrow.ConvertOptions(column_types=dict(types), decimal_point=self.decimal),
        )

    def batches(self, rows: int, columns: Names, types: Types = None, part: int | None = None) -> Rows:
        """Blocks of some megabytes; what `types` name is read so, and no odd block changes its type."""
        for batch in self._open(types or {}):
            yield batch.select(list(columns))


def _packed(path: Path) -> str | None:
    """How a file is compressed, by its first bytes, whatever its name says."""
    with open(path, "rb") as file:
        first = file.read(4)
    known = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
    return next((name for mark, name in known.items() if first.startswith(mark)), None)


def _encoding_of(start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if len(start) > 8 and start[1:200:2].count(0) > len(start[1:200:2]) // 2:
        return "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return "cp1252" if not set(start) & {0x81, 0x8D, 0x8F, 0x90, 0x9D} else "latin-1"
    return "utf-8"


def _delimiter_of(lines: Sequence[str], usual: str) -> str:
    """The character that divides the header, and the lines below as often; the usual one where none does."""
    best, most = usual, 0.0
    for mark in ("\t", ";", "|", ","):
        widths = {len(row) for row in csv.reader(lines[:50], delimiter=mark) if row}
        count = max(widths, default=1) - 1 if len(widths) == 1 else (lines[0].count(mark) if lines else 0) / 2
        if count > most or (count == most and mark == usual):
            best, most = mark, count
    return best


def table_source(table: Any) -> TableSource:
    """The source for a path, or for a frame in memory."""
    arrow = pyarrow()
    if not isinstance(table, str | Path):
        return _frame(arrow, table)
    path = Path(table)
    kind = next((s.lower() for s in reversed(path.suffixes) if s.lower() not in _COMPRESSED), ".parquet")
    try:
        if kind in (".jsonl", ".ndjson"):
            with arrow.input_stream(str(path), compression=_packed(path)) as stream:
                return MemorySource(str(path), arrow.json.read_json(stream), ("JSON lines",))
        if kind in (".feather", ".arrow"):
            return MemorySource(str(path), arrow.feather.read_table(str(path)), ("Feather",))
        if kind == ".xlsx":
            return _excel(arrow, path)
        return CsvSource(path) if kind in (".csv", ".tsv", ".txt") else ParquetSource(path)
    except InputError:
        raise
    except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        if kind in (".jsonl", ".ndjson"):
            whole = (
                "write each row as a JSON object on a line of its own (pandas: orient='records', lines=True)"
            )
            damaged(path, error, "file of JSON lines", whole)
        words = {".csv": "CSV table", ".tsv": "CSV table", ".xlsx": "Excel sheet"}
        damaged(path, error, words.get(kind, "Parquet file"))


def _frame(arrow: Any, frame: Any) -> TableSource:
    """A frame as an Arrow table; without a copy where its library can give one."""
    what = f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
    if hasattr(frame, "collect") and hasattr(frame, "lazy"):  # Polars: a query that was not run yet
        frame = frame.collect()
    try:
        table = arrow.Table.from_pylist(frame) if isinstance(frame, list) else arrow.table(frame)
    except (arrow.ArrowException, TypeError, ValueError) as error:
        detail = " ".join(str(error.args[-1] if error.args else error).split())[:200]
        raise InputError(
            f"The {what} cannot be read as a table ({detail}); "
            "give each column one kind of values, and a name of its own."
        ) from None
    # numbers of rows that somebody filtered or sorted: nobody named them
    table = table.drop_columns([n for n in table.column_names if str(n).startswith("__index_level_")])
    for place, field in enumerate(table.schema):
        if arrow.types.is_dictionary(field.type):  # of Polars: views, which Arrow cannot take apart
            chunks = [(c.indices, c.dictionary.cast(arrow.string())) for c in table.column(place).chunks]
            plain = [arrow.DictionaryArray.from_arrays(*chunk) for chunk in chunks]
            table = table.set_column(place, field.name, arrow.chunked_array(plain))
    names = () if hasattr(frame, "column_names") else getattr(frame, "columns", ())
    if not all(isinstance(name, str) for name in names):
        raise InputError(
            f"The {what} has columns whose names are no text; name them first: frame.columns = [...]."
        )
    return MemorySource("the table", table, (what,))


def _excel(arrow: Any, path: Path) -> TableSource:
    openpyxl = optional("openpyxl", f"{path}: Excel sheets need openpyxl", "excel")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        rows = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
        several = f"the first of {len(book.worksheets)} Excel sheets, {sheet.title!r}"
        phrases = ("Excel" if len(book.worksheets) == 1 else several,)
        book.close()
    except Exception as error:  # zip, XML and openpyxl raise many kinds on damaged input
        damaged(path, error, "Excel sheet")
    if not rows:
        raise InputError(f"{path}: its first sheet is empty; put the table into the first sheet.")
    header = [str(cell).strip() if cell is not None else "" for cell in rows[0]]
    named, columns = [(place, name) for place, name in enumerate(header) if name], []
    for place, name in named:
        cells = [row[place] if place < len(row) else None for row in rows[1:]]
        try:
            columns.append(arrow.array(cells))
        except arrow.ArrowException:
            odd = [cell for cell in cells if not isinstance(cell, int | float | None)]
            if any(isinstance(cell, int | float) for cell in cells):
                raise InputError(
                    f"{path}: the column {name!r} mixes numbers with {odd[0]!r}; correct these cells."
                ) from None
            raise InputError(f"{path}: the column {name!r} mixes kinds of cells; give it one kind.") from None
    return MemorySource(str(path), arrow.table(columns, [name for _, name in named]), phrases)
