"""The store: the same content as in memory, read a batch at a time."""

import errno
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from slater.data import Metadata, ReadOptions, StoredDataset, inspect, load, open_dataset, save
from slater.data.fingerprint import ROW_FIELDS
from slater.data.formats.base import Notes
from slater.data.formats.known import writer_for
from slater.data.statistics import StatisticsBuilder
from slater.errors import InputError

from .make import same, walk


@pytest.fixture
def pair(tmp_path):
    data = walk(episodes=30, costs=("near", "far"), tail=3)
    save(data, tmp_path / "a.store")
    return data, StoredDataset(tmp_path / "a.store")


def test_a_store_answers_like_the_dataset(pair):
    data, stored = pair
    for name in (
        "size",
        "cost_names",
        "metadata",
        "discrete",
        "observation_dim",
        "action_dim",
        "fingerprint",
        "horizon",
    ):
        assert getattr(stored, name) == getattr(data, name), name
    for name in ("action_low", "action_high", "initial_observations"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(data, name))
    for name in ("starts", "stops", "returns", "costs", "terminated", "complete"):
        np.testing.assert_allclose(getattr(stored.episodes, name), getattr(data.episodes, name))
    assert same(stored.load(), data)


def test_discrete_stores(tmp_path):
    data = walk(discrete=True)
    save(data, tmp_path / "a.store")
    stored = StoredDataset(tmp_path / "a.store")
    assert stored.num_actions == data.num_actions == stored.action_dim
    assert stored.sample(np.random.default_rng(0), 4).actions.shape == (4,)
    with pytest.raises(InputError):
        _ = stored.action_low


def test_gathered_rows_are_the_rows(pair):
    data, stored = pair
    rows = np.random.default_rng(0).integers(0, data.size, 200)
    for mine, theirs in zip(stored.gather(rows), data.gather(rows), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    for wrong in ([-1], [data.size]):
        with pytest.raises(InputError, match="outside"):
            stored.gather(wrong)


def test_samples_are_uniform_over_the_known_transitions_of_the_chosen_episodes(tmp_path):
    data = walk(episodes=8, given_next=False, falls=False)
    save(data, tmp_path / "a.store")
    stored = StoredDataset(tmp_path / "a.store").subset([1, 4, 6])
    allowed = [row for e in (1, 4, 6) for row in range(data.episodes.starts[e], data.episodes.stops[e] - 1)]
    batch = stored.sample(np.random.default_rng(0), 27_000)
    keys = {data.observations[row].tobytes(): row for row in range(data.size)}
    counts = np.bincount([keys[row.tobytes()] for row in batch.observations], minlength=data.size)
    assert set(np.flatnonzero(counts)) == set(allowed)
    # 27 rows, 1000 each expected: chi-square with 26 degrees of freedom is below 60 but once in 5000
    assert ((counts[allowed] - 1000) ** 2 / 1000).sum() < 60
    again = stored.sample(np.random.default_rng(0), 27_000)
    np.testing.assert_array_equal(again.rewards, batch.rewards)


def test_statistics_are_those_of_the_rows_however_they_were_cut(pair):
    data, stored = pair
    wide = data.observations.astype(np.float64)
    np.testing.assert_allclose(data.statistics.observation_mean, wide.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(data.statistics.observation_std, wide.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(data.statistics.cost_high, data.costs.max(axis=0))
    builder = StatisticsBuilder()
    for block in stored.blocks(7):
        builder.update(block)
    for name, value in builder.finish().to_json().items():
        np.testing.assert_allclose(value, getattr(data.statistics, name), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(getattr(stored.statistics, name), getattr(data.statistics, name))


def test_shards_are_random_whole_episodes_within_the_size(pair):
    data, stored = pair
    seen = set()
    for seed in range(20):
        part = stored.shard(np.random.default_rng(seed), 60)
        assert 50 < part.size <= 60
        assert set(part.episodes.returns) <= set(data.episodes.returns)
        seen |= set(part.episodes.returns)
    assert seen == set(data.episodes.returns)
    assert same(stored.shard(np.random.default_rng(0), 10_000), data)
    with pytest.raises(InputError, match="no whole episode"):
        stored.shard(np.random.default_rng(0), 2)


@pytest.mark.parametrize("block", [1, 7, 10_000])
def test_blocks_and_subsets_hold_the_rows_in_order(pair, block):
    data, stored = pair
    chosen = [0, 1, 5, 17, 30]
    part, expected = stored.subset(chosen), data.subset(chosen)
    for name in ROW_FIELDS:
        np.testing.assert_array_equal(
            np.concatenate([rows[name] for rows in part.blocks(block)]), getattr(expected, name)
        )
    assert same(part.load(), expected)
    assert part.fingerprint != stored.fingerprint
    left, right = stored.split(0.2, seed=1)
    mine = data.split(0.2, seed=1)
    assert same(left.load(), mine[0])
    assert same(right.load(), mine[1])
    assert same(left.subset([0, 2]).load(), mine[0].subset([0, 2]))


def test_stores_can_be_pickled_and_used_from_threads(pair):
    data, stored = pair
    stored.gather([0])
    copy = pickle.loads(pickle.dumps(stored))
    np.testing.assert_array_equal(copy.gather([3]).rewards, data.rewards[[3]])
    wrong = []

    def read(seed):
        rows = np.random.default_rng(seed).integers(0, data.size, 300)
        if not np.array_equal(stored.gather(rows).observations, data.observations[rows]):
            wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_rows_can_be_read_without_this_package(pair):
    data, stored = pair
    rows = np.load(stored.path / "rows.npy", mmap_mode="r")
    np.testing.assert_array_equal(rows["next_observations"], data.next_observations)


def test_damage_is_noticed(pair):
    _, stored = pair
    path = stored.path
    rows, episodes, notes = (
        (path / name).read_bytes() for name in ("rows.npy", "episodes.npz", "notes.json")
    )
    (path / "rows.npy").write_bytes(rows[:-1])
    with pytest.raises(InputError, match="is damaged"):
        StoredDataset(path)
    flipped = bytearray(rows)
    flipped[-40] ^= 1
    (path / "rows.npy").write_bytes(flipped)
    assert any("fingerprint" in problem.message for problem in inspect(path).errors)
    with pytest.raises(InputError, match="fingerprint"):
        load(path)
    (path / "rows.npy").write_bytes(rows)
    (path / "episodes.npz").write_bytes(episodes[:50] + b"x" + episodes[51:])
    with pytest.raises(InputError, match="checksum"):
        StoredDataset(path)
    (path / "episodes.npz").write_bytes(episodes)
    for wrong in (b"", b"{}", b"[]", notes.replace(b'"format": 1', b'"format": 9')):
        (path / "notes.json").write_bytes(wrong)
        with pytest.raises(InputError):
            StoredDataset(path)


def test_open_dataset_chooses_by_what_fits(tmp_path):
    data = walk()
    save(data, tmp_path / "a.hdf5")
    save(data, tmp_path / "a.store")
    assert isinstance(open_dataset(tmp_path / "a.store", max_bytes=10), StoredDataset)
    assert same(open_dataset(tmp_path / "a.hdf5", max_bytes=10_000), data)
    with pytest.raises(InputError, match="slater data convert"):
        open_dataset(tmp_path / "a.hdf5", max_bytes=1000)
    with pytest.raises(InputError, match="when converting"):
        open_dataset(tmp_path / "a.store", ReadOptions(horizon=3))
    with pytest.raises(InputError, match="is no store"):
        StoredDataset(tmp_path / "a.hdf5")


# -- one writer at a time, and replacing one that is there --------------------------------------------------


def test_a_store_that_is_being_written_is_in_use_and_the_other_process_is_named(tmp_path):
    writer = writer_for(tmp_path / "a.store", Notes(Metadata(), ("cost",), False))
    with pytest.raises(InputError, match=rf"a\.store is in use by process {os.getpid()}"):
        save(walk(), tmp_path / "a.store")
    writer.abandon()
    save(walk(), tmp_path / "a.store")
    assert StoredDataset(tmp_path / "a.store").fingerprint == walk().fingerprint


def test_what_a_killed_writer_left_is_taken_away(tmp_path):
    code = "import os, sys; from tests.data.make import walk; from slater.data.formats import store; "
    code += (
        "store._to_disk = lambda path: os._exit(9); from slater.data import save; save(walk(), sys.argv[1])"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.store")], cwd=root, check=False)
    assert done.returncode == 9
    assert (tmp_path / ".a.store.new").is_dir()
    with pytest.raises(InputError, match="There is no file"):
        load(tmp_path / "a.store")
    save(walk(seed=1), tmp_path / "a.store")
    assert load(tmp_path / "a.store").fingerprint == walk(seed=1).fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.store"]


def test_a_store_is_there_again_when_its_replacement_cannot_be_renamed(tmp_path, monkeypatch):
    save(walk(), tmp_path / "a.store")
    real = os.replace

    def replace(source, target):
        if Path(source).name == ".a.store.new":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(InputError, match="cannot be written: Input/output error"):
        save(walk(seed=1), tmp_path / "a.store", overwrite=True)
    assert load(tmp_path / "a.store").fingerprint == walk().fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.store"]


@pytest.mark.parametrize("opens", [load, StoredDataset, open_dataset])
def test_a_replacement_that_died_between_its_renames_is_finished_by_the_next_reader(tmp_path, opens):
    path = tmp_path / "a.store"
    save(walk(seed=1), path)
    path.rename(tmp_path / ".a.store.new")
    save(walk(), tmp_path / "b.store")
    (tmp_path / "b.store").rename(tmp_path / ".a.store.old")
    assert opens(path).fingerprint == walk(seed=1).fingerprint
    assert not (tmp_path / ".a.store.old").exists()


def test_a_store_that_only_waits_under_its_other_name_is_said_and_not_lost(tmp_path):
    path, old = tmp_path / "a.store", tmp_path / ".a.store.old"
    save(walk(), path)
    path.rename(old)
    for attempt in (lambda: load(path), lambda: save(walk(seed=1), path, overwrite=True)):
        with pytest.raises(InputError, match=r"what it held before is .*\.a\.store\.old: rename that"):
            attempt()
    old.rename(path)
    assert load(path).fingerprint == walk().fingerprint


def test_rows_of_another_store_do_not_pass_for_those_of_the_one_that_was_opened(tmp_path):
    save(walk(), tmp_path / "a.store")
    opened = StoredDataset(tmp_path / "a.store")
    save(walk(seed=1), tmp_path / "a.store", overwrite=True)
    with pytest.raises(InputError, match="was replaced or changed while it was in use"):
        opened.load()
