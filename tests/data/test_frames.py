"""Frames in and out: pandas, Polars and Arrow tables, with the names of their columns."""

import numpy as np
import pytest

import slater
from slater.data import Dataset, load, save
from slater.encoding import Encoding, encode_rows, table_columns
from slater.errors import InputError

from .make import remembering, same, walk
from .test_odd_tables import COLOURS, MAP, PLAIN, TIMES, read, with_

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pytest.importorskip("pyarrow")

RAW = with_(colour=COLOURS, when=TIMES, open=[c != "red" for c in COLOURS], push=COLOURS[::-1])
TOLD = {"columns": {**MAP, "observations": ["x", "colour", "when", "open"]}}


@pytest.mark.parametrize("ending", ["hdf5", "npz", "parquet", "csv", "store"])
def test_names_and_encodings_stay_with_the_data_in_every_format(tmp_path, ending):
    data = read(pd.DataFrame(RAW), TOLD)
    save(data, tmp_path / f"a.{ending}")
    back = load(tmp_path / f"a.{ending}")
    assert same(back, data)
    assert back.metadata.columns == data.metadata.columns
    assert [encoding.kind for encoding in back.metadata.columns] == ["number", "category", "cycle", "flag"]
    assert back.metadata.action_names == ("blue", "green", "red")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, dict])
def test_raw_rows_become_the_observations_that_were_learned_from(frame):
    data = read(pd.DataFrame(RAW), TOLD)
    rows = frame({name: RAW[name] for name in ("open", "when", "colour", "x", "v")})
    np.testing.assert_array_equal(encode_rows(data.metadata.columns, rows), data.observations)
    one = {name: RAW[name][7] for name in ("x", "colour", "when", "open")}
    np.testing.assert_array_equal(encode_rows(data.metadata.columns, one)[0], data.observations[7])
    some = [{name: RAW[name][k] for name in one} for k in (3, 4)]
    np.testing.assert_array_equal(encode_rows(data.metadata.columns, some), data.observations[3:5])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"x": [1.0], "colour": ["purple"]}, "'colour' is 'purple' in row 0, .*known are blue, green, red"),
        ({"x": [1.0], "color": ["red"]}, "no column 'colour'; did you mean 'color'"),
        ({"x": [1.0, None], "colour": ["red", "red"]}, "'x' is missing or infinite in row 1"),
        ({"x": ["a"], "colour": ["red"]}, "'x' is 'a' in row 0; it needs a number"),
        ({"x": [1.0, 2.0], "colour": ["red"]}, "differ in length"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(rows, words):
    encodings = [Encoding("x"), Encoding("colour", "category", ("blue", "green", "red"))]
    with pytest.raises(InputError, match=words):
        encode_rows(encodings, rows)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_arrays_may_be_frames_and_keep_their_names(frame):
    seen, acted = {"x": PLAIN["x"], "v": PLAIN["v"]}, {"push": PLAIN["push"]}
    data = Dataset.from_arrays(
        observations=frame(seen), actions=frame(acted), rewards=frame(PLAIN)["gain"],
        costs=frame({"wear": PLAIN["wear"], "heat": PLAIN["wear"]}), episode=frame(PLAIN)["trip"],
    )  # fmt: skip
    assert data.metadata.entry_names(2) == ["x", "v"]
    assert (data.metadata.action_names, data.cost_names) == (("push",), ("wear", "heat"))
    np.testing.assert_array_equal(data.observations, np.column_stack(list(seen.values())).astype(np.float32))


@pytest.mark.parametrize("data", [walk(), walk(discrete=True, costs=("a", "b")), remembering()])
def test_a_frame_of_a_dataset_reads_back_as_it(data):
    frame = data.to_pandas()
    assert len(frame) == data.size
    back = read(frame, {"columns": None})
    for name in ("observations", "actions", "rewards", "costs", "terminals", "timeouts"):
        np.testing.assert_array_equal(getattr(back, name), getattr(data, name))
    assert back.cost_names == data.cost_names
    assert (back.source is None) == (data.source is None)


def test_named_actions_come_out_by_name():
    frame = read(pd.DataFrame(RAW), TOLD).to_pandas()
    assert frame["action"].tolist() == RAW["push"]
    assert frame["colour=red"].tolist() == [float(colour == "red") for colour in COLOURS]


def test_a_dataset_shows_itself_in_a_line_and_in_a_notebook():
    data = read(pd.DataFrame(RAW), TOLD)
    assert repr(data).startswith("<Dataset of 24 steps in 4 episodes of up to 6, observations of ")
    assert "\n" not in repr(data)
    assert len(repr(data)) < 200
    page = data._repr_html_()
    assert "<th>colour=red</th>" in page
    assert page.count("<tr>") == 6


def test_columns_of_other_things_are_refused():
    with pytest.raises(InputError, match="no column 'y'"):
        table_columns({"x": [1]}, ["y"])
    with pytest.raises(InputError, match="column map"):
        slater.load({"x": [1.0], "y": [2.0]})
