"""The examples of real domains: from the simulator to a bare log that Slater reads."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

DOMAINS = {
    "charging": (("ev2gym", "pandapower", "multicopula"), ("overload", "unmet")),
    "grid": (("grid2op", "lightsim2grid"), ("stress", "disconnected")),
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_log_by_operators_is_bare_and_says_what_it_is(
    domain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed, costs = DOMAINS[domain]
    if any(find_spec(package) is None for package in needed):
        pytest.skip(f"the simulator of examples/domains/{domain}.py is missing: its first lines install it")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "domains"))
    recording = importlib.import_module("record")
    one, same = (recording.record(domain, 2, seed=3) for _ in range(2))
    assert one.fingerprint == same.fingerprint
    assert one.cost_names == costs
    assert one.source is None
    assert one.propensity is None
    assert len(one.episodes) == 2
    assert one.metadata.action_low is not None
    assert np.all(one.actions >= np.float32(one.metadata.action_low))
    assert np.isfinite(one.observations).all()

    from slater.envs import RandomPolicy, make, rollout

    env = make(one.metadata.env_id)
    ran = rollout(RandomPolicy(env.action_space), one.metadata.env_id, episodes=1, seed=0)
    assert ran.quantities()["cost"].shape == (1,)
