"""Training with history: the policy remembers by itself, wherever it is used afterwards."""

from __future__ import annotations

import numpy as np
import pytest

import slater
import slater.data
from slater import deep
from slater.experiments.worlds import recorded, world_of
from slater.policy import load
from slater.policy.remembering import RememberingPolicy

QUICK = {"steps": 20, "keep_every": 10, "hidden": (8,), "batch_size": 16}


class Heard(deep.Watcher):
    def __init__(self) -> None:
        self.said: list[str] = []

    def noticed(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    log = recorded(world_of("wear"), 30, 0)
    slater.data.save(log, folder / "wear.npz")
    result = slater.train(
        folder / "wear.npz", "bc", "6", out=folder / "run", history=True, progress=False, estimate=False,
        hold_out=0.3, **QUICK,
    )  # fmt: skip
    return folder, log, result


def test_the_policy_takes_raw_observations_and_remembers(trained):
    folder, log, result = trained
    policy = load(folder / "run" / "policy.safetensors")
    assert isinstance(policy, RememberingPolicy)
    assert len(policy.contract.observations) == log.observation_dim
    actor = policy.begin(rng=np.random.default_rng(0))
    for row in log.observations[:5]:
        assert actor.act(row, check="raise").shape == (1,)
    assert np.abs(actor.memory).max() > 0
    first = result.policy.predict(log.observations[:50], episode=np.zeros(50))
    assert first.shape == (50, 1)


def test_the_run_goes_on_with_the_log_as_it_lies_and_is_judged_by_it(trained):
    folder, log, _ = trained
    more = deep.resume(folder / "run", log, steps=40)
    assert more.steps == 40
    certificate = slater.certify(folder / "run", folder / "wear.npz", fit=False)
    assert certificate.limits[0].verdict == "abstain"
    assert not any("trained" in gate.reason for gate in certificate.limits[0].gates if not gate.passed)


def test_a_log_whose_past_matters_is_said_to_be_so_when_training_starts(tmp_path):
    heard = Heard()
    log = recorded(world_of("wear"), 100, 0)
    deep.train("bc", log, "6", tmp_path / "run", watcher=heard, options={"estimate": False}, **QUICK)
    assert any("Read the log with history" in text for text in heard.said)
