"""Importance weights: bounds are right at T = 1, 10 and 50, and at T = 200 they abstain rather than lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from slater import InputError
from slater.certify.propensities import certify_propensities, judge_propensities
from slater.certify.weights import checked_propensities, episode_weights, largest_weight
from slater.data import Dataset, Metadata
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture

ERROR = 0.1


@dataclass(frozen=True)
class Logistic:
    """Action 1 with probability 1 / (1 + exp(-(bias + slope s)))."""

    bias: float
    slope: float = 0.5

    def probabilities(self, observations: Any) -> Any:
        p = 1 / (1 + np.exp(-(self.bias + self.slope * np.asarray(observations, dtype=float)[:, 0])))
        return np.stack([1 - p, p], axis=1)

    def log_probability(self, observations: Any, actions: Any) -> Any:
        return np.log(np.take_along_axis(self.probabilities(observations), actions[:, None], axis=1)[:, 0])

    def act(self, observations: Any, *, rng: np.random.Generator, deterministic: bool = False) -> Any:
        return (rng.random(len(observations)) < self.probabilities(observations)[:, 1]).astype(np.int32)


def _log(policy: Logistic, episodes: int, steps: int, rng: np.random.Generator) -> Dataset:
    """States are drawn anew in every step; action 1 costs 1 with probability .5, action 0 with .1."""
    size = episodes * steps
    s = rng.standard_normal((size, 1)).astype(np.float32)
    a = policy.act(s, rng=rng)
    cost = (rng.random(size) < 0.1 + 0.4 * a).astype(np.float32)
    ends = np.arange(size) % steps == steps - 1
    return Dataset.from_arrays(
        observations=s, actions=a, rewards=np.ones(size), costs=cost[:, None], terminals=np.zeros(size, bool),
        timeouts=ends, next_observations=s, propensity=np.exp(policy.log_probability(s, a)),
    )  # fmt: skip


def _truth(policy: Logistic, steps: int) -> float:
    grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None]
    return float(steps * (0.1 + 0.4 * policy.probabilities(grid)[:, 1].mean()))


@pytest.mark.parametrize(
    ("steps", "episodes", "shift"), [(1, 150, 1.5), (1, 400, -1.0), (10, 200, -0.5), (50, 300, -0.25)]
)
def test_bounds_are_wrong_at_most_as_often_as_they_say(steps: int, episodes: int, shift: float) -> None:
    logged, target = Logistic(0.0), Logistic(shift)
    truth = _truth(target, steps)
    too_low = too_high = passed = 0
    repeats = 60
    for seed in range(repeats):
        data = _log(logged, episodes, steps, np.random.default_rng([steps, seed]))
        found = judge_propensities(data, target, ["cost"], [1.6 * truth], [1.0], ERROR)[0]
        too_low += found.upper < truth
        too_high += found.lower > truth
        passed += found.verdict == "pass"
    assert stats.binom.sf(too_low - 1, repeats, ERROR) > 1e-3
    assert stats.binom.sf(too_high - 1, repeats, ERROR) > 1e-3
    assert passed > repeats / 2  # it is not right by saying nothing


def test_two_hundred_steps_are_never_wrong_and_say_why_they_abstain() -> None:
    target = Logistic(-1.0)
    truth = _truth(target, 200)
    for seed in range(5):
        data = _log(Logistic(0.0), 300, 200, np.random.default_rng(seed))
        near = judge_propensities(data, target, ["cost"], [0.9 * truth], [1.0], 0.01)[0]
        assert near.verdict == "abstain"
        assert near.lower < truth < near.upper
        assert judge_propensities(data, target, ["cost"], [3 * truth], [1.0], 0.01)[0].verdict != "fail"
    assert "episodes count like" in near.reason


def test_wrong_propensities_close_the_gate() -> None:
    data = _log(Logistic(0.0), 400, 5, np.random.default_rng(0))
    wrong = replace(data, propensity=0.8 * np.asarray(data.propensity))
    certificate = certify_propensities(wrong, Logistic(0.1), limits=[4.9])
    assert certificate.verdict == "abstain"
    assert "propensities are wrong" in certificate.sentence
    # whatever the policy, and for continuous actions
    far = certify_propensities(wrong, Logistic(3.0), limits=[4.9], largest_step_cost=1)
    assert "propensities are wrong" in far.sentence
    rng = np.random.default_rng(0)
    actions = rng.normal(0.0, 1.0, (2000, 1))
    density = stats.norm.pdf(actions[:, 0])
    for factor, right in ((1.0, True), (0.8, False)):
        log = Dataset.from_arrays(
            observations=np.zeros((2000, 1)),
            actions=actions,
            rewards=np.ones(2000),
            costs=np.zeros((2000, 1)),
            timeouts=np.ones(2000, bool),
            terminals=np.zeros(2000, bool),
            propensity=factor * density,
        )
        assert checked_propensities(log, np.ones((1, 2000))).passed == right


def test_right_propensities_are_seldom_taken_for_wrong_ones() -> None:
    alarms = 0
    for seed in range(60):
        data = _log(Logistic(0.0), 100, 3, np.random.default_rng([9, seed]))
        alarms += not checked_propensities(data, episode_weights(data, Logistic(2.0)).ratios).passed
    assert alarms <= 1


@pytest.mark.parametrize(("chance", "large"), [(0.007, 1.0), (0.01, 100.0)])
def test_where_no_cost_was_seen_the_bound_knows_that_it_may_come(chance: float, large: float) -> None:
    """Rare costs of one-step episodes: a Student bound was below the truth in half of such logs."""
    policy, wrong, repeats = Logistic(0.5, 0.0), 0, 100
    for seed in range(repeats):
        rng = np.random.default_rng([3, seed])
        data = _log(Logistic(0.0, 0.0), 100, 1, rng)
        cost = large * (rng.random(100) < chance)
        data = replace(data, costs=cost.astype(np.float32)[:, None])
        found = judge_propensities(data, policy, ["cost"], [1.0], [large], 0.05)[0]
        wrong += found.upper < chance * large
    assert stats.binom.sf(wrong - 1, repeats, 0.05) > 1e-3


def test_a_largest_weight_narrows_the_bound_and_is_known_where_actions_have_one_probability_each() -> None:
    data = _log(Logistic(0.0, 0.0), 600, 1, np.random.default_rng(1))
    data = replace(data, costs=(np.random.default_rng(2).random((600, 1)) < 0.02).astype(np.float32))
    policy = Logistic(1.0, 0.0)
    assert largest_weight(data, np.ones((1, 600)), None)[0] == pytest.approx(2.0)
    with_it = judge_propensities(data, policy, ["cost"], [1.0], [1.0], 0.05)[0]
    noise = np.asarray(data.propensity) * (1 + 1e-4 * np.arange(600) / 600)  # no longer one each
    without = judge_propensities(replace(data, propensity=noise), policy, ["cost"], [1.0], [1.0], 0.05)[0]
    assert with_it.upper < 0.8 * without.upper
    # a lower bound does not move with the limit
    other = judge_propensities(data, policy, ["cost"], [0.01], [1.0], 0.05)[0]
    assert other.lower == with_it.lower
    with pytest.raises(InputError, match="more than the stated largest"):
        judge_propensities(data, policy, ["cost"], [1.0], [1.0], 0.05, largest=1.1)


def test_the_complement_is_unbiased_also_where_episodes_end_early() -> None:
    # half of the episodes end after one of two steps; the policy is the one that acted
    size, policy = 3000, Logistic(0.3)
    rng = np.random.default_rng(0)
    s = rng.standard_normal((size, 1)).astype(np.float32)
    a = policy.act(s, rng=rng)
    terminals = np.zeros(size, bool)
    timeouts = np.zeros(size, bool)
    timeouts[2::3] = True  # rows 0 | 1 2
    terminals[0::3] = True
    data = Dataset.from_arrays(
        observations=s, actions=a, rewards=np.ones(size), costs=np.ones((size, 1)), terminals=terminals,
        timeouts=timeouts, next_observations=s, propensity=np.exp(policy.log_probability(s, a)),
    )  # fmt: skip
    found = judge_propensities(data, policy, ["cost"], [1.9], [1.0], ERROR)[0]
    assert found.evidence[0].estimate == pytest.approx(1.5, abs=1e-9)
    assert found.estimate == pytest.approx(1.5, abs=0.01)
    assert found.lower < 1.5 < found.upper < 1.6


def test_cut_episodes_close_the_gate_and_limits_per_step_are_on_the_steps_lived() -> None:
    size, policy = 3000, Logistic(0.3)
    rng = np.random.default_rng(0)
    s = rng.standard_normal((size, 1)).astype(np.float32)
    a = policy.act(s, rng=rng)
    ends = np.arange(size) % 3 == 2  # three steps of ten
    parts = {
        "observations": s, "actions": a, "rewards": np.ones(size), "costs": np.full((size, 1), 0.5),
        "next_observations": s, "propensity": np.exp(policy.log_probability(s, a)),
        "metadata": Metadata(horizon=10),
    }  # fmt: skip
    ended = Dataset.from_arrays(**parts, terminals=ends, timeouts=np.zeros(size, bool))
    cut = Dataset.from_arrays(**parts, terminals=np.zeros(size, bool), timeouts=ends)
    assert certify_propensities(ended, policy, limits=[3], largest_step_cost=1).verdict == "pass"
    found = certify_propensities(cut, policy, limits=[3])
    assert found.verdict == "abstain"
    assert "1000 of 1000 episodes were cut off before 10 steps" in found.sentence
    # 1.5 per episode, .5 per step lived
    assert certify_propensities(ended, policy, limits=["0.3/step"]).verdict == "fail"
    assert certify_propensities(ended, policy, limits=["0.8/step"], largest_step_cost=1).verdict == "pass"


def test_a_mixture_weighs_whole_episodes() -> None:
    data = _log(Logistic(0.0), 50, 4, np.random.default_rng(1))
    a, b = Logistic(0.5), Logistic(-0.5)
    mixture = Mixture((a, b), np.array([0.25, 0.75]))  # type: ignore[arg-type]
    mixed = episode_weights(data, mixture).mixed
    parts = [episode_weights(data, x).mixed for x in (a, b)]
    np.testing.assert_allclose(mixed, 0.25 * parts[0] + 0.75 * parts[1])


def test_densities_of_saved_policies_integrate_to_one() -> None:
    rng = np.random.default_rng(0)
    layers = ((rng.standard_normal((2, 2)).astype(np.float32),), (np.zeros(2, np.float32),))
    obs = (np.zeros(2, np.float32), np.ones(2, np.float32))
    gaussian = GaussianPolicy(
        *layers, *obs, np.array([-2.0], np.float32), np.array([6.0], np.float32), (-1.0, 1.0)
    )
    grid = np.linspace(-2, 6, 40_001)[1:-1, None]
    s = np.tile([[0.3, -0.7]], (len(grid), 1))
    assert np.exp(gaussian.log_probability(s, grid)).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-2)
    categorical = CategoricalPolicy(*layers, *obs)
    both = np.exp([categorical.log_probability(s[:1], np.array([action]))[0] for action in (0, 1)])
    np.testing.assert_allclose(both, categorical.probabilities(s[:1])[0], rtol=1e-5)


@pytest.mark.parametrize(("value", "says"), [(0.0, "is 0"), (1.5, "is 1.5"), (math.nan, "is nan")])
def test_impossible_propensities_get_one_sentence(value: float, says: str) -> None:
    data = _log(Logistic(0.0), 5, 2, np.random.default_rng(0))
    propensity = np.array(data.propensity)
    propensity[3] = value
    broken = replace(data, propensity=propensity)
    with pytest.raises(InputError, match=f"row 3 {says}"):
        certify_propensities(broken, Logistic(0.0), limits=[1.0])


def test_policies_without_densities_and_data_without_propensities_get_one_sentence() -> None:
    data = _log(Logistic(0.0), 5, 2, np.random.default_rng(0))
    with pytest.raises(InputError, match="does not say how likely an action is"):
        certify_propensities(data, lambda s: s, limits=[1.0])
    bare = replace(data, propensity=None)
    with pytest.raises(InputError, match="no propensities"):
        certify_propensities(bare, Logistic(0.0), limits=[1.0])
    with pytest.raises(InputError, match="names a cost that the data does not have"):
        certify_propensities(data, Logistic(0.0), limits=["speed=3"])
    with pytest.raises(InputError, match="but the horizon is 1"):
        certify_propensities(data, Logistic(0.0), limits=[1.0], horizon=1)
