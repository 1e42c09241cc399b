"""Who is safe, who is best of those, by how much, how sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import trim_mean

from slater.experiments import table2
from slater.experiments.standing import differences, interquartile_mean, safe, sentences, standings
from slater.experiments.suite import Folder
from slater.experiments.tables import labelled

from .rows import make_row


def _rows(cost: dict[tuple[str, str], float], reward: dict[str, float]) -> list[dict[str, Any]]:
    """Rows of two methods on three tasks at two limits with two seeds; cost by (method, limit), relative."""
    rows = []
    for number, task in enumerate(("BallRun", "CarRun", "DroneRun")):
        for algorithm, worth in reward.items():
            for limit in ("10", "40"):
                for seed in range(2):
                    row = make_row(task, algorithm, limit=limit, seed=seed)
                    result = row["results"][0]
                    result["normalised_reward"] = worth + 0.1 * number + 0.01 * seed
                    result["normalised_cost"] = cost[algorithm, limit] + (0.1 if seed else -0.1)
                    rows.append(row)
    return labelled(rows)


def test_safe_means_within_every_limit() -> None:
    """A method that is within the limits on average, but not at one of them, is not safe."""
    cost = {("bc", "10"): 1.3, ("bc", "40"): 0.2, ("cpq", "10"): 1.0, ("cpq", "40"): 0.9}
    flat = _rows(cost, {"bc": 0.9, "cpq": 0.5})
    mean = {
        label: np.mean([r["normalised_cost"] for r in flat if r["label"] == label]) for label in ("BC", "CPQ")
    }
    assert max(mean.values()) < 1.0
    first, second = standings(flat)
    assert (first.label, len(first.safe), len(first.best)) == ("CPQ", 3, 3)
    assert (second.label, len(second.safe), len(second.best)) == ("BC", 0, 0)
    assert second.reward > first.reward
    assert not safe([row for row in flat if row["label"] == "BC" and row["place"] == "BallRun"])
    lines = sentences([first, second], differences(flat, "CPQ"))
    assert lines[0] == "CPQ is within every limit on 3 of 3 tasks, more than any other method."
    assert "CPQ has the most reward on 3 of 3" in lines[1]
    assert lines[2].endswith("12 pairs of 3 tasks): less.")


def test_a_limit_that_was_not_tried_is_not_kept() -> None:
    """Run at one of two limits, within it: not known to be safe."""
    cost = dict.fromkeys([(a, limit) for a in ("bc", "cpq") for limit in ("10", "40")], 0.5)
    flat = _rows(cost, {"bc": 0.7, "cpq": 0.4})
    flat = [row for row in flat if row["label"] == "BC" or row["limit"] == "40"]
    first, second = standings(flat)
    assert (first.label, len(first.safe)) == ("BC", 3)
    assert (second.label, second.tasks, second.safe) == ("CPQ", first.tasks, ())
    assert safe([row for row in flat if row["label"] == "CPQ" and row["place"] == "CarRun"])


def test_differences_are_of_runs_that_met_the_same() -> None:
    """The task's own level and the seed's cancel; runs without a partner are left out."""
    cost = dict.fromkeys([(a, limit) for a in ("bc", "cpq") for limit in ("10", "40")], 0.5)
    flat = _rows(cost, {"bc": 0.7, "cpq": 0.4})
    flat = [row for row in flat if not (row["label"] == "CPQ" and row["place"] == "CarRun")]
    (found,) = differences(flat, "BC")
    assert (found.other, found.tasks, found.pairs, found.chance) == ("CPQ", 2, 8, 1.0)
    assert found.mean == pytest.approx(0.3)
    assert found.interval == pytest.approx((0.3, 0.3))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Differences of 20 tasks with 3 runs each around .1, a hundred times: 88 of 95% intervals at least."""
    from slater.experiments import standing

    rng, covered = np.random.default_rng(0), 0
    few = 300
    before, standing.DRAWS = standing.DRAWS, few
    try:
        for _ in range(100):
            groups = [0.1 + rng.normal(0.0, 0.2) + rng.normal(0.0, 0.1, 3) for _ in range(20)]
            low, high = standing._interval(groups, lambda values: float(np.mean(values)))
            covered += low <= 0.1 <= high
    finally:
        standing.DRAWS = before
    assert covered >= 88


@pytest.mark.parametrize("count", [4, 8, 100])
def test_the_interquartile_mean_is_scipys_where_quarters_are_whole(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25))
    assert interquartile_mean(np.array([3.0])) == 3.0


def test_a_task_that_does_not_move_is_shown_and_not_counted(tmp_path: Path) -> None:
    rows = [
        make_row(task, "bc", limit="20", seed=seed) for task in ("BallRun", "AntCircle") for seed in range(2)
    ]
    table2.write(tmp_path, Folder("table2", rows, []))
    text = (tmp_path / "table2.md").read_text()
    assert "of the 1 tasks" in text.splitlines()[0]
    assert "AntCircle: left out of these counts" in text
    assert "| AntCircle |" in text
