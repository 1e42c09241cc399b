"""What HDF5 reads without a word although it is not what was written.

A chunk that its index does not find reads as zeros; a float type with a wrong exponent or byte order reads
as other numbers; a shape of a billion rows keeps libhdf5 busy with chunks that are not there. One flipped bit
is enough for any of these, so a reader has to ask.

And when a write fails inside libhdf5, its objects can no longer be closed: it complains at each of them and
may crash at exit. So a writer gives it a `CarefulFile`, whose writes never fail.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

#: What a dataset that was created and never written may claim to hold, in bytes.
_UNWRITTEN_BYTES = 2**28

#: Groups within groups in an episode, at most.
_DEPTH = 32

#: Filters under which zeros stay zeros, byte by byte: deflate, shuffle, Fletcher-32.
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3


def odd_number_type(dataset: h5py.Dataset) -> bool:
    """Whether the numbers are stored in a way that no machine does, and h5py converts silently."""
    if dataset.dtype.kind not in "biuf":
        return False
    return not dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))


def kept_elsewhere(dataset: h5py.Dataset) -> bool:
    """Whether the numbers lie outside the file: HDF5 would read any file of the machine as a column."""
    return bool(dataset.is_virtual or dataset.external)


def never_written(dataset: h5py.Dataset) -> bool:
    """Whether the dataset was created and nothing was ever stored in it, so that it reads as its fill value.

    That is legal HDF5. Where only some chunks are there, the others count as lost.
    """
    if dataset.size == 0 or dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
        return False
    status = dataset.id.get_space_status()
    return bool(status == h5py.h5d.SPACE_STATUS_NOT_ALLOCATED and dataset.id.get_storage_size() == 0)


def larger_than_stored(dataset: h5py.Dataset) -> bool:
    """Whether the shape promises more than the file can hold, so that reading it would not come to an end.

    A chunk that is not in the file counts as zeros in HDF5, and libhdf5 plans for each of them.
    """
    if not dataset.size:  # None where there is no shape at all
        return False
    nbytes = dataset.size * dataset.id.get_type().get_size()
    if never_written(dataset):
        return bool(nbytes > _UNWRITTEN_BYTES)
    if dataset.chunks is None:
        return bool(dataset.id.get_storage_size() < nbytes)
    return _chunks(dataset) > dataset.id.get_num_chunks()


def _chunks(dataset: h5py.Dataset) -> int:
    """How many chunks the shape asks for."""
    return math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))


def lost_chunks(dataset: h5py.Dataset) -> int:
    """How many chunks are not in the file, or not of the size that their filters give them."""
    if dataset.size == 0 or never_written(dataset):
        return 0
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0)
    if larger_than_stored(dataset):  # not by a look at each: there may be billions
        return _chunks(dataset) - int(dataset.id.get_num_chunks())
    kinds = _filters(dataset)
    nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    lost = 0
    for corner in _corners(dataset):
        found = dataset.id.get_chunk_info_by_coord(corner)
        used = {kind for index, kind in enumerate(kinds) if not found.filter_mask >> index & 1}
        # where nothing compresses, the size is known: compressed bytes must not pass for numbers
        wrong = used <= {_SHUFFLE, _FLETCHER} and found.size != nbytes + 4 * (_FLETCHER in used)
        lost += found.byte_offset is None or wrong
    return lost


def _filters(dataset: h5py.Dataset) -> list[int]:
    plan = dataset.id.get_create_plist()
    return [plan.get_filter(index)[0] for index in range(plan.get_nfilters())]


def _corners(dataset: h5py.Dataset, rows: range | None = None) -> Iterator[tuple[int, ...]]:
    """The first index of each chunk, or of those that overlap some rows."""
    first, *others = (range(0, n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    if rows is not None:
        height = dataset.chunks[0]
        first = range(rows.start // height * height, rows.stop, height)
    return product(first, *others)


def zeroed_chunk(dataset: h5py.Dataset, start: int, values: NDArray[Any]) -> tuple[int, ...] | None:
    """A chunk that was read as all zeros (`values` from row `start`) but holds something else, or None."""
    if dataset.chunks is None or values.size == 0 or dataset.dtype.kind not in "biuf":
        return None
    kinds = _filters(dataset)
    if never_written(dataset) or not set(kinds) <= {_DEFLATE, _SHUFFLE, _FLETCHER}:
        return None
    for corner in _corners(dataset, range(start, start + len(values))):
        first, last = max(corner[0], start), min(corner[0] + dataset.chunks[0], start + len(values))
        others = [slice(c, c + size) for c, size in zip(corner[1:], dataset.chunks[1:], strict=True)]
        if (values[(slice(first - start, last - start), *others)] != 0).any():
            continue
        inside = [slice(0, n - c) for c, n in zip(corner, dataset.shape, strict=True)]
        inside[0] = slice(first - corner[0], last - corner[0])
        if _occupied(dataset, corner, kinds)[tuple(inside)].any():
            return corner
    return None


def _occupied(dataset: h5py.Dataset, corner: tuple[int, ...], kinds: list[int]) -> NDArray[np.bool_]:
    """Which entries of a chunk differ from zero, decoded without the index that HDF5 reads it by."""
    mask, raw = dataset.id.read_direct_chunk(corner)
    used = [kind for index, kind in enumerate(kinds) if not mask >> index & 1]
    for kind in reversed(used):
        if kind == _FLETCHER:
            raw = raw[:-4]
        elif kind == _DEFLATE:
            raw = zlib.decompress(raw)
    stored = np.frombuffer(raw, np.uint8)
    width = dataset.dtype.itemsize
    entries = stored.reshape(width, -1).T if _SHUFFLE in used else stored.reshape(-1, width)
    occupied: NDArray[np.bool_] = entries.any(axis=1).reshape(dataset.chunks)
    return occupied


def check_sizes(item: Any, depth: int = 0) -> None:
    """Refuse what libhdf5 would not finish reading; it is asked before Minari reads a whole episode."""
    if depth > _DEPTH:
        raise ValueError("its groups contain themselves")
    if isinstance(item, h5py.Group):
        for key in item:
            check_sizes(item[key], depth + 1)
    elif isinstance(item, h5py.Dataset) and kept_elsewhere(item):
        raise ValueError(f"{item.name} lies outside the file")
    elif isinstance(item, h5py.Dataset) and larger_than_stored(item):
        shape = f"{item.name} says it has the shape {item.shape}"
        raise ValueError(f"{shape}, but not all of that is in the file")


class CarefulFile(io.FileIO):
    """A new file, readable and writable; `error` is the first thing that went wrong with it, or None.

    What follows an error is dropped, and the caller asks for it when libhdf5 is done.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or keep the error and pretend."""
        size = memoryview(data).nbytes
        if self.error is None:
            try:
                left = memoryview(data).cast("B")
                while left:
                    left = left[super().write(left) :]
            except OSError as error:
                self.error = error
        return size

    def readinto(self, buffer: Any, /) -> int:
        """Read into `buffer`; what was dropped reads as zeros."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, or keep the error and pretend."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
