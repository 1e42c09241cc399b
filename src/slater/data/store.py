"""Data larger than memory: a folder on disk, read a batch at a time.

`slater data convert big.hdf5 big.store` makes a folder with

    rows.npy        one packed record per step (a NumPy structured array; np.load reads it)
    episodes.npz    the table of episodes, and the rows whose next observation is unknown
    notes.json      metadata, cost names, sizes, fingerprint

Records are packed so that a random transition is one read from disk. They are read with plain file reads,
not through a memory map: pages of a map count as memory of the process, plain reads do not, so memory
stays at the size of the batches asked for however large the file is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.data.assemble import Column, Rows
from slater.data.dataset import ROW_FIELDS, Batch, Dataset, Metadata
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.formats.base import BLOCK_ROWS, ReadOptions, Sink, Source, damaged
from slater.data.statistics import Statistics, StatisticsBuilder
from slater.errors import InputError

__all__ = ["StoreSink", "StoreSource", "StoredDataset", "is_store"]

_FORMAT = 1
_HEADER_BYTES = 4096
_EPISODE_FIELDS = ("starts", "stops", "returns", "costs", "terminated", "complete")


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
        + (_HEADER_BYTES - 10).to_bytes(2, "little")
        + text.encode().ljust(_HEADER_BYTES - 11)
        + b"\n"
    )


class StoreSink(Sink):
    """Writes a store beside its final place and renames it when it is whole."""

    def __init__(
        self, path: Path, metadata: Metadata, cost_names: tuple[str, ...], *, discrete: bool
    ) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._metadata = metadata
        self._cost_names = cost_names
        self._discrete = discrete
        self._counter = EpisodeCounter(len(cost_names))
        self._unknown: list[NDArray[np.int64]] = []
        self._dtype: np.dtype[Any] | None = None
        self._size = 0
        self._statistics = StatisticsBuilder()
        try:
            self._partial.mkdir(parents=True)
            self._file = open(self._partial / "rows.npy", "wb")  # noqa: SIM115 (kept open between writes)
            self._file.write(bytes(_HEADER_BYTES))
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from None

    def write(self, rows: Rows) -> None:
        """Append rows as packed records."""
        if self._dtype is None:
            width = 1 if self._discrete else rows["actions"].shape[1]
            self._dtype = _record_type(
                rows["observations"].shape[1], width, len(self._cost_names), discrete=self._discrete
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
                **{name: getattr(episodes, name) for name in _EPISODE_FIELDS},
            )
            notes = {
                "format": _FORMAT,
                "size": self._size,
                "observation_dim": int(self._dtype["observations"].shape[0]),
                "action_dim": 1 if self._discrete else int(self._dtype["actions"].shape[0]),
                "discrete": self._discrete,
                "cost_names": list(self._cost_names),
                "metadata": self._metadata.to_json(),
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
class _Notes:
    """The checked content of notes.json."""

    size: int
    dtype: np.dtype[Any]
    discrete: bool
    cost_names: tuple[str, ...]
    metadata: Metadata
    statistics: Statistics
    fingerprint: str

    @classmethod
    def read(cls, path: Path) -> tuple[_Notes, Episodes, NDArray[np.int64]]:
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
            wanted = _HEADER_BYTES + notes.size * dtype.itemsize
            found = (path / "rows.npy").stat().st_size
            with open(path / "rows.npy", "rb") as file:
                same_header = file.read(_HEADER_BYTES) == _header(dtype, notes.size)
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
            episodes = Episodes(*(archive[name] for name in _EPISODE_FIELDS))
            return notes, episodes, archive["unknown"]


class StoreSource(Source):
    """A store read from beginning to end, like any other file."""

    format = "store"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        if options.columns:
            raise InputError(f"{path} is a store: its columns are known, leave the column map out.")
        self.name = str(path)
        self._rows = path / "rows.npy"
        notes, _, unknown = _Notes.read(path)
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
            file.seek(_HEADER_BYTES)
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


class StoredDataset:
    """A dataset on disk with the names of `Dataset`; memory holds the table of episodes and no rows.

    `gather` and `sample` give batches, `blocks` all rows in order, `load` the whole as a `Dataset`.
    `subset` and `split` choose episodes without copying. It can be pickled and used from threads.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_store(self.path):
            raise InputError(f"{path} is no store; make one with `slater data convert FILE {path}`.")
        self._notes, self._all_episodes, self._unknown = _Notes.read(self.path)
        self._chosen = np.arange(len(self._all_episodes))
        self._descriptor: int | None = None

    # -- the same names as Dataset ---------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of rows in the chosen episodes."""
        return int(self.episodes.lengths.sum())

    def __len__(self) -> int:
        return self.size

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Names of the costs."""
        return self._notes.cost_names

    @property
    def metadata(self) -> Metadata:
        """What the data says of itself."""
        return self._notes.metadata

    @property
    def discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""
        return self._notes.discrete

    @property
    def observation_dim(self) -> int:
        """Entries of an observation."""
        return int(self._notes.dtype["observations"].shape[0])

    @property
    def action_dim(self) -> int:
        """Entries of a continuous action, or the number of discrete actions."""
        return self.num_actions if self.discrete else len(self.statistics.action_low)

    @property
    def num_actions(self) -> int:
        """Number of discrete actions: as stated, or one more than the largest index in the data."""
        if not self.discrete:
            raise InputError("Continuous actions have no count; ask for action_low and action_high.")
        return self.metadata.num_actions or int(self.statistics.action_high[0]) + 1

    @property
    def action_low(self) -> NDArray[np.float32]:
        """Lower action bounds, shape (a,), by the rule of `Dataset.action_low`."""
        return self._bounds(self.metadata.action_low, -1.0, self.statistics.action_low)

    @property
    def action_high(self) -> NDArray[np.float32]:
        """Upper action bounds, shape (a,), by the rule of `Dataset.action_high`."""
        return self._bounds(self.metadata.action_high, 1.0, self.statistics.action_high)

    def _bounds(
        self, stated: tuple[float, ...] | None, unit: float, extreme: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        if self.discrete:
            raise InputError("Discrete actions have no bounds; ask for num_actions.")
        if stated is not None:
            return np.asarray(stated, dtype=np.float32)
        if max(-self.statistics.action_low.min(), self.statistics.action_high.max()) <= 1:
            return np.full(len(extreme), unit, dtype=np.float32)
        return np.asarray(extreme, dtype=np.float32)

    @property
    def statistics(self) -> Statistics:
        """Means, spreads and ranges over the whole store (also for a choice of episodes)."""
        return self._notes.statistics

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the whole store, as `Dataset.fingerprint`; a choice of episodes adds to it."""
        whole = self._notes.fingerprint
        if len(self._chosen) == len(self._all_episodes):
            return whole
        return hashlib.sha256(whole.encode() + self._chosen.astype("<i8").tobytes()).hexdigest()

    @cached_property
    def episodes(self) -> Episodes:
        """The chosen episodes; `starts` and `stops` are rows of the file."""
        return Episodes(*(getattr(self._all_episodes, name)[self._chosen] for name in _EPISODE_FIELDS))

    @property
    def horizon(self) -> int:
        """Steps of a full episode: as stated, or those of the longest episode."""
        return self.metadata.horizon or int(self._all_episodes.lengths.max())

    @property
    def initial_observations(self) -> NDArray[np.float32]:
        """First observation of each chosen episode, shape (E, o)."""
        return np.ascontiguousarray(self._records(self.episodes.starts)["observations"])

    def subset(self, chosen: ArrayLike) -> StoredDataset:
        """The chosen episodes (a boolean mask over episodes or their numbers); no data is copied."""
        numbers = self.episodes.select(chosen)
        if len(numbers) == 0:
            raise InputError("No episode is chosen: the subset would be empty.")
        part = object.__new__(StoredDataset)
        part.__dict__.update(
            path=self.path,
            _notes=self._notes,
            _all_episodes=self._all_episodes,
            _unknown=self._unknown,
            _chosen=self._chosen[numbers],
            _descriptor=None,
        )
        return part

    def split(self, fraction: float = 0.1, seed: int = 0) -> tuple[StoredDataset, StoredDataset]:
        """Two datasets of whole episodes, the second with about `fraction` of them, drawn from `seed`."""
        kept, held = self.episodes.split(fraction, seed)
        return self.subset(kept), self.subset(held)

    # -- rows ------------------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.episodes.lengths)

    def rows_of(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Rows of the file at positions 0 .. size-1 within the chosen episodes."""
        episode = np.searchsorted(self._ends, positions, side="right")
        return self.episodes.stops[episode] - (self._ends[episode] - positions)

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` transitions drawn uniformly, with replacement, where the next observation is known."""
        rows = np.empty(0, dtype=np.int64)
        for _ in range(1000):
            drawn = self.rows_of(rng.integers(self.size, size=count - len(rows)))
            if len(self._unknown):
                place = np.minimum(np.searchsorted(self._unknown, drawn), len(self._unknown) - 1)
                drawn = drawn[self._unknown[place] != drawn]
            rows = np.concatenate([rows, drawn])
            if len(rows) == count:
                return self._batch(rows)
        raise InputError(
            f"{self.path} has next observations for almost no row; nothing can be learned from it."
        )

    def shard(self, rng: np.random.Generator, max_rows: int) -> Dataset:
        """Whole episodes drawn without replacement, in memory, at most `max_rows` rows of them.

        For a learner that wants its data in memory (or on a device): train on one shard, draw the next.
        Each episode is equally likely to be in a shard. Normalise by `statistics`, not by the shard's own.
        """
        order = rng.permutation(len(self.episodes))
        fits = np.cumsum(self.episodes.lengths[order]) <= max_rows
        if not fits[0]:
            raise InputError(
                f"A shard of {max_rows} rows holds no whole episode; allow at least {self.horizon}."
            )
        return self.subset(order[fits]).load()

    def gather(self, rows: ArrayLike) -> Batch:
        """The given rows of the file, shape (B,), as a batch; an unknown next observation is refused."""
        index = np.asarray(rows, dtype=np.int64)
        if index.size and (index.min() < 0 or index.max() >= self._notes.size):
            raise InputError(f"A row is outside 0 .. {self._notes.size - 1}.")
        if np.isin(index, self._unknown).any():
            raise InputError("A chosen row has no known next observation: choose among those of next_known.")
        return self._batch(index)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        records = self._records(rows)
        return Batch(**_columns(records, Batch._fields))

    def _records(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._descriptor is None:
            self._descriptor = os.open(self.path / "rows.npy", os.O_RDONLY)
        length, descriptor = self._notes.dtype.itemsize, self._descriptor
        order = np.argsort(rows, kind="stable")  # in the order of the file: fewer seeks
        offsets = (_HEADER_BYTES + rows[order] * length).tolist()
        read = b"".join([os.pread(descriptor, length, offset) for offset in offsets])
        if len(read) != len(rows) * length:
            raise InputError(f"{self.path}/rows.npy is shorter than it was; convert the data again.")
        records = np.empty(len(rows), dtype=self._notes.dtype)
        records[order] = np.frombuffer(read, dtype=self._notes.dtype)
        return records

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[Rows]:
        """All rows of the chosen episodes in order, about `rows` at a time, as columns (`ROW_FIELDS`)."""
        for start in range(0, self.size, rows):
            index = self.rows_of(np.arange(start, min(start + rows, self.size)))
            yield _columns(self._runs(index), ROW_FIELDS)

    def _runs(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Records of increasing rows, read in runs of consecutive ones."""
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        parts = []
        with open(self.path / "rows.npy", "rb") as file:
            for run in np.split(index, breaks):
                file.seek(_HEADER_BYTES + int(run[0]) * self._notes.dtype.itemsize)
                parts.append(np.fromfile(file, dtype=self._notes.dtype, count=len(run)))
        return np.concatenate(parts)

    def load(self) -> Dataset:
        """The chosen episodes in memory."""
        parts = list(self.blocks())
        joined: Mapping[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in ROW_FIELDS
        }
        return Dataset(**joined, cost_names=self.cost_names, metadata=self.metadata)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]
