"""Logs by address: the data of the file, copied once per version; a sentence for what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import slater
from slater.data import load, open_dataset, save
from slater.data.remote import local_copy, whole
from slater.errors import InputError
from slater.experiments.task_data import find_task_data
from slater.runs.log import load_log
from slater.runs.record import read_run

from .make import walk

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'slater-rl[remote]'")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder by address, and an empty data folder."""
    monkeypatch.setenv("SLATER_DATA", str(tmp_path / "copies"))
    store = fsspec.filesystem("memory")
    yield "memory://bucket"
    store.rm("/bucket", recursive=True)


def put(path: Path, address: str) -> None:
    fsspec.filesystem("memory").put_file(str(path), address)


def test_an_address_reads_as_its_file_and_is_copied_once(bucket: str, tmp_path: Path) -> None:
    data = walk(episodes=6)
    for name in ("log.hdf5", "log.npz", "log.parquet"):
        save(data, tmp_path / name)
        put(tmp_path / name, f"{bucket}/{name}")
        assert slater.load(f"{bucket}/{name}").fingerprint == data.fingerprint
    copy = local_copy(f"{bucket}/log.hdf5")
    assert copy == local_copy(f"{bucket}/log.hdf5")
    assert copy.is_relative_to(tmp_path / "copies" / "remote")
    before = copy.stat().st_mtime_ns
    assert len(open_dataset(f"{bucket}/log.hdf5", max_bytes=1e9)) == len(data)
    assert copy.stat().st_mtime_ns == before


def test_a_file_that_changed_there_is_fetched_anew(bucket: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        data = walk(episodes=6, seed=seed)
        save(data, tmp_path / f"{seed}.hdf5")
        put(tmp_path / f"{seed}.hdf5", f"{bucket}/log.hdf5")
        assert np.array_equal(load(f"{bucket}/log.hdf5").observations, data.observations)


def test_a_run_remembers_the_address(bucket: str, tmp_path: Path) -> None:
    save(walk(episodes=6), tmp_path / "log.hdf5")
    put(tmp_path / "log.hdf5", f"{bucket}/log.hdf5")
    slater.train(f"{bucket}/log.hdf5", "bc", "5", out=tmp_path / "run", steps=5, hidden=(8,), estimate=False)
    run = read_run(tmp_path / "run")
    assert run.data == f"{bucket}/log.hdf5"
    assert load_log(run).fingerprint == run.fingerprint


def test_a_folder_of_benchmark_data_may_be_an_address(bucket: str, tmp_path: Path) -> None:
    path = slater.data.sample()
    put(Path(path), f"{bucket}/ballcircle.hdf5")
    ((here,), _) = find_task_data(["BallCircle"], bucket + "/")
    assert (here.kind, here.fingerprint) == ("own", load(path).fingerprint)
    assert whole(here.path) == here.path == f"{bucket}/ballcircle.hdf5"
    with pytest.raises(InputError, match="memory://bucket has no data for CarRun"):
        find_task_data(["CarRun"], bucket)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("memory://bucket/none.csv", "There is no file memory://bucket/none.csv"),
        ("memory://bucket", "is a folder; give the address of one file"),
        ("nowhere://a/b.csv", "nowhere://a/b.csv cannot be read .*nowhere"),
    ],
)
def test_what_is_not_there_is_one_sentence(bucket: str, tmp_path: Path, address: str, sentence: str) -> None:
    (tmp_path / "x").write_text("x")
    put(tmp_path / "x", f"{bucket}/x")
    with pytest.raises(InputError, match=sentence):
        load(address)
