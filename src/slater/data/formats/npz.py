"""NumPy archives: one array per column, under the names of the roles; read and written in memory.

Sources are numbers (`source`) with their names in `source_names`; text per row is read as well. A text
entry `slater` holds JSON (metadata, cost names, fingerprint). Zip checksums guard the contents, and
nothing is unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import RAW_FIELDS, Block, Column
from slater.data.formats.base import (
    BLOCK_ROWS,
    Notes,
    Reader,
    ReadOptions,
    Writer,
    damaged,
    expand_names,
    listing,
    mapped_roles,
    side_by_side,
)
from slater.data.names import NameCodes, named_codes
from slater.disk import writing
from slater.errors import InputError


class NpzReader(Reader):
    """Reads an `.npz` archive, compressed or not, into memory."""

    format = "npz"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.name = str(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                if isinstance(archive, np.ndarray):
                    raise InputError(
                        f"{path} holds one array; save the columns with np.savez(path, observations=...)."
                    )
                names = list(archive.files)
                found = {role: (role,) for role in RAW_FIELDS if role in names}
                roles = mapped_roles(path, found, options, names)
                _refuse_bomb(path, archive, {name for wanted in roles.values() for name in wanted})
                self._arrays = {}
                for role, wanted in roles.items():
                    parts = [archive[name] for name in expand_names(role, wanted, names)]
                    if len({part.shape[:1] for part in parts}) > 1:
                        raise InputError(
                            f"The columns of {role} differ in length; they must have one entry per row."
                        )
                    self._arrays[role] = side_by_side(parts)
                if roles.get("source") == ("source",) and "source_names" in names:
                    self._arrays["source"] = named_codes(self._arrays["source"], archive["source_names"])
                text = str(archive["slater"][()]) if "slater" in names else None
        except InputError:
            raise
        except Exception as error:  # zip, zlib, tokenize and NumPy raise many kinds on damaged input
            damaged(path, error, "NumPy archive")
        if not self._arrays:
            raise InputError(f"{path} holds {listing(names)}; name its arrays in the column map, ROLE=NAME.")
        for role, array in self._arrays.items():
            if array.ndim == 0:
                raise InputError(f"{path}: {role} is a single value, not one entry per row.")
        self.columns = {role: Column(len(a), a.shape[1:], a.dtype) for role, a in self._arrays.items()}
        costs = roles.get("costs", ())
        if len(costs) > 1:
            self.cost_names = tuple(name.rpartition("/")[2] for name in costs)
        if text is not None:
            self.adopt(Notes.parse(path, text), own_costs=list(costs) == ["costs"])

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Slices of the arrays, without copies."""
        size = min(len(array) for array in self._arrays.values())
        for start in range(0, size, rows):
            yield {role: array[start : min(start + rows, size)] for role, array in self._arrays.items()}


#: Arrays that unpack to more than so many bytes, and so many times the archive's size, are not unpacked.
_MOST_BYTES, _MOST_RATIO = 2**26, 100


def _refuse_bomb(path: Path, archive: Any, wanted: set[str]) -> None:
    """Refuse an archive of a megabyte that would take all memory."""
    size = path.stat().st_size
    unpacked = sum(
        entry.file_size for entry in archive.zip.infolist() if entry.filename.removesuffix(".npy") in wanted
    )
    if unpacked > max(_MOST_BYTES, _MOST_RATIO * size):
        raise InputError(
            f"{path} has {size:,} bytes and unpacks to {unpacked:,}, more than {_MOST_RATIO} times that; if "
            "it is meant so, save it without compression (np.savez) or convert what made it to a .store."
        )


class NpzWriter(Writer):
    """Collects rows in memory and writes a compressed archive at the end."""

    def __init__(self, path: Path, notes: Notes) -> None:
        super().__init__(path, notes)
        self._blocks: list[Block] = []

    def write(self, rows: Block) -> None:
        """Keep rows."""
        self._blocks.append(rows)

    def finish(self, fingerprint: str) -> None:
        """Write the archive under a temporary name, then rename it."""
        names = [name for name in self._blocks[0] if name != "source"]
        arrays = {name: np.concatenate([block[name] for block in self._blocks]) for name in names}
        if "source" in self._blocks[0]:
            codes = NameCodes()
            arrays["source"] = np.concatenate([codes.encode(block["source"]) for block in self._blocks])
            arrays["source_names"] = np.array(codes.names)
        if arrays["next_known"].all():
            del arrays["next_known"]
        notes = self._notes.to_text(fingerprint)
        with writing(self._path):
            try:
                with open(self._partial, "wb") as file:
                    np.savez_compressed(file, allow_pickle=False, slater=np.array(notes), **arrays)
                os.replace(self._partial, self._path)
            finally:
                self._partial.unlink(missing_ok=True)
