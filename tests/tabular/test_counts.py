"""The dataset: what sampling gives, what arrays give, and the empirical model."""

import numpy as np
import pytest
from hypothesis import given

from slater import tabular as tab

from .problems import few, population, random_cmdp, random_policy, sampled, seeds, without_pair


@given(seeds)
@few
def test_a_sample_has_n_transitions_and_the_shares_of_the_occupancy(seed: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    pi = random_policy(rng, 3, 2)
    data = tab.Counts.sample(cmdp, pi, 200_000, rng)
    assert data.size == 200_000
    assert data.transitions.sum() == 200_000
    assert np.allclose(data.distribution, cmdp.occupancy(pi), atol=0.01)
    often = data.pair_counts > 5000
    assert np.allclose(data.kernel[often], cmdp.transition[often], atol=0.05)


def test_a_discounted_rollout_follows_the_discounted_occupancy() -> None:
    cmdp, rng = random_cmdp(3), np.random.default_rng(3)
    pi = random_policy(rng, 3, 2)
    data = tab.Counts.rollout(cmdp, pi, 1500, 25, rng, discounted=True)
    assert np.allclose(data.distribution, cmdp.occupancy(pi), atol=0.02)
    plain = tab.Counts.rollout(cmdp, pi, 20, 25, rng)
    assert plain.size == 500
    assert plain.transitions.sum() == 500


def test_a_rollout_ends_after_one_step_in_the_absorbing_state() -> None:
    P = np.zeros((2, 1, 2))
    P[:, :, 1] = 1.0
    cmdp = tab.CMDP(P, [[1.0], [0.0]], np.zeros((0, 2, 1)), [], 0.9)
    data = tab.Counts.rollout(cmdp, np.ones((2, 1)), 7, 50, np.random.default_rng(0), absorbing=1)
    assert data.transitions[0, 0, 1] == 7
    assert data.transitions[1, 0, 1] == 7
    assert data.size == 14


def logs(rng: np.random.Generator, n: int = 50) -> dict:
    return {
        "states": np.append(0, rng.integers(3, size=n - 1)),
        "actions": rng.integers(2, size=n),
        "next_states": rng.integers(3, size=n),
        "rewards": rng.random(n),
        "costs": rng.random((n, 2)),
        "limits": [1.0, 2.0],
        "discount": 0.9,
    }


@given(seeds)
@few
def test_arrays_are_counted_and_their_utilities_averaged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = logs(rng)
    terminals = rng.random(50) < 0.2
    data = tab.Counts.from_arrays(**rows, terminals=terminals, num_states=3, num_actions=2)
    for s in range(3):
        for a in range(2):
            here = (rows["states"] == s) & (rows["actions"] == a)
            assert data.pair_counts[s, a] == here.sum()
            assert data.ends[s, a] == (here & terminals).sum()
            for t in range(3):
                assert data.transitions[s, a, t] == (here & ~terminals & (rows["next_states"] == t)).sum()
            if here.any():
                assert data.reward[s, a] == pytest.approx(rows["rewards"][here].mean())
                assert data.costs[:, s, a] == pytest.approx(rows["costs"][here].mean(axis=0))
    assert data.size == 50


def test_the_next_state_of_a_true_end_is_ignored() -> None:
    # logs often hold -1, or a state beyond the last, where nothing follows
    arrays = {"states": [0, 1], "actions": [0, 1], "rewards": [0.0, 1.0], "costs": [0.0, 1.0]}
    for follow in (-1, 99):
        data = tab.Counts.from_arrays(
            **arrays, next_states=[1, follow], limits=[1.0], discount=0.9, terminals=[False, True]
        )
        assert data.num_states == 2
        assert data.ends[1, 1] == 1


def test_one_cost_may_be_a_plain_row_and_the_start_a_distribution() -> None:
    rows = logs(np.random.default_rng(1))
    rows["costs"], rows["limits"] = rows["costs"][:, 0], 1.0
    data = tab.Counts.from_arrays(**rows, start=[0.5, 0.5, 0.0])
    assert data.num_costs == 1
    assert data.start == pytest.approx([0.5, 0.5, 0.0])
    assert (data.num_states, data.num_actions) == (3, 2)


@given(seeds)
@few
def test_shares_kernel_and_behaviour_are_what_their_names_say(seed: int) -> None:
    data = without_pair(sampled(random_cmdp(seed), 100, seed), 0, 1)
    assert data.distribution.sum() == pytest.approx(1.0)
    assert np.allclose(data.kernel.sum(axis=2), data.seen)
    assert np.allclose(data.behaviour.sum(axis=1), 1.0)
    assert data.behaviour[0, 1] == 0.0
    assert np.allclose(data.behaviour * data.state_counts[:, None], data.pair_counts)
    coverage = data.coverage
    assert [0, 1] in coverage.unseen_pairs.tolist()
    assert len(coverage.unseen_pairs) == round((1 - coverage.share) * 6)
    assert coverage.fewest == data.pair_counts[data.seen].min()


def test_a_state_without_data_is_reported() -> None:
    data = tab.Counts.from_arrays(
        states=[0], actions=[1], next_states=[2], rewards=[1.0], costs=[0.0], limits=[1.0], discount=0.5
    )
    assert data.coverage.unseen_states.tolist() == [1, 2]
    assert data.coverage.share == pytest.approx(1 / 6)
    assert np.allclose(data.behaviour[2], 0.5)


@given(seeds)
@few
def test_the_model_of_the_population_is_the_truth(seed: int) -> None:
    cmdp, rng = random_cmdp(seed, costs=2), np.random.default_rng(seed)
    mu, pi = random_policy(rng, 3, 2), random_policy(rng, 3, 2)
    model = population(cmdp, mu).model()
    J_R, J_C = model.returns(np.vstack([pi, np.full((2, 2), 0.5)]))
    assert pytest.approx(cmdp.returns(pi)[0]) == J_R
    assert pytest.approx(cmdp.returns(pi)[1]) == J_C


@given(seeds)
@few
def test_pessimism_about_unseen_pairs_is_below_and_above_every_other_choice(seed: int) -> None:
    data = without_pair(sampled(random_cmdp(seed), 100, seed), 1, 0)
    pi = np.vstack([random_policy(np.random.default_rng(seed), 3, 2), np.full((2, 2), 0.5)])
    low, most = data.model("pessimistic").returns(pi)
    for unseen in ("optimistic", "uniform"):
        J_R, J_C = data.model(unseen).returns(pi)
        assert low <= J_R + 1e-12
        assert np.all(most >= J_C - 1e-12)


def test_scales_are_one_for_the_papers_utilities_and_grow_with_others() -> None:
    cmdp = random_cmdp(4)
    data = sampled(cmdp, 200, 4)
    assert (data.reward_scale, data.cost_scale) == (1.0, 1.0)
    assert data.value_box(data.reward) == (0.0, pytest.approx(cmdp.horizon))
    large = tab.CMDP(cmdp.transition, -30 * cmdp.reward, 4 * cmdp.costs, cmdp.limits, 0.8, cmdp.start)
    data = sampled(large, 200, 4)
    assert data.reward_scale == pytest.approx(30 * cmdp.reward[data.seen].max())
    assert data.value_box(data.reward)[0] == pytest.approx(-30 * cmdp.reward[data.seen].max() * 5)
    assert data.cost_scale == pytest.approx(4 * cmdp.costs[0][data.seen].max())
