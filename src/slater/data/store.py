"""Data larger than memory: a dataset on disk, read a batch at a time.

`slater data convert big.hdf5 big.store` makes the folder (see `slater.data.formats.store`); training then
draws batches or shards from it. Rows are read with plain file reads, not through a memory map: pages of a
map count as memory of the process, plain reads do not, so memory stays at the size of the batches asked
for however large the file is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.data.assemble import Block
from slater.data.dataset import Dataset, Logged, UnorderedTransitions, stated
from slater.data.episodes import Episodes
from slater.data.formats.base import BLOCK_ROWS, damaged
from slater.data.formats.store import HEADER_BYTES, StoreNotes, columns_of, is_store, settle
from slater.errors import InputError


def _file_id(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


class StoredDataset(Logged):
    """A dataset on disk with the names of `Dataset`; memory holds the table of episodes and no rows.

    `gather` and `sample` give batches, `blocks` all rows in order, `load` the whole as a `Dataset`.
    `subset` and `split` choose episodes without copying. It can be pickled and used from threads.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        settle(self.path)
        if not is_store(self.path):
            raise InputError(f"{path} is no store; make one with `slater data convert FILE {path}`.")
        try:  # before the notes: a store that is put in its place after this is noticed
            self._rows_id = _file_id(os.stat(self.path / "rows.npy"))
        except OSError as error:
            damaged(self.path, error, "store")
        notes, self._all_episodes, self._unknown = StoreNotes.read(self.path)
        self._notes = notes
        self.cost_names, self.metadata = notes.cost_names, notes.metadata
        #: means, spreads and ranges over the whole store (also for a choice of episodes)
        self.statistics = notes.statistics
        #: entries of an observation
        self.observation_dim = int(notes.dtype["observations"].shape[0])
        self._chosen = np.arange(len(self._all_episodes))
        self._descriptor: int | None = None

    @property
    def size(self) -> int:
        """Number of rows in the chosen episodes."""
        return int(self.episodes.lengths.sum())

    @property
    def discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""
        return self._notes.discrete

    @property
    def _action_range(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.statistics.action_low, self.statistics.action_high

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
        return replace(self._all_episodes.take(self._chosen), stated_horizon=self.horizon)

    @property
    def source(self) -> NDArray[np.str_] | None:
        """The name of the policy that was running in each chosen episode, shape (E,), or None."""
        return self.episodes.source

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
        part = copy(self)
        part._chosen = self._chosen[numbers]
        return part

    # -- rows ------------------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.episodes.lengths)

    def rows_of(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Rows of the file at positions 0 .. size-1 within the chosen episodes."""
        episode = np.searchsorted(self._ends, positions, side="right")
        return self.episodes.stops[episode] - (self._ends[episode] - positions)

    def sample(self, rng: np.random.Generator, count: int) -> UnorderedTransitions:
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

    def gather(self, rows: ArrayLike) -> UnorderedTransitions:
        """The given rows of the file, shape (B,), as a batch; an unknown next observation is refused."""
        index = np.asarray(rows, dtype=np.int64)
        if index.size and (index.min() < 0 or index.max() >= self._notes.size):
            raise InputError(f"A row is outside 0 .. {self._notes.size - 1}.")
        if np.isin(index, self._unknown).any():
            raise InputError("A chosen row has no known next observation: choose among those of next_known.")
        return self._batch(index)

    def _batch(self, rows: NDArray[np.int64]) -> UnorderedTransitions:
        records = self._records(rows)
        return UnorderedTransitions(**columns_of(records, UnorderedTransitions._fields))

    def _records(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._descriptor is None:
            with self._open_rows() as file:
                self._descriptor = os.dup(file.fileno())
        length, descriptor = self._notes.dtype.itemsize, self._descriptor
        order = np.argsort(rows, kind="stable")  # in the order of the file: fewer seeks
        offsets = (HEADER_BYTES + rows[order] * length).tolist()
        read = b"".join([os.pread(descriptor, length, offset) for offset in offsets])
        if len(read) != len(rows) * length:
            raise InputError(f"{self.path}/rows.npy is shorter than it was; convert the data again.")
        records = np.empty(len(rows), dtype=self._notes.dtype)
        records[order] = np.frombuffer(read, dtype=self._notes.dtype)
        return records

    def _open_rows(self) -> BinaryIO:
        """The rows that belong to the notes; another store may have been put in this one's place."""
        try:
            file = open(self.path / "rows.npy", "rb")  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise InputError(f"{self.path}/rows.npy cannot be read: {error.strerror}.") from None
        if _file_id(os.fstat(file.fileno())) != self._rows_id:
            file.close()
            raise InputError(f"{self.path} was replaced or changed while it was in use; begin again with it.")
        return file

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """All rows of the chosen episodes in order, about `rows` at a time, as columns, as `Dataset.rows`."""
        for start in range(0, self.size, rows):
            positions = np.arange(start, min(start + rows, self.size))
            columns = columns_of(self._runs(self.rows_of(positions)), self._notes.dtype.names or ())
            if self.source is not None:
                columns["source"] = self.source[np.searchsorted(self._ends, positions, side="right")]
            yield columns

    def _runs(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Records of increasing rows, read in runs of consecutive ones."""
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        parts = []
        with self._open_rows() as file:
            for run in np.split(index, breaks):
                file.seek(HEADER_BYTES + int(run[0]) * self._notes.dtype.itemsize)
                parts.append(np.fromfile(file, dtype=self._notes.dtype, count=len(run)))
        return np.concatenate(parts)

    def load(self) -> Dataset:
        """The chosen episodes in memory."""
        parts = list(self.blocks())
        joined: Mapping[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "source"
        }
        metadata = self.metadata if len(self._chosen) == len(self._all_episodes) else stated(self)
        return Dataset(**joined, cost_names=self.cost_names, metadata=metadata, source=self.source)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in ("episodes", "_ends")}
        return {**kept, "_descriptor": None}

    def __del__(self, close: Any = os.close) -> None:
        # `close` is kept here: at the end of the program the module's names may be gone before this
        if getattr(self, "_descriptor", None) is not None:
            close(self._descriptor)
