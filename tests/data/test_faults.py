"""Faults that were found in review, each by the smallest file that shows it."""

import h5py
import numpy as np
import pytest

from slater.data import inspect, load, save
from slater.errors import InputError

from .make import same, walk

FIELDS = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.tsv"])
def test_costs_whose_names_end_in_digits_come_back_in_their_own_order(tmp_path, name):
    """The reader sorts numbered columns, but the order of the costs is that of the notes."""
    data = walk(costs=("b1", "a1", "a10", "a2"))
    save(data, tmp_path / name)
    assert not inspect(tmp_path / name).errors
    assert same(load(tmp_path / name), data)


def written(path, data, unwritten=(), **options):
    with h5py.File(path, "w") as file:
        for name in FIELDS:
            array = getattr(data, name)
            filled = {} if name in unwritten else {"data": array}
            file.create_dataset(name, array.shape, array.dtype, **filled, **options)
        file.create_dataset("costs", data=data.costs[:, 0])


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
def test_hdf5_datasets_that_were_never_written_are_zeros(tmp_path, options):
    data = walk(falls=False)
    path = tmp_path / "a.hdf5"
    written(path, data, ["terminals"], **options)
    assert load(path).fingerprint == data.fingerprint
    (warning,) = inspect(path).problems
    assert (warning.severity, warning.field) == ("warning", "terminals")
    assert "never written" in warning.message
    written(path, data, ["observations"], **options)
    with pytest.raises(InputError, match="observations: was created but never written"):
        load(path)


def test_a_chunk_that_is_missing_among_others_is_still_an_error(tmp_path):
    data = walk(falls=False)
    written(tmp_path / "a.hdf5", data, ["rewards"], chunks=True)
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        for name in FIELDS:
            array = getattr(data, name)
            stored = file.create_dataset(name, array.shape, array.dtype, chunks=(10, *array.shape[1:]))
            stored[: 20 if name == "rewards" else None] = array[: 20 if name == "rewards" else None]
        file.create_dataset("costs", data=data.costs[:, 0])
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path / "b.hdf5")


def test_an_hdf5_shape_of_a_billion_rows_is_refused_and_not_read(tmp_path):
    """One flipped bit in a shape: libhdf5 would plan for a hundred million chunks that are not there."""
    data = walk()
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for name in (*FIELDS, "costs"):
            array = getattr(data, name)
            wide = (None, *array.shape[1:])
            file.create_dataset(name, data=array, chunks=(10, *array.shape[1:]), maxshape=wide)
            file[name].resize(10**9 + len(array), axis=0)
    with pytest.raises(InputError, match=r"shape \(10000000.*not all of that is in the file"):
        load(path)


def test_a_minari_shape_of_a_billion_rows_is_refused_and_not_read(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save(walk(), "minari:large/a-v0")
    with h5py.File(tmp_path / "large" / "a-v0" / "data" / "main_data.hdf5", "r+") as file:
        values = file["episode_3/actions"][()]
        del file["episode_3/actions"]
        file["episode_3"].create_dataset("actions", data=values, chunks=values.shape, maxshape=(None, 2))
        file["episode_3/actions"].resize(10**9, axis=0)
    with pytest.raises(InputError, match=r"episode 3 is damaged.*not all of that is in the file"):
        load("minari:large/a-v0")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_episodes_without_any_final_flag_all_end_by_timeouts(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(0)
    minari.create_dataset_from_buffers(
        "their/open-v0",
        [
            EpisodeBuffer(
                id=number,
                observations=rng.normal(size=(6, 2)).astype(np.float32),
                actions=rng.uniform(-1, 1, (5, 1)).astype(np.float32),
                rewards=rng.normal(size=5).astype(np.float32),
                terminations=np.zeros(5, bool),
                truncations=np.zeros(5, bool),
                infos={"cost": np.ones(5, np.float32)},
            )
            for number in range(3)
        ],
        observation_space=spaces.Box(-9, 9, (2,), np.float32),
        action_space=spaces.Box(-1, 1, (1,), np.float32),
    )
    data = load("minari:their/open-v0")
    assert data.episodes.complete.all()
    np.testing.assert_array_equal(np.flatnonzero(data.timeouts), [4, 9, 14])
    cost, warning = inspect("minari:their/open-v0").problems
    assert "'cost' is 1 in every row" in cost.message
    assert (warning.field, warning.count) == ("timeouts", 3)


def test_a_published_name_with_other_widths_is_refused(tmp_path):
    path = tmp_path / "SafetyBallRun-v0-80-940.hdf5"
    written(path, walk(obs=5))
    with pytest.raises(InputError, match=r"observations: has 5 entries per row, but the published .* has 7"):
        load(path)
    written(path, walk(obs=7, act=3))
    with pytest.raises(InputError, match=r"actions: has 3 entries per row, but the published .* has 2"):
        load(path)
    written(path, walk(obs=7, horizon=100))
    assert load(path).metadata.env_id == "bullet/BallRun"
    save(walk(obs=5), path, overwrite=True)  # a file with notes of its own says itself what it is
    assert load(path).metadata.env_id is None
