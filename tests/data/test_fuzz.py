"""Damaged files: one sentence or the right content, whatever is read, in a process that is watched.

Each mutation of a file (cut short, one bit flipped, bytes overwritten, bytes from elsewhere) must give an
`InputError` of one line or what the original gives; never a traceback, more than 10 s, more than 1 GiB of
memory, or code that runs (`tests/data/fuzz.py`). Where the file holds checksums (ours everywhere, a gzip DSRL
file of others in its data), content that differs is a fault too. A flipped bit in plain numbers without any
checksum cannot be noticed, so that is not asked.
"""

import os
import random

import pytest

from slater.data import load
from slater.errors import InputError

from .fuzz import CHECKED, KINDS, run

MUTATIONS = 2000 if os.environ.get("SLATER_FULL") else 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read_right(kind):
    found = run(kind, MUTATIONS)
    assert found["faults"] == []
    assert found["right"] + found["sentence"] + found["other"] == MUTATIONS
    assert found["peak_gib"] < 1
    if kind in CHECKED:
        assert found["sentence"] > MUTATIONS / 3


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet", ".csv"])
def test_noise_under_any_name_is_refused(tmp_path, suffix):
    rng = random.Random(suffix)
    for _ in range(40):
        path = tmp_path / f"noise{suffix}"
        path.write_bytes(rng.randbytes(rng.randrange(1, 3000)))
        with pytest.raises(InputError):
            load(path)
