"""Damaged files: one sentence or the same content, never a traceback, never other numbers.

Each mutation of a file (cut short, one bit flipped, bytes overwritten, bytes from elsewhere) must give an
`InputError` of one line or a dataset with the fingerprint of the original. The files hold checksums of
some kind: ours everywhere, a gzip DSRL file of others in its data (zlib), with the rest guarded by the
reader. A flipped bit in plain floats without any checksum cannot be noticed, so that is not asked.
"""

import os
import random

import h5py
import pytest

from slater.data import load, save
from slater.errors import InputError

from .make import walk

MUTATIONS = 6000 if os.environ.get("SLATER_FULL") else 250


def mutate(content, rng):
    kind = rng.random()
    changed = bytearray(content)
    if kind < 0.15:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind < 0.75:
        bit = rng.randrange(8 * len(changed))
        changed[bit // 8] ^= 1 << bit % 8
    elif kind < 0.9:
        for _ in range(rng.randrange(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    else:
        start, source, length = (
            rng.randrange(len(changed)),
            rng.randrange(len(changed)),
            rng.randrange(1, 200),
        )
        changed[start : start + length] = changed[source : source + length]
    return bytes(changed)


def write_like_dsrl(data, path):
    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            array = getattr(data, name)
            file.create_dataset(name, data=array, compression="gzip", chunks=(100, *array.shape[1:]))
        file.create_dataset("costs", data=data.costs[:, 0], compression="gzip")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours.hdf5", "theirs.hdf5", "a.npz", "a.parquet", "a.csv", "store"])
def test_damaged_files_are_refused_or_read_right(tmp_path, kind):
    data = walk(episodes=30)
    path = file = tmp_path / kind
    if kind == "theirs.hdf5":
        write_like_dsrl(data, path)
    elif kind == "store":
        path = tmp_path / "a.store"
        save(data, path)
        file = path / "rows.npy"
    else:
        save(data, path)
    original = file.read_bytes()
    expected = load(path).fingerprint
    rng = random.Random(kind)
    sentences = []
    for number in range(MUTATIONS):
        file.write_bytes(mutate(original, rng))
        try:
            read = load(path)
        except InputError as error:
            sentences.append(str(error))
            continue
        assert read.fingerprint == expected, f"mutation {number} of {kind} reads as something else"
    assert len(sentences) > MUTATIONS / 3
    assert all("\n" not in sentence and len(sentence) < 600 for sentence in sentences)


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet", ".csv"])
def test_noise_under_any_name_is_refused(tmp_path, suffix):
    rng = random.Random(suffix)
    for _ in range(40):
        path = tmp_path / f"noise{suffix}"
        path.write_bytes(rng.randbytes(rng.randrange(1, 3000)))
        with pytest.raises(InputError):
            load(path)
