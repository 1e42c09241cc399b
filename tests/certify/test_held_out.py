"""Data that trained a policy are recognised, and what was kept from it is found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slater import InputError
from slater.certify.bounds import Interval
from slater.certify.held_out import certifying_part
from slater.certify.verdict import Certificate, Gate, LimitVerdict, decide, with_gate
from slater.data import Dataset
from slater.runs.held_out import FILE, hold_out, read_held_out


def _data(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    size = 60
    return Dataset.from_arrays(
        observations=rng.standard_normal((size, 2)), actions=rng.uniform(-1, 1, (size, 1)),
        rewards=rng.random(size), costs=rng.random((size, 1)), terminals=np.zeros(size, bool),
        timeouts=np.arange(size) % 3 == 2, next_observations=rng.standard_normal((size, 2)),
    )  # fmt: skip


def test_kept_episodes_are_found_again_and_did_not_train(tmp_path: Path) -> None:
    data = _data()
    train, kept = hold_out(data, 0.25, seed=4)
    kept.save(tmp_path)
    again = read_held_out(tmp_path)
    assert again == kept
    part, gate = certifying_part(_data(), again, train.fingerprint)
    assert gate.passed
    assert "5 of 20 episodes" in gate.reason
    assert len(part.episodes) + len(train.episodes) == 20
    rows = {row.tobytes() for row in train.observations}
    assert not any(row.tobytes() in rows for row in part.observations)
    assert hold_out(data, 0.25, seed=4)[1] == kept
    assert hold_out(data, 0.25, seed=5)[1] != kept


def test_training_data_close_the_gate_and_other_data_do_not() -> None:
    data = _data()
    assert not certifying_part(data, None, data.fingerprint)[1].passed
    assert certifying_part(_data(1), None, data.fingerprint)[1].passed
    unknown = certifying_part(data, None, None)[1]
    assert unknown.passed
    assert "not known" in unknown.reason
    train, kept = hold_out(data, 0.25, seed=0)
    assert not certifying_part(train, kept, train.fingerprint)[1].passed


def test_a_closed_gate_turns_any_verdict_into_an_abstention() -> None:
    verdict, reason = decide(Interval(1.0, 0.5, 2.0), 10.0)
    limit = LimitVerdict("cost", 10.0, "per episode", verdict, 1.0, 0.5, 2.0, "propensities", reason)
    certificate = Certificate("p", 0.95, (limit,))
    assert certificate.verdict == "pass"
    assert with_gate(certificate, Gate("a", True, "fine.")).verdict == "pass"
    closed = with_gate(certificate, Gate("a", False, "these data trained the policy."))
    assert closed.verdict == "abstain"
    assert "trained" in closed.sentence


def test_a_damaged_record_gets_one_sentence(tmp_path: Path) -> None:
    assert read_held_out(tmp_path) is None
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InputError, match="not readable as a record of held-out episodes"):
        read_held_out(tmp_path)
