"""The writer of Parquet and CSV tables, in the columns that `tables` looks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Block
from slater.data.dataset import OPTIONAL_FIELDS
from slater.data.formats.base import Notes, Writer
from slater.data.formats.table_layout import cost_columns, notes_beside, pyarrow
from slater.errors import InputError

__all__ = ["TableWriter"]


class TableWriter(Writer):
    """Writes Parquet (with page checksums) or CSV under a temporary name, then renames it."""

    def __init__(self, path: Path, notes: Notes) -> None:
        self._arrow = pyarrow()
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._csv = path.suffix.lower() in (".csv", ".tsv")
        self._notes = notes
        self._writer: Any = None

    def write(self, rows: Block) -> None:
        """Append rows as a record batch."""
        columns: dict[str, NDArray[Any]] = {}
        for prefix, role in (("obs", "observations"), ("action", "actions")):
            columns |= _named(prefix, rows[role])
        columns["reward"] = rows["rewards"]
        for index, name in enumerate(cost_columns(self._notes.cost_names)):
            columns[name] = rows["costs"][:, index]
        for name in ("terminal", "timeout"):
            columns[name] = rows[name + "s"].astype(np.int8) if self._csv else rows[name + "s"]
        columns |= _named("next_obs", rows["next_observations"])
        columns["next_known"] = rows["next_known"].astype(np.int8) if self._csv else rows["next_known"]
        columns |= {name: rows[name] for name in OPTIONAL_FIELDS if name in rows}
        try:
            table = self._arrow.table(columns)
            if self._writer is None:
                self._writer = self._open(table.schema)
            self._writer.write_table(table)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputError(f"{self._path} cannot be written: {error}.") from None

    def _open(self, schema: Any) -> Any:
        if self._csv:
            delimiter = "\t" if self._path.suffix.lower() == ".tsv" else ","
            options = self._arrow.csv.WriteOptions(delimiter=delimiter)
            return self._arrow.csv.CSVWriter(self._partial, schema, write_options=options)
        return self._arrow.parquet.ParquetWriter(self._partial, schema, write_page_checksum=True)

    def finish(self, fingerprint: str) -> None:
        """Add the notes (Parquet) and put the file in its place."""
        try:
            notes = self._notes.to_text(fingerprint)
            if self._csv:
                self._writer.close()
                notes_beside(self._path).write_text(notes)
            else:
                self._writer.add_key_value_metadata({"slater": notes})
                self._writer.close()
            os.replace(self._partial, self._path)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputError(f"{self._path} cannot be written: {error}.") from None

    def abandon(self) -> None:
        """Remove the partial file."""
        if self._writer is not None:
            self._writer.close()
        self._partial.unlink(missing_ok=True)


def _named(prefix: str, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    if array.ndim == 1:
        return {prefix: array}
    return {f"{prefix}_{index}": array[:, index] for index in range(array.shape[1])}
