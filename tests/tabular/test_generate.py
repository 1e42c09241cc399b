"""The generators: reproducible, with limits that bind, and of the shape that the papers describe."""

import numpy as np
import pytest

from slater import tabular as tab
from slater.errors import InputError


def generate(name: str, seed: int) -> tab.CMDP:
    small = {"states": 12} if name == "coptidice" else {}
    return tab.GENERATORS[name](np.random.default_rng(seed), **small)


@pytest.mark.parametrize("name", tab.GENERATORS)
def test_a_seed_gives_one_problem_and_another_seed_another(name: str) -> None:
    first, again, other = generate(name, 1), generate(name, 1), generate(name, 2)
    for field in ("transition", "reward", "costs", "limits", "start"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
    assert not np.array_equal(first.transition, other.transition)
    assert not np.array_equal(first.costs, other.costs)


@pytest.mark.parametrize("name", tab.GENERATORS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_limit_binds(name: str, seed: int) -> None:
    cmdp = generate(name, seed)
    best = cmdp.solve()
    assert pytest.approx(cmdp.limits, abs=1e-7) == best.J_C
    assert np.all(best.multipliers > 0)
    assert cmdp.best_response(np.zeros(1))[1] > best.J_R
    assert cmdp.slater_margin() >= 0


@pytest.mark.parametrize("costs", [2, 3])
def test_several_limits_bind_at_once(costs: int) -> None:
    cmdp = tab.paper_cmdp(np.random.default_rng(7), costs=costs)
    best = cmdp.solve()
    assert cmdp.costs.shape == (costs, 10, 5)
    assert pytest.approx(cmdp.limits, abs=1e-7) == best.J_C
    assert np.all(best.multipliers > 0)


def test_the_papers_problem() -> None:
    cmdp = generate("paper", 3)
    assert cmdp.transition.shape == (10, 5, 10)
    assert cmdp.costs.shape == (1, 10, 5)
    assert cmdp.limits == pytest.approx([0.5])
    assert cmdp.discount == 0.8
    assert np.array_equal(cmdp.start, np.eye(10)[0])
    assert np.all(cmdp.transition > 0)
    for utility in (cmdp.reward, cmdp.costs):
        assert utility.min() >= 0
        assert utility.max() <= 1
    # Beta(.2, .2) piles up at both ends
    costs = np.concatenate([generate("paper", s).costs.ravel() for s in range(8)])
    assert np.mean((costs < 0.1) | (costs > 0.9)) > 0.5


def test_other_sizes_are_taken() -> None:
    cmdp = tab.paper_cmdp(np.random.default_rng(1), states=4, actions=3, discount=0.9, limit=2.0)
    assert cmdp.transition.shape == (4, 3, 4)
    assert cmdp.discount == 0.9
    assert cmdp.limits == pytest.approx([2.0])


def test_the_sparse_problem_has_two_successors_and_a_free_action() -> None:
    cmdp = generate("sparse", 4)
    assert np.all((cmdp.transition > 0).sum(axis=2) == 2)
    assert np.all(cmdp.costs[0].min(axis=1) == 0.0)
    # so that the limit can be met with all of it to spare
    assert cmdp.slater_margin() == pytest.approx(0.5 / cmdp.horizon)
    two = tab.sparse_cmdp(np.random.default_rng(4), costs=2, limit=0.9)
    assert np.all((two.costs == 0).all(axis=0).any(axis=1))


@pytest.mark.parametrize("states", [12, 50])
def test_coptidices_problem_has_a_goal_and_an_absorbing_state(states: int) -> None:
    cmdp = tab.coptidice_cmdp(np.random.default_rng(5), states=states)
    last = states - 1
    assert cmdp.transition.shape == (states, 4, states)
    assert np.all(cmdp.transition[last, :, last] == 1.0)
    assert np.all(cmdp.costs[0, last] == 0.0)
    assert np.all(cmdp.costs[0].min(axis=1) == 0.0)
    goals = np.flatnonzero(cmdp.reward.max(axis=1))
    assert len(goals) == 1
    goal = int(goals[0])
    assert goal not in (0, last)
    assert cmdp.reward[goal] == pytest.approx([cmdp.horizon] * 4)
    assert np.all(cmdp.transition[goal, :, last] == 1.0)
    others = [s for s in range(last) if s != goal]
    assert np.all((cmdp.transition[others] > 0).sum(axis=2) == 4)
    assert np.all(cmdp.transition[others][:, :, last] == 0)
    # reward H once: the normalised value is the mean discount at the hit, so J is at most H
    assert 0 < cmdp.solve().J_R < cmdp.horizon


def test_coptidices_goal_is_the_hardest_to_reach() -> None:
    cmdp = tab.coptidice_cmdp(np.random.default_rng(6), states=8)
    goal = int(np.argmax(cmdp.reward.max(axis=1)))
    # the successors of the goal were replaced; the same draws give them back
    rng, P = np.random.default_rng(6), np.zeros((8, 4, 8))
    for s in range(7):
        for a in range(4):
            shares = rng.dirichlet(np.ones(4))
            P[s, a, rng.choice(7, size=4, replace=False)] = shares
    P[7, :, 7] = 1.0
    untouched = [s for s in range(8) if s != goal]
    assert np.allclose(P[untouched], cmdp.transition[untouched])
    values = {}
    for candidate in range(1, 7):
        reach = np.zeros(8)
        for _ in range(500):
            # the largest mean discount at the first visit of the candidate
            reach = cmdp.discount * (P @ reach).max(axis=1)
            reach[candidate] = 1.0
        values[candidate] = reach[0] * cmdp.horizon
    assert goal == min(values, key=values.__getitem__)
    assert cmdp.best_response(np.zeros(1))[1] == pytest.approx(values[goal], abs=1e-6)


# -- behaviour policies ---------------------------------------------------------------------------


def test_the_half_optimal_behaviour_is_half_optimal() -> None:
    cmdp = generate("paper", 1)
    best = cmdp.solve().policy
    mu = tab.half_optimal_behaviour(cmdp)
    assert np.allclose(mu, 0.5 * best + 0.1)
    assert np.allclose(tab.half_optimal_behaviour(cmdp, share=1.0), best)
    assert np.allclose(tab.half_optimal_behaviour(cmdp, cmdp.solve(), share=0.0), 0.2)


def test_coptidices_behaviour_is_under_the_limit_and_nine_tenths_good() -> None:
    cmdp = generate("coptidice", 1)
    best = cmdp.solve()
    mu = tab.coptidice_behaviour(cmdp, best)
    J_R, J_C = cmdp.returns(mu)
    uniform = cmdp.returns(tab.uniform_policy(12, 4))[0]
    target = 0.9 * best.J_R + 0.1 * uniform
    assert np.allclose(mu.sum(axis=1), 1.0)
    assert J_C[0] <= cmdp.limits[0] * 1.001
    # the temperature rises in steps of a tenth: it stops at the first value under the target
    assert 0.8 * best.J_R + 0.2 * uniform <= J_R <= target + 1e-6


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InputError, match="5 costs"):
        tab.paper_cmdp(np.random.default_rng(1), costs=5)
