"""Tier 3: agreement, gates and a calibration decide; without a calibration nothing passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from slater import InputError
from slater.certify.estimates import (
    FEWEST_POLICIES,
    FEWEST_TASKS,
    BankRow,
    Calibration,
    Opinion,
    calibrate,
    judge_estimates,
    read_calibration,
    shipped_calibration,
)
from slater.certify.verdict import Gate


def _calibration(
    confidence: float = 0.95, policies: int = 150, tasks: int = 7, too_low: int = 1
) -> Calibration:
    return Calibration(confidence, 2.5, 2.5, 1.0, policies, tasks, 60, too_low, 1, 40, 50, 1)


GOOD = _calibration()


def _two(first: float, second: float, spread: float = 0.5) -> list[Opinion]:
    return [Opinion("model ensemble", (first,), (spread,)), Opinion("fitted Q", (second,), (spread,))]


def test_both_opinions_and_their_distance_decide() -> None:
    assert judge_estimates(_two(5, 6), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "pass"
    near = judge_estimates(_two(6, 8.5), ["cost"], [10.0], 0.05, calibration=GOOD)[0]
    # half the distance, the larger spread and a fiftieth of the limit
    assert near.upper == pytest.approx(7.25 + 2.5 * math.sqrt(1.25**2 + 0.5**2 + 0.2**2))
    assert near.lower == pytest.approx(2 * 7.25 - near.upper)
    assert near.verdict == "abstain"
    assert judge_estimates(_two(20, 21), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "fail"
    # where both are far over the limit they may differ by a quarter of what they say
    assert judge_estimates(_two(60, 70), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "fail"


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        (None, "decide nothing"),
        (_calibration(policies=40, tasks=3), "40 policies of 3 tasks"),
        (_calibration(0.9), "calibration is for 90%"),
        (_calibration(too_low=9), "9 of 60"),
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
    assert (found.policies, found.tasks, found.gated) == (420, 7, 420)
    quantile = 1.28  # of the normal: no bias
    assert found.factor == pytest.approx(quantile * found.inflation, abs=0.25 * found.inflation)
    assert found.inflation <= 1.25
    assert found.too_low <= 42
    assert found.too_high <= 42
    assert found.false_passes <= found.too_low
    assert found.passes > 100
    # networks that are wrong alike ask for a larger factor
    assert calibrate(_bank(rng, dict.fromkeys("abcdefg", 2.0)), 0.9).factor > found.factor + 1.5
    # of few policies no finite factor is known
    assert math.isinf(calibrate(_bank(rng, {"a": 0.0, "b": 0.0}, 4), 0.95).factor)


def test_a_task_unlike_the_others_inflates_the_factor_until_the_rate_is_nominal() -> None:
    rows = _bank(np.random.default_rng(1), {**dict.fromkeys("abcdef", 0.0), "odd": 6.0})
    found = calibrate(rows, 0.9)
    clean = calibrate([row for row in rows if row.task != "odd"], 0.9)
    assert found.inflation > clean.inflation
    assert found.too_low <= 0.1 * found.gated
    assert found.passes < clean.passes
    with pytest.raises(InputError, match="leaves one task out"):
        calibrate([row for row in rows if row.task == "odd"], 0.9)


def test_the_worst_limit_of_a_policy_counts() -> None:
    rows = _bank(np.random.default_rng(2), dict.fromkeys("abcdefg", 0.0))
    again = [replace(row, limit=40.0, centre=row.centre - 3 * row.spread) for row in rows]
    both = calibrate([*rows, *again], 0.9)
    assert both.policies == 420
    assert both.factor == pytest.approx(calibrate(again, 0.9).factor)


def test_a_shipped_calibration_is_of_enough_policies_and_keeps_its_rate() -> None:
    record = {"calibrations": [_calibration(0.9).as_dict(), _calibration(0.975).as_dict()]}
    chosen = read_calibration(record, 0.95)
    assert chosen is not None
    assert chosen.confidence == 0.975  # the loosest that is at least as sure
    assert read_calibration(record, 0.99) is None
    for confidence in (0.9, 0.95):
        found = shipped_calibration(confidence)
        if found is not None:  # a package without one abstains
            assert found.policies >= FEWEST_POLICIES
            assert found.tasks >= FEWEST_TASKS
            assert found.too_low <= (1 - confidence) * found.gated + 1e-9
            assert math.isfinite(found.factor)
