"""A log that remembers: the source of every episode and the propensity of every action, in all formats."""

import dataclasses
import json

import h5py
import numpy as np
import pytest

from slater.cli import main
from slater.data import Dataset, ReadOptions, StoredDataset, convert, inspect, load, save
from slater.data.formats.base import parse_columns
from slater.errors import InputError

from .make import remembering, same, walk

FILES = ["a.hdf5", "a.npz", "a.parquet", "a.csv", "a.tsv", "a.store", "minari:slater/remember-v0"]


@pytest.fixture(autouse=True)
def collection(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def place(tmp_path, name):
    return name if name.startswith("minari:") else tmp_path / name


def equal(left, right):
    np.testing.assert_array_equal(left.source, right.source)
    np.testing.assert_array_equal(left.propensity, right.propensity)
    return same(left, right)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("discrete", [False, True])
def test_sources_and_propensities_come_back_in_every_format(tmp_path, name, discrete):
    data = remembering(discrete)
    save(data, place(tmp_path, name))
    assert equal(load(place(tmp_path, name)), data)
    assert not inspect(place(tmp_path, name)).errors
    convert(place(tmp_path, name), tmp_path / "out.parquet")
    assert equal(load(tmp_path / "out.parquet"), data)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("missing", ["source", "propensity"])
def test_a_log_may_have_one_of_the_two(tmp_path, name, missing):
    data = dataclasses.replace(remembering(), **{missing: None})
    save(data, place(tmp_path, name))
    read = load(place(tmp_path, name))
    assert getattr(read, missing) is None
    assert read.fingerprint == data.fingerprint != walk().fingerprint


def test_what_is_not_there_does_not_change_the_fingerprint():
    assert walk().fingerprint == "d8468344021cb9af22e500847c808f5512dbadeb0a6da287bdda2c55258d7c22"
    data = remembering()
    plain = dataclasses.replace(data, source=None, propensity=None)
    assert plain.fingerprint == walk().fingerprint
    other = data.source.copy()
    other[0] = "else"
    assert dataclasses.replace(data, source=other).fingerprint != data.fingerprint
    assert dataclasses.replace(data, propensity=2 * data.propensity).fingerprint != data.fingerprint


def test_subsets_splits_and_stores_keep_them(tmp_path):
    data = remembering(episodes=12, tail=2)
    save(data, tmp_path / "a.store")
    stored = StoredDataset(tmp_path / "a.store")
    assert "propensity" in next(stored.blocks())
    for part in (data.subset([1, 4, 12]), stored.subset([1, 4, 12]).load()):
        np.testing.assert_array_equal(part.source, data.source[[1, 4, 12]])
        np.testing.assert_array_equal(part.episodes.source, part.source)
        lengths = data.episodes.lengths[[1, 4, 12]]
        np.testing.assert_array_equal(part.rows()["source"], np.repeat(part.source, lengths))
        start, stop = data.episodes.starts[4], data.episodes.stops[4]
        first = lengths[0]
        np.testing.assert_array_equal(
            part.propensity[first : first + stop - start], data.propensity[start:stop]
        )
    blocks = list(stored.subset([4, 5]).blocks(3))
    joined = np.concatenate([block["source"] for block in blocks])
    np.testing.assert_array_equal(joined, np.repeat(data.source[[4, 5]], data.episodes.lengths[[4, 5]]))
    shard = stored.shard(np.random.default_rng(0), 50)
    assert shard.source is not None
    assert shard.propensity is not None


def arrays(data):
    names = ("observations", "actions", "rewards", "costs", "terminals", "timeouts", "next_observations")
    return {name: getattr(data, name) for name in names}


def test_from_arrays_takes_names_per_episode_or_per_row():
    data = remembering()
    given = arrays(data) | {"propensity": data.propensity}
    assert equal(Dataset.from_arrays(**given, source=data.source), data)
    assert equal(Dataset.from_arrays(**given, source=data.rows()["source"].astype(object)), data)
    numbered = Dataset.from_arrays(**given, source=np.arange(len(data.episodes)))
    assert numbered.source.tolist() == [str(e) for e in range(len(data.episodes))]
    with pytest.raises(InputError, match="one per episode"):
        Dataset.from_arrays(**given, source=["a", "b"])


@pytest.mark.parametrize(
    ("discrete", "bad", "words"),
    [
        (False, np.nan, "NaN or infinite"),
        (False, np.inf, "NaN or infinite"),
        (False, 0.0, "not above 0"),
        (True, -0.5, "not above 0"),
        (True, 1.5, "at most 1"),
    ],
)
def test_impossible_propensities_are_listed_with_their_rows(tmp_path, discrete, bad, words):
    data = remembering(discrete)
    values = data.propensity.copy()
    values[[3, 7]] = bad
    with pytest.raises(InputError, match=words):
        Dataset.from_arrays(**arrays(data), propensity=values)
    save(dataclasses.replace(data, propensity=values), tmp_path / "a.hdf5")
    (problem,) = inspect(tmp_path / "a.hdf5").errors
    assert (problem.field, problem.rows) == ("propensity", (3, 7))
    assert words in problem.message


def test_densities_may_be_above_one():
    data = walk()
    Dataset.from_arrays(**arrays(data), propensity=np.full(data.size, 30.0))


def test_a_source_that_changes_inside_an_episode_or_has_no_name_is_refused():
    data = remembering()
    names = data.rows()["source"].astype(object)
    names[3] = "other"
    with pytest.raises(InputError, match=r"changes in the middle of an episode.*2 rows: 3, 4"):
        Dataset.from_arrays(**arrays(data), source=names)
    names[:] = None
    with pytest.raises(InputError, match="has no name"):
        Dataset.from_arrays(**arrays(data), source=names)


def test_foreign_files_may_spell_sources_as_text_or_numbers(tmp_path):
    data = walk()
    rows = np.array(["a", "b"])[np.arange(len(data.episodes)) % 2].repeat(data.episodes.lengths)
    for number, (values, expected) in enumerate(
        [(rows.astype("S"), ["a", "b"]), ((rows == "b").astype(np.int8), ["0", "1"])]
    ):
        path = tmp_path / f"{number}.hdf5"
        with h5py.File(path, "w") as file:
            for name, array in arrays(data).items():
                file[name] = array[:, 0] if name == "costs" else array
            file["source"] = values
        assert sorted(set(load(path).source.tolist())) == expected
        assert load(path, ReadOptions(columns=parse_columns(["source=-"]))).source is None
    with h5py.File(tmp_path / "0.hdf5", "a") as file:
        del file["source"]
        file["source"] = rows.astype(object)
    with pytest.raises(InputError, match="fixed length"):
        load(tmp_path / "0.hdf5")


def test_info_shows_the_sources_with_their_means(tmp_path, capsys):
    data = remembering(episodes=9, costs=("near", "far"))
    save(data, tmp_path / "a.hdf5")
    assert main(["data", "info", str(tmp_path / "a.hdf5"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["propensities"] is True
    assert [row["source"] for row in record["sources"]] == sorted(set(data.source.tolist()))
    for row in record["sources"]:
        own = data.source == row["source"]
        assert row["episodes"] == own.sum()
        assert row["mean_return"] == pytest.approx(data.episodes.returns[own].mean())
        assert row["mean_costs"]["far"] == pytest.approx(data.episodes.costs[own, 1].mean())
    assert main(["data", "info", str(tmp_path / "a.hdf5")]) == 0
    assert "bold – süß" in capsys.readouterr().out
    save(walk(), tmp_path / "b.hdf5")
    assert main(["data", "info", str(tmp_path / "b.hdf5"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sources"] is None
    assert record["propensities"] is False
