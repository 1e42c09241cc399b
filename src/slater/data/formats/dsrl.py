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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
    side_by_side,
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
from slater.disk import writing
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
#: What is refused of a dataset, and the words for it.
_REFUSED: tuple[tuple[Callable[[h5py.Dataset], bool], str], ...] = (
    (lambda part: part.ndim == 0, "is a single value, not one entry per row"),
    (kept_elsewhere, "lies outside the file, which is refused; write the numbers into the file itself"),
    (larger_than_stored, "says it has the shape {shape}, but not all of that is in the file: damaged"),
    (odd_number_type, "has a number type that no machine uses: damaged"),
    (
        lambda part: part.dtype.kind == "O",
        "holds text of variable length, which HDF5 keeps without checksums; store text of fixed length "
        "(dtype 'S32') or whole numbers instead",
    ),
)
_CHUNK_ROWS = 8192


class DsrlReader(Reader):
    """Reads a DSRL file block by block; gzip chunks are decompressed as they are needed."""

    format = "dsrl"
    _published: PublishedTask | None = None

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.name = str(path)
        self._path = path
        with ExitStack() as opened:
            try:
                # per dataset: enough for the chunks that a block leaves half read, and no more
                self._file = opened.enter_context(h5py.File(path, "r", rdcc_nbytes=4 * 2**20))
                self._parts = self._find(options)
                self.columns = {role: self._column(role) for role in self._parts}
                self._read_notes()
            except InputError:
                raise
            except _H5_ERRORS as error:
                damaged(path, error, "HDF5 file")
            opened.pop_all()

    def _find(self, options: ReadOptions) -> dict[str, list[h5py.Dataset]]:
        for role in RAW_FIELDS:  # a role that is a group or a type must not pass for missing
            if role in self._file and not isinstance(self._file[role], h5py.Dataset):
                raise InputError(
                    f"{self._path}: {role} is no dataset; the file is damaged or of another kind."
                )
        datasets: dict[str, h5py.Dataset] = {}

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                datasets[name] = item

        self._file.visititems(visit)
        found = {role: (role,) for role in RAW_FIELDS if role in datasets}
        if "cost_vector" in datasets:
            found["costs"] = ("cost_vector",)
        roles = mapped_roles(self._path, found, options, map(str, self._file))
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
            elsewhere = part.file.filename != self._file.filename
            for refused, words in _REFUSED:
                if refused(part) or (elsewhere and refused is kept_elsewhere):
                    raise InputError(f"{self._path}: {part.name} {words.format(shape=part.shape)}.")
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
        for role, part in ((role, part) for role, parts in self._parts.items() for part in parts):
            try:
                lost, unwritten = lost_chunks(part), never_written(part)
            except _H5_ERRORS as error:
                findings.add("error", role, f"cannot be read: {' '.join(str(error).split())[:120]}")
                continue
            if unwritten:
                needed = role in ("observations", "next_observations", "actions")
                what = "would be zeros throughout" if needed else f"is {part.fillvalue} in every row"
                message = f"was created but never written: it {what}"
                findings.add("error" if needed else "warning", role, message)
            if lost:
                findings.add("error", role, f"{lost} of its chunks are missing or have a wrong size")
            if part.dtype.kind == "f":
                orders.add(part.dtype.newbyteorder("=") == part.dtype)
        if len(orders) > 1:
            message = "and other datasets differ in byte order: the file is damaged"
            findings.add("error", "observations", message)

    def _note_widths(self, task: PublishedTask, findings: Findings) -> None:
        """A published name promises a task; another file under it would be trained on as that task."""
        for role, wanted in (("observations", task.observation_dim), ("actions", task.action_dim)):
            width = math.prod(self.columns[role].tail) if role in self.columns else None
            if wanted is not None and width not in (None, wanted):
                # its bounds would only repeat the same in other words
                self.metadata = replace(self.metadata, action_low=None, action_high=None)
                self.clips_actions = False
                message = f"has {width} entries per row, but the published {task.file} has {wanted}; "
                findings.add("error", role, message + "rename the file if it is another dataset")

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Blocks of whole chunks, so that no chunk is decompressed twice."""
        size = min(column.rows or 0 for column in self.columns.values())
        heights = [part.chunks[0] for part in self._parts["observations"] if part.chunks is not None]
        height = max(heights, default=1)
        rows = rows // height * height or rows
        names = self._source_names()
        for start in range(0, size, rows):
            block: dict[str, NDArray[Any]] = {}
            for role, parts in self._parts.items():
                try:
                    arrays = [part[start : min(start + rows, size)] for part in parts]
                    zeroed = [zeroed_chunk(part, start, a) for part, a in zip(parts, arrays, strict=True)]
                except _H5_ERRORS as error:
                    damaged(f"{self._path}, dataset {role}, rows from {start}", error, "HDF5 file")
                for corner in filter(None, zeroed):
                    raise InputError(f"{self._path}: {role} reads as zeros at {corner} but is not: damaged.")
                block[role] = side_by_side(arrays)
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
        super().__init__(path, notes)
        self._size = 0
        self._sources = NameCodes()
        with writing(path):
            self._bytes = CarefulFile(self._partial)
        self._file = h5py.File(self._bytes, "w", libver=("v110", "v110"))

    def write(self, rows: Block) -> None:
        """Append rows to every dataset."""
        several = len(self._notes.cost_names) > 1
        costs, known = rows["costs"], rows["next_known"]
        out: Block = {name: rows[name] for name in DSRL_FIELDS if name != "costs"}
        out["costs"] = costs.sum(axis=1, dtype=np.float32) if several else costs[:, 0]
        if several:
            out["cost_vector"] = costs
        if "next_known" in self._file or not known.all():  # written from the first row where it is False
            if "next_known" not in self._file and self._size:
                self._extend("next_known", np.ones(self._size, dtype=np.bool_))
            out["next_known"] = known
        if "propensity" in rows:
            out["propensity"] = rows["propensity"]
        if "source" in rows:
            out["source"] = self._sources.encode(rows["source"])
        for name, array in out.items():
            self._extend(name, array)
        self._size += len(rows["rewards"])

    def _extend(self, name: str, array: NDArray[Any]) -> None:
        if name not in self._file:
            shape = array.shape[1:]
            packed = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "fletcher32": True}
            room = {"maxshape": (None, *shape), "chunks": (_CHUNK_ROWS, *shape)}
            self._file.create_dataset(name, data=array, **room, **packed)
        else:
            dataset = self._file[name]
            before = dataset.shape[0]
            dataset.resize(before + len(array), axis=0)
            dataset[before:] = array
        self._raise_error()

    def _raise_error(self) -> None:
        with writing(self._path):
            if self._bytes.error is not None:
                raise self._bytes.error

    def finish(self, fingerprint: str) -> None:
        """Write the attribute and put the file in its place."""
        if self._sources.names:
            names = [name.encode() for name in self._sources.names]
            self._extend("source_names", np.array(names, dtype=f"S{max(map(len, names))}"))
        self._file.attrs["slater"] = np.bytes_(self._notes.to_text(fingerprint))
        self._file.close()
        self._raise_error()
        self._bytes.close()
        with writing(self._path):
            os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Remove the partial file."""
        self._file.close()
        self._bytes.close()
        self._partial.unlink(missing_ok=True)
