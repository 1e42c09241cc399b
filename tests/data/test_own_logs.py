"""A log as people have it: own column names, holes, text and times in the wrong place, many Parquet files."""

import json

import numpy as np
import pytest

from slater.data import ReadOptions, inspect, load, save
from slater.data.files import open_file
from slater.errors import InputError, InputWarning

from .make import same, walk

COLUMNS = {
    "observations": ["x", "v"], "actions": "throttle", "rewards": "profit", "costs": "wear",
    "terminals": "crashed", "episode": "trip",
}  # fmt: skip
HEAD = "when,trip,x,v,throttle,profit,wear,crashed\n"


def rows(**changes):
    """Two trips of four steps, as lines of CSV; `changes` are column -> {row: text}."""
    lines = []
    for row in range(8):
        line = {
            "when": f"{row % 4}", "trip": "ab"[row // 4], "x": f"{row}", "v": f"{row * row}",
            "throttle": ".5", "profit": f"{row}", "wear": f"{row % 2}", "crashed": str(int(row == 3)),
        }  # fmt: skip
        line |= {name: texts[row] for name, texts in changes.items() if row in texts}
        lines.append(",".join(line.values()))
    return HEAD + "\n".join(lines) + "\n"


@pytest.fixture
def table(tmp_path):
    def write(**changes):
        path = tmp_path / "trips.csv"
        path.write_text(rows(**changes))
        return path

    return write


def test_a_csv_in_one_step(table):
    path = table()
    data = load(path, columns=COLUMNS)
    assert (data.size, data.cost_names, len(data.episodes)) == (8, ("wear",), 2)
    texts = [
        f"{role}={names if isinstance(names, str) else ','.join(names)}" for role, names in COLUMNS.items()
    ]
    assert load(path, columns=texts).fingerprint == data.fingerprint
    assert load(path, columns=" ".join(texts)).fingerprint == data.fingerprint
    with pytest.raises(InputError, match="no option 'colums'"):
        load(path, colums=COLUMNS)
    with pytest.raises(InputError, match="no role 'observation'"):
        load(path, columns={"observation": "x"})


def test_the_options_survive_a_record(table):
    options = ReadOptions(
        columns={"observations": ("x", "v")}, missing="drop", horizon=4, action_low=(-1.0,), discrete=False
    )
    assert ReadOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert ReadOptions().to_json() == {}
    for bad in ({"colums": {}}, {"columns": 3}, {"missing": "guess"}, {"horizon": "x"}):
        with pytest.raises(InputError):
            ReadOptions.from_json(bad)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"v": {5: "fast"}},
            r"the column 'v' \(observations\) holds text \('fast' in row 5\).*correct these rows",
        ),
        (
            {"wear": dict.fromkeys(range(8), "low")},
            r"'wear' \(costs\) holds text \('low' in row 0 and 7 more\)",
        ),
        ({"x": {2: "2024-05-01 10:00:00"}}, r"'x' \(observations\) holds times .* in row 2.*time=x"),
        ({"wear": {6: ""}}, r"the column 'wear' is NaN or infinite \[1 row: 6\]"),
        ({"v": {1: "", 3: "NaN"}}, r"the column 'v' is NaN or infinite \[2 rows: 1, 3\]"),
    ],
)
def test_errors_name_the_column_and_the_row(table, changes, words):
    with pytest.raises(InputError, match=words):
        load(table(**changes), columns=COLUMNS)


def test_text_and_times_in_place_of_a_cost_in_parquet_are_explained(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "obs_0": [0.0, 1.0],
        "action": [0.5, 0.5],
        "reward": [1.0, 1.0],
        "cost": pa.array(["low", "high"]),
    }
    pq.write_table(pa.table({**columns, "terminal": [False, True]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"'cost' \(costs\) holds text \('low' in row 0\)"):
        load(tmp_path / "a.parquet")
    columns["cost"] = pa.array(np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]"))
    pq.write_table(pa.table({**columns, "terminal": [False, True]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"'cost' \(costs\) holds times"):
        load(tmp_path / "a.parquet")


def test_dropped_rows_are_counted_and_leave_no_false_transition(table):
    path = table(x={1: ""}, wear={6: ""})
    data = load(path, columns=COLUMNS, missing="drop")
    assert data.observations[:, 0].tolist() == [0, 2, 3, 4, 5, 7]
    # into row 1 no transition is known; into row 6, whose observation is there, one is
    assert data.next_known.tolist() == [False, True, True, True, True, False]
    assert data.next_observations[4].tolist() == [6, 36]
    warnings = inspect(path, ReadOptions(columns=load_columns(), missing="drop")).warnings
    (count,) = [w for w in warnings if "left out" in w.message]
    assert (count.count, count.rows) == (2, (1, 6))


def test_problems_are_at_the_rows_of_the_file_where_others_were_left_out(table):
    """The rows that stay are counted from 0 while they are checked, but a person looks into the file."""
    path = table(x={1: "", 2: "", 5: "4"}, v={5: "16"}, profit={5: "4"}, wear={5: "0", 6: "-1"})
    found = inspect(path, ReadOptions(columns=load_columns(), missing="drop"))
    places = {problem.message.split()[0]: problem.rows for problem in found.warnings if problem.rows}
    assert (places["repeats"], places["is"]) == ((5,), (1, 2))
    assert [w.rows for w in found.problems if w.field == "costs"] == [(6,)]
    assert "(rows are numbered from 0)" in str(found).splitlines()[0]


def test_a_table_without_any_known_name_is_explained_even_where_it_has_times(tmp_path):
    (tmp_path / "log.csv").write_text("time,x,u\n0,1,2\n")
    with pytest.raises(InputError, match="has the columns time, x, u; say which is which"):
        load(tmp_path / "log.csv")


def load_columns():
    return {role: (n,) if isinstance(n, str) else tuple(n) for role, n in COLUMNS.items()}


def test_an_episode_whose_last_row_is_dropped_ends_where_it_stays(table):
    data = load(table(x={3: "", 7: ""}), columns=COLUMNS, missing="drop")
    assert data.episodes.lengths.tolist() == [3, 3]
    assert not data.terminals.any()  # the crash went with its row: the rest is cut off
    whole = load(table(**{n: dict.fromkeys(range(4), "") for n in ("x",)}), columns=COLUMNS, missing="drop")
    assert len(whole.episodes) == 1


def test_filling_forward_stays_within_the_episode(table):
    path = table(x={1: "", 2: "", 4: ""}, throttle={6: ""})
    data = load(path, columns=COLUMNS, missing="forward")
    assert data.observations[:, 0].tolist() == [0, 0, 0, 3, 5, 6, 7]  # row 4 begins a trip: nothing before it
    report = inspect(path, ReadOptions(columns=load_columns(), missing="forward"))
    filled = {w.field: w.rows for w in report.warnings if "value of the row before" in w.message}
    assert filled == {"observations": (1, 2), "actions": (6,)}


@pytest.mark.parametrize("missing", ["drop", "forward"])
def test_missing_values_do_not_depend_on_blocks(tmp_path, missing):
    """Any cut of the rows in blocks gives the same rows."""
    rng = np.random.default_rng(0)
    data = walk(episodes=12, horizon=7)
    holes = data.observations.copy()
    holes[rng.random(holes.shape) < 0.15] = np.nan
    for given_next in (True, False):
        names = ("actions", "rewards", "terminals", "timeouts")
        arrays = {name: getattr(data, name) for name in names}
        if given_next:
            arrays["next_observations"] = data.next_observations
        np.savez(tmp_path / "a.npz", observations=holes, costs=data.costs[:, 0], **arrays)
        found = []
        for block in (1, 2, 3, 10, 1000):
            opened = open_file(tmp_path / "a.npz", ReadOptions(missing=missing))
            parts = list(opened.rows(block))
            assert not opened.report.errors
            found.append({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        for other in found[1:]:
            for name, array in found[0].items():
                np.testing.assert_array_equal(other[name], array, err_msg=name)
        kept = ~np.isnan(holes).any(axis=1) if missing == "drop" else slice(None)
        if missing == "drop":
            np.testing.assert_array_equal(found[0]["observations"], data.observations[kept])
        else:
            assert np.isfinite(found[0]["observations"]).all()


def test_without_holes_the_choice_changes_nothing(tmp_path):
    save(walk(tail=2), tmp_path / "a.npz")
    for missing in ("drop", "forward"):
        assert same(load(tmp_path / "a.npz", missing=missing), walk(tail=2))


def test_gaps_in_time_constant_columns_and_repeated_rows_are_reported(table):
    path = table(when={2: "20", 3: "21"}, x={6: "5"}, v={6: "25"}, profit={6: "5"}, wear={6: "1"})
    columns = load_columns() | {"time": ("when",)}
    found = {(w.field, w.rows): w.message for w in inspect(path, ReadOptions(columns=columns)).warnings}
    assert "gap" in found["time", (2,)]
    assert "repeats the row before" in found["rows", (6,)]
    assert "'throttle': the same in every row" in found["actions", ()]
    path = table(when={2: "0.5"})
    (error,) = inspect(path, ReadOptions(columns=columns)).errors
    assert (error.field, error.rows) == ("time", (2,))
    times = {row: f"2024-05-01 10:00:{10 * (row % 4) + (5 if row == 7 else 0):02d}" for row in range(8)}
    warnings = inspect(table(when=times), ReadOptions(columns=columns)).warnings
    assert [w.rows for w in warnings if w.field == "time"] == []
    times[7] = "2024-05-01 11:00:00"
    warnings = inspect(table(when=times), ReadOptions(columns=columns)).warnings
    assert [w.rows for w in warnings if w.field == "time"] == [(7,)]


def test_reading_says_what_the_checks_found(table):
    """Nobody has to run `data check` to hear that rows were left out."""
    path = table(x={1: ""}, wear={6: "-1"})
    with pytest.warns(InputWarning) as said:
        load(path, columns=COLUMNS, missing="drop")
    texts = [str(warning.message) for warning in said]
    assert f"{path}: rows: is missing here; the row is left out [1 row: 1], numbered from 0" in texts
    assert any("the cost 'wear' is negative" in text and "[1 row: 6]" in text for text in texts)


def test_a_column_given_twice_for_a_role_is_refused(table):
    with pytest.raises(InputError, match="'x' is given twice for observations"):
        load(table(), columns={**COLUMNS, "observations": ["x", "v", "x"]})
    with pytest.raises(InputError, match="'x' is given twice for observations"):
        load(table(), columns={**COLUMNS, "observations": ["x*", "x"]})


def test_amounts_in_whole_numbers_are_not_taken_for_actions_without_a_word(table):
    amounts = {row: str((18, 21, 25)[row % 3]) for row in range(8)}
    columns = load_columns()
    messages = [w.message for w in inspect(table(throttle=amounts), ReadOptions(columns=columns)).warnings]
    (found,) = [text for text in messages if "discrete" in text]
    assert "26 discrete actions, of which 3 occur" in found
    for told in ({"discrete": True}, {"num_actions": 30}, {"discrete": False}):
        warnings = inspect(table(throttle=amounts), ReadOptions(columns=columns, **told)).warnings
        assert not [w for w in warnings if "discrete" in w.message]
    every = {row: str(row % 3) for row in range(8)}
    warnings = inspect(table(throttle=every), ReadOptions(columns=columns)).warnings
    assert not [w for w in warnings if "discrete" in w.message]


def test_a_cost_that_is_always_the_same_and_a_column_that_single_precision_rounds_are_reported(table):
    path = table(wear=dict.fromkeys(range(8), ".5"), x={row: str(1731800000 + 60 * row) for row in range(8)})
    found = inspect(path, ReadOptions(columns=load_columns())).warnings
    assert any("the cost 'wear' is 0.5 in every row" in w.message for w in found)
    (coarse,) = [w for w in found if "single precision" in w.message]
    assert "'x': values near 1.7318e+09 are kept in steps of 128" in coarse.message
    whole = table(x={row: str(row / 3) for row in range(8)})
    warnings = inspect(whole, ReadOptions(columns=load_columns())).warnings
    assert not [w for w in warnings if "single precision" in w.message]


def test_copied_episodes_are_reported(tmp_path):
    data = walk(episodes=3, falls=False)
    names = ("observations", "actions", "rewards", "costs", "terminals", "timeouts", "next_observations")
    arrays = {name: np.concatenate([getattr(data, name)] * 2) for name in names}
    np.savez(tmp_path / "a.npz", **arrays)
    (warning,) = [w for w in inspect(tmp_path / "a.npz").warnings if "copy of an earlier" in w.message]
    assert warning.rows == (39, 49, 59)


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    pytest.importorskip("pyarrow")
    data = walk(episodes=12, falls=False)
    for part, episodes in enumerate(np.split(np.arange(12), 12)):
        folder = tmp_path / "log" / f"day={part // 3}"
        folder.mkdir(parents=True, exist_ok=True)
        save(data.subset(episodes), folder / f"part-{part}.parquet")
    (tmp_path / "log" / "_SUCCESS").touch()
    read = load(tmp_path / "log")
    assert read.fingerprint == data.fingerprint
    named = load(tmp_path / "log", columns={"source": "day"})
    assert named.source.tolist() == [str(part // 3) for part in range(12)]
    assert not inspect(tmp_path / "log").errors
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no Parquet files"):
        load(tmp_path / "empty")
    save(walk(obs=5), tmp_path / "log" / "day=0" / "odd.parquet")
    with pytest.raises(InputError, match="other columns"):
        load(tmp_path / "log")
