"""Whether a run keeps its limits is one typed field, set where the run ends; everybody else reads it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest

import slater.deep as deep
from slater import cli
from slater.certify.frontier import trace
from slater.certify.pools import pool_of_runs
from slater.data import save
from slater.deep.algorithms import registry
from slater.deep.ope.base import Check
from slater.errors import InputWarning
from slater.policy import load
from slater.runs import LimitStatus, open_run

from .problems import QUICK, QUICK_WORDS, pointmass
from .toy import Toy

WITHIN, ABOVE, UNKNOWN = LimitStatus.WITHIN, LimitStatus.ABOVE, LimitStatus.NOT_KNOWN


class Sure(Toy):
    """A toy that is sure of a cost of 0 for its first cost."""

    name: ClassVar[str] = "sure"

    def estimates(self, task, state):
        return (1.0, *np.zeros(task.costs))


class NotJudged(Sure):
    """The same, and its last look at the data finds that nothing can be judged."""

    name: ClassVar[str] = "not-judged"

    def check_estimates(self, task, state, dataset):
        return Check(False, {"posterior": None}, ("not judged.",))


class Posterior(Sure):
    """Knows by itself: the first cost is within, the second is not known."""

    name: ClassVar[str] = "posterior"

    def limit_status(self, task, members, weights, check):
        return [WITHIN, UNKNOWN][: task.costs]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for kind in (Toy, Sure, NotJudged, Posterior):
        monkeypatch.setitem(registry._REGISTRY, kind.name, kind)


def _result(folder, name, costs=1, limits=(5,), **options: Any):
    quick = {"log_every": 60, "checkpoint_every": 60, "estimate": False, **options}
    deep.train(name, pointmass(costs=costs), list(limits), folder, options=quick, **QUICK)
    return open_run(folder).result


def test_a_run_that_is_not_judged_is_not_within(tmp_path, capsys):
    result = _result(tmp_path / "run", "not-judged")
    assert result.estimates["c0"] == 0.0
    assert result.status is UNKNOWN
    assert result.limit_status == {"c0": UNKNOWN}
    assert not result.trusted
    contract = load(tmp_path / "run" / "mixture.safetensors").contract
    for text in (str(result), result._repr_html_(), *contract.judged[1:]):
        assert "not known" in text or "not judged" in text
        assert ", within" not in text
    assert contract.limit_status == {"c0": "not known"}
    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["limits"] == "c0=5"
    for command, key in (
        (["runs", str(tmp_path)], "limits kept"),
        (["compare", str(tmp_path)], "limits kept"),
    ):
        assert cli.main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0][key] == "not known"
    with pytest.warns(InputWarning, match="failed their check"):
        pools = pool_of_runs([open_run(tmp_path / "run")])
    assert all(point.status is not WITHIN for point in trace(pools[0]).points)
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert "0, not known" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("name", "code"), [("sure", 0), ("not-judged", 4), ("toy", 4)])
def test_require_limits_is_content_with_within_alone(tmp_path, name, code):
    save(pointmass(), tmp_path / "log.npz")
    words = ["train", name, str(tmp_path / "log.npz"), "--out", str(tmp_path / "run"), "--no-estimate"]
    assert cli.main([*words, *QUICK_WORDS, "--require-limits"]) == code


def test_an_algorithm_that_knows_better_says_so_per_limit(tmp_path):
    result = _result(tmp_path / "run", "posterior", 2, (5, 5))
    assert result.limit_status == {"c0": WITHIN, "c1": UNKNOWN}
    assert result.status is UNKNOWN
    assert [line[3] for line in result.lines()] == ["", "within", "not known"]
    assert open_run(tmp_path / "run").result.limit_status == result.limit_status


def test_estimates_above_a_limit_count_even_where_they_are_not_trusted():
    assert LimitStatus.of([WITHIN, ABOVE, UNKNOWN]) is ABOVE
    assert LimitStatus.of([WITHIN, UNKNOWN]) is UNKNOWN
    assert LimitStatus.of([WITHIN]) is WITHIN
    assert LimitStatus.of([]) is UNKNOWN
