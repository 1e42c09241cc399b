"""Conformal quantiles over tasks: wrong at most as often as they say, and silent where there are too few."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater.certify import conformal
from slater.certify.conformal import (
    CLASSES,
    FLOOR,
    Calibration,
    calibration_gate,
    class_of,
    fewest_tasks,
    shipped_calibration,
    standardised,
)
from slater.certify.estimates import made_with


def bank(scores: np.ndarray, kind: str = "clone", together: int = 10) -> Calibration:
    """Of tasks with these scores above; below they are the negative."""
    return Calibration.of_tasks([{kind: [x, -x, together]} for x in scores.tolist()], {})


@pytest.mark.parametrize(("count", "error"), [(9, 0.1), (39, 0.1), (39, 0.05), (80, 0.05), (80, 0.025)])
def test_the_next_task_exceeds_the_factor_at_most_as_often_as_said(count: int, error: float) -> None:
    """Whatever scores are like, heavy tails included: exchangeability is all that is needed."""
    rng, draws = np.random.default_rng(count), 4000
    wrong = 0
    for _ in range(draws):
        scores = rng.standard_t(2, count + 1) * rng.exponential()
        wrong += scores[-1] > bank(scores[:-1]).factors("clone", error)[0] and scores[-1] > 0
    assert wrong / draws <= error + 3 * math.sqrt(error * (1 - error) / draws)
    # and not far less often: no more is held back than has to be, where scores are above 0
    above = 0
    for _ in range(draws):
        scores = rng.exponential(size=count + 1)
        above += scores[-1] > bank(scores[:-1]).factors("clone", error)[0]
    assert above / draws >= error - 1 / (count + 1) - 3 * math.sqrt(error / draws)


@given(st.integers(0, 200), st.integers(1, 120), st.floats(0.002, 0.4), st.floats(0.002, 0.4))
def test_a_smaller_error_has_a_larger_factor_and_too_few_tasks_have_none(seed, count, one, other):
    calibration = bank(np.random.default_rng(seed).standard_normal(count))
    small, large = sorted((one, other))
    assert calibration.factors("clone", small)[0] >= calibration.factors("clone", large)[0]
    assert calibration.factors("clone", small)[1] >= calibration.factors("clone", large)[1]
    for error in (small, large):
        finite = math.isfinite(calibration.factors("clone", error)[0])
        assert finite == (count >= fewest_tasks(error))
        assert calibration_gate(calibration, "clone", error).passed == finite
        assert min(calibration.factors("clone", error)) >= 0
    assert not calibration_gate(calibration, "played", large).passed


def test_what_is_missing_is_said_in_numbers() -> None:
    assert [fewest_tasks(error) for error in (0.1, 0.05, 0.025)] == [9, 19, 39]
    gate = calibration_gate(bank(np.zeros(12)), "clone", 0.05)
    assert "95.0% needs 19 tasks of known truth with imitations" in gate.reason
    assert "there are 12" in gate.reason
    assert not calibration_gate(None, "clone", 0.1).passed


def test_a_score_is_the_worst_of_policies_and_costs_in_deviations_that_have_a_floor() -> None:
    truth, mean = [[3.0, 8.0], [1.0, 9.0]], [[2.0, 10.0], [1.0, 10.0]]
    above, below = standardised(truth, mean, [[0.5, 1.0], [0.5, 4.0]], [10.0, 10.0])
    assert (above, below) == (2.0, 2.0)
    above, _ = standardised([[3.0]], [[2.0]], [[0.0]], [10.0])
    assert above == pytest.approx(1.0 / (FLOOR * 10))


def test_candidates_share_the_error_beyond_those_that_tasks_have() -> None:
    calibration = bank(np.zeros(20), together=10)
    assert [calibration.share("clone", k) for k in (1, 10, 11, 20, 40)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert calibration.share("mixture", 3) == pytest.approx(1 / 3)


def test_a_class_is_what_a_policy_is() -> None:
    kinds = ["clone of the log", "in-sample policy of direction 1 0", "iterate", "last"]
    assert [class_of(kind) for kind in kinds] == ["clone", "in-sample", "played", "played"]
    assert {class_of(kind) for kind in kinds} <= set(CLASSES)


def test_a_calibration_of_another_default_is_not_used(tmp_path, monkeypatch) -> None:
    record = {"settings": made_with(), "said": "tried", "tasks": {"task-0": {"clone": [1.0, 2.0, 5.0]}}}
    monkeypatch.setattr(conformal.resources, "files", lambda _: tmp_path)
    assert shipped_calibration(made_with()) is None
    (tmp_path / "calibration.json").write_text(json.dumps(record))
    found = shipped_calibration(made_with())
    assert found is not None
    assert found.tasks("clone") == 1
    assert found.factors("clone", 0.5) == (1.0, 2.0)
    other = {**made_with(), "rollouts": [1, 2, 3]}
    assert shipped_calibration(other) is None
