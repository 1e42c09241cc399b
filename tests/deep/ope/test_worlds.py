"""The four worlds of the review, and variants: an output's true cost is within its limit."""

import os
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from slater.deep.algorithms.pdca.parts import EXPECTILE
from slater.deep.ope.choice import choose_mixture, verdict
from slater.deep.ope.cloning import CloneSettings
from slater.deep.ope.closed_loop import Judged, judge
from slater.deep.ope.ensemble import EnsembleSettings
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.judges import FittedQ, Rollouts, ShortRollouts, judges_of
from slater.deep.ope.study import StudySettings, study
from slater.deep.task import state_task
from slater.limits import resolve_limits

from . import worlds

#: each takes some 20 s, most of it compilation
LONG = pytest.mark.skipif(not os.environ.get("SLATER_FULL"), reason="a variant: SLATER_FULL=1")
QUICK = StudySettings(
    cohorts=3,
    ensemble=EnsembleSettings(copies=3, steps=1500, hidden=(32, 32), outcome_hidden=(32, 32), batch_size=64),
    clones=CloneSettings(steps=1500, chunk=500, hidden=(32, 32), batch_size=64),
    in_sample=InSampleSettings(
        steps=2000, hidden=(32, 32), multipliers=(0.0, 1.0, float("inf")), expectile=EXPECTILE
    ),
)


def studied(data, limits):
    task = state_task(data, resolve_limits(limits, data.cost_names), 0.95)
    return task, study(data, task, QUICK)


@cache
def of_ends():
    """The world of early ends with a log of it, its task and its study, which several tests look at."""
    world = worlds.ends()
    data = world.log([worlds.bold(0.5)], 200, 0)
    return data, *studied(data, ["3"])


def truth(world, task, found, choice):
    """True return and costs per episode of the chosen mixture."""
    used = np.flatnonzero(choice.weights)
    return choice.weights[used] @ np.array([world.truth(task, found.policy(k)) for k in used])


@pytest.mark.parametrize(
    ("world", "behaviours", "limits"),
    [
        pytest.param(worlds.gamble(), [0.5], ["1"], id="gamble"),
        pytest.param(worlds.gamble(costs=2), [0.5], ["1", "1.5"], id="two costs", marks=LONG),
        pytest.param(worlds.gamble(discrete=True), [0.5], ["1"], id="discrete", marks=LONG),
        pytest.param(worlds.gamble(delay=3), [0.5], ["1"], id="delayed", marks=LONG),
        pytest.param(worlds.gamble(), [0.05, 0.4, 0.9], ["1"], id="three policies", marks=LONG),
    ],
)
def test_a_gamble_is_not_won_by_luck(world, behaviours, limits):
    """The safe action's .3 always, the risky one as often as the limit allows: 8.8 in all at a limit of 1."""
    data = world.log([worlds.bold(share, world.discrete) for share in behaviours], 240 // len(behaviours), 0)
    task, found = studied(data, limits)
    judged = verdict(task, found, judges_of(task, found, data), found.replays(data))
    assert judged.best is not None, judged.line(task)
    true = truth(world, task, found, choose_mixture(task, judged))
    assert np.all(true[1:-1] <= 1.1 * np.array([float(x) for x in limits])), true
    assert true[0] > 6.5, true


def test_noise_that_crosses_a_line_is_seen():
    """The mean state never crosses where the noise does: a deterministic model says a tenth of the cost."""
    world = worlds.noise(line=0.9)
    data = world.log([worlds.towards(goal, 0.3) for goal in (0.2, 0.5, 0.8)], 80, 0, named=True)
    task, found = studied(data, ["1.5"])
    judge_of = Rollouts(task, found)
    assert judge_of.share > 0.9  # the noise is the world's
    said = judge_of.estimates([found.policy(k) for k in range(3)], jax.random.key(1))
    true = np.array([world.truth(task, found.policy(k)) for k in range(3)])
    costs = said.mean[:, 1] / task.scale[1] * 20 * (1 - task.gamma)
    assert true[2, 1] > 2
    np.testing.assert_allclose(costs, true[:, 1], rtol=0.3, atol=0.3)


@pytest.mark.xdist_group("ends")
def test_early_ends_are_part_of_an_estimate_and_of_its_check():
    """Cost 1.99 and 19.9 steps: an exact model is trusted, one that never ends (10.0) is not."""
    _, task, found = of_ends()
    assert len(found.cohorts) == 1
    unit = task.scale[1] / (100 * (1 - task.gamma))
    exact = np.array([[19.9 * task.scale[0] / (100 * (1 - task.gamma)), 1.99 * unit, 19.9]])
    zero = np.zeros((1, 3))
    check = judge(task, found.cohorts, found.sums, "exact", Judged(exact, zero, zero))
    assert check.passes, check.describe(task, found.cohorts)
    fitted = Rollouts(task, found).estimates([found.policy(0)], jax.random.key(0))
    assert judge(task, found.cohorts, found.sums, "ensemble", fitted).passes
    np.testing.assert_allclose(fitted.mean[0, 1] / unit, 1.99, rtol=0.2)
    np.testing.assert_allclose(fitted.mean[0, 2], 19.9, rtol=0.2)
    immortal = replace(found, ensemble=replace(found.ensemble, ends=0.0 * found.ensemble.ends))
    never = Rollouts(task, immortal).estimates([found.policy(0)], jax.random.key(0))
    assert never.mean[0, 2] == 100
    rejected = judge(task, found.cohorts, found.sums, "immortal", never)
    assert not rejected.passes
    assert np.all(np.abs(rejected.relative[0, 1:]) > rejected.allowed[0, 1:])


@pytest.mark.xdist_group("ends")
@pytest.mark.parametrize("estimator", [FittedQ, ShortRollouts])
def test_fitted_values_know_early_ends(estimator):
    """Without a model, or after the first steps of one: a cost of 1.99 and 19.9 steps."""
    data, task, found = of_ends()
    said = estimator(task, found, data).of_log
    unit = task.scale[1] / (100 * (1 - task.gamma))
    np.testing.assert_allclose(said.mean[0, 1] / unit, 1.99, rtol=0.2)
    np.testing.assert_allclose(said.mean[0, 2], 19.9, rtol=0.2)
    assert judge(task, found.cohorts, found.sums, estimator.name, said.first(1)).passes


@pytest.mark.xdist_group("ends")
def test_the_next_estimator_is_asked_where_the_first_fails():
    """An ensemble that never ends is rejected; what needs no model, or little of it, passes and judges."""
    data, task, found = of_ends()
    immortal = replace(found, ensemble=replace(found.ensemble, ends=0.0 * found.ensemble.ends))
    answer = verdict(task, immortal, judges_of(task, immortal, data), immortal.replays(data))
    assert not answer.checks["ensemble"].passes
    assert answer.best is not None
    assert answer.best.name in ("fitted Q", "short rollouts with a fitted value")
    assert answer.estimator.name == answer.best.name
    assert answer.describe(task)["judged_by"] == answer.best.name
