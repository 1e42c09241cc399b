"""Bad input, each answered by one sentence that names the entry."""

import numpy as np
import pytest

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular.files import load_problem

from .problems import random_cmdp, sampled


def refused(call, *named: str) -> str:
    """The sentence that refuses `call`; it must name every one of `named`."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    for name in named:
        assert name in message
    assert "\n" not in message
    # one sentence: it ends with a full stop, and no other ends before it
    assert message.endswith(".")
    assert ". " not in message
    # nobody has two thousand million states: a bound that is no fact of the problem is not named
    assert str(2**31) not in message
    return message


def fields(**changes) -> dict:
    good = {
        "transition": np.full((3, 2, 3), 1 / 3),
        "reward": np.ones((3, 2)),
        "costs": np.ones((1, 3, 2)),
        "limits": [1.0],
        "discount": 0.9,
        "start": 0,
    }
    return {**good, **changes}


def changed(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


GOOD = fields()

CMDPS = {
    "row-sum": (
        {"transition": changed(GOOD["transition"], (1, 0, 2), 0.5)},
        "transition[1, 0, :]",
        "1.16667",
    ),
    "negative-probability": (
        {"transition": changed(changed(GOOD["transition"], (2, 1, 0), -0.1), (2, 1, 1), 0.7666667)},
        "transition[2, 1, 0]",
        "-0.1",
    ),
    "transition-nan": (
        {"transition": changed(GOOD["transition"], (0, 1, 1), np.nan)},
        "transition[0, 1, 1]",
        "nan",
    ),
    "reward-nan": ({"reward": changed(GOOD["reward"], (2, 0), np.nan)}, "reward[2, 0]", "nan"),
    "reward-infinite": ({"reward": changed(GOOD["reward"], (2, 1), np.inf)}, "reward[2, 1]", "inf"),
    "cost-nan": ({"costs": changed(GOOD["costs"], (0, 1, 1), np.nan)}, "costs[0, 1, 1]", "nan"),
    "cost-negative": ({"costs": changed(GOOD["costs"], (0, 2, 1), -0.25)}, "costs[0, 2, 1]", "-0.25"),
    "limit-nan": ({"limits": [np.nan]}, "limits[0]", "nan"),
    "limit-negative": ({"limits": [-1.0]}, "limits[0]", "-1"),
    "limits-too-many": ({"limits": [1.0, 2.0]}, "limits", "(2,)"),
    "limits-ragged": ({"limits": [[1.0], [1.0, 2.0]]}, "limits"),
    "discount-one": ({"discount": 1.0}, "discount", "1"),
    "discount-zero": ({"discount": 0.0}, "discount", "0"),
    "discount-above": ({"discount": 1.5}, "discount", "1.5"),
    "discount-nan": ({"discount": np.nan}, "discount", "nan"),
    "start-out-of-range": ({"start": 3}, "start", "3"),
    "start-negative": ({"start": -1}, "start", "-1"),
    "start-not-whole": ({"start": 1.7}, "start", "1.7"),
    "start-nan": ({"start": np.nan}, "start", "nan"),
    "start-sum": ({"start": [0.5, 0.5, 0.5]}, "start", "1.5"),
    "start-length": ({"start": [0.5, 0.5]}, "start", "(2,)"),
    "transition-not-square": ({"transition": np.full((3, 2, 4), 0.25)}, "transition", "(3, 2, 4)"),
    "transition-flat": ({"transition": np.full((3, 3), 1 / 3)}, "transition", "(3, 3)"),
    "no-states": ({"transition": np.zeros((0, 2, 0))}, "transition", "(0, 2, 0)"),
    "reward-shape": ({"reward": np.ones((2, 3))}, "reward", "(2, 3)"),
    "cost-shape": ({"costs": np.ones((3, 2))}, "costs", "(3, 2)"),
    "reward-words": ({"reward": [["a", "b"]] * 3}, "reward"),
}


@pytest.mark.parametrize("name", CMDPS)
def test_a_cmdp_is_checked(name: str) -> None:
    changes, *named = CMDPS[name]
    refused(lambda: tab.CMDP(**fields(**changes)), *named)


def test_the_good_one_is_accepted() -> None:
    tab.CMDP(**GOOD)
    tab.CMDP(**fields(start=[0.2, 0.3, 0.5], limits=0.5))


def test_infeasible_limits_say_by_how_much() -> None:
    # every action costs 1: J_C = H = 10 whatever the policy
    message = refused(lambda: tab.CMDP(**fields(limits=[7.5])).solve(), "limit 0", "7.5", "2.5", "10")
    assert "raise that limit" in message


def rows(**changes) -> dict:
    good = {
        "states": [0, 1, 2, 0],
        "actions": [0, 1, 0, 1],
        "next_states": [1, 2, 0, 0],
        "rewards": [0.0, 0.5, 1.0, 0.2],
        "costs": [0.0, 0.5, 1.0, 0.2],
        "limits": [1.0],
        "discount": 0.9,
    }
    return {**good, **changes}


DATASETS = {
    "empty": ({key: [] for key in ("states", "actions", "next_states", "rewards", "costs")}, "empty"),
    "start-never-left": ({"start": 3, "num_states": 5}, "state 3", "no action"),
    "start-distribution-never-left": ({"start": [0, 0, 0, 0.5, 0.5], "num_states": 5}, "state 3"),
    "discount-one": ({"discount": 1.0}, "discount", "1"),
    "state-out-of-range": ({"num_states": 2}, "states[2]", "2"),
    "next-state-out-of-range": ({"next_states": [1, 7, 0, 0], "num_states": 3}, "next_states[1]", "7"),
    "action-out-of-range": ({"actions": [0, 1, 5, 1], "num_actions": 2}, "actions[2]", "5"),
    "state-negative": ({"states": [0, -1, 2, 0]}, "states[1]", "-1"),
    "action-negative": ({"actions": [0, 1, 0, -2]}, "actions[3]", "-2"),
    "state-fraction": ({"states": [0, 1.5, 2, 0]}, "states"),
    "state-word": ({"states": ["a", "b", "c", "d"]}, "states"),
    "states-nested": ({"states": [[0, 1, 2, 0]] * 4}, "states"),
    "rewards-short": ({"rewards": [0.0, 0.5]}, "rewards", "(2,)"),
    "actions-long": ({"actions": [0, 1, 0, 1, 0]}, "actions", "(5,)"),
    "costs-short": ({"costs": [0.0, 0.5]}, "costs", "(2, 1)"),
    "costs-ragged": ({"costs": [[0.0], [0.1, 0.2], [0.3], [0.4]]}, "costs"),
    "rewards-ragged": ({"rewards": [[0.0], [0.1, 0.2], [0.3], [0.4]]}, "rewards"),
    "reward-nan": ({"rewards": [0.0, np.nan, 1.0, 0.2]}, "rewards[1]", "nan"),
    "cost-nan": ({"costs": [0.0, 0.5, np.nan, 0.2]}, "costs[2", "nan"),
    "cost-negative": ({"costs": [0.0, 0.5, 1.0, -0.2]}, "costs[3", "-0.2"),
    "limits-missing": ({"limits": []}, "limits", "(0,)"),
    "limit-negative": ({"limits": [-0.5]}, "limits[0]", "-0.5"),
    "terminals-short": ({"terminals": [True]}, "terminals", "(1,)"),
    "start-out-of-range": ({"start": 9}, "start", "9"),
    "start-not-whole": ({"start": 0.5}, "start", "0.5"),
    "start-sum": ({"start": [0.5, 0.2, 0.2]}, "start", "0.9"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_checked(name: str) -> None:
    changes, *named = DATASETS[name]
    refused(lambda: tab.Counts.from_arrays(**rows(**changes)), *named)


def test_the_good_dataset_is_accepted() -> None:
    assert tab.Counts.from_arrays(**rows()).size == 4


def test_sampling_is_checked() -> None:
    cmdp, rng = random_cmdp(1), np.random.default_rng(1)
    policy = tab.uniform_policy(3, 2)
    refused(lambda: tab.Counts.sample(cmdp, policy, 0, rng), "n is 0")
    refused(lambda: tab.Counts.rollout(cmdp, policy, 0, 10, rng), "empty")


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (np.full((3, 3), 1 / 3), "(3, 3)"),
        (np.array([[0.5, 0.5], [0.9, 0.9], [0.5, 0.5]]), "[1, :]"),
        (np.array([[0.5, 0.5], [0.5, 0.5], [np.nan, 0.5]]), "[2, 0]"),
    ],
    ids=["shape", "sum", "nan"],
)
@pytest.mark.parametrize("how", ["sample", "rollout"])
def test_a_behaviour_policy_is_checked(how: str, policy: np.ndarray, named: str) -> None:
    cmdp, rng = random_cmdp(1), np.random.default_rng(1)
    if how == "sample":
        refused(lambda: tab.Counts.sample(cmdp, policy, 100, rng), "policy", named)
    else:
        refused(lambda: tab.Counts.rollout(cmdp, policy, 10, 10, rng), "policy", named)


@pytest.mark.parametrize("algorithm", [tab.PDCA, tab.MBCL, tab.ACrab])
def test_features_of_the_wrong_width_are_refused(algorithm) -> None:
    data = sampled(random_cmdp(1), 100, 1)
    wide = tab.Linear(np.ones((3, 5, 2)))
    refused(lambda: algorithm(values=wide).run(data), "features", "(3, 5, 2)", "(3, 2, d)")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: tab.Linear(np.ones((3, 2))), "features"),
        (lambda: tab.Linear(np.full((3, 2, 1), np.nan)), "features[0, 0, 0]"),
        (lambda: tab.aggregation([[0, 1]], 2), "groups"),
        (lambda: tab.aggregation([0, -1], 2), "groups"),
        (lambda: tab.aggregation([0, 0.5], 2), "groups"),
        (lambda: tab.aggregation([], 2), "groups"),
        (lambda: tab.Box(-1.0), "-1"),
        (lambda: tab.Box(np.inf), "inf"),
        (lambda: tab.PerSampleBox(np.nan), "nan"),
        (lambda: tab.L2Ball(-2.0), "-2"),
    ],
)
def test_classes_are_checked(call, named: str) -> None:
    refused(call, named)


@pytest.mark.parametrize(
    ("weights", "named"),
    [([1.0], "(1,)"), ([0.5, 0.6], "1.1"), ([1.5, -0.5], "-0.5"), ([0.5, np.nan], "nan")],
    ids=["length", "sum", "negative", "nan"],
)
def test_the_weights_of_a_mixture_are_probabilities(weights: list[float], named: str) -> None:
    refused(lambda: tab.Mixture(np.full((2, 3, 2), 0.5), np.array(weights)), "weights", named)


def test_an_unknown_choice_for_unseen_pairs_is_refused() -> None:
    data = sampled(random_cmdp(1), 100, 1)
    refused(lambda: data.model("hopeful"), "hopeful")  # type: ignore[arg-type]


def test_a_file_with_one_array_is_no_problem(tmp_path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    refused(lambda: load_problem(tmp_path / "one.npy"), "single array")
