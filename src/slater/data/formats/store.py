"""Stores: uncompressed rows on disk, laid out for random reads.

`slater data convert big.hdf5 big.store` makes a folder with

    rows.npy        one packed record per step (a NumPy structured array; np.load reads it)
    episodes.npz    the table of episodes (with their sources), and the rows whose next observation is unknown
    notes.json      metadata, cost names, sizes, fingerprint

Records are packed so that a random transition is one read from disk. With propensities in them the format is
2, without them 1, as it was before there were any.

A store is written by one process at a time, in the hidden folder `.X.store.new` beside its place. Where there
is one already, that becomes `.X.store.old` when the new one is whole, the new one is renamed into its place,
and the old one is removed. Whatever dies between two of these, `settle` finishes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Block, Column
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.formats.base import BLOCK_ROWS, Notes, Reader, ReadOptions, Writer, damaged
from slater.data.metadata import Metadata
from slater.data.statistics import Statistics, StatisticsBuilder
from slater.disk import locked, writing
from slater.errors import InputError

_FORMATS = (1, 2)
HEADER_BYTES = 4096
_WIDE = ("observations", "actions", "costs")
_EPISODE_FIELDS = ("starts", "stops", "returns", "costs", "terminated", "complete")


def is_store(path: Path) -> bool:
    """Whether a path is a folder made by `slater data convert ... X.store`."""
    return path.is_dir() and (path / "notes.json").is_file()


def _new(path: Path) -> Path:
    """Where the store at `path` is written until it is whole."""
    return path.with_name(f".{path.name}.new")


def _old(path: Path) -> Path:
    """Where the store that was at `path` waits until the new one has its place."""
    return path.with_name(f".{path.name}.old")


def settle(path: Path) -> None:
    """Finish what a process that died left half done while it replaced the store at `path`.

    After this the store is in its place if there is one; an `InputError` says where it is otherwise.
    """
    if path.suffix.lower() != ".store" or path.exists() or not _old(path).exists():
        return
    # a process that lives needs a moment between two renames
    with locked(path, beside=True, wait=10.0):
        _settle(path)


def _settle(path: Path) -> None:
    """As `settle`, by the process that holds the lock."""
    new, old = _new(path), _old(path)
    with writing(path):
        if old.exists() and not path.exists():
            if not is_store(new):
                raise InputError(
                    f"{path} was being replaced when its writer died; what it held before is {old}: rename "
                    "that, or remove it."
                )
            os.replace(new, path)
        for folder in (new, old):
            _remove(folder)


def _remove(store: Path) -> None:
    """Remove a store, its notes first: what is left of it after a crash is none."""
    (store / "notes.json").unlink(missing_ok=True)
    if store.exists():
        shutil.rmtree(store)


def _record_type(
    observation_dim: int, action_dim: int, num_costs: int, *, discrete: bool, propensity: bool
) -> np.dtype[Any]:
    fields = [
        ("observations", "<f4", (observation_dim,)),
        ("actions", "<i4") if discrete else ("actions", "<f4", (action_dim,)),
        ("rewards", "<f4"),
        ("costs", "<f4", (num_costs,)),
        ("terminals", "?"),
        ("timeouts", "?"),
        ("next_observations", "<f4", (observation_dim,)),
        ("next_known", "?"),
    ]
    return np.dtype(fields + ([("propensity", "<f8")] if propensity else []))


def _header(dtype: np.dtype[Any], size: int) -> bytes:
    """An .npy header padded to a fixed length, so that the row count can be filled in at the end."""
    text = repr({"descr": dtype.descr, "fortran_order": False, "shape": (size,)})
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.encode().ljust(HEADER_BYTES - 11) + b"\n"


class StoreWriter(Writer):
    """Writes a store beside its final place and renames it when it is whole; alone, by a lock beside it."""

    def __init__(self, path: Path, notes: Notes) -> None:
        super().__init__(path, notes)
        self._partial = _new(path)
        self._counter = EpisodeCounter(len(notes.cost_names))
        self._unknown: list[NDArray[np.int64]] = []
        self._dtype: np.dtype[Any] | None = None
        self._size = 0
        self._statistics = StatisticsBuilder()
        with ExitStack() as held:
            held.enter_context(locked(path, beside=True))
            with writing(path):
                _settle(path)
                self._partial.mkdir(parents=True)
                self._file = open(self._partial / "rows.npy", "wb")  # noqa: SIM115 (kept open between writes)
                self._file.write(bytes(HEADER_BYTES))
            self._held = held.pop_all()

    def write(self, rows: Block) -> None:
        """Append rows as packed records."""
        if self._dtype is None:
            sizes = [rows[name].reshape(len(rows["rewards"]), -1).shape[1] for name in _WIDE]
            told = "propensity" in rows
            self._dtype = _record_type(*sizes, discrete=self._notes.discrete, propensity=told)
        records = np.empty(len(rows["rewards"]), dtype=self._dtype)
        for name in self._dtype.names or ():
            records[name] = rows[name]
        self._counter.update(rows)
        self._unknown.append(self._size + np.flatnonzero(~rows["next_known"]))
        self._statistics.update(rows)
        with writing(self._path):
            records.tofile(self._file)
        self._size += len(records)

    def finish(self, fingerprint: str) -> None:
        """Write the header, the episodes and the notes, and put the folder in its place."""
        if self._dtype is None:
            raise InputError(f"{self._path} would hold no rows.")
        episodes = self._counter.finish()
        with writing(self._path):
            self._file.seek(0)
            self._file.write(_header(self._dtype, self._size))
            self._file.close()
            named = _EPISODE_FIELDS + (("source",) if episodes.source is not None else ())
            table: dict[str, Any] = {name: getattr(episodes, name) for name in named}
            np.savez(self._partial / "episodes.npz", unknown=np.concatenate(self._unknown), **table)
            notes = {
                "format": _FORMATS["propensity" in (self._dtype.names or ())],
                "size": self._size,
                "observation_dim": int(self._dtype["observations"].shape[0]),
                "action_dim": math.prod(self._dtype["actions"].shape),
                "discrete": self._notes.discrete,
                "cost_names": list(self._notes.cost_names),
                "metadata": self._notes.metadata.to_json(),
                "statistics": self._statistics.finish().to_json(),
                "episodes_sha256": _sha256(self._partial / "episodes.npz"),
                "fingerprint": fingerprint,
            }
            (self._partial / "notes.json").write_text(json.dumps(notes, indent=1))
            for written in sorted(self._partial.iterdir()):
                _to_disk(written)
            self._put_in_place()
        self._held.close()

    def _put_in_place(self) -> None:
        """Rename; where that fails, what was there before is there again."""
        old = _old(self._path)
        if self._path.exists():
            os.replace(self._path, old)
        try:
            os.replace(self._partial, self._path)
        except BaseException:
            if old.exists() and not self._path.exists():
                os.replace(old, self._path)
            raise
        _remove(old)

    def abandon(self) -> None:
        """Remove the partial folder; `settle` needs it where the store itself is not in its place."""
        self._file.close()
        if self._path.exists() or not _old(self._path).exists():
            shutil.rmtree(self._partial, ignore_errors=True)
        self._held.close()


def _to_disk(path: Path) -> None:
    """What was written reaches the disk before a rename says that it is whole."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoreNotes(Notes):
    """The checked content of notes.json."""

    size: int
    dtype: np.dtype[Any]
    statistics: Statistics

    @classmethod
    def read(cls, path: Path) -> tuple[StoreNotes, Episodes, NDArray[np.int64]]:
        """The notes, the table of episodes and the rows whose next observation is unknown, all checked."""
        try:
            record = json.loads((path / "notes.json").read_text())
            if record["format"] not in _FORMATS:
                raise InputError(
                    f"{path} has the store format {record['format']}, this version reads "
                    f"{' and '.join(map(str, _FORMATS))}."
                )
            discrete = bool(record["discrete"])
            names = tuple(str(name) for name in record["cost_names"])
            sizes = (int(record["observation_dim"]), int(record["action_dim"]), len(names))
            dtype = _record_type(*sizes, discrete=discrete, propensity=record["format"] == 2)
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
        for whole, what in (
            (wanted == found and same_header, f"rows.npy is damaged ({found} bytes, {wanted} expected)"),
            (same_episodes, "episodes.npz is damaged (its checksum differs)"),
        ):
            if not whole:
                raise InputError(f"{path}/{what}; convert the data again.")
        with np.load(path / "episodes.npz", allow_pickle=False) as archive:
            table: dict[str, Any] = {n: archive[n] for n in (*_EPISODE_FIELDS, "source") if n in archive}
            return notes, Episodes(**table), archive["unknown"]


class StoreReader(Reader):
    """A store read from beginning to end, like any other file."""

    format = "store"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        if options.columns:
            raise InputError(f"{path} is a store: its columns are known, leave the column map out.")
        self.name = str(path)
        self._rows = path / "rows.npy"
        notes, self._episodes, unknown = StoreNotes.read(path)
        self._notes = notes
        self.adopt(notes)
        self.columns = {
            name: Column(notes.size, notes.dtype[name].shape, notes.dtype[name].base)
            for name in notes.dtype.names or ()
            if name != "next_known" or len(unknown)
        }
        if self._episodes.source is not None:
            self.columns["source"] = Column(notes.size, (), self._episodes.source.dtype)

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
                columns = columns_of(records, [name for name in self.columns if name != "source"])
                if self._episodes.source is not None:
                    episode = np.searchsorted(self._episodes.stops, start + np.arange(count), side="right")
                    columns["source"] = self._episodes.source[episode]
                yield columns


def columns_of(records: NDArray[Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Packed records as one array per name."""
    return {name: np.ascontiguousarray(records[name]) for name in names}
