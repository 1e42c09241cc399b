"""Tables: nothing different is averaged, everything is stated, published figures keep their provenance."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from slater import cli
from slater.experiments import table2
from slater.experiments.published import STATUS, published, published_for
from slater.experiments.suite import Folder, read_folders
from slater.experiments.tables import labelled, means

from .rows import make_row


def test_the_same_settings_are_averaged_over_limits_and_seeds() -> None:
    rows = [make_row(limit=limit, seed=seed) for limit in ("10", "20", "40") for seed in range(3)]
    (line,) = means(labelled(rows), "place", "label")
    assert (line["repeats"], line["seeds"], line["limits"]) == (9, 3, "10/20/40")
    expected = sum(row["results"][0]["normalised_cost"] for row in rows) / 9
    assert line["normalised_cost_mean"] == pytest.approx(expected)


def test_other_settings_and_other_data_are_never_averaged() -> None:
    rows = [
        make_row(), make_row(steps=2000), make_row(preset="paper"), make_row(data="b" * 64, source="DSRL"),
    ]  # fmt: skip
    lines = means(labelled(rows), "place", "label")
    assert [line["repeats"] for line in lines] == [1, 1, 1, 1]
    assert {line["label"] for line in lines} == {"PDCA (steps=1000)", "PDCA (steps=2000)", "PDCA (paper)"}
    assert {line["place"] for line in lines} == {"BallCircle [aaaaaaaa]", "BallCircle [bbbbbbbb]"}


def test_every_published_figure_says_where_it_is_from() -> None:
    assert len(published()) > 100
    assert {one.status for one in published()} <= set(STATUS)
    ours = published_for("pdca:paper", "CarCircle")
    assert ours is not None
    assert (ours.reward, ours.cost, STATUS[ours.status]) == (0.22, 2.42, "printed in the PDCA paper")
    # our repaired PDCA is not what the paper measured
    assert published_for("pdca", "CarCircle") is None


def test_table2_states_what_it_was_made_from(tmp_path: Path) -> None:
    rows = [
        make_row(task, algorithm, preset, limit, seed)
        for task in ("BallCircle", "CarCircle")
        for algorithm, preset in (("pdca", None), ("pdca", "paper"), ("cpq", None))
        for limit in ("10", "20", "40")
        for seed in range(2)
    ]
    table2.write(tmp_path, Folder("table2", rows, ["cdt is left out: why."]))
    text = (tmp_path / "table2.md").read_text()
    for words in (
        "1,000 steps", "seeds 0-1", "a" * 64, "slater collect", "20 episodes", "jax 0.5", "2 cores",
        "2026-01-01", "cdt is left out", "DSRL's data", "printed in the PDCA paper", "**2.29**",
    ):  # fmt: skip
        assert words in text
    for name in ("table2.png", "table2.svg", "table2-means.csv", "curves-limit40.png", "curves-limit40.svg"):
        assert (tmp_path / name).stat().st_size > 100
    with (tmp_path / "table2.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 36
    assert json.loads(lines[0]["settings"]) == {"steps": "1000"}


def test_a_cost_above_its_limit_is_never_called_safe(tmp_path: Path) -> None:
    row = make_row()
    row["results"][0]["normalised_cost"] = 1.004
    table2.write(tmp_path, Folder("table2", [row], []))
    text = (tmp_path / "table2.md").read_text()
    assert "| BallCircle | none | 0 of 1 |" in text


def write_folder(folder: Path, experiment: str, rows: list) -> Path:
    folder.mkdir()
    record = {"experiment": experiment, "settings": {"left_out": [f"{folder.name} lacks something."]}}
    (folder / "settings.json").write_text(json.dumps(record))
    lines = [json.dumps({"key": json.dumps([row["algorithm"], row["seed"]]), "row": row}) for row in rows]
    (folder / "cells.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_tables_come_from_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_folder(tmp_path / "one", "table2", [make_row(seed=0), make_row(seed=1)])
    two = write_folder(tmp_path / "two", "table2", [make_row(algorithm="cpq", seed=0)])
    assert len(read_folders([one, two]).rows) == 3
    again = write_folder(tmp_path / "again", "table2", [make_row(seed=1, algorithm="cpq"), make_row(seed=1)])
    rows = read_folders([one, two, again]).rows  # a cell that was run again counts once
    assert sorted((row["algorithm"], row["seed"]) for row in rows) == [
        ("cpq", 0), ("cpq", 1), ("pdca", 0), ("pdca", 1)
    ]  # fmt: skip
    out = str(tmp_path / "docs")
    assert cli.main(["reproduce", "tables", str(one), str(two), "--out", out, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {line["label"]: line["seeds"] for line in answer["means"]} == {"PDCA": 2, "CPQ": 1}
    assert answer["left_out"] == ["one lacks something.", "two lacks something."]
    other = write_folder(tmp_path / "other", "figure2", [make_row()])
    assert cli.main(["reproduce", "tables", str(one), str(other), "--out", out]) == 2
    assert "different experiments" in capsys.readouterr().err
    assert cli.main(["reproduce", "tables", str(tmp_path), "--out", out]) == 2
    assert "not a folder of slater reproduce" in capsys.readouterr().err
