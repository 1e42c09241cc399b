"""Training from a store that does not fit: shards of the whole, the same bits after any interruption."""

import json
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

import slater.deep as deep
from slater import cli
from slater.data import StoredDataset, load, save
from slater.deep.batches import prepare
from slater.deep.engine.sources import Shards, row_bytes
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import resolve_limits

from .. import children
from .conformance.table import finished_run
from .engine.test_engine import OPTIONS
from .killed import go_on
from .problems import PDCA_QUICK, QUICK, QUICK_WORDS, pointmass
from .runs import StopAt, weights
from .toy import Toy

ROWS = 400  # rows of a shard in these tests: 16 of 40 episodes


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "toy", Toy)


@pytest.fixture
def store(tmp_path) -> StoredDataset:
    save(pointmass(), tmp_path / "data.store")
    return StoredDataset(tmp_path / "data.store")


def memory(dataset: Any, rows: int = ROWS) -> float:
    """GB that hold shards of `rows` rows."""
    return (rows + 0.5) * 3 * row_bytes(dataset) / 1e9


def test_the_problem_of_a_store_is_that_of_its_rows(store):
    limits = resolve_limits([5.0], store.cost_names)
    whole, _ = prepare(store.load(), limits, 0.9)
    stored = state_task(store, limits, 0.9)
    names = ["tau", "scale", "value_low", "value_high", "obs_mean", "obs_std", "action_low", "action_high"]
    for name in names:
        # the reward's scale is a high percentile, of a sample where the data stay on disk
        tolerance = 0.05 if name in ("scale", "value_low", "value_high") else 1e-5
        np.testing.assert_allclose(getattr(stored, name), getattr(whole, name), rtol=tolerance, err_msg=name)
    assert stored.describe()["limits"] == whole.describe()["limits"]


def test_shards_hold_rows_of_the_data_and_in_the_long_run_all_of_them(store):
    limits = resolve_limits([5.0], store.cost_names)
    task, data = prepare(store.load(), limits, 0.9)
    shards = Shards(store, task, seed=0, memory=memory(store), batch_size=32)
    assert shards.rows == ROWS

    def keys(part: Any) -> set[bytes]:
        columns = [np.asarray(getattr(part, name)).reshape(len(part.obs), -1) for name in part._fields[:-1]]
        return {row.tobytes() for row in np.concatenate(columns, axis=1).astype(np.float32)}

    everything, seen = keys(data), set()
    for number in range(30):
        shard = shards._shard(number)
        assert len(shard.obs) == ROWS
        assert keys(shard) <= everything
        seen |= keys(shard)
    assert seen == everything
    np.testing.assert_array_equal(shards._shard(3).obs, shards._shard(3).obs)
    assert not np.array_equal(shards._shard(3).obs, shards._shard(4).obs)
    shards.close()


def test_every_row_is_equally_likely_to_be_in_a_shard(tmp_path):
    """Episodes of several lengths: the share of shards in which a row appears does not depend on them."""
    from slater.data import Dataset, Metadata

    lengths = np.tile([2, 10, 30], 20)
    size = int(lengths.sum())
    ends = np.zeros(size, dtype=bool)
    ends[np.cumsum(lengths) - 1] = True
    data = Dataset.from_arrays(
        observations=np.arange(size, dtype=np.float32)[:, None], actions=np.zeros((size, 1)),
        rewards=np.ones(size), costs=np.zeros(size), terminals=np.zeros(size), timeouts=ends,
        next_observations=np.zeros((size, 1)), metadata=Metadata(horizon=30),
    )  # fmt: skip
    save(data, tmp_path / "data.store")
    store = StoredDataset(tmp_path / "data.store")
    task = state_task(store, resolve_limits([5.0], store.cost_names), 0.9, normalise_observations=False)
    shards = Shards(store, task, seed=0, memory=memory(store, 300), batch_size=32)
    counts = np.zeros(size)
    draws = 120
    for number in range(draws):
        np.add.at(counts, np.asarray(shards._shard(number).obs)[:, 0].astype(int), 1)
    shards.close()
    expected = draws * 300 / size
    of_length = np.repeat(lengths, lengths)
    for length in (2, 10, 30):
        assert abs(counts[of_length == length].mean() / expected - 1) < 0.1


@pytest.mark.xdist_group("pdca")
def test_a_store_that_fits_trains_as_in_memory_to_the_bit(store, tmp_path):
    deep.train("pdca", store, [5], tmp_path / "store", **PDCA_QUICK)
    assert weights(tmp_path / "store") == weights(finished_run("pdca", None)[0])


@pytest.mark.xdist_group("pdca")
@pytest.mark.parametrize("name", ["pdca", "toy"])
def test_a_streamed_run_cut_anywhere_ends_with_the_same_bits(name, store, tmp_path):
    settings = PDCA_QUICK if name == "pdca" else QUICK
    options = {**OPTIONS, "memory": memory(store)}  # a new shard every 13 of 60 iterations
    deep.train(name, store, [5], tmp_path / "whole", options=options, **settings)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        deep.train(name, store, [5], tmp_path / "cut", options=options, watcher=StopAt(20), **settings)
    for step in (40, 55):
        with pytest.raises(KeyboardInterrupt):
            deep.resume(tmp_path / "cut", store, watcher=StopAt(step))
    deep.resume(tmp_path / "cut", store)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    if name == "toy":
        deep.train(name, store.load(), [5], tmp_path / "memory", options=OPTIONS, **settings)
    in_memory = tmp_path / "memory" if name == "toy" else finished_run(name, None)[0]
    assert weights(in_memory) != weights(tmp_path / "whole")  # or nothing was streamed


@pytest.mark.slow
def test_kill_9_in_a_streamed_run_and_still_the_same_bits(store, tmp_path):
    options = {"log_every": 20, "checkpoint_every": 20, "estimate": False, "memory": memory(store)}
    settings = {**QUICK, "steps": 1500, "keep_every": 300}

    def start(out: str) -> ForkServerProcess:
        return children.start(go_on, tmp_path / out, "toy", Path(store.path), options, settings)

    assert children.ended(start("whole")) == 0
    metrics = tmp_path / "killed" / "metrics.jsonl"
    for _ in range(2):
        before = metrics.stat().st_mtime_ns if metrics.exists() else 0
        child = start("killed")
        while (metrics.stat().st_mtime_ns if metrics.exists() else 0) <= before:
            assert child.is_alive()
            time.sleep(0.005)
        child.kill()
        child.join()
    assert children.ended(start("killed")) == 0
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_an_algorithm_that_needs_all_data_says_so(store, tmp_path, monkeypatch):
    from slater.deep.algorithms import registry

    class Sequences(Toy):
        name: ClassVar[str] = "sequences"

        def data(self, dataset, task, data):
            return data

    monkeypatch.setitem(registry._REGISTRY, "sequences", Sequences)
    with pytest.raises(InputError, match=r"sequences needs the whole dataset in memory.*allow more memory"):
        deep.train("sequences", store, [5], tmp_path / "run", options={"memory": memory(store)}, **QUICK)
    deep.train("sequences", store, [5], tmp_path / "fits", **QUICK)


def test_too_little_memory_is_said(store, tmp_path):
    with pytest.raises(InputError, match="less than an episode of 25"):
        deep.train("toy", store, [5], tmp_path / "run", options={"memory": memory(store, 10)}, **QUICK)


def test_the_command_streams_a_store_and_names_the_line_for_other_files(store, tmp_path, capsys):
    save(store.load(), tmp_path / "data.hdf5")
    out = str(tmp_path / "run")
    little = ["--no-estimate", "--memory", str(memory(store))]
    assert cli.main(["train", "toy", str(tmp_path / "data.hdf5"), "--out", out, *QUICK_WORDS, *little]) == 2
    said = capsys.readouterr().err
    assert "slater data convert" in said
    assert "allow more memory" in said
    assert cli.main(["train", "toy", str(store.path), "--out", out, *QUICK_WORDS, *little]) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())["run"]
    assert record["memory"] == memory(store)
    assert cli.main(["train", "--resume", out]) == 0
    fits = str(tmp_path / "fits")
    fitting = ["train", "toy", str(store.path), "--out", fits, *QUICK_WORDS, "--no-estimate", "--memory", "1"]
    assert cli.main(fitting) == 0
    assert weights(tmp_path / "fits") != weights(tmp_path / "run")


def test_a_streamed_run_learns(store):
    """The engine's draw on a shard is the draw on data: no column is mixed up with another."""
    from slater.deep.batches import draw

    task = state_task(store, resolve_limits([5.0], store.cost_names), 0.9)
    shards = Shards(store, task, seed=1, memory=memory(store), batch_size=32)
    batch = draw(shards.at(0), task, jax.random.key(0), 64)
    shards.close()
    position = np.asarray(batch.s) * task.obs_std + task.obs_mean
    after = np.asarray(batch.s_next) * task.obs_std + task.obs_mean
    np.testing.assert_allclose(0.9 * position[:, 0] + 0.3 * np.asarray(batch.a)[:, 0], after[:, 0], atol=1e-5)
    np.testing.assert_allclose(np.asarray(batch.u)[:, 0] / task.scale[0], after[:, 0] + 0.1, atol=1e-5)
    np.testing.assert_allclose(np.asarray(batch.u)[:, 1], after[:, 0] > 0.1, atol=1e-6)
    assert load(store.path).size == store.size
