"""A policy that switches by its budget: the rule, by networks whose answers are known."""

import numpy as np
import pytest

from slater import policy as policies
from slater.errors import InputError
from slater.policy.budget import Budget
from slater.policy.switching import SwitchingPolicy

HORIZON, GAMMA = 10, 0.9
#: what a critic's unit makes of a cost of 1 per episode
UNIT = 1 / (HORIZON * (1 - GAMMA))


def constant(*outputs: float, inputs: int = 3):
    """A network of one layer that gives the same outputs everywhere."""
    return ((np.zeros((inputs, len(outputs)), np.float32), np.array(outputs, np.float32)),)


def switching(rewards, costs, limits, *, clip=True, ends="horizon"):
    """Discrete actions 0, 1, 2, each proposed by its own head; reward- and costs-to-go per action, raw."""
    logits = np.where(np.eye(3) > 0, 20.0, -20.0).ravel()
    unit = UNIT if ends == "horizon" else 1.0
    inputs = 3 if ends == "horizon" else 2
    critics = [(constant(*rewards, inputs=inputs),)] + [
        (constant(*np.multiply(c, unit), inputs=inputs),) for c in costs
    ]
    return SwitchingPolicy(
        constant(*logits, inputs=inputs), tuple(critics), 3, Budget(ends, HORIZON, GAMMA),
        np.array(limits, np.float32), np.ones(len(costs), np.float32), np.zeros(2, np.float32),
        np.ones(2, np.float32), None, None, (0.0, 0.0), clip, tuple(f"c{i}" for i in range(len(costs))),
    )  # fmt: skip


def act(actor):
    return int(actor.act(np.zeros(2, np.float32)))


def begin(policy):
    return policy.begin(rng=np.random.default_rng(0))


def test_it_takes_the_best_reward_that_every_budget_affords_and_else_the_least_excess():
    policy = switching((3, 2, 1), [(8, 4, 1), (1, 1, 5)], limits=[5, 9])
    actor = begin(policy)
    assert act(actor) == 1  # action 0 costs too much of the first
    actor.observe(0.0, np.array([2.0, 0.0]))
    assert act(actor) == 2  # 3 are left
    actor.observe(0.0, np.array([0.0, 5.0]))
    assert act(actor) == 1  # 3 and 4 are left, and none fits: by 5, 1 and 1; the first of the least
    assert act(begin(policy.with_limits([20, 9]))) == 0


def test_a_spent_budget_goes_to_the_cheapest_even_where_a_critic_errs_below_zero():
    for clip, taken in ((True, 2), (False, 0)):
        actor = begin(switching((3, 2, 1), [(-1, 4, -2)], limits=[1], clip=clip))
        act(actor)
        actor.observe(0.0, np.array([3.0]))
        # clipped, all of -1 and -2 count as 0, which does not fit into nothing
        assert act(actor) == (0 if clip else taken)


def test_a_limit_changed_in_the_middle_of_an_episode_counts_from_there():
    for ends in ("horizon", "timeouts"):
        policy = switching((3, 2, 1), [(4, 2, 0.5)], limits=[10], ends=ends)
        actor = begin(policy)
        assert act(actor) == 0
        actor.observe(0.0, np.array([1.0]))
        actor.change_limits([1.5])  # half a cost is left
        assert act(actor) == 2
        actor.observe(0.0, np.array([0.0]))
        actor.change_limits([10.0])
        assert act(actor) == 0


def test_it_refuses_to_act_on_when_it_was_not_told():
    actor = begin(switching((3, 2, 1), [(1, 1, 1)], limits=[10]))
    act(actor)
    with pytest.raises(InputError, match=r"call observe\(reward, costs\) after every step"):
        act(actor)


def test_it_is_saved_and_loaded_and_a_damaged_file_is_refused(tmp_path):
    policy = switching((3, 2, 1), [(8, 4, 1)], limits=[5])
    policies.save(policy, tmp_path / "p.safetensors")
    loaded = policies.load(tmp_path / "p.safetensors")
    assert isinstance(loaded, SwitchingPolicy)
    assert loaded.budget == policy.budget
    assert act(begin(loaded)) == 1
    assert act(begin(policies.with_limits(loaded, [20.0]))) == 0
    with pytest.raises(ValueError, match="no budget ends"):
        Budget.from_json({"ends": "never", "horizon": 0, "gamma": 0.9})
