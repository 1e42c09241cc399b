"""A plan says how many episodes decide, and a trial that follows it is right at every look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slater.certify.plan import MOST_EPISODES, plan_of
from slater.certify.rollouts import certify_episodes
from slater.cli import main
from slater.data import save
from slater.policy import save as save_policy

from .test_commands import _wide
from .worlds import T, log_of


def test_a_trial_as_long_as_planned_is_decided_about_as_often_as_planned() -> None:
    rng = np.random.default_rng(0)
    before = rng.binomial(T, 0.2, 40).astype(float)
    plan = plan_of("cost", before.tolist(), 2.0, 3.0, float(T), 0.05)
    assert plan.verdict == "pass"
    assert plan.half is not None
    assert plan.nine_of_ten is not None
    decided = 0
    for seed in range(20):
        costs = (np.random.default_rng([1, seed]).random((plan.nine_of_ten, T)) < 0.2).astype(float)
        found = certify_episodes(log_of(costs, seed), limits=[3.0], largest_step_cost=1.0, stopping=True)
        decided += found.verdict == "pass"
    assert decided >= 13  # nine of ten, if the mean were exactly 2.0
    # nearer to the limit, and above it
    near = plan_of("cost", before.tolist(), 2.7, 3.0, float(T), 0.05)
    assert near.half is not None
    assert near.half > 3 * plan.half
    assert plan_of("cost", before.tolist(), 4.0, 3.0, float(T), 0.05).verdict == "fail"
    assert plan_of("cost", before.tolist(), 2.999, 3.0, 1e6, 0.05).half is None
    assert f"{MOST_EPISODES:,}" in plan_of("cost", before.tolist(), 2.999, 3.0, 1e6, 0.05).sentence


def test_the_command_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(_wide(), tmp_path / "p.safetensors")
    costs = (np.random.default_rng(0).random((12, T)) < 0.2).astype(float)
    save(log_of(costs), tmp_path / "own.npz")
    args = ["certify", str(tmp_path / "p.safetensors"), "--own", str(tmp_path / "own.npz"), "--limit", "3"]
    args += ["--largest-step-cost", "1"]
    for more in ([], ["--plan"]):
        assert main([*args, *more]) == 4
        said = capsys.readouterr().out
        assert "trial episodes would decide (pass)" in said
        assert "--own FILE --plan" in said
        assert "trial episodes would decide (pass)" in (tmp_path / "certificate.html").read_text()
