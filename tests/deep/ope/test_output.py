"""A run whose output is chosen on bounds: what it keeps, what it says, and that a study is made once."""

import json
import os

import numpy as np
import pytest

import slater.deep as deep
from slater.deep.ope import study as studies
from slater.deep.ope.cloning import CLONE_LOG_STD
from slater.policy import load
from slater.runs import open_run
from slater.runs.result import from_log

from ..problems import pointmass

SETTINGS = {"steps": 80, "batch_size": 32, "hidden": (16, 16), "gamma": 0.9, "study_steps": 400}


@pytest.mark.skipif(not os.environ.get("SLATER_FULL"), reason="two runs and a study: SLATER_FULL=1")
def test_a_run_with_cohorts_mixes_the_logs_columns_says_who_judged_and_studies_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SLATER_CACHE", str(tmp_path / "cache"))
    data = pointmass(episodes=60)
    deep.train("pdca", data, limits=["5"], out=tmp_path / "5", **SETTINGS)
    assert len(list((tmp_path / "cache" / "studies").glob("*.safetensors"))) == 1
    result = json.loads((tmp_path / "5" / "result.json").read_text())
    assert {"judged_by", "judgement", "estimator_checks", "cohorts", "reference"} <= result.keys()
    check = result["estimator_checks"][0]
    assert check["estimator"] == "ensemble"
    assert len(check["cohorts"]) == len(result["cohorts"])
    rows = result["members"]
    own = [row for row in rows if from_log(row["kind"])]
    assert own[-1]["kind"] == "in-sample policy of multiplier inf"
    assert len(own) == len(result["cohorts"]) + 5
    assert len(rows) > len(own)  # and those of the game
    np.testing.assert_allclose(sum(row["weight"] for row in rows), 1.0, rtol=1e-6)
    if result["judged_by"] is None:
        assert any("not judged" in text for text in result["warnings"])
        assert all(row["kind"].startswith("clone of") for row in rows if row["weight"] > 0)
    # another limit and seed read the study that is there
    monkeypatch.setattr(studies, "_studied", lambda *_: 1 / 0)
    other = deep.train("pdca", data, limits=["8"], out=tmp_path / "8", seed=1, **SETTINGS)
    logged = [row["logged"] for row in result["cohorts"]]
    assert [row["logged"] for row in other.details["cohorts"]] == logged
    # every member is on disk, with the range of noise of the clones that the game is played from
    saved = open_run(tmp_path / "5")
    policies = [saved.kept_policy(member) for member in saved.result.members]
    assert len(policies) == len(rows)
    assert {policy.log_std_range for policy in policies} == {CLONE_LOG_STD}
    assert len(load(tmp_path / "5" / "mixture.safetensors").members) == sum(row["weight"] > 0 for row in rows)
    deep.train("pdca", data, limits=["5"], out=tmp_path / "again", **SETTINGS)
    assert json.loads((tmp_path / "again" / "result.json").read_text()) == result
