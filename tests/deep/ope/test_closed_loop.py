"""The check of an estimator against what cohorts did, without any network."""

from types import SimpleNamespace

import numpy as np

from slater.deep.ope.closed_loop import Judged, best_estimator, judge, sentence
from slater.deep.ope.cohorts import Cohorts, reference
from slater.deep.task import state_task
from slater.limits import resolve_limits

from ..problems import pointmass

LIMIT = 10.0


def reckless_log(episodes: int = 400):
    """Two cohorts: return 300 at cost 5, 500 at 100, costs spread by 64 between all episodes."""
    rng = np.random.default_rng(0)
    labels = np.arange(episodes) % 2
    sums = np.stack([300.0 + 200 * labels, np.where(labels, 100.0, 5.0), np.full(episodes, 200.0)], axis=1)
    sums[:, :2] += rng.normal(size=(episodes, 2)) * [20.0, 3.0] * (1 + 9 * labels[:, None])
    cohorts = Cohorts(("safe", "reckless"), labels, rng.random(episodes) < 0.2, named=True)
    return cohorts, sums


def task_of(limit: float = LIMIT):
    """A stand-in whose J-units are the data's: what the check reads of a task."""
    data = pointmass(episodes=3)
    real = state_task(data, resolve_limits([str(limit)], data.cost_names), 0.9)
    return SimpleNamespace(
        tau=np.array([limit]), costs=1, cost_names=("cost",), limits=real.limits, gamma=0.9,
        unscaled=lambda x: x, units=SimpleNamespace(horizon=None),
    )  # fmt: skip


def said(cohorts, sums, bias=(0.0, 0.0, 0.0)):
    mean, _ = cohorts.means(sums, held=True)
    return Judged(mean + np.array(bias), np.zeros_like(mean), np.zeros_like(mean))


def test_a_bias_of_a_limits_size_is_rejected_however_much_episodes_differ():
    cohorts, sums = reckless_log()
    assert sums[:, 1].std() > 45
    for bias in (LIMIT, -LIMIT, 4 * LIMIT):
        assert not judge(task_of(), cohorts, sums, "biased", said(cohorts, sums, (0, bias, 0))).passes
    assert judge(task_of(), cohorts, sums, "right", said(cohorts, sums)).passes
    # what is an error at a limit of 10 is none at a limit of 100
    assert judge(task_of(100.0), cohorts, sums, "biased", said(cohorts, sums, (0, -LIMIT, 0))).passes


def test_noise_of_single_episodes_does_not_fail_right_means():
    cohorts, sums = reckless_log()
    noisy = sums + np.random.default_rng(1).normal(size=sums.shape) * [0, 15.0, 0]
    check = judge(task_of(), cohorts, noisy, "right", said(cohorts, sums))
    assert check.passes


def test_wrong_returns_and_lengths_are_rejected_and_a_length_need_not_be_said():
    cohorts, sums = reckless_log()
    assert not judge(task_of(), cohorts, sums, "a", said(cohorts, sums, (-250.0, 0, 0))).passes
    assert not judge(task_of(), cohorts, sums, "b", said(cohorts, sums, (0, 0, -90.0))).passes
    assert judge(task_of(), cohorts, sums, "c", said(cohorts, sums, (0, 0, np.nan))).passes


def test_the_best_that_passes_is_taken():
    cohorts, sums = reckless_log()
    claims = {
        name: said(cohorts, sums, (0, bias, 0))
        for name, bias in (("low", -1.5), ("high", 1.5), ("wrong", 30.0), ("near", -0.5))
    }
    checks = {name: judge(task_of(), cohorts, sums, name, claim) for name, claim in claims.items()}
    best = best_estimator(list(checks.values()))
    assert best is checks["near"]
    assert "estimates by near" in sentence(task_of(), cohorts, checks)
    assert best_estimator([checks["wrong"]]) is None
    line = sentence(task_of(), cohorts, {"wrong": checks["wrong"]})
    assert "not judged" in line
    assert "says 3" in line


def test_the_reference_is_the_best_mixture_of_cohorts_within_the_limits():
    cohorts, sums = reckless_log()
    found = reference(cohorts, sums, np.array([LIMIT]))
    mean, _ = cohorts.means(sums)
    assert found.feasible
    np.testing.assert_allclose(found.value[1], LIMIT, rtol=1e-6)
    share = (LIMIT - mean[0, 1]) / (mean[1, 1] - mean[0, 1])
    np.testing.assert_allclose(found.weights, [1 - share, share], rtol=1e-6)
    assert not reference(cohorts, sums, np.array([1.0])).feasible


def test_a_clone_that_differs_is_told_from_a_wrong_estimator_by_replays():
    """One of three cohorts' clones does something else: the estimator says so, and replays clear it."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3
    sums = np.stack([300.0 + 100 * labels, 5.0 + 20 * labels, np.full(600, 200.0)], axis=1)
    sums += rng.normal(size=sums.shape)
    cohorts = Cohorts(("a", "b", "c"), labels, rng.random(600) < 0.2, named=True)
    off = said(cohorts, sums)
    off.mean[0, 1] += 8.0
    clear, wrong = np.zeros((3, 2)), np.zeros((3, 2))
    wrong[0, 1] = 6.0
    assert not judge(task_of(), cohorts, sums, "no replays", off).passes
    assert not judge(task_of(), cohorts, sums, "wrong model", off, wrong).passes
    check = judge(task_of(), cohorts, sums, "right model", off, clear)
    assert check.passes
    assert check.clone_differs.tolist() == [True, False, False]
    # most cohorts must pass in closed loop, whatever replays say
    off.mean[1:, 1] += 30.0
    assert not judge(task_of(), cohorts, sums, "drifts", off, clear).passes
