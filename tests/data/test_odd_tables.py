"""Tables as people have them, odd and wrong: each is read right, or refused in a sentence with the remedy.

`python -m tests.data.test_odd_tables` prints what each gets.
"""

import bz2
import gzip
import json
import warnings
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from slater.data import Dataset, inspect, load
from slater.data.formats.base import read_options
from slater.errors import InputError

pa = pytest.importorskip("pyarrow")
from pyarrow import feather, parquet  # noqa: E402

ROWS, LENGTH = 24, 6
_rng = np.random.default_rng(0)
#: the plain log that all of the tables below tell of, in their own ways
PLAIN = {
    "trip": [f"t{i // LENGTH}" for i in range(ROWS)],
    "x": _rng.normal(size=ROWS).round(3).tolist(),
    "v": _rng.normal(size=ROWS).round(3).tolist(),
    "push": _rng.uniform(-1, 1, ROWS).round(3).tolist(),
    "gain": _rng.normal(size=ROWS).round(3).tolist(),
    "wear": (_rng.random(ROWS) < 0.4).astype(float).tolist(),
}
MAP = {"observations": ["x", "v"], "actions": "push", "rewards": "gain", "costs": "wear", "episode": "trip"}
COLOURS = [["red", "green", "blue"][i % 3] for i in range(ROWS)]
TIMES = [datetime(2026, 1, 1) + timedelta(hours=7 * i) for i in range(ROWS)]


def text(columns, delimiter=",", decimal=".", quote=False, header=True, end="\n"):
    def cell(value):
        if isinstance(value, float):
            value = repr(value).replace(".", decimal)
        shown = "" if value is None else str(value)
        return f'"{shown}"' if quote or delimiter in shown else shown

    lines = [delimiter.join(columns)] if header else []
    lines += [delimiter.join(map(cell, row)) for row in zip(*columns.values(), strict=True)]
    return end.join(lines) + end


def csv(columns=PLAIN, name="log.csv", encoding="utf-8", pack=None, before="", **form):
    def write(folder):
        content = (before + text(columns, **form)).encode(encoding)
        (folder / name).write_bytes(pack(content) if pack else content)
        return folder / name

    return write


def arrow(columns=PLAIN, how="frame"):
    def write(folder):
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        if how == "parquet":
            parquet.write_table(table, folder / "log.parquet")
            return folder / "log.parquet"
        if how == "feather":
            feather.write_feather(table, str(folder / "log.feather"))
            return folder / "log.feather"
        if how == "jsonl":
            rows = table.to_pylist()
            (folder / "log.jsonl").write_text("\n".join(json.dumps(row, default=str) for row in rows))
            return folder / "log.jsonl"
        if how == "pandas":
            return pytest.importorskip("pandas").DataFrame(table.to_pydict())
        if how == "polars":
            return pytest.importorskip("polars").DataFrame(table.to_pydict())
        return table

    return write


def excel(columns=PLAIN, sheets=1):
    def write(folder):
        book = pytest.importorskip("openpyxl").Workbook()
        for row in [list(columns), *zip(*columns.values(), strict=True)]:
            book.active.append(row)
        for _ in range(sheets - 1):
            book.create_sheet("notes").append(["nothing"])
        book.save(folder / "log.xlsx")
        return folder / "log.xlsx"

    return write


def folder_of(*parts):
    def write(folder):
        (folder / "logs").mkdir()
        for number, columns in enumerate(parts):
            parquet.write_table(pa.table(columns), folder / "logs" / f"{number}.parquet")
        return folder / "logs"

    return write


def with_(**changes):
    """The plain log with columns put over it, or single cells of them ({row: value}); None leaves one out."""
    columns = {name: list(values) for name, values in PLAIN.items()}
    for name, change in changes.items():
        if isinstance(change, dict):
            for row, value in change.items():
                columns[name][row] = value
        else:
            columns[name] = change
    return {name: values for name, values in columns.items() if values is not None}


def renamed(**names):
    return {names.get(name, name): values for name, values in PLAIN.items()}


def rows(start, stop, columns=PLAIN):
    return {name: values[start:stop] for name, values in columns.items()}


COLOURED = {**MAP, "observations": ["x", "v", "colour"]}
TIMED = {**MAP, "observations": ["x", "v", "when"]}
NAMED = renamed(trip="episode", x="obs_x", v="obs_v", push="action", gain="reward", wear="cost")

#: name -> (how it is written, what is told, and what it gets: the plain log, a check, or words of a refusal)
READ = {
    "commas": (csv(), {}, "plain"),
    "semicolons": (csv(delimiter=";"), {}, "plain"),
    "semicolons and decimal commas": (csv(delimiter=";", decimal=","), {}, "plain"),
    "tabs in a .csv": (csv(delimiter="\t"), {}, "plain"),
    "tabs and decimal commas": (csv(delimiter="\t", decimal=",", name="log.tsv"), {}, "plain"),
    "bars": (csv(delimiter="|"), {}, "plain"),
    "commas in a .tsv": (csv(name="log.tsv"), {}, "plain"),
    "decimal commas in quotes": (csv(decimal=",", quote=True), {}, "plain"),
    "everything in quotes": (csv(quote=True), {}, "plain"),
    "lines end as on Windows": (csv(end="\r\n"), {}, "plain"),
    "a byte order mark": (csv(encoding="utf-8-sig"), {}, "plain"),
    "UTF-16, as Excel saves text": (csv(encoding="utf-16", delimiter="\t"), {}, "plain"),
    "latin-1": (
        csv(with_(trip=[f"Fähre {i // LENGTH}" for i in range(ROWS)]), encoding="latin-1"),
        {},
        "plain",
    ),
    "a latin-1 name of a column": (
        csv(renamed(x="größe"), encoding="latin-1"),
        {"columns": {**MAP, "observations": ["größe", "v"]}},
        "plain",
    ),
    "compressed": (csv(name="log.csv.gz", pack=gzip.compress), {}, "plain"),
    "compressed otherwise": (csv(name="log.csv.bz2", pack=bz2.compress, delimiter=";"), {}, "plain"),
    "lines of comments first": (csv(before="# made by a logger\n# version 2\n"), {}, "plain"),
    "blank lines at the end": (csv(end="\n"), {}, "plain"),
    "an index without a name": (csv({"": list(range(ROWS)), **PLAIN}), {}, "plain"),
    "blanks around labels": (csv(with_(trip=[f" t{i // LENGTH} " for i in range(ROWS)])), {}, "plain"),
    "JSON lines": (arrow(how="jsonl"), {}, "plain"),
    "Feather": (arrow(how="feather"), {}, "plain"),
    "Parquet": (arrow(how="parquet"), {}, "plain"),
    "Excel": (excel(), {}, "plain"),
    "Excel with a second sheet": (excel(sheets=2), {}, "plain"),
    "an Arrow table": (arrow(), {}, "plain"),
    "a pandas frame": (arrow(how="pandas"), {}, "plain"),
    "a Polars frame": (arrow(how="polars"), {}, "plain"),
    "a dict of columns": (lambda folder: dict(PLAIN), {}, "plain"),
    "a folder of two Parquet files": (folder_of(rows(0, 9), rows(9, ROWS)), {}, "plain"),
    "names that are found without a map": (csv(NAMED), {"columns": None}, "plain"),
    "all that is nothing else in a sorted frame": (
        lambda folder: arrow(PLAIN, "pandas")(folder).iloc[::-1],
        {"columns": {**MAP, "observations": "*"}},
        lambda data: data.observation_dim == 2,
    ),
    "all that is nothing else": (csv(), {"columns": {**MAP, "observations": "*"}}, "plain"),
    "whole numbers in decimals": (
        arrow(pa.table(PLAIN).set_column(1, "x", pa.array(PLAIN["x"]).cast(pa.decimal128(12, 3)))),
        {},
        "plain",
    ),
    "a hole, dropped": (
        csv(with_(x={3: None})),
        {"missing": "drop"},
        lambda data: data.size == ROWS - 1,
    ),
    "a hole, filled": (
        csv(with_(x={3: None})),
        {"missing": "forward"},
        lambda data: data.observations[3, 0] == np.float32(PLAIN["x"][2]),
    ),
    "holes called NA": (
        csv(with_(x={3: "NA"})),
        {"missing": "forward"},
        lambda data: data.observations[3, 0] == np.float32(PLAIN["x"][2]),
    ),
    "a category": (
        csv(with_(colour=COLOURS)),
        {"columns": COLOURED},
        lambda data: data.observations[:3, 2:].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]],
    ),
    "kinds that begin as numbers": (
        csv(with_(colour=[["0-10", "10-20", "20+"][i % 3] for i in range(ROWS)])),
        {"columns": COLOURED},
        lambda data: data.observations[:3, 2:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    ),
    "actions that are numbers with a word": (
        csv(with_(push=[f"{10 * (i % 3)} boxes" for i in range(ROWS)])),
        {},
        lambda data: data.metadata.action_names == ("0 boxes", "10 boxes", "20 boxes"),
    ),
    "a category of numbers in a pandas frame": (
        lambda folder: _categorical([1, 2, 3] * 8),
        {"columns": COLOURED},
        lambda data: data.observations[:3, 2:].tolist() == np.eye(3).tolist(),
    ),
    "a category of a pandas frame": (
        lambda folder: _categorical(),
        {"columns": COLOURED},
        lambda data: data.metadata.entry_names(5) == ["x", "v", "colour=blue", "colour=green", "colour=red"],
    ),
    "a category with a hole": (
        csv(with_(colour=[None if i == 4 else c for i, c in enumerate(COLOURS)])),
        {"columns": COLOURED, "missing": "forward"},
        lambda data: data.observations[4, 2:].tolist() == [0, 0, 1],
    ),
    "yes and no": (
        csv(with_(colour=["yes" if c == "red" else "no" for c in COLOURS])),
        {"columns": COLOURED},
        lambda data: data.observations[:4, 2].tolist() == [1, 0, 0, 1],
    ),
    "True and False": (
        csv(with_(colour=[c == "red" for c in COLOURS])),
        {"columns": COLOURED},
        lambda data: data.observations[:4, 2].tolist() == [1, 0, 0, 1],
    ),
    "booleans in Parquet": (
        arrow(with_(colour=[c == "red" for c in COLOURS]), "parquet"),
        {"columns": COLOURED},
        lambda data: data.observations[:4, 2].tolist() == [1, 0, 0, 1],
    ),
    "times": (
        csv(with_(when=[t.isoformat(" ") for t in TIMES])),
        {"columns": TIMED},
        lambda data: np.allclose(
            data.observations[1, 2:4], [np.sin(7 / 12 * np.pi), np.cos(7 / 12 * np.pi)], atol=1e-6
        ),
    ),
    "times of a Polars frame": (
        arrow(with_(when=TIMES), "polars"),
        {"columns": TIMED},
        lambda data: data.observation_dim == 4,
    ),
    "times with a zone": (
        csv(with_(when=[t.isoformat() + "+00:00" for t in TIMES])),
        {"columns": TIMED},
        lambda data: np.allclose(data.observations[1, 2], np.sin(7 / 12 * np.pi), atol=1e-6),
    ),
    "a category of a Polars frame": (
        lambda folder: _polars_categorical(),
        {"columns": COLOURED},
        lambda data: data.observations[:3, 2:].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]],
    ),
    "a Polars query": (lambda folder: pytest.importorskip("polars").DataFrame(PLAIN).lazy(), {}, "plain"),
    "a list of rows": (lambda folder: pa.table(PLAIN).to_pylist(), {}, "plain"),
    "compressed, but not by its name": (csv(pack=gzip.compress), {}, "plain"),
    "numbers that are kept as text": (arrow(with_(x=list(map(str, PLAIN["x"]))), "pandas"), {}, "plain"),
    "durations": (
        arrow(with_(x=[timedelta(minutes=i) for i in range(ROWS)]), "polars"),
        {},
        lambda data: data.observations[2, 0] == 120,
    ),
    "times that are the index of a pandas frame": (
        lambda folder: _indexed(),
        {"columns": TIMED},
        lambda data: data.observation_dim == 4,
    ),
    "actions that are text": (
        csv(with_(push=COLOURS)),
        {},
        lambda data: (
            (data.actions[:4].tolist(), data.metadata.action_names)
            == ([2, 1, 0, 2], ("blue", "green", "red"))
        ),
    ),
    "actions that are text in a pandas frame": (
        arrow(with_(push=COLOURS), "pandas"),
        {},
        lambda data: data.discrete and data.num_actions == 3,
    ),
    "flags in words": (
        csv({**with_(trip=None), "done": ["TRUE" if i % LENGTH == 5 else "FALSE" for i in range(ROWS)]}),
        {"columns": {**{k: v for k, v in MAP.items() if k != "episode"}, "terminals": "done"}},
        lambda data: len(data.episodes) == 4,
    ),
    "two costs by name": (
        csv(with_(heat=PLAIN["wear"][::-1])),
        {"columns": {**MAP, "costs": ["wear", "heat"]}},
        lambda data: data.cost_names == ("wear", "heat"),
    ),
    "text that says nothing, not read": (csv(with_(remark=["ok"] * ROWS)), {}, "plain"),
    "an empty column, not read": (csv(with_(empty=[None] * ROWS)), {}, "plain"),
}

REFUSED = {
    "no header": (csv(header=False), {}, "first line .* add a line with names"),
    "a name that is slightly wrong": (
        csv(),
        {"columns": {**MAP, "costs": "waer"}},
        "no column 'waer', wanted for costs; did you mean 'wear'",
    ),
    "a name in other letters": (csv(), {"columns": {**MAP, "costs": "Wear"}}, "did you mean 'wear'"),
    "no map where one is needed": (csv(), {"columns": None}, "say which is which in a column map"),
    "a column twice": (csv(), {"columns": {**MAP, "observations": ["x", "x"]}}, "given twice"),
    "two columns of one name": (
        lambda folder: _written(folder, text(PLAIN).replace("trip,x,v", "trip,x,x", 1)),
        {},
        "'x' is there twice",
    ),
    "a hole": (
        csv(with_(x={3: None})),
        {},
        r"'x' is NaN or infinite \[1 row: 3\].*--drop-missing.*--fill forward",
    ),
    "a number with its unit": (
        csv(with_(x={3: "12 kg"})),
        {},
        r"'x' \(observations\) holds text \('12 kg' in row 3\)",
    ),
    "all numbers with their units": (
        csv(with_(x=[f"{x} m" for x in PLAIN["x"]])),
        {},
        "'x' .* holds text .* m'",
    ),
    "thousands with points": (
        csv(with_(x={3: "1.234,5"}), delimiter=";", decimal=","),
        {},
        r"'x' \(observations\) holds text \('1.234,5'",
    ),
    "a name for every row": (
        csv(with_(colour=[f"id-{i}" for i in range(ROWS)])),
        {"columns": COLOURED},
        "'colour' .* another text in most rows.* leave the column out",
    ),
    "text in place of a cost": (
        csv(with_(wear={0: "low"})),
        {},
        r"'wear' \(costs\) holds text \('low' in row 0\)",
    ),
    "a row that is too short": (
        lambda folder: _written(folder, text(PLAIN).replace("\n", "\nt0,1\n", 1)),
        {},
        "line 2 has 2 values, not 6 as the header; mend or delete",
    ),
    "half a file": (
        lambda folder: _written(folder, gzip.compress(text(PLAIN).encode())[:-40], "log.csv.gz"),
        {},
        "damaged",
    ),
    "nothing at all": (lambda folder: _written(folder, ""), {}, "is empty: .* get or write it again"),
    "a header alone": (
        lambda folder: _written(folder, ",".join(PLAIN) + "\n"),
        {},
        "rows: there are none; .* write it again",
    ),
    "a page of the web": (
        lambda folder: _written(folder, "<html><body>Sign in</body></html>\n"),
        {},
        "page of the web",
    ),
    "labels that are missing": (
        csv(with_(trip={7: None})),
        {},
        r"has no label; give each row that of its episode \[1 row: 7\]",
    ),
    "an episode in two pieces": (
        csv(with_(trip=[f"t{i // 4 % 2}" for i in range(ROWS)])),
        {},
        "comes back after another one began",
    ),
    "a flag that is neither": (
        csv(with_(end=["maybe"] * ROWS)),
        {"columns": {**MAP, "terminals": "end"}},
        "neither 0 nor 1, .*; write 1 where it holds and 0 elsewhere",
    ),
    "a cost called reward": (
        csv(renamed(wear="reward")),
        {"columns": {**MAP, "costs": "reward"}},
        "other names .* call it otherwise .*--cost-names",
    ),
    "an old Excel file": (
        lambda folder: _written(folder, b"\xd0\xcf\x11\xe0" + bytes(512), "log.xls"),
        {},
        r"Save it as \.xlsx",
    ),
    "a damaged Excel file": (
        lambda folder: _written(folder, b"PK\x03\x04" + bytes(64), "log.xlsx"),
        {},
        "damaged or is no Excel sheet",
    ),
    "Excel cells of two kinds": (excel(with_(x={3: "twelve"})), {}, "'x'.*'twelve'"),
    "other columns in the second file": (
        folder_of(rows(0, 12), rows(12, ROWS, renamed(v="speed"))),
        {},
        "other columns .*; give all files the same columns",
    ),
    "a JSON file that is no lines": (
        lambda folder: _written(folder, "[1, 2, 3]", "log.jsonl"),
        {},
        "damaged or is no file of JSON lines",
    ),
    "a frame with numbers for names": (
        lambda folder: pytest.importorskip("pandas").DataFrame(np.zeros((4, 3))),
        {},
        r"names are no text; name them first: frame\.columns",
    ),
    "objects in a frame": (
        lambda folder: pytest.importorskip("pandas").DataFrame(with_(x=[object()] * ROWS)),
        {},
        "cannot be read as a table",
    ),
    "more than a hundred kinds": (
        lambda folder: _many(),
        {"columns": COLOURED},
        "'colour' .* more than 100 different texts",
    ),
    "dates as in Germany": (
        csv(with_(when=[t.strftime("%d.%m.%Y") for t in TIMES])),
        {"columns": TIMED},
        "write them as 2026-01-31",
    ),
    "a zip archive": (lambda folder: _written(folder, b"PK\x03\x04", "log.zip"), {}, "Unpack it first"),
    "an array": (lambda folder: np.zeros((4, 3)), {}, "a path, a pandas, Polars or Arrow table"),
    "a pandas series": (lambda folder: pytest.importorskip("pandas").Series([1.0]), {}, "not Series"),
    "nothing": (lambda folder: None, {}, "not NoneType"),
    "infinity": (csv(with_(x={3: "inf"})), {}, r"'x' is NaN or infinite"),
    "a placeholder of 1e30": (csv(with_(x={3: 1e30})), {}, r"'x' is beyond 1e\+18.*leave that empty"),
    "two kinds of decimals": (
        csv(with_(x={3: "1,5"}), delimiter=";"),
        {},
        r"'x' \(observations\) holds text \('1,5' in row 3\)",
    ),
}


def _written(folder, content, name="log.csv"):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def _categorical(colours=COLOURS):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(with_(colour=colours))
    return frame.astype({"colour": "category"})


def _polars_categorical():
    polars = pytest.importorskip("polars")
    return polars.DataFrame(with_(colour=COLOURS)).with_columns(polars.col("colour").cast(polars.Categorical))


def _indexed():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(PLAIN).set_index(pandas.DatetimeIndex(TIMES, name="when"))


def _many():
    columns = {name: values * 10 for name, values in with_(colour=COLOURS).items()}
    columns["trip"] = [f"t{i // LENGTH}" for i in range(10 * ROWS)]
    columns["colour"] = [f"shade {chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(10 * ROWS)]
    return pa.table(columns)


@pytest.fixture(scope="module")
def plain():
    names = {"observations": ["x", "v"], "actions": ["push"]}
    arrays = {role: np.column_stack([PLAIN[name] for name in wanted]) for role, wanted in names.items()}
    return Dataset.from_arrays(
        **arrays, rewards=PLAIN["gain"], costs={"wear": np.array(PLAIN["wear"])}, episode=PLAIN["trip"]
    )


def read(table, told):
    options = read_options(**{"columns": MAP, **told})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(table, options)


@pytest.mark.parametrize("name", READ)
def test_an_odd_table_is_read_right(tmp_path, plain, name):
    write, told, expected = READ[name]
    table = write(tmp_path)
    data = read(table, told)
    if expected == "plain":
        for field in (
            "observations",
            "actions",
            "rewards",
            "costs",
            "timeouts",
            "next_observations",
            "next_known",
        ):
            np.testing.assert_array_equal(getattr(data, field), getattr(plain, field), err_msg=field)
    else:
        assert expected(data)
    if isinstance(table, Path):
        assert not inspect(table, read_options(**{"columns": MAP, **told})).errors


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_table_is_refused_in_a_sentence_with_the_remedy(tmp_path, name):
    write, told, words = REFUSED[name]
    table = write(tmp_path)
    with pytest.raises(InputError, match=words) as refusal:
        read(table, told)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("semicolons and decimal commas", "semicolons between columns, decimal commas"),
        ("compressed", "compressed"),
        ("latin-1", "text in cp1252"),
        ("lines of comments first", "2 lines of comments"),
        ("a category", r"as numbers: colour (3 values)"),
        ("times", "as numbers: when (day"),
        ("actions that are text", "actions are 3 choices: blue, green, red"),
        ("Excel with a second sheet", "the first of 2 Excel sheets, 'Sheet'"),
        ("commas", ""),
    ],
)
def test_what_was_recognised_is_said(tmp_path, name, said):
    write, told, _ = READ[name]
    report = inspect(write(tmp_path), read_options(**{"columns": MAP, **told}))
    assert said in report.recognised
    assert ("read as: " in str(report)) == bool(said)


@pytest.mark.parametrize(
    ("columns", "told", "words"),
    [
        (with_(colour=["Red", "red", "blue"] * 8), COLOURED, "differ in capitals only: Red, blue, red"),
        (PLAIN, {**MAP, "observations": ["x", "push"]}, "observations: and actions are both read from push"),
        (PLAIN, {**MAP, "costs": "gain"}, "rewards: and costs are both read from gain"),
    ],
)
def test_what_is_read_but_doubtful_is_remarked_upon(tmp_path, columns, told, words):
    assert words in str(inspect(csv(columns)(tmp_path), read_options(told)))


def main() -> None:
    """Print what each table gets."""
    import tempfile

    for name, (write, told, _) in {**READ, **REFUSED}.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                data = read(write(Path(folder)), told)
                got = f"{data.size} rows, {len(data.episodes)} episodes, {data.observation_dim} entries"
            except InputError as error:
                got = "refused: " + str(error).replace(folder + "/", "")
        print(f"| {name} | {got} |")


if __name__ == "__main__":
    main()
