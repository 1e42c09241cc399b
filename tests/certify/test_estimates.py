"""Tier 3: agreement, gates and a calibration decide; without a calibration nothing passes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slater import InputError
from slater.certify.calibration import (
    FEWEST_GATED_TASKS,
    FEWEST_POLICIES,
    FEWEST_TASKS,
    BankRow,
    Calibration,
    calibrate,
    calibration_gate,
    fewest_gated,
    left_out,
    read_calibration,
    shipped_record,
)
from slater.certify.estimates import Opinion, Standing, combined, judge_estimates, standing
from slater.certify.verdict import Gate, LimitVerdict


def _calibration(
    confidence: float = 0.95, policies: int = 150, tasks: int = 7, too_low: int = 1, gated: int = 60,
    gated_tasks: int = 5,
) -> Calibration:  # fmt: skip
    return Calibration(
        confidence=confidence, factor=2.5, lower_factor=2.5, policies=policies, tasks=tasks, gated=gated,
        gated_tasks=gated_tasks, too_low=too_low, too_high=1, unbounded=0, over=40, false_passes=1, within=50,
        false_fails=1, pairs=3 * gated, passes=50, fails=30,
    )  # fmt: skip


GOOD = _calibration()


def _two(first: float, second: float, spread: float = 0.5) -> list[Opinion]:
    return [Opinion("model ensemble", (first,), (spread,)), Opinion("fitted Q", (second,), (spread,))]


def test_both_opinions_and_their_distance_decide() -> None:
    assert judge_estimates(_two(5, 6), ["cost"], [10.0], 0.05, calibration=GOOD)[0].verdict == "pass"
    near = judge_estimates(_two(6, 8.5), ["cost"], [10.0], 0.05, calibration=GOOD)[0]
    # half the distance, the spread of the networks and a fiftieth of the limit
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
        (_calibration(policies=40, tasks=3), "policies that imitate rests on 40 policies of 3 tasks"),
        (_calibration(0.9), "is for 90%"),
        (_calibration(too_low=9), "too low for 9 and"),
        (_calibration(gated=58), "58 policies of 5 tasks met every gate"),
        (_calibration(gated_tasks=3), "60 policies of 3 tasks met every gate"),
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


def test_the_error_over_the_logs_cohorts_widens_the_interval() -> None:
    def judged(mean: float, error: float) -> LimitVerdict:
        own = [Standing(error=error)]
        both = _two(mean, mean)
        return judge_estimates(both, ["cost"], [10.0], 0.05, standings=own, calibration=GOOD)[0]

    plain, wide = judged(5, 0.0), judged(5, 0.3)
    assert wide.upper == pytest.approx(5 + 2.5 * math.sqrt(0.5**2 + 0.2**2 + 3.0**2))
    assert (plain.verdict, wide.verdict) == ("pass", "abstain")
    # of a policy over the limit the error is a share of its cost
    assert judged(50, 0.3).lower == pytest.approx(50 - 2.5 * math.sqrt(0.5**2 + 0.2**2 + 15.0**2))


def test_the_estimator_that_was_right_about_the_cohorts_weighs_more() -> None:
    found = standing(np.array([[0.01, 0.4], [-0.02, 0.3], [0.0, -0.5]]))
    assert found.weights[0] > 0.95
    assert sum(found.weights) == pytest.approx(1.0)
    assert found.error < 0.03
    centre, spread = combined([10.0, 12.0], [0.2, 3.0], 10.0, found)
    assert centre == pytest.approx(10.0 + 2.0 * found.weights[1])
    assert spread < 1.0
    # equally good: the middle, and half the distance
    assert combined([10.0, 12.0], [0.0, 0.0], 1.0, Standing())[0] == 11.0
    assert combined([10.0, 12.0], [0.0, 0.0], 0.0, Standing())[1] == pytest.approx(1.0)
    assert math.isinf(standing(np.zeros((0, 2))).error)  # no cohort to compare with: nothing is known


def test_the_factor_covers_policies_of_a_task_that_was_left_out() -> None:
    rng = np.random.default_rng(0)
    rows = _bank(rng, dict.fromkeys("abcdefg", 0.0))
    found = calibrate(rows, 0.9)
    assert (found.policies, found.tasks, found.gated, found.gated_tasks) == (420, 7, 420, 7)
    quantile = 1.28  # of the normal: no bias
    assert quantile - 0.25 <= found.factor <= 1.25 * (quantile + 0.25)
    assert found.too_low <= 42 + 15  # 420 independent policies, each wrong with probability .1 at most
    assert found.too_high <= 42 + 15
    assert found.false_passes <= found.too_low
    assert found.passes > 100
    assert found.pairs == 420
    # networks that are wrong alike ask for a larger factor
    assert calibrate(_bank(rng, dict.fromkeys("abcdefg", 2.0)), 0.9).factor > found.factor + 1.5
    # of few policies no finite factor is known
    assert math.isinf(calibrate(_bank(rng, {"a": 0.0, "b": 0.0, "c": 0.0}, 4), 0.95).factor)


def test_a_task_is_judged_by_factors_in_which_it_had_no_part() -> None:
    rows = _bank(np.random.default_rng(1), {**dict.fromkeys("abcdef", 0.0), "odd": 6.0})
    found = left_out(rows, 0.9)
    # what the odd task would have asked for is not in the factors that judge it, so it is wrong there
    alone = left_out([row for row in rows if row.task != "odd"], 0.9)
    assert found["odd"].factors[0] < 2.5
    assert found["odd"].wrong[0] > 50
    assert all(found[task].factors[0] > alone[task].factors[0] for task in alone)
    # the measured rate says so, and a statement of 90% is refused
    whole = calibrate(rows, 0.9)
    assert whole.too_low > 0.1 * whole.gated
    assert not calibration_gate(whole, 0.1).passed
    # while the factor for new tasks knows of it
    assert whole.factor > 1.5 * calibrate([row for row in rows if row.task != "odd"], 0.9).factor
    with pytest.raises(InputError, match="leaves one task out"):
        calibrate([row for row in rows if row.task in ("odd", "a")], 0.9)


def test_a_rate_needs_as_many_policies_as_could_show_it() -> None:
    assert [fewest_gated(error) for error in (0.1, 0.05, 0.01)] == [29, 59, 299]
    for error in (0.1, 0.05):
        count = fewest_gated(error)
        assert (1 - error) ** count <= 0.05 < (1 - error) ** (count - 1)


def test_the_worst_limit_of_a_policy_counts() -> None:
    rows = _bank(np.random.default_rng(2), dict.fromkeys("abcdefg", 0.0))
    again = [replace(row, limit=40.0, centre=row.centre - 3 * row.spread) for row in rows]
    both = calibrate([*rows, *again], 0.9)
    assert both.policies == 420
    assert both.factor == pytest.approx(calibrate(again, 0.9).factor)


def test_a_stricter_calibration_stands_in_for_one_that_was_wrong_too_often() -> None:
    good = _calibration(0.975, gated=120)

    def record_of(*rows: Calibration) -> dict[str, Any]:
        return {"calibrations": {"imitation": [row.as_dict() for row in rows], "other": []}}

    record = record_of(_calibration(0.9), good)
    assert read_calibration(record, 0.95) is None  # of others than those that imitate there is none
    assert read_calibration(record, 0.95, imitates=True) == good  # the loosest that is at least as sure
    assert read_calibration(record, 0.99, imitates=True) is None
    often = _calibration(0.95, too_low=9, gated=120)
    assert read_calibration(record_of(often, good), 0.95, imitates=True) == good
    assert read_calibration(record_of(often), 0.95, imitates=True) == often
    assert not calibration_gate(often, 0.05).passed
    # bounds that were infinite were never wrong, and show nothing
    untried = replace(good, unbounded=70)
    assert "50 policies" in calibration_gate(untried, 0.05).reason
    assert not calibration_gate(untried, 0.05).passed


def test_settings_are_those_that_were_measured_or_younger_and_at_their_default() -> None:
    from slater.certify.estimators import CERTIFYING, same_settings, settings_record

    record = settings_record(CERTIFYING)
    assert same_settings(record, CERTIFYING)
    older = {**record, "study": {k: v for k, v in record["study"].items() if k != "steering"}}
    assert same_settings(older, CERTIFYING)
    assert not same_settings(older, replace(CERTIFYING, steering=2))
    assert not same_settings(record, replace(CERTIFYING, cohorts=5))
    assert not same_settings({**record, "gone": 1}, CERTIFYING)


def test_the_shipped_calibration_keeps_its_own_conditions() -> None:
    record = shipped_record()
    assert record is not None
    from slater.certify.estimators import CERTIFYING, same_settings

    # measured with the estimators that are here, or it does not apply
    assert same_settings(record["settings"], CERTIFYING)
    assert record["episodes"] >= 50
    assert record["policies"] >= FEWEST_POLICIES
    found = read_calibration(record, 0.9, imitates=True)
    assert found is not None
    assert found.tasks >= FEWEST_TASKS
    assert found.gated_tasks >= FEWEST_GATED_TASKS
    assert found.gated >= fewest_gated(0.1)
    assert found.rate <= 0.1
    assert math.isfinite(found.factor)
    assert calibration_gate(found, 0.1).passed
