"""Small worlds whose truth is known, and the table that compares what a run says with it."""

import json

import numpy as np
import pytest

from slater.cli import main
from slater.errors import InputError
from slater.experiments import worlds
from slater.experiments.small_worlds import WORLDS
from slater.experiments.worlds import coverage, measure, played, recorded, summary, true_value

#: those of tests/deep/ope/test_output.py, on the same log: its model is there and its programs are compiled
QUICK = {"steps": 60, "batch_size": 32, "hidden": (16, 16), "joint_steps": 5,
         "model_steps": 400}  # fmt: skip


@pytest.mark.parametrize("name", list(WORLDS))
def test_a_log_is_bare_and_its_episodes_are_whole(name):
    world = WORLDS[name]()
    data = recorded(world, 12, 3)
    assert data.source is None
    assert data.propensity is None
    assert len(data.episodes) == 12
    assert np.all(data.episodes.lengths == world.horizon)
    assert data.episodes.costs.shape == (12, len(world.limits))
    assert data.discrete == (world.actions is not None)
    assert np.isfinite(data.observations).all()
    again = recorded(world, 12, 3)
    assert data.fingerprint == again.fingerprint
    assert data.fingerprint != recorded(world, 12, 4).fingerprint


def test_the_truth_of_a_gamble_is_known():
    class Bold:
        def __init__(self, share):
            self.share = share

        def begin(self, *, rng):
            self.rng = rng
            return self

        def batch(self, observations):
            return np.where(self.rng.random((len(observations), 1)) < self.share, 0.5, -0.5)

    world = WORLDS["gamble"]()
    for share in (0.0, 0.5, 1.0):
        value = true_value(world, Bold(share))
        np.testing.assert_allclose(value, [20 * (0.3 + 0.7 * share), 20 * 0.25 * share], atol=0.15)
    rows = played(world, lambda o, rng: np.ones((len(o), 1)), 5, np.random.default_rng(0))
    assert [part.shape[:2] for part in rows] == [(5, 20)] * 5


@pytest.mark.xdist_group("output")
def test_a_cell_says_what_was_said_and_what_is_true_and_is_measured_once(tmp_path, capsys, monkeypatch):
    found = measure("gamble", 60, 0, tmp_path, QUICK, clone_steps=20)
    assert found["status"] in ("within", "above", "not known")
    assert len(found["said"]) == len(found["true"]) == 2
    assert found["wrong"] == (found["status"] == "within" and found["true"][1] > 1.05)
    kinds = [kind for kind, *_ in found["members"]]
    assert "clone of the log" in kinds
    assert sum(weight for _, weight, *_ in found["members"]) == pytest.approx(1.0)
    mixed = sum(weight * np.array(true) for _, weight, _, _, true in found["members"])
    np.testing.assert_allclose(mixed, found["true"], atol=0.5)
    monkeypatch.setattr(worlds, "recorded", lambda *_: 1 / 0)  # what is there is read
    again = measure("gamble", 60, 0, tmp_path, QUICK, clone_steps=20)
    assert again == json.loads(json.dumps(found))
    with pytest.raises(InputError, match="no world 'poker'; there are wear"):
        measure("poker", 20, 0, tmp_path)


def test_the_command_prints_a_table_of_cells_that_are_there(tmp_path, capsys):
    """A line per cell, a line per world, and how often intervals cover."""
    cells = [
        {
            "cell": {"world": "gamble", "episodes": 20, "seed": seed, "settings": {}}, "limits": [1.0],
            "status": status, "said": [7.0, 0.9], "true": [7.0, cost], "seconds": 12.0, "game": 0.0,
            "reference": {"reward": 6.0, "cost": 0.5, "length": 20.0, "within_limits": True},
            "wrong": status == "within" and cost > 1.05, "bc_safe": None,
            "members": [["clone of the log", 1.0, [7.0, 1.0], [1.0, 0.5], [7.0, cost]]],
        }
        for seed, status, cost in ((0, "within", 0.9), (1, "within", 2.4), (2, "not known", 1.0))
    ]  # fmt: skip
    text = summary(cells)
    assert "| gamble | 3 | 1 | 1 | 1 | 0 |" in text
    assert text.count("**wrong**") == 1
    assert coverage(cells) == {"return": (1.0, 1.0), "cost": (pytest.approx(2 / 3), pytest.approx(2 / 3))}
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    words = ["reproduce", "worlds", "gamble", "--episodes", "20", "--seeds", "0", "1", "2"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "| gamble | 3 | 1 | 1 | 1 | 0 |" in capsys.readouterr().out
    assert (tmp_path / "worlds.md").read_text() == text
    assert main([*words, "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == cells
