"""Tier 3: agreement, gates and a calibration decide; without a calibration nothing passes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slater import InputError
from slater.certify.estimates import BankRow, Calibration, Opinion, calibrate, judge_estimates
from slater.certify.verdict import Gate

GOOD = Calibration(0.95, 2.5, 150, 7, 60, 50, 1)


def _two(first: float, second: float, spread: float = 0.5) -> list[Opinion]:
    return [Opinion("model ensemble", (first,), (spread,)), Opinion("fitted Q", (second,), (spread,))]


def test_the_worse_of_two_opinions_decides() -> None:
    assert judge_estimates(_two(5, 6), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "pass"
    worse = judge_estimates(_two(5, 8.9), ["cost"], [10.0], 0.05, calibration=GOOD)[0]
    assert worse.upper == pytest.approx(8.9 + 2.5 * 0.5)
    assert worse.verdict == "abstain"
    assert judge_estimates(_two(20, 21), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "fail"


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        (None, "decide nothing"),
        (Calibration(0.95, 0.1, 40, 3, 20, 10, 0), "40 policies of 3 tasks"),
        (Calibration(0.9, 0.1, 150, 7, 60, 50, 1), "calibration is for 90%"),
        (Calibration(0.95, 0.1, 150, 7, 60, 50, 9), "9 of 60"),
    ],
)
def test_without_a_good_calibration_nothing_is_decided(calibration: Calibration | None, says: str) -> None:
    for mean in (0.1, 100.0):
        found = judge_estimates(_two(mean, mean), ["cost"], [10.0], 0.05, calibration=calibration)[0]
        assert found.verdict == "abstain"
        assert says in found.reason


def test_disagreement_and_closed_gates_abstain() -> None:
    apart = judge_estimates(_two(1, 5), ["cost"], [10.0], 0.05, calibration=GOOD)[0]
    assert apart.verdict == "abstain"
    assert "apart" in apart.reason
    gate = Gate("distance from the data", False, "far away.")
    assert (
        judge_estimates(_two(1, 1), ["cost"], [10.0], 0.05, gates=[gate], calibration=GOOD)[0].reason
        == "far away."
    )
    with pytest.raises(InputError, match="two estimators"):
        judge_estimates(_two(1, 1)[:1], ["cost"], [10.0], 0.05)


def _bank(rng: np.random.Generator, bias: dict[str, float], policies: int = 60) -> list[BankRow]:
    """Estimates whose error is normal with the spread, plus a task's own bias in spreads."""
    rows = []
    for task, shift in bias.items():
        for number in range(policies):
            truth, spread = rng.uniform(0, 40), rng.uniform(0.5, 2)
            mean = truth - spread * (rng.standard_normal() + shift)
            rows.append(BankRow(task, f"p{number}", 20.0, truth, mean, spread, True))
    return rows


def test_the_factor_covers_policies_of_a_task_that_was_left_out() -> None:
    rng = np.random.default_rng(0)
    rows = _bank(rng, dict.fromkeys("abcdefg", 0.0))
    found = calibrate(rows, 0.9)
    assert (found.policies, found.tasks) == (420, 7)
    assert found.factor == pytest.approx(1.28, abs=0.25)  # the normal quantile: no bias, no inflation
    assert found.false_passes / found.judged <= 0.1
    assert found.passes > 100
    # networks that are wrong alike ask for a larger factor
    assert calibrate(_bank(rng, dict.fromkeys("abcdefg", 2.0)), 0.9).factor > found.factor + 1.5
    # of few policies no finite factor is known
    assert math.isinf(calibrate(_bank(rng, {"a": 0.0, "b": 0.0}, 4), 0.95).factor)


def test_a_task_unlike_the_others_shows_in_the_measured_rate() -> None:
    rows = _bank(np.random.default_rng(1), {**dict.fromkeys("abcdef", 0.0), "odd": 6.0})
    found = calibrate(rows, 0.9)
    clean = calibrate([row for row in rows if row.task != "odd"], 0.9)
    assert found.false_passes > clean.false_passes
    with pytest.raises(InputError, match="leaves one task out"):
        calibrate([row for row in rows if row.task == "odd"], 0.9)
