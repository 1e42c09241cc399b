"""Which format a file is in, by its name or its first bytes, and the reader or writer for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slater.data.formats.base import Notes, Reader, ReadOptions, Writer
from slater.data.formats.dsrl import DsrlReader, DsrlWriter
from slater.data.formats.minari import MinariReader, MinariWriter, is_minari
from slater.data.formats.npz import NpzReader, NpzWriter
from slater.data.formats.store import StoreReader, StoreWriter, is_store, settle
from slater.data.formats.table_layout import TableWriter, parquet_files
from slater.data.formats.tables import TableReader
from slater.data.remote import is_address, local_copy
from slater.encoding import is_table
from slater.errors import InputError

#: suffix -> format, of files that are read and written
SUFFIXES = {
    **dict.fromkeys((".hdf5", ".h5"), "dsrl"),
    ".npz": "npz",
    **dict.fromkeys((".parquet", ".pq", ".csv", ".tsv"), "table"),
    ".store": "store",
}
#: files that are only read; each may be compressed besides (.csv.gz)
READ_ONLY = dict.fromkeys((".jsonl", ".ndjson", ".feather", ".arrow", ".xlsx"), "table")
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_FORMATS: dict[str, tuple[Callable[[Path, ReadOptions], Reader], Callable[[Path, Notes], Writer]]] = {
    "dsrl": (DsrlReader, DsrlWriter),
    "npz": (NpzReader, NpzWriter),
    "table": (TableReader, TableWriter),
    "store": (StoreReader, StoreWriter),
}
#: first bytes -> format, for files whose name says nothing
_MAGIC = {b"\x89HDF\r\n\x1a\n": "dsrl", b"PAR1": "table"}


def open_reader(path: Any, options: ReadOptions | None = None) -> Reader:
    """Open a file of any known format, found by its name or its first bytes, or a frame in memory; a file at
    an address (`s3://bucket/log.csv`) is copied first.
    """
    options = options or ReadOptions()
    if is_frame(path):
        return TableReader(path, options)
    if not isinstance(path, str | Path):
        raise InputError(
            "data are a path, a pandas, Polars or Arrow table, or columns by name, not "
            f"{type(path).__name__}; arrays go into Dataset.from_arrays, each by its role."
        )
    text = str(path)
    if text.startswith("minari:"):
        return MinariReader(text, options)
    file = local_copy(text) if is_address(path) else Path(path)
    settle(file)
    if not file.exists():
        raise InputError(f"There is no file {path}.")
    if is_store(file):
        return StoreReader(file, options)
    if is_minari(file):
        return MinariReader(text, options)
    if file.is_dir():
        if not parquet_files(file):
            raise InputError(
                f"{path} is a folder, but neither a store nor a Minari dataset, and holds no Parquet files; "
                "give the path of a file."
            )
        return TableReader(file, options)
    if not file.is_file():
        raise InputError(f"{path} is no ordinary file.")
    return _FORMATS[_format_of(file)][0](file, options)


def _format_of(file: Path) -> str:
    try:
        with open(file, "rb") as handle:
            first = handle.read(8)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    if not first:
        raise InputError(f"{file} is empty: nothing was written into it; get or write it again.")
    for magic, kind in _MAGIC.items():
        if first.startswith(magic):
            return kind
    suffix = next((s.lower() for s in reversed(file.suffixes) if s.lower() not in _COMPRESSED), "")
    kind = {**SUFFIXES, **READ_ONLY}.get(suffix, "")
    if not kind and suffix != ".zip" and first.startswith(b"PK\x03\x04"):
        kind = "npz"
    if not kind or kind == "store":
        known = ", ".join((*SUFFIXES, *READ_ONLY))
        old = {".xls": " Save it as .xlsx.", ".zip": " Unpack it first."}.get(suffix, "")
        raise InputError(f"{file} is of no known format; known are {known} and minari:ID.{old}")
    return kind


def is_frame(data: Any) -> bool:
    """Whether data are a table in memory: a pandas, Polars or Arrow one, or columns by name."""
    return not isinstance(data, str | Path) and is_table(data)


def writer_for(path: str | Path, notes: Notes) -> Writer:
    """A writer for the format that the name of `path` says."""
    if str(path).startswith("minari:"):
        return MinariWriter(str(path), notes)
    target = Path(path)
    kind = SUFFIXES.get(target.suffix.lower())
    if kind is None:
        raise InputError(f"The name {path} says no known format; end it in one of {', '.join(SUFFIXES)}.")
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent} to write {target.name} in; make it first.")
    return _FORMATS[kind][1](target, notes)
