"""Which episodes trained a policy, by their content, so that they are known again in any other file.

A fingerprint knows a log as a whole: one episode less, and it is another log. Each episode has a hash of its
own, of what was seen and done: with other rewards, or costs in other units, it trained the policy all the
same. A policy file keeps those that trained it, and those that were held out of its log.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset

U64 = NDArray[np.uint64]

#: hashes kept in a policy file at most; of more episodes, those with the smallest hashes stand for all
MOST = 2**17
ACTED = ("observations", "actions")
FIELDS = (*ACTED, "rewards", "costs")
#: with which a text begins; one that begins with a number is of all fields
FORM = "acted"


def _episodes(data: Dataset | StoredDataset, fields: tuple[str, ...]) -> Iterator[tuple[NDArray[Any], ...]]:
    """The fields of every episode, one after the other; of a store, a block of rows is in memory at once."""
    lengths = iter(data.episodes.lengths.tolist())
    waiting, length = [np.zeros((0,))] * len(fields), next(lengths, None)
    for block in [data.rows()] if isinstance(data, Dataset) else data.blocks():
        rows = [np.ascontiguousarray(block[name]) for name in fields]
        waiting = [np.concatenate([a, b]) if len(a) else b for a, b in zip(waiting, rows, strict=True)]
        first = 0
        while length is not None and first + length <= len(waiting[0]):
            yield tuple(array[first : first + length] for array in waiting)
            first, length = first + length, next(lengths, None)
        waiting = [array[first:] for array in waiting]


def episode_hashes(data: Dataset | StoredDataset, fields: tuple[str, ...] = FIELDS) -> U64:
    """A hash of the content of every episode, shape (E,)."""
    found = []
    for arrays in _episodes(data, fields):
        content = hashlib.blake2b(digest_size=8)
        for array in arrays:
            content.update(array.data if array.flags.c_contiguous else array.tobytes())
        found.append(content.digest())
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """The hashes of the episodes that trained a policy, sorted; only those up to `known` are kept."""

    hashes: U64
    known: int = 2**64 - 1
    fields: tuple[str, ...] = ACTED

    @classmethod
    def of(cls, *data: Dataset | StoredDataset) -> TrainedOn:
        """Of the episodes of one or several logs."""
        hashes = np.unique(np.concatenate([episode_hashes(one, ACTED) for one in data]))
        return cls(hashes) if len(hashes) <= MOST else cls(hashes[:MOST], int(hashes[MOST - 1]))

    @classmethod
    def join(cls, parts: list[TrainedOn]) -> TrainedOn:
        """What trained several policies, as one."""
        known = min(part.known for part in parts)
        hashes = np.unique(np.concatenate([part.hashes for part in parts]))
        return cls(hashes[hashes <= np.uint64(known)], known, parts[0].fields)

    def text(self) -> str:
        """As a policy file keeps it."""
        form = f"{FORM}:" if self.fields == ACTED else ""
        return f"{form}{self.known}:{base64.b64encode(self.hashes.astype('<u8').tobytes()).decode()}"

    @classmethod
    def from_text(cls, text: str) -> TrainedOn:
        """What `text` gave; ValueError if it is not that."""
        rest = text.removeprefix(f"{FORM}:")
        known, _, hashes = rest.partition(":")
        array = np.frombuffer(base64.b64decode(hashes, validate=True), dtype="<u8").astype(np.uint64)
        return cls(array, int(known), FIELDS if rest == text else ACTED)

    def may_judge(self, data: Dataset) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which episodes are known to have had no part in training, and which had one, both (E,)."""
        own = episode_hashes(data, self.fields)
        trained = np.isin(own, self.hashes)
        return (own <= np.uint64(self.known)) & ~trained, trained


def recur(data: Dataset) -> bool:
    """Whether observations come again in different episodes, so that whole episodes may repeat by chance.

    Of rows that do not begin an episode of several steps: many tasks begin where they always do.
    """
    table = data.episodes
    distinct = np.unique(episode_hashes(data), return_index=True)[1]
    if len(distinct) < 2:
        return False
    owner = np.repeat(np.arange(len(table)), table.lengths)
    inner = np.isin(owner, distinct)
    if table.lengths.max() > 1:
        inner[table.starts] = False
    if not inner.any():
        return True
    owner, seen = owner[inner], np.ascontiguousarray(data.observations[inner])
    _, value = np.unique(seen.view([("", seen.dtype)] * seen.shape[1])[:, 0], return_inverse=True)
    pairs = np.unique(np.stack([value, owner], axis=1), axis=0)
    episodes = np.bincount(pairs[:, 0])  # distinct episodes that have each observation
    return bool((episodes[value] > 1).mean() > 0.5)


def copied(data: Dataset) -> int:
    """How many episodes are copies of others: not by chance, as in a world of few states they may be."""
    counts = np.unique(episode_hashes(data), return_counts=True)[1]
    repeats = int(len(data.episodes) - len(counts))
    if repeats == 0:
        return 0
    if not recur(data):
        return repeats
    # where they may repeat by chance, no chance gives every episode equally often, or an even number of times
    together = gcd(*counts.tolist())
    by_chance = 0.5 ** (len(counts) - 1)
    if len(set(counts.tolist())) == 1 and len(counts) > 1:
        n, kinds = int(counts.sum()), len(counts)
        by_chance = min(by_chance, kinds**0.5 * (kinds / (2 * np.pi * n)) ** ((kinds - 1) / 2))
    return repeats if together > 1 and by_chance < 1e-3 else 0
