"""Where minibatches come from: data that is whole on the device, or shards of data larger than memory.

A shard is some number of transitions of whole episodes drawn at random from a `StoredDataset`. Iterations
draw from the shard on the device while a thread prepares the next one. Shard k depends on the seed and k
alone, and the shard of an iteration follows from its number, so a resumed run meets the same shards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.data.past import with_history
from slater.deep.batches import Data, transitions
from slater.deep.task import Task, normalised
from slater.errors import InputError

#: rows are in memory about three times: on the device, and while the next ones are read and put there
COPIES = 3
#: first observations that are kept on the device at most
MOST_INITIAL = 2**18
#: rows that are read and prepared at a time
PIECE = 2**16


def row_bytes(dataset: Dataset | StoredDataset) -> int:
    """Bytes of one transition on the device, 32 bits an entry: s, a, u, gamma, s', returns, time, to_go."""
    actions = 1 if dataset.discrete else dataset.action_dim
    return 4 * (2 * dataset.observation_dim + actions + 3 * (1 + len(dataset.cost_names)) + 2)


def fits(dataset: StoredDataset, memory: float) -> bool:
    """Whether training on all rows at once stays within `memory` GB (10^9 bytes)."""
    return COPIES * dataset.size * row_bytes(dataset) <= memory * 1e9


def as_read(
    dataset: Dataset | StoredDataset, reading: Mapping[str, Any]
) -> Dataset | StoredDataset:  # fmt: skip
    """A log that is given as it lies, with the memory of its episodes if `reading` has history."""
    if not reading.get("history"):
        return dataset
    if isinstance(dataset, StoredDataset):
        raise InputError(f"history needs the log in memory, and {dataset.path} is a store; give the file.")
    return with_history(dataset)


def open_for_training(
    name: str | Path, memory: float = 4.0, reading: Mapping[str, Any] | None = None
) -> Dataset | StoredDataset:
    """The data that a user named: in memory if they fit (`memory` in GB), else a store, read in shards.

    name: a file or store, or the name of a published task, which is downloaded once.
    reading: how to read it, as `slater.data.ReadOptions.to_json` gives it.
    """
    from slater.data import ReadOptions, load, open_dataset
    from slater.data.download import locate

    path = locate(name)
    options = ReadOptions.from_json(reading) if reading else None
    data = open_dataset(
        path, options, max_bytes=memory * 1e9 / COPIES, advice=f", or allow more memory than {memory:g} GB"
    )
    if isinstance(data, StoredDataset) and fits(data, memory):
        return load(path)  # checks the content too, which is not done for shards
    return data


class BatchSource:
    """What the loop asks for the data of an iteration: all data, on the device from the beginning."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def at(self, step: int) -> Any:
        """What iteration `step` draws from, on the device."""
        return self._data

    def until(self, step: int) -> int | None:
        """The first iteration after `step` that draws from something else; None if there is none."""
        return None

    def close(self) -> None:
        """Stop preparing."""


class Shards(BatchSource):
    """Shards of a store, one after the other; the next one is prepared while iterations run.

    rows: transitions per shard, by `memory` in GB; steps: iterations on a shard, so many that its rows are
    drawn once on average. First observations (for the value at the start) are of the whole store.
    """

    def __init__(
        self, dataset: StoredDataset, task: Task, *, seed: int, memory: float, batch_size: int
    ) -> None:
        self.rows = min(dataset.size, int(memory * 1e9 / (COPIES * row_bytes(dataset))))
        if self.rows < dataset.horizon:
            raise InputError(
                f"a memory of {memory:g} GB holds {self.rows} rows of {dataset.path}, less than an episode "
                f"of {dataset.horizon}; allow more memory."
            )
        self.steps = max(1, math.ceil(self.rows / batch_size))
        self._dataset, self._problem, self._seed = dataset, task, seed
        first, episodes = dataset, len(dataset.episodes)
        if episodes > MOST_INITIAL:
            first = dataset.subset(np.random.default_rng(seed).choice(episodes, MOST_INITIAL, replace=False))
        self._initial = jnp.asarray(normalised(first.initial_observations, task))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shard")
        self._next: tuple[int, Future[Data]] | None = None
        self._now: tuple[int, Data] | None = None

    def at(self, step: int) -> Data:
        """The shard of iteration `step`; the one after it is begun in the background."""
        number = step // self.steps
        if self._now is None or self._now[0] != number:
            waiting, self._next = self._next, None
            if waiting is not None and waiting[0] == number:
                self._now = (number, waiting[1].result())
            else:
                self._now = (number, self._shard(number))
        if self._next is None:
            self._next = (number + 1, self._thread.submit(self._shard, number + 1))
        return self._now[1]

    def until(self, step: int) -> int | None:
        """Where the next shard begins."""
        return (step // self.steps + 1) * self.steps

    def close(self) -> None:
        """Wait for the thread, which may be reading a shard that nobody needs."""
        self._thread.shutdown(cancel_futures=True)

    def _shard(self, number: int) -> Data:
        """Shard `number`, from (seed, number) alone: always `rows` transitions, of whole random episodes.

        Episodes are taken in a random order until there are enough rows; what is too much is left out at
        random, so that every transition of the store is equally likely.
        """
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(number,)))
        columns = _Columns(self.rows)
        lengths = self._dataset.episodes.lengths
        order = rng.permutation(len(lengths))
        pieces = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // PIECE)) + 1
        for episodes in np.split(order, pieces):
            part = transitions(self._dataset.subset(episodes).load(), self._problem)
            if columns.add(part, rng):
                break
        return Data(**columns.on_device(rng), initial=self._initial)


class _Columns:
    """Arrays of `rows` rows that are filled piece by piece: a shard is never in memory twice on the host."""

    def __init__(self, rows: int) -> None:
        self._rows, self._done = rows, 0
        self._arrays: dict[str, NDArray[Any]] = {}

    def add(self, part: dict[str, NDArray[Any]], rng: np.random.Generator) -> bool:
        """Append rows, of the last part a random choice of those that fit; whether all is full."""
        if not self._arrays:
            self._arrays = {
                name: np.empty((self._rows, *column.shape[1:]), column.dtype) for name, column in part.items()
            }
        size, room = len(part["discount"]), self._rows - self._done
        chosen = np.arange(size) if size <= room else np.sort(rng.choice(size, room, replace=False))
        stop = self._done + len(chosen)
        for name, column in part.items():
            self._arrays[name][self._done : stop] = column[chosen]
        self._done = stop
        return self._done == self._rows

    def on_device(self, rng: np.random.Generator) -> dict[str, Array]:
        """The arrays, which are handed over; rows still missing (few next rows are known) are repeated."""
        if self._done == 0:
            raise InputError("the store has next observations for no row; nothing can be learned from it.")
        again = rng.integers(self._done, size=self._rows - self._done)
        for array in self._arrays.values():
            array[self._done :] = array[again]
        return {name: jnp.asarray(self._arrays.pop(name)) for name in list(self._arrays)}
