"""A mixture draws one member an episode; its value is exact, and simulation agrees."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from slater import policy
from slater import tabular as tab

from .problems import few, random_cmdp, random_policy, seeds


def random_mixture(rng: np.random.Generator, members: int = 4) -> tab.Mixture:
    policies = np.array([random_policy(rng, 3, 2) for _ in range(members)])
    return tab.Mixture(policies, rng.dirichlet(np.ones(members)))


@given(seeds)
@few
def test_the_value_is_the_weighted_mean_of_the_members_values(seed: int) -> None:
    cmdp, rng = random_cmdp(seed, costs=2), np.random.default_rng(seed)
    mixture = random_mixture(rng)
    values = [cmdp.returns(member) for member in mixture.members]
    J_R, J_C = mixture.returns(cmdp)
    assert pytest.approx(mixture.weights @ [v[0] for v in values]) == J_R
    assert pytest.approx(mixture.weights @ np.array([v[1] for v in values])) == J_C


@given(seeds)
@few
def test_the_equivalent_markov_policy_has_the_same_value(seed: int) -> None:
    cmdp, rng = random_cmdp(seed, costs=2), np.random.default_rng(seed)
    mixture = random_mixture(rng)
    J_R, J_C = cmdp.returns(mixture.markov(cmdp))
    assert pytest.approx(mixture.returns(cmdp)[0]) == J_R
    assert pytest.approx(mixture.returns(cmdp)[1]) == J_C


def test_averaging_action_probabilities_is_another_policy() -> None:
    # state 0 moves on with action 0; state 1 earns only by repeating the member's own choice
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[0, 1, 2] = P[1, :, 1] = P[2, :, 2] = 1.0
    R = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    cmdp = tab.CMDP(P, R, np.zeros((0, 3, 2)), [], 0.9)
    first, second = np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))
    mixture = tab.Mixture.uniform(np.array([first, second]))
    assert mixture.returns(cmdp)[0] == pytest.approx(9.0)
    assert cmdp.returns((first + second) / 2)[0] == pytest.approx(4.5)
    assert cmdp.returns(mixture.markov(cmdp))[0] == pytest.approx(9.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_simulation_agrees_with_the_exact_value(seed: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    # two members that differ much, so that a wrong mixture would show
    mixture = tab.Mixture(
        np.array([np.tile([1.0, 0.0], (3, 1)), np.tile([0.1, 0.9], (3, 1))]), np.array([0.3, 0.7])
    )
    earned, paid = [], []
    for _ in range(600):
        actor = mixture.begin(rng=rng)
        state, reward, cost = int(rng.choice(3, p=cmdp.start)), 0.0, 0.0
        for t in range(45):
            action = int(actor.act(state))
            reward += cmdp.discount**t * cmdp.reward[state, action]
            cost += cmdp.discount**t * cmdp.costs[0, state, action]
            actor.observe(cmdp.reward[state, action], cmdp.costs[:, state, action])
            state = int(rng.choice(3, p=cmdp.transition[state, action]))
        earned.append(reward)
        paid.append(cost)
    J_R, J_C = mixture.returns(cmdp)
    # four standard errors, and what 45 steps leave out
    rest = cmdp.discount**45 * cmdp.horizon
    assert abs(np.mean(earned) - J_R) <= 4 * np.std(earned) / np.sqrt(600) + rest
    assert abs(np.mean(paid) - J_C[0]) <= 4 * np.std(paid) / np.sqrt(600) + rest


def test_one_member_is_kept_for_a_whole_episode() -> None:
    members = np.array([np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))])
    mixture, rng = tab.Mixture.uniform(members), np.random.default_rng(0)
    firsts = []
    for _ in range(200):
        actor = mixture.begin(rng=rng)
        actions = [int(actor.act(s)) for s in (0, 1, 2, 0, 1, 2)]
        assert len(set(actions)) == 1
        firsts.append(actions[0])
    assert 60 <= sum(firsts) <= 140
    batch = mixture.act(np.zeros(400, dtype=int), rng=rng)
    assert 140 <= batch.sum() <= 260


def test_a_deterministic_actor_takes_the_likeliest_action() -> None:
    mixture = tab.Mixture.single(np.array([[0.2, 0.8], [0.9, 0.1]]))
    actor = mixture.begin(rng=np.random.default_rng(0), deterministic=True)
    assert [int(actor.act(s)) for s in (0, 1)] == [1, 0]


def test_members_of_weight_zero_do_not_matter() -> None:
    cmdp, rng = random_cmdp(2), np.random.default_rng(2)
    first, second = random_policy(rng, 3, 2), random_policy(rng, 3, 2)
    mixture = tab.Mixture(np.array([first, second]), np.array([1.0, 0.0]))
    assert mixture.returns(cmdp)[0] == pytest.approx(cmdp.returns(first)[0])


def test_a_mixture_is_saved_and_loaded_like_any_policy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    members = rng.dirichlet(np.ones(3), size=(4, 5))
    mixture = tab.Mixture(members, np.array([0.5, 0.0, 0.25, 0.25]))
    policy.save(mixture, tmp_path / "policy.safetensors")
    loaded = policy.load(tmp_path / "policy.safetensors")
    states = np.arange(5)
    first = loaded.act(states, rng=np.random.default_rng(1))
    assert np.array_equal(first, loaded.act(states, rng=np.random.default_rng(1)))
    again = tab.Mixture.load(tmp_path / "policy.safetensors")
    assert np.array_equal(again.members, members[[0, 2, 3]])
    assert np.array_equal(again.weights, [0.5, 0.25, 0.25])
    actor = loaded.begin(rng=np.random.default_rng(2))
    assert int(actor.act(np.array(3))) in range(3)
