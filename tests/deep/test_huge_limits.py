"""A limit that nothing can reach is no limit; it does not overflow into a fault of another name."""

import os

import numpy as np
import pytest

from slater import deep
from slater.deep.batches import prepare
from slater.limits import LARGEST, resolve_limits

from .problems import QUICK, pointmass


@pytest.mark.parametrize("unit", ["", "/step", "/discounted"])
def test_thresholds_of_huge_limits_are_finite_and_those_of_usual_ones_untouched(unit):
    data = pointmass(episodes=4)
    task, _ = prepare(data, resolve_limits([f"{LARGEST}{unit}"], data.cost_names), 0.9)
    assert task.tau[0] == pytest.approx(1e5)
    limits = resolve_limits(["1000"], data.cost_names)
    task, _ = prepare(data, limits, 0.9)
    np.testing.assert_array_equal(task.tau, np.float32(1000 / 25 / (1 - 0.9) * task.scale[1]))


@pytest.mark.skipif(not os.environ.get("SLATER_FULL"), reason="compiles PDCA anew: SLATER_FULL=1")
def test_pdca_trains_under_a_huge_limit(tmp_path):
    result = deep.train("pdca", pointmass(episodes=8), [LARGEST], tmp_path / "run", **QUICK)
    assert all(np.isfinite(value) for value in (result.estimates or {}).values())
