"""What a run says to somebody who has not read the paper: names, the log's best, time left."""

from __future__ import annotations

import copy
import dataclasses
import re

import numpy as np
import pytest

from slater.report.run_page import report_html
from slater.runs import open_run
from slater.runs.result import Member

from .example import RESULT, write_run

#: words of the paper and of the code, which no page and no output of a run may need
JARGON = re.compile(r"cohort|endless|normalised|bootstrap|\bstep \d")


def test_policies_are_named_in_plain_words():
    assert Member(3504, "iterate", 1.0).name == "the policy after 3,504 steps"
    assert Member(12000, "clone of night shift", 1.0).name == "an imitation of night shift of the log"
    assert Member(7, "snapshot", 1.0).name == "the snapshot after 7 steps"


def test_the_logs_best_mixture_stands_beside_what_was_learned(tmp_path):
    record = copy.deepcopy(RESULT)
    record["reference"] = {"within_limits": True, "reward": 4.25, "cost": 19.5, "length": 200.0}
    saved = open_run(write_run(tmp_path / "a", result=record))
    assert saved.result.log_best == {"reward": 4.25, "cost": 19.5}
    page = report_html([saved])
    for text in (str(saved.result), saved.result._repr_html_(), page):
        assert "the log's best" in text.replace("&#x27;", "'")
        assert "4.25" in text
        assert "19.5" in text
        assert not JARGON.search(re.sub(r"<style>.*?</style>|<details>.*?</details>", "", text))
    _, _, header, reward, *_ = str(saved.result).splitlines()
    assert header.index("the log's best") + len("the log's best") == reward.index("4.25") + len("4.25")
    record["reference"]["within_limits"] = False
    other = open_run(write_run(tmp_path / "b", result=record)).result
    assert other.log_best is None
    assert "4.25" not in str(other)
    assert "no mixture of the log's own policies is within the limits" in str(other)


def test_any_algorithm_is_told_beside_the_sources_that_the_log_names(tmp_path):
    pytest.importorskip("jax")
    import slater.deep as deep

    from ..deep.problems import QUICK, pointmass

    data = pointmass()
    costs = data.episodes.costs_per_episode[:, 0]
    cheap = costs <= np.median(costs)
    named = dataclasses.replace(data, source=np.where(cheap, "cheap", "dear"))
    (low, high), (poor, rich) = (
        [float(x[own].mean()) for own in (cheap, ~cheap)] for x in (costs, data.episodes.returns_per_episode)
    )
    limit = (low + high) / 2
    result = deep.train("bc", named, [limit], tmp_path / "run", **QUICK)
    assert result.log_best == pytest.approx({"reward": max(poor, (poor + rich) / 2), "c0": limit}, rel=1e-5)
    assert "the log's best" in str(result)
    assert deep.train("bc", data, [limit], tmp_path / "unnamed", **QUICK).log_best is None


def test_time_left_knows_that_phases_differ():
    pytest.importorskip("jax")
    from slater.deep.engine.progress import TimeLeft

    def phase(step: int) -> tuple[str, int]:
        """Quick for 1,000 steps; then rounds of 80 slow and 20 quick ones."""
        if step < 1000:
            return "quick", 1000
        at = (step - 1000) % 100
        return ("slow", step - at + 80) if at < 80 else ("quick", step - at + 100)

    pace = {"quick": 0.01, "slow": 1.0}
    clock = 0.0
    left = TimeLeft(phase, 3000)

    def go(start: int, stop: int, every: int) -> None:
        nonlocal clock
        for step in range(start, stop, every):
            clock += sum(pace[phase(k)[0]] for k in range(step, step + every))
            left.saw(step + every, clock)

    assert left.words() == ""
    go(0, 1000, 100)
    assert left.words() == "at least 4 s left"  # nothing is known of the slow ones
    go(1000, 2000, 20)
    true = sum(pace[phase(k)[0]] for k in range(2000, 3000))
    assert left.words() == f"about {true / 60:.0f} min left"
    go(2000, 3000, 20)
    assert left.words() == ""
