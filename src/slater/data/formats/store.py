"""Stores: uncompressed rows on disk, laid out for random reads.

`slater data convert big.hdf5 big.store` makes a folder with

    rows.npy        one packed record per step (a NumPy structured array; np.load reads it)
    episodes.npz    the table of episodes, and the rows whose next observation is unknown
    notes.json      metadata, cost names, sizes, fingerprint

Records are packed so that a random transition is one read from disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Column, Rows
from slater.data.dataset import ROW_FIELDS, Metadata
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.formats.base import BLOCK_ROWS, Notes, ReadOptions, Sink, Source, damaged
from slater.data.statistics import Statistics, StatisticsBuilder
from slater.errors import InputError

__all__ = ["EPISODE_FIELDS", "HEADER_BYTES", "StoreNotes", "StoreSink", "StoreSource", "is_store"]

_FORMAT = 1
HEADER_BYTES = 4096
EPISODE_FIELDS = ("starts", "stops", "returns", "costs", "terminated", "complete")


def is_store(path: Path) -> bool:
    """Whether a path is a folder made by `slater data convert ... X.store`."""
    return path.is_dir() and (path / "notes.json").is_file()


def _record_type(observation_dim: int, action_dim: int, num_costs: int, *, discrete: bool) -> np.dtype[Any]:
    return np.dtype(
        [
            ("observations", "<f4", (observation_dim,)),
            ("actions", "<i4") if discrete else ("actions", "<f4", (action_dim,)),
            ("rewards", "<f4"),
            ("costs", "<f4", (num_costs,)),
            ("terminals", "?"),
            ("timeouts", "?"),
            ("next_observations", "<f4", (observation_dim,)),
            ("next_known", "?"),
        ]
    )


def _header(dtype: np.dtype[Any], size: int) -> bytes:
    """An .npy header padded to a fixed length, so that the row count can be filled in at the end."""
    text = repr({"descr": dtype.descr, "fortran_order": False, "shape": (size,)})
    return (
        b"\x93NUMPY\x01\x00"
        + (HEADER_BYTES - 10).to_bytes(2, "little")
        + text.encode().ljust(HEADER_BYTES - 11)
        + b"\n"
    )


class StoreSink(Sink):
    """Writes a store beside its final place and renames it when it is whole."""

    def __init__(self, path: Path, notes: Notes) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._notes = notes
        self._counter = EpisodeCounter(len(notes.cost_names))
        self._unknown: list[NDArray[np.int64]] = []
        self._dtype: np.dtype[Any] | None = None
        self._size = 0
        self._statistics = StatisticsBuilder()
        try:
            self._partial.mkdir(parents=True)
            self._file = open(self._partial / "rows.npy", "wb")  # noqa: SIM115 (kept open between writes)
            self._file.write(bytes(HEADER_BYTES))
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from None

    def write(self, rows: Rows) -> None:
        """Append rows as packed records."""
        if self._dtype is None:
            width = 1 if self._notes.discrete else rows["actions"].shape[1]
            self._dtype = _record_type(
                rows["observations"].shape[1],
                width,
                len(self._notes.cost_names),
                discrete=self._notes.discrete,
            )
        records = np.empty(len(rows["rewards"]), dtype=self._dtype)
        for name in ROW_FIELDS:
            records[name] = rows[name]
        self._counter.update(rows)
        self._unknown.append(self._size + np.flatnonzero(~rows["next_known"]))
        self._statistics.update(rows)
        try:
            records.tofile(self._file)
        except OSError as error:
            self.abandon()
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}.") from None
        self._size += len(records)

    def finish(self, fingerprint: str) -> None:
        """Write the header, the episodes and the notes, and put the folder in its place."""
        if self._dtype is None:
            self.abandon()
            raise InputError(f"{self._path} would hold no rows.")
        episodes = self._counter.finish()
        try:
            self._file.seek(0)
            self._file.write(_header(self._dtype, self._size))
            self._file.close()
            np.savez(
                self._partial / "episodes.npz",
                unknown=np.concatenate(self._unknown),
                **{name: getattr(episodes, name) for name in EPISODE_FIELDS},
            )
            notes = {
                "format": _FORMAT,
                "size": self._size,
                "observation_dim": int(self._dtype["observations"].shape[0]),
                "action_dim": 1 if self._notes.discrete else int(self._dtype["actions"].shape[0]),
                "discrete": self._notes.discrete,
                "cost_names": list(self._notes.cost_names),
                "metadata": self._notes.metadata.to_json(),
                "statistics": self._statistics.finish().to_json(),
                "episodes_sha256": _sha256(self._partial / "episodes.npz"),
                "fingerprint": fingerprint,
            }
            (self._partial / "notes.json").write_text(json.dumps(notes, indent=1))
            if self._path.exists():
                shutil.rmtree(self._path)
            os.replace(self._partial, self._path)
        except OSError as error:
            self.abandon()
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}.") from None

    def abandon(self) -> None:
        """Remove the partial folder."""
        self._file.close()
        shutil.rmtree(self._partial, ignore_errors=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class StoreNotes:
    """The checked content of notes.json."""

    size: int
    dtype: np.dtype[Any]
    discrete: bool
    cost_names: tuple[str, ...]
    metadata: Metadata
    statistics: Statistics
    fingerprint: str

    @classmethod
    def read(cls, path: Path) -> tuple[StoreNotes, Episodes, NDArray[np.int64]]:
        """The notes, the table of episodes and the rows whose next observation is unknown, all checked."""
        try:
            record = json.loads((path / "notes.json").read_text())
            if record["format"] != _FORMAT:
                raise InputError(
                    f"{path} has the store format {record['format']}, this version reads {_FORMAT}."
                )
            discrete = bool(record["discrete"])
            names = tuple(str(name) for name in record["cost_names"])
            sizes = (int(record["observation_dim"]), int(record["action_dim"]), len(names))
            dtype = _record_type(*sizes, discrete=discrete)
            notes = cls(
                size=int(record["size"]),
                dtype=dtype,
                discrete=discrete,
                cost_names=names,
                metadata=Metadata.from_json(record["metadata"]),
                statistics=Statistics.from_json(record["statistics"]),
                fingerprint=str(record["fingerprint"]),
            )
            wanted = HEADER_BYTES + notes.size * dtype.itemsize
            found = (path / "rows.npy").stat().st_size
            with open(path / "rows.npy", "rb") as file:
                same_header = file.read(HEADER_BYTES) == _header(dtype, notes.size)
            same_episodes = _sha256(path / "episodes.npz") == record["episodes_sha256"]
        except InputError:
            raise
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            damaged(path, error, "store")
        if wanted != found or not same_header:
            raise InputError(
                f"{path}/rows.npy is damaged ({found} bytes, {wanted} expected); convert the data again."
            )
        if not same_episodes:
            raise InputError(
                f"{path}/episodes.npz is damaged (its checksum differs); convert the data again."
            )
        with np.load(path / "episodes.npz", allow_pickle=False) as archive:
            episodes = Episodes(*(archive[name] for name in EPISODE_FIELDS))
            return notes, episodes, archive["unknown"]


class StoreSource(Source):
    """A store read from beginning to end, like any other file."""

    format = "store"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        if options.columns:
            raise InputError(f"{path} is a store: its columns are known, leave the column map out.")
        self.name = str(path)
        self._rows = path / "rows.npy"
        notes, _, unknown = StoreNotes.read(path)
        self._notes = notes
        self.metadata = notes.metadata
        self.cost_names = notes.cost_names
        self.discrete = notes.discrete
        self.fingerprint = notes.fingerprint
        self.columns = {
            name: Column(notes.size, notes.dtype[name].shape, notes.dtype[name].base)
            for name in ROW_FIELDS
            if name != "next_known" or len(unknown)
        }

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Consecutive records, split in columns."""
        with open(self._rows, "rb") as file:
            file.seek(HEADER_BYTES)
            for start in range(0, self._notes.size, rows):
                count = min(rows, self._notes.size - start)
                records = np.fromfile(file, dtype=self._notes.dtype, count=count)
                if len(records) != count:
                    raise InputError(
                        f"{self._rows} ends at row {start + len(records)}; convert the data again."
                    )
                yield _columns(records, self.columns)


def _columns(records: NDArray[Any], names: Any) -> dict[str, NDArray[Any]]:
    return {name: np.ascontiguousarray(records[name]) for name in names}
