"""A verdict follows from its bounds and gates, and a certificate survives the disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from slater import InputError
from slater.certify.bounds import Interval
from slater.certify.rollouts import judge_episodes
from slater.certify.verdict import Certificate, Evidence, Gate, LimitVerdict, Verdict, decide, error_of_each


def _limit(verdict: Verdict, cost: str = "cost", lower: float = 3.0, upper: float = 9.0) -> LimitVerdict:
    gate = Gate("effective sample size", True, "120 of 300 episodes count.")
    evidence = (Evidence("per-decision", 6.0, lower, math.inf),)
    return LimitVerdict(
        cost, 10.0, "per episode", verdict, 6.0, lower, upper, "rollouts", "because.", (gate,), evidence, 0.05
    )


@pytest.mark.parametrize(
    ("lower", "upper", "verdict"),
    [(0, 10, "pass"), (0, 10.1, "abstain"), (10, 12, "abstain"), (10.1, 12, "fail")],
)
def test_bounds_decide(lower: float, upper: float, verdict: str) -> None:
    assert decide(Interval(9.0, lower, upper), 10.0)[0] == verdict


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("costs", [np.repeat([0.0, 1.0], [60, 40]), np.repeat([1.0, 0.0], [40, 60])])
def test_episodes_that_change_on_the_way_decide_nothing(costs: np.ndarray, stopping: bool) -> None:
    # by the first ones alone they would pass, or fail
    found = judge_episodes(costs[:, None], ["cost"], [0.3], [1.0], 0.05, stopping=stopping)[0]
    assert not found.lower <= costs.mean() <= found.upper
    assert found.verdict == "abstain"
    assert "changed on the way" in found.reason
    mixed = np.random.default_rng(0).permutation(costs)[:, None]
    assert judge_episodes(mixed, ["cost"], [0.7], [1.0], 0.05, stopping=stopping)[0].verdict == "pass"


@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (90, 100)])
def test_a_closed_gate_silences_any_bound_and_says_why(lower: float, upper: float) -> None:
    gates = [Gate("fine", True, "all is well."), Gate("size", False, "only 3 episodes count.")]
    assert decide(Interval(5.0, lower, upper), 10.0, gates) == ("abstain", "only 3 episodes count.")


def test_one_failed_limit_fails_the_certificate_and_one_open_limit_keeps_it_from_passing() -> None:
    cases: list[tuple[list[Verdict], Verdict, int]] = [
        (["pass", "pass"], "pass", 0),
        (["pass", "abstain"], "abstain", 4),
        (["abstain", "fail"], "fail", 1),
    ]
    for verdicts, together, code in cases:
        certificate = Certificate("p", 0.95, tuple(_limit(v) for v in verdicts))
        assert (certificate.verdict, certificate.exit_code) == (together, code)


def test_the_error_is_shared_by_limits_and_candidates() -> None:
    assert error_of_each(0.95, 2, 5) == pytest.approx(0.005)
    with pytest.raises(InputError, match="confidence is 95"):
        error_of_each(95, 1)


def test_the_sentence_names_cost_limit_and_bound() -> None:
    for verdict, word in (("pass", "Within limits"), ("fail", "Do not deploy"), ("abstain", "No verdict")):
        sentence = Certificate("p", 0.95, (_limit(verdict, "energy"),)).sentence  # type: ignore[arg-type]
        assert sentence.startswith(word)
        assert "energy" in sentence
        assert "10 per episode" in sentence
        assert sentence.count(". ") == 0


@pytest.mark.parametrize(
    ("confidence", "said"), [(0.9, "90%"), (0.995, "99.5%"), (0.999999999, "99.9999999%")]
)
def test_the_confidence_is_said_as_it_was_asked_for(confidence: float, said: str) -> None:
    assert f" {said} confidence" in Certificate("p", confidence, (_limit("pass"),)).sentence


def test_a_certificate_survives_the_disk(tmp_path: Path) -> None:
    certificate = Certificate(
        "runs/a",
        0.9,
        (_limit("abstain", upper=math.inf),),
        3,
        "60 held-out episodes.",
        ("one.",),
        {"x": [1.0]},
    )
    certificate.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == certificate
    record = json.loads((tmp_path / "certificate.json").read_text())
    assert record["verdict"] == "abstain"
    (tmp_path / "certificate.json").write_text("{}")
    with pytest.raises(InputError, match="no certificate"):
        Certificate.load(tmp_path / "certificate.json")
