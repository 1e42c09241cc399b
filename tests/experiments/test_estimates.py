"""The table of estimates beside the simulator: its arithmetic, without networks."""

import numpy as np

from slater.experiments.estimates import _errors, summary


def test_errors_count_as_they_would_enter_a_mixture_and_chosen_ones_by_their_weight():
    said, true = np.array([12.0, 88.0, 30.0]), np.array([10.0, 80.0, 40.0])
    found = _errors(said, true, np.array([0.75, 0.25, 0.0]), 20.0)
    # +2 of 20, +8 of 80 and -10 of 40 are +2, +2 and -5 of a limit of 20
    np.testing.assert_allclose(found["bias"], -1 / 3)
    np.testing.assert_allclose(found["rms"], np.sqrt((4 + 4 + 25) / 3))
    np.testing.assert_allclose(found["chosen_bias"], 0.75 * 2 + 0.25 * 8)
    np.testing.assert_allclose(found["chosen_rms"], 2.0)
    row = {
        "cell": {"data": "a", "limit": "20", "seed": 10}, "errors": found, "status": "not known",
        "estimated": [125.0, 31.0], "measured": [120.0, 27.5, 50.0],
        "reference": {"within_limits": True, "reward": 110.0, "cost": 20.0, "length": 50.0},
        "without_game": [111.0, 19.0, 50.0],
    }  # fmt: skip
    line = "| a | 20 | 10 | not known | 110 / 20.0 | 125 / 31.0 | 120 / 27.5 | 1.09 | 111 / 19.0 |"
    assert line in summary([row])
    # of two policies that are the log's own, and so the same in both cells, one is off by 4 deviations
    members = [["clone of a", 1, 10.0, 5.0, 11.0, 5.1, 50.0, 1.0, 0.1, 0.0, 0.0],
               ["clone of b", 2, 20.0, 5.0, 21.0, 5.5, 50.0, 1.0, 0.1, 0.0, 0.0]]  # fmt: skip
    both = [row | {"members": members}, row | {"members": members}]
    assert "Of 2 kept policies the 80% intervals cover 50% of the costs, the 95% intervals 50%." in summary(
        both
    )
