"""DSRL HDF5 files: seven flat datasets at the root.

observations (N, o), next_observations (N, o), actions (N, a), rewards, costs, terminals, timeouts (N,).
Files written here load in the `dsrl` package, and its files here. What DSRL has no place for goes where
it does not disturb: a root attribute `slater` (JSON: metadata, cost names, fingerprint), and, only where
needed, the datasets `cost_vector` (N, I) for several costs (`costs` is then their sum), `next_known`,
`propensity` (N,), and `source` (N,) with numbers whose names are in `source_names`.

HDF5 is forgiving: a lost chunk reads as zeros and a flipped bit in plain floats as another number. So a
reader here insists on what `hdf5_guard` can check and that all floats have one byte order; a writer here
uses the file format with checksums (metadata: HDF5 1.10 structures; data: Fletcher-32).
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import RAW_FIELDS, Block, Column
from slater.data.findings import Findings
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
    refuse_near_names,
)
from slater.data.formats.hdf5_guard import (
    CarefulFile,
    kept_elsewhere,
    larger_than_stored,
    lost_chunks,
    never_written,
    odd_number_type,
    zeroed_chunk,
)
from slater.data.names import NameCodes, named_codes
from slater.data.tasks import PublishedTask, task_of_file
from slater.errors import InputError

#: The datasets of the DSRL schema.
DSRL_FIELDS = ("observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts")
#: What h5py raises, depending on which byte is wrong.
_H5_ERRORS = (
    zlib.error,
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    MemoryError,
    OverflowError,
)
_CHUNK_ROWS = 8192


class DsrlReader(Reader):
    """Reads a DSRL file block by block; gzip chunks are decompressed as they are needed."""

    format = "dsrl"
    _published: PublishedTask | None = None

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.name = str(path)
        self._path = path
        try:
            # per dataset: enough for the chunks that a block leaves half read, and no more
            self._file = h5py.File(path, "r", rdcc_nbytes=4 * 2**20)
        except _H5_ERRORS as error:
            damaged(path, error, "HDF5 file")
        try:
            self._parts = self._find(options)
            self.columns = {role: self._column(role) for role in self._parts}
            self._read_notes()
        except InputError:
            self.close()
            raise
        except _H5_ERRORS as error:
            self.close()
            damaged(path, error, "HDF5 file")

    def _refuse_other_kinds(self) -> None:
        """A role that is there but is no dataset (a group, a type) must not pass for missing."""
        for role in RAW_FIELDS:
            if role in self._file and not isinstance(self._file[role], h5py.Dataset):
                raise InputError(
                    f"{self._path}: {role} is no dataset; the file is damaged or of another kind."
                )

    def _find(self, options: ReadOptions) -> dict[str, list[h5py.Dataset]]:
        datasets: dict[str, h5py.Dataset] = {}

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                datasets[name] = item

        self._refuse_other_kinds()
        self._file.visititems(visit)
        found = {role: (role,) for role in RAW_FIELDS if role in datasets}
        if "cost_vector" in datasets:
            found["costs"] = ("cost_vector",)
        roles, left_out = mapped_roles(found, options)
        taken = {name for wanted in roles.values() for name in wanted}
        others = (str(name) for name in self._file if name not in taken)
        refuse_near_names(self._path, {*roles, *left_out}, others)
        if not roles:
            raise InputError(
                f"{self._path} is an HDF5 file but holds none of {', '.join(DSRL_FIELDS)} at its root "
                f"(it holds {listing(datasets)}); name its datasets in the column map, ROLE=NAME."
            )
        available = list(datasets)
        return {
            role: [datasets[n] for n in expand_names(role, names, available)] for role, names in roles.items()
        }

    def _column(self, role: str) -> Column:
        parts = self._parts[role]
        for part in parts:
            if part.ndim == 0:
                raise InputError(f"{self._path}: {part.name} is a single value, not one entry per row.")
            if kept_elsewhere(part) or part.file.filename != self._file.filename:
                raise InputError(
                    f"{self._path}: {part.name} lies outside the file, which is refused; write the numbers "
                    "into the file itself."
                )
            if larger_than_stored(part):
                raise InputError(
                    f"{self._path}: {part.name} says it has the shape {part.shape}, but not all of that is "
                    "in the file: damaged."
                )
            if odd_number_type(part):
                raise InputError(
                    f"{self._path}: {part.name} has a number type that no machine uses: damaged."
                )
            if part.dtype.kind == "O":
                raise InputError(
                    f"{self._path}: {part.name} holds text of variable length, which HDF5 keeps without "
                    "checksums; store text of fixed length (dtype 'S32') or whole numbers instead."
                )
        if len(parts) == 1:
            return Column(parts[0].shape[0], parts[0].shape[1:], parts[0].dtype)
        if len({part.shape[0] for part in parts}) > 1:
            raise InputError(f"{self._path}: the datasets of {role} differ in length.")
        width = sum(math.prod(part.shape[1:]) for part in parts)
        return Column(parts[0].shape[0], (width,), np.result_type(*(part.dtype for part in parts)))

    def _read_notes(self) -> None:
        names = [part.name.strip("/") for part in self._parts.get("costs", [])]
        if len(names) > 1:
            self.cost_names = tuple(name.rpartition("/")[2] for name in names)
        task = task_of_file(self._path.name)
        if task is not None:
            self._published = task
            self.metadata = task.metadata()
            self.clips_actions = self.metadata.action_low is not None
        # only text of fixed length, as we write it: HDF5 keeps other text in a heap without a checksum, and
        # one wrong bit in there can make it search forever
        if "slater" not in self._file.attrs or self._file.attrs.get_id("slater").dtype.kind != "S":
            return
        notes = Notes.parse(self._path, bytes(self._file.attrs["slater"]))
        self._published = None  # the file says itself what it is
        self.adopt(notes, own_costs=names in (["costs"], ["cost_vector"]))

    def note(self, findings: Findings) -> None:
        """Check what HDF5 itself does not: chunks that are missing, byte orders that differ."""
        if self._published is not None:
            self._note_widths(self._published, findings)
        orders = set()
        for role, parts in self._parts.items():
            for part in parts:
                try:
                    lost, unwritten = lost_chunks(part), never_written(part)
                except _H5_ERRORS as error:
                    findings.add("error", role, f"cannot be read: {' '.join(str(error).split())[:120]}")
                    continue
                if unwritten and role in ("observations", "next_observations", "actions"):
                    findings.add("error", role, "was created but never written: it would be zeros throughout")
                elif unwritten:
                    findings.add(
                        "warning", role, f"was created but never written: it is {part.fillvalue} in every row"
                    )
                if lost:
                    findings.add("error", role, f"{lost} of its chunks are missing or have a wrong size")
                if part.dtype.kind == "f":
                    orders.add(part.dtype.newbyteorder("=") == part.dtype)
        if len(orders) > 1:
            findings.add(
                "error", "observations", "and other datasets differ in byte order: the file is damaged"
            )

    def _note_widths(self, task: PublishedTask, findings: Findings) -> None:
        """A published name promises a task; another file under it would be trained on as that task."""
        for role, wanted in (("observations", task.observation_dim), ("actions", task.action_dim)):
            column = self.columns.get(role)
            width = None if column is None else math.prod(column.tail)
            if wanted is not None and width not in (None, wanted):
                # its bounds would only repeat the same in other words
                self.metadata = replace(self.metadata, action_low=None, action_high=None)
                self.clips_actions = False
                findings.add(
                    "error",
                    role,
                    f"has {width} entries per row, but the published {task.file} has {wanted}; "
                    "rename the file if it is another dataset",
                )

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Blocks of whole chunks, so that no chunk is decompressed twice."""
        size = min(column.rows or 0 for column in self.columns.values())
        heights = [part.chunks[0] for part in self._parts["observations"] if part.chunks is not None]
        height = max(heights, default=1)
        if height <= rows:
            rows = rows // height * height
        names = self._source_names()
        for start in range(0, size, rows):
            block: dict[str, NDArray[Any]] = {}
            for role, parts in self._parts.items():
                try:
                    arrays = [part[start : min(start + rows, size)] for part in parts]
                    zeroed = [zeroed_chunk(part, start, a) for part, a in zip(parts, arrays, strict=True)]
                except _H5_ERRORS as error:
                    damaged(f"{self._path}, dataset {role}, rows from {start}", error, "HDF5 file")
                for corner in zeroed:
                    if corner is not None:
                        raise InputError(
                            f"{self._path}: {role} reads as zeros at {corner} but is not: damaged."
                        )
                if len(arrays) == 1:
                    block[role] = arrays[0]
                else:
                    block[role] = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
            if names is not None:
                block["source"] = named_codes(block["source"], names)
            yield block

    def _source_names(self) -> NDArray[Any] | None:
        """The names of the numbers in `source`, where the file has them."""
        own = [part.name for part in self._parts.get("source", [])] == ["/source"]
        if not own or "source_names" not in self._file:
            return None
        try:
            dataset = self._file["source_names"]
            whole = dataset.dtype.kind == "S" and dataset.ndim == 1 and not kept_elsewhere(dataset)
            if not whole or lost_chunks(dataset):
                raise InputError(f"{self._path}: source_names must be text of fixed length, one per source.")
            names: NDArray[Any] = dataset[:]
        except _H5_ERRORS as error:
            damaged(f"{self._path}, dataset source_names", error, "HDF5 file")
        return names

    def close(self) -> None:
        """Close the HDF5 file."""
        self._file.close()


class DsrlWriter(Writer):
    """Writes a DSRL file under a temporary name and renames it when it is whole."""

    def __init__(self, path: Path, notes: Notes) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._notes = notes
        self._size = 0
        self._sources = NameCodes()
        try:
            self._bytes = CarefulFile(self._partial)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None
        self._file = h5py.File(self._bytes, "w", libver=("v110", "v110"))

    def write(self, rows: Block) -> None:
        """Append rows to every dataset."""
        several = len(self._notes.cost_names) > 1
        costs = rows["costs"]
        out: Block = {name: rows[name] for name in DSRL_FIELDS if name != "costs"}
        out["costs"] = costs.sum(axis=1, dtype=np.float32) if several else costs[:, 0]
        if several:
            out["cost_vector"] = costs
        self._append(out, "next_known", rows["next_known"])
        if "propensity" in rows:
            out["propensity"] = rows["propensity"]
        if "source" in rows:
            out["source"] = self._sources.encode(rows["source"])
        for name, array in out.items():
            self._extend(name, array)
        self._size += len(rows["rewards"])

    def _append(self, out: Block, name: str, known: NDArray[np.bool_]) -> None:
        """`next_known` is written only from the first row where it is False; before, it is all True."""
        if name in self._file:
            out[name] = known
        elif not known.all():
            if self._size:
                self._extend(name, np.ones(self._size, dtype=np.bool_))
            out[name] = known

    def _extend(self, name: str, array: NDArray[Any]) -> None:
        if name not in self._file:
            self._file.create_dataset(
                name,
                data=array,
                maxshape=(None, *array.shape[1:]),
                chunks=(_CHUNK_ROWS, *array.shape[1:]),
                compression="gzip",
                compression_opts=4,
                shuffle=True,
                fletcher32=True,
            )
        else:
            dataset = self._file[name]
            before = dataset.shape[0]
            dataset.resize(before + len(array), axis=0)
            dataset[before:] = array
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._bytes.error
        if error is not None:
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}.")

    def finish(self, fingerprint: str) -> None:
        """Write the attribute and put the file in its place."""
        if self._sources.names:
            names = [name.encode() for name in self._sources.names]
            self._extend("source_names", np.array(names, dtype=f"S{max(map(len, names))}"))
        self._file.attrs["slater"] = np.bytes_(self._notes.to_text(fingerprint))
        self._file.close()
        self._raise_error()
        self._bytes.close()
        try:
            os.replace(self._partial, self._path)
        except OSError as error:
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}.") from None

    def abandon(self) -> None:
        """Remove the partial file."""
        self._file.close()
        self._bytes.close()
        self._partial.unlink(missing_ok=True)
