"""Critics of logged actions: what followed, what could follow, and what was luck."""

import numpy as np
import pytest

from slater.data import Dataset, Metadata
from slater.deep.ope.in_sample import InSampleSettings, _ahead, gains, row_weights
from slater.deep.task import state_task
from slater.limits import resolve_limits

#: critics of rewards alone; with an expectile they look one row ahead, as the world below asks
REGRESSED = {"multipliers": (0.0,), "steps": 1_500, "hidden": (32, 32), "learning_rate": 3e-3}
EXPECTILE = {**REGRESSED, "expectile": 0.9, "lookahead": 1}


def fork(skill: bool) -> Dataset:
    """Two steps: to the right are 3 for sure; to the left 10 or -10, by the second action or by a coin."""
    rng = np.random.default_rng(0)
    episodes = 400
    first, second = rng.choice([-1.0, 1.0], size=(2, episodes)) * rng.uniform(0.5, 1.0, (2, episodes))
    coin = rng.choice([-1.0, 1.0], episodes)
    left = first < 0
    gained = np.where(left, 10.0 * (np.sign(second) if skill else coin), 3.0)
    place = np.sign(first)
    return Dataset.from_arrays(
        observations=np.stack([np.zeros(episodes), place], axis=1).reshape(-1, 1),
        actions=np.stack([first, second], axis=1).reshape(-1, 1),
        rewards=np.stack([np.zeros(episodes), gained], axis=1).ravel(), costs=np.zeros(2 * episodes),
        next_observations=np.stack([place, 2 * place], axis=1).reshape(-1, 1),
        episode=np.repeat(np.arange(episodes), 2),
        metadata=Metadata(horizon=2, action_low=(-1.0,), action_high=(1.0,)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("skill", "settings", "left_is_better"),
    [(True, REGRESSED, False), (True, EXPECTILE, True), (False, REGRESSED, False), (False, EXPECTILE, False)],
)
def test_an_expectile_values_what_actions_could_do_and_no_coin(skill, settings, left_is_better):
    data = fork(skill)
    task = state_task(data, resolve_limits(["1"], data.cost_names), 0.9)
    found = gains(data, task, np.ones(800, dtype=bool), InSampleSettings(**settings))
    assert found.shape == (800, 1)
    left = data.actions[::2, 0] < 0
    assert (found[::2][left].mean() > found[::2][~left].mean()) == left_is_better
    # rows of the better way count more
    weights = row_weights(found[:, 0], 0.5)[::2]
    assert (weights[left].mean() > weights[~left].mean()) == left_is_better
    assert weights.max() <= 20 + 1e-9


def test_what_lies_ahead_of_a_row_adds_up_to_the_rest_of_its_episode():
    """The rows in the window, and V after them: with V = what followed, Q is what followed, too."""
    rng = np.random.default_rng(1)
    rewards, costs = rng.normal(size=30), rng.random(30)
    data = Dataset.from_arrays(
        observations=np.arange(30.0)[:, None], actions=rng.uniform(-1, 1, (30, 1)), rewards=rewards,
        costs=costs, next_observations=np.arange(1.0, 31.0)[:, None], episode=np.repeat([0, 1, 2], 10),
        metadata=Metadata(horizon=10, action_low=(-1.0,), action_high=(1.0,)),
    )  # fmt: skip
    task = state_task(data, resolve_limits(["1"], data.cost_names), 0.9)
    settings = InSampleSettings(multipliers=(0.0, 1.0, float("inf")), lookahead=4)
    near, seen, discount = _ahead(data, task, settings)
    whole = near.reshape(3, 10, 3)[:, ::4].sum(axis=1)  # windows of 4, 4 and 2 rows
    for column, utility in ((0, rewards), (2, -costs)):
        sums = utility.reshape(3, 10).sum(axis=1)
        np.testing.assert_allclose(whole[:, column] / whole[0, column], sums / sums[0], rtol=1e-5)
    np.testing.assert_allclose(whole[:, 1], (whole[:, 0] + whole[:, 2]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(discount.reshape(3, 10)[0], [1] * 6 + [0] * 4)  # the rest ends with it
    assert seen.shape == (30, 2)
    np.testing.assert_allclose(seen[:6, 1], 2 * (np.arange(6) + 4) / 10 - 1, atol=1e-6)
