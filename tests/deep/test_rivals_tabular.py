"""Deep COptiDICE and deep MBCL beside their tabular forms, on the same one-hot data, judged exactly.

Settings were chosen on seeds 900 to 902; the seeds here are others.
"""

import os

import numpy as np
import pytest

import slater.deep as deep
from slater import policy as policies
from slater.tabular import Counts
from slater.tabular.coptidice import COptiDICE
from slater.tabular.mbcl import MBCL

from .exact import GAMMA, ExactCMDP, behaviour, random_cmdp

FULL = os.environ.get("SLATER_FULL") == "1"
SEEDS = range(700, 705)
SETTINGS = {
    "coptidice": {
        "steps": 5000, "batch_size": 256, "hidden": (64,), "eta": 1e-3, "eta_pi": 1e-3,
        "expectation": "network",
    },
    "mbcl": {
        "steps": 10_500, "batch_size": 128, "hidden": (64,), "first_steps": 500, "fqi_steps": 200,
        "fqe_steps": 300, "dual_start": 0.5,
    },
}  # fmt: skip
TABULAR = {"coptidice": COptiDICE(), "mbcl": MBCL(rounds=100)}


def counts(cmdp: ExactCMDP, data) -> Counts:
    return Counts.from_arrays(
        states=data.observations.argmax(1), actions=data.actions,
        next_states=data.next_observations.argmax(1), rewards=data.rewards, costs=data.costs,
        limits=cmdp.tau, discount=GAMMA, num_states=len(cmdp.P), num_actions=cmdp.P.shape[1],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="takes minutes: make test-full")
@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_deep_form_comes_close_to_the_tabular_form(name, tmp_path):
    """J_R within 5% and J_C within 20% of tau of the tabular form's, mean over 5 seeds."""
    gaps = []
    for seed in SEEDS:
        cmdp = random_cmdp(seed)
        data = cmdp.dataset(behaviour(cmdp), 20_000, seed)
        exact = TABULAR[name].run(counts(cmdp, data)).policy
        J_tabular = sum(w * cmdp.J(pi) for w, pi in zip(exact.weights, exact.members, strict=True))
        out = tmp_path / str(seed)
        limits = [f"{tau}/discounted" for tau in cmdp.tau]
        deep.train(name, data, limits, out, seed=seed, gamma=GAMMA, **SETTINGS[name])
        J = cmdp.J_of(policies.load(out / "mixture.safetensors"))
        gaps.append([J[0] / J_tabular[0] - 1.0, (J[1] - J_tabular[1]) / cmdp.tau[0]])
    print(name, np.round(gaps, 3).tolist())
    reward, cost = np.mean(gaps, axis=0)
    assert abs(reward) <= 0.05, gaps
    assert abs(cost) <= 0.20, gaps
