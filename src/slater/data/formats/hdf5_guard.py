"""What HDF5 reads without a word although it is not what was written.

A chunk that its index does not find reads as zeros; a float type with a wrong exponent or byte order reads
as other numbers. One flipped bit is enough for either, so a reader has to ask.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

__all__ = ["lost_chunks", "odd_number_type", "zeroed_chunk"]

#: Filters under which zeros stay zeros, byte by byte: deflate, shuffle, Fletcher-32.
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3


def odd_number_type(dataset: h5py.Dataset) -> bool:
    """Whether the numbers are stored in a way that no machine does, and h5py converts silently."""
    if dataset.dtype.kind not in "biuf":
        return False
    return not dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))


def lost_chunks(dataset: h5py.Dataset) -> int:
    """How many chunks are not in the file, or not of the size that their filters give them."""
    if dataset.size == 0:
        return 0
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0)
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
    if any(kind not in (_DEFLATE, _SHUFFLE, _FLETCHER) for kind in kinds):
        return None
    for corner in _corners(dataset, range(start, start + len(values))):
        place = [slice(c, c + size) for c, size in zip(corner, dataset.chunks, strict=True)]
        place[0] = slice(max(corner[0] - start, 0), corner[0] + dataset.chunks[0] - start)
        if not (values[tuple(place)] != 0).any() and _holds_something(dataset, corner, kinds):
            return corner
    return None


def _holds_something(dataset: h5py.Dataset, corner: tuple[int, ...], kinds: list[int]) -> bool:
    """Whether any byte of the chunk, within the shape of the dataset, differs from zero."""
    mask, raw = dataset.id.read_direct_chunk(corner)
    skipped = {index for index in range(len(kinds)) if mask >> index & 1}
    for index in reversed(range(len(kinds))):
        if index in skipped:
            continue
        if kinds[index] == _FLETCHER:
            raw = raw[:-4]
        elif kinds[index] == _DEFLATE:
            raw = zlib.decompress(raw)
    whole = all(c + size <= n for c, size, n in zip(corner, dataset.chunks, dataset.shape, strict=True))
    if whole:
        return bool(np.frombuffer(raw, np.uint8).any())
    # the part of a chunk beyond the shape may hold anything; undo the shuffle to leave it out
    raw_bytes = np.frombuffer(raw, np.uint8)
    shuffled = any(kind == _SHUFFLE and index not in skipped for index, kind in enumerate(kinds))
    width = dataset.dtype.itemsize
    items = raw_bytes.reshape(width, -1).T if shuffled else raw_bytes.reshape(-1, width)
    cells = items.any(axis=1).reshape(dataset.chunks)
    inside = tuple(slice(0, n - c) for c, n in zip(corner, dataset.shape, strict=True))
    return bool(cells[inside].any())
