"""The table of estimates beside the simulator: its arithmetic, without networks."""

import numpy as np

from slater.experiments.estimates import _row, summary


def test_errors_count_as_they_would_enter_a_mixture_and_chosen_ones_by_their_weight():
    said = np.array([[100.0, 12.0, 50.0], [200.0, 88.0, 50.0], [150.0, 30.0, 50.0]])
    true = np.array([[90.0, 10.0, 50.0], [210.0, 80.0, 50.0], [150.0, 40.0, 50.0]])
    weights = np.array([0.75, 0.25, 0.0])
    bounds = said + np.array([0.0, 5.0, 0.0])
    row = _row("20", 20.0, said, bounds, true, weights)
    assert (row["covered"], row["policies"]) == (2, 3)  # 35 for 40 is below by more than rollouts may be off
    np.testing.assert_allclose(row["estimated"][:2], [125.0, 31.0])
    np.testing.assert_allclose(row["measured"][:2], [120.0, 27.5])
    # +2 of 20, +8 of 80 and -10 of 40 are +2, +2 and -5 of a limit of 20
    np.testing.assert_allclose(row["bias"], -1 / 3)
    np.testing.assert_allclose(row["rms_error"], np.sqrt((4 + 4 + 25) / 3))
    np.testing.assert_allclose(row["chosen_bias"], 0.75 * 2 + 0.25 * 8)
    np.testing.assert_allclose(row["chosen_rms_error"], 2.0)
    reference = {"within_limits": True, "reward": 110.0, "cost": 20.0, "length": 50.0}
    cell = {
        "cell": {"data": "a.hdf5", "seed": 10},
        "limits": [row | {"judged_by": None, "reference": reference, "of_reference": 120 / 110}],
    }
    assert "| a.hdf5 | 10 | 20 | none | 110 / 20.0 | 125 / 31.0 | 120 / 27.5 | 1.09 |" in summary([cell])
