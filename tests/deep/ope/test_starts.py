"""A game that is played from the log: where it starts, what holds it, and how its policies are judged."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.algorithms.pdca.schedule import Schedule
from slater.deep.game.dual import EXP3, PID, ExponentiatedGradient, ProjectedGradient, ProportionalIntegral
from slater.deep.game.primal import AnchoredGradient
from slater.deep.nets.policy import Categorical, Gaussian, make_policy
from slater.deep.ope.calibration import Calibration
from slater.deep.ope.choice import RETURN_SCALES, UNSEEN, Verdict, choose_mixture, starting_cohorts, verdict
from slater.deep.ope.closed_loop import Judged, judge
from slater.deep.ope.cohorts import Cohorts, reference
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import resolve_limits

from ..problems import Preference, pointmass
from .test_closed_loop import task_of


def actions_of(discrete):
    data = pointmass(episodes=3, discrete=discrete)
    return state_task(data, resolve_limits(["5"], data.cost_names), 0.9)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_divergence_is_the_mean_log_ratio_of_what_the_first_would_do(discrete):
    task = actions_of(discrete)
    one, two = (make_policy(task, (8,), jax.random.key(k), (-3.0, 0.0)) for k in (0, 1))
    assert isinstance(one, Categorical if discrete else Gaussian)
    obs = jnp.array([[0.3, -0.5]])
    np.testing.assert_allclose(one.divergence(one, obs), 0.0, atol=1e-6)
    many = jnp.repeat(obs, 200_000, axis=0)
    if discrete:
        chance = one.choice(obs, jax.random.key(0))[0]
        choices = jax.nn.one_hot(
            jax.random.categorical(jax.random.key(2), jnp.log(chance), shape=(200_000,)), 3
        )
    else:
        choices = one.choice(many, jax.random.key(2))
    ratio = one.log_prob(many, choices) - two.log_prob(many, choices)
    error = float(jnp.std(ratio)) / 200_000**0.5
    assert float(one.divergence(two, obs)[0]) == pytest.approx(float(ratio.mean()), abs=6 * error + 1e-6)


def test_the_anchored_player_ends_at_its_start_times_the_exponential_of_z():
    """Mirror descent from the start: the minimiser is known in closed form."""
    task = actions_of(discrete=True)
    weight, z = 0.5, Preference(jnp.array([0.2, 1.0, 0.6]))
    player = AnchoredGradient((8,), 0.02, 1e-3, anchor_weight=weight)
    start = make_policy(task, (8,), jax.random.key(3))
    state = player.start(start)
    data = dict.fromkeys(("u", "discount", "s_next", "returns", "s0"))
    batch = SimpleNamespace(s=jnp.zeros((4, 2)), a=jnp.eye(3)[jnp.array([0, 1, 2, 1])], **data)
    update = jax.jit(lambda state: player.update(task, state, z, batch, jax.random.key(0)))
    for _ in range(400):
        state, told = update(state)
    size = float(jnp.mean(jnp.abs(z.f(batch.s, batch.a))))
    before = start.choice(batch.s, jax.random.key(0))[0]
    wanted = jax.nn.softmax(jnp.log(before) + z.values / (weight * size))
    np.testing.assert_allclose(state.policy.choice(batch.s, jax.random.key(0))[0], wanted, atol=2e-3)
    assert np.isfinite(told["loss/pi"])
    np.testing.assert_array_equal(state.anchor.mlp.weights[0], start.mlp.weights[0])


@pytest.mark.parametrize(
    "player",
    [ProjectedGradient(5.0, 0.5), ExponentiatedGradient(5.0, 0.5), ProportionalIntegral(5.0, 0.5, 0.5),
     PID(5.0, 0.5, 0.1, 0.1), EXP3(5.0, 0.1)],
    ids=lambda player: type(player).__name__,
)  # fmt: skip
def test_a_dual_player_can_be_put_at_prices_and_goes_on_from_there(player):
    state = player.init(2)
    prices = jnp.array([1.0, 2.0])
    put = player.restart(state, prices)
    np.testing.assert_allclose(put.lam, prices, rtol=1e-5)
    assert jax.tree.map(jnp.shape, put) == jax.tree.map(jnp.shape, state)
    if not isinstance(player, EXP3):
        assert float(player.update(put, jnp.array([0.5, 0.5])).lam.sum()) > 3.0
        assert float(player.update(put, jnp.array([-0.5, -0.5])).lam.sum()) < 3.0


def test_a_schedule_in_parts_is_starts_and_whole_rounds_and_does_not_depend_on_the_number_of_steps():
    schedule = Schedule(steps=100, warm=10, fit=0, joint=5, ope=1, start_rounds=3)
    phases, step = [], 0
    while step < 100:
        phase, step_after = schedule.phase(step)
        phases.append((phase, step_after - step))
        step = step_after
    part = [("start", 1), *[("joint", 5), ("ope", 1)] * 3]
    assert phases[0] == ("warm", 10)
    assert phases[1 : 1 + 2 * len(part)] == 2 * part
    ends = [done for done in range(101) if schedule.ends_round(done)]
    assert ends[:4] == [17, 23, 29, 36]
    assert [schedule.part(done - 1) for done in ends[:4]] == [0, 0, 0, 1]
    moves = [int(step) for step in range(10, 100) if bool(schedule.moves_dual(jnp.asarray(step))[0])]
    starts = [10, 29, 48, 67, 86]
    assert [step for step in moves if step not in starts] == [done - 1 for done in ends]
    longer = Schedule(steps=1000, warm=10, fit=0, joint=5, ope=1, start_rounds=3)
    assert all(schedule.phase(step) == longer.phase(step) for step in range(94))


def test_a_log_of_too_few_whole_episodes_is_not_studied():
    config = PDCAConfig(hidden=(8,), gamma=0.9)
    assert PDCA(config).config_for(pointmass(episodes=9)).estimator == "model"
    found = PDCA(config).config_for(pointmass(episodes=10))
    parts = (found.estimator, found.mixture, found.primal, found.dual)
    assert parts == ("ensemble", "bounds", "anchored", "exponentiated_gradient")
    plain = PDCA(replace(config, mixture="lp")).config_for(pointmass(episodes=10))
    assert (plain.estimator, plain.primal, plain.dual) == ("model", "gradient", "projected_gradient")
    with pytest.raises(InputError, match="take mixture bounds"):
        replace(config, estimator="ensemble", mixture="lp")


def log_of_four(idle=(100.0, 0.0)):
    """Cohorts of 300 at 2, 500 at 100, 320 at 30 and 100 at 0; a limit of 10 binds."""
    means = np.array([[300.0, 2.0], [500.0, 100.0], [320.0, 30.0], idle])
    labels = np.arange(400) % 4
    sums = np.column_stack([means[labels], np.full(400, 50.0)])
    sums[:, :2] += np.random.default_rng(0).normal(size=(400, 2)) * [5.0, 1.0]
    names = ("safe", "reckless", "middle", "idle")
    cohorts = Cohorts(names, labels, np.arange(400) % 20 < 4, named=True)
    return SimpleNamespace(
        cohorts=cohorts, sums=sums, divergence=np.zeros(4), alike=np.ones(4, bool), task=task_of()
    )


def test_a_game_starts_from_the_cohorts_of_the_best_mixture_at_the_limits_price():
    study = log_of_four()
    order, prices = starting_cohorts(task_of(), study, 6)
    assert set(order[:2]) == {0, 1}  # those that the best mixture is made of
    assert order.tolist()[4:] == order.tolist()[:2]  # then from the first again
    best = reference(study.cohorts, study.sums, np.array([10.0]))
    more = reference(study.cohorts, study.sums, np.array([11.0]))
    assert prices[0] == pytest.approx(more.value[0] - best.value[0], rel=1e-3)
    free, none = starting_cohorts(task_of(1000.0), study, 2)
    assert none[0] == 0.0
    assert free[0] == 1


def judged(study, claims, passes_for):
    """A verdict by an estimator that says `claims` of the clones, and is right about `passes_for`."""
    task = task_of()
    said = Judged(claims, np.zeros_like(claims), np.zeros_like(claims))
    check = judge(task, study.cohorts, study.sums, "ensemble", said, None, np.ones(4, bool))
    assert check.right.tolist() == passes_for
    calibration = Calibration((0.0, 1.0), np.ones(2), np.zeros(1), np.array([500.0, 10.0]), (0.0, 0.0))
    best = reference(study.cohorts, study.sums, task.tau)
    own = SimpleNamespace(name="ensemble", of_log=said)
    return task, Verdict(study, {"ensemble": own}, {"ensemble": check}, best, calibration)


def test_a_policy_that_was_played_from_a_clone_is_judged_by_the_change_from_there():
    study = log_of_four()
    means, _ = study.cohorts.means(study.sums)
    biased = means + np.array([-20.0, 2.0, 0.0])  # of every clone alike
    task, found = judged(study, biased, [True] * 4)
    truth = means[0] + np.array([40.0, 1.0, 0.0])
    claim = (truth + np.array([-20.0, 2.0, 0.0]))[None]
    more = Judged(claim, np.zeros((1, 3)), np.zeros((1, 3)))
    alone = choose_mixture(task, found, more).estimates.mean[-1]
    started = choose_mixture(task, found, more, np.array([0]))
    said = started.estimates.mean[-1]
    # half of the error is gone, and the bound lies beyond the other half
    np.testing.assert_allclose(said[:2], (alone[:2] + truth[:2]) / 2, rtol=1e-6)
    assert started.bounds[-1, 0] < said[0] < truth[0]
    assert started.bounds[-1, 1] > said[1] > truth[1]
    half, change = 10.0, 40.0
    wanted = said[0] - RETURN_SCALES * np.hypot(half, 0.25 * change)
    assert started.bounds[-1, 0] == pytest.approx(wanted, rel=1e-6)
    assert started.weights[-1] > 0  # better than the clone that it was played from


def test_a_clone_that_may_differ_is_credited_half_way_to_an_estimate_that_says_less():
    study = log_of_four()
    means, _ = study.cohorts.means(study.sums)
    claims = means + np.array([[-40.0, 0, 0], [40.0, 0, 0], [0.0, 0, 0], [0.0, 0, 0]])
    task, found = judged(study, claims, [True] * 4)
    np.testing.assert_allclose(choose_mixture(task, found).bounds[:, 0], means[:, 0])  # known to act alike
    study.alike[:] = False
    credited = choose_mixture(task, found).bounds[:, 0]
    np.testing.assert_allclose(credited - means[:, 0], [-20.0, 0.0, 0.0, 0.0], atol=1e-9)


def test_where_the_estimator_is_wrong_only_policies_near_cohorts_that_it_is_right_about_count():
    study = log_of_four()
    means, _ = study.cohorts.means(study.sums)
    claims = means.copy()
    claims[3, 1] += 50.0  # the idle cohort is said to cost five limits
    task, found = judged(study, claims, [True, True, True, False])
    assert found.best is None
    assert found.judge is not None
    assert "judges only near those (not near idle)" in found.line(task)
    assert found.describe(task)["judged_by"] == "ensemble"
    assert not found.describe(task)["judged_everywhere"]
    splendid = np.repeat([[900.0, 0.0, 50.0]], 3, axis=0)
    more = Judged(splendid, np.zeros((3, 3)), np.zeros((3, 3)))
    weights = choose_mixture(task, found, more, np.array([3, -1, 0])).weights[-3:]
    assert weights[0] == weights[1] == 0.0  # from the wrong cohort, and from none
    assert weights[2] == pytest.approx(1.0)
    # and the log speaks alone for the clone that the estimator is wrong about
    assert choose_mixture(task, found).estimates.mean[3, 1] == pytest.approx(means[3, 1])


def test_what_the_networks_disagree_about_is_withheld_and_not_mixed():
    study = log_of_four()
    means, _ = study.cohorts.means(study.sums)
    task, found = judged(study, means, [True] * 4)
    splendid = np.repeat([[900.0, 0.0, 50.0]], 2, axis=0)
    apart = np.array([[0.0, 2.4, 0.0], [0.0, 2.6, 0.0]])  # of a limit of 10, a quarter passes
    choice = choose_mixture(task, found, Judged(splendid, apart, np.zeros((2, 3))), np.array([0, 0]))
    assert choice.withheld.tolist() == [False] * 5 + [True]
    assert choice.weights[-2] > 0
    assert choice.weights[-1] == 0.0
    # far above the limit the same share is of the cost
    dear = np.array([[900.0, 100.0, 50.0]])
    more = Judged(dear, np.array([[0.0, 24.0, 0.0]]), np.zeros((1, 3)))
    assert not choose_mixture(task, found, more, np.array([0])).withheld.any()


def test_a_cohort_without_a_cost_may_still_have_one_that_few_episodes_do_not_show():
    """Of 100 idle episodes none cost anything: it counts with what 2 in 101 of a limit's size would add."""
    study = log_of_four()
    study.sums[study.cohorts.labels == 3, 1] = 0.0
    means, _ = study.cohorts.means(study.sums)
    task, found = judged(study, means, [True] * 4)
    bounds = choose_mixture(task, found).bounds
    assert bounds[3, 1] == pytest.approx(UNSEEN * 10.0 / 101)
    assert np.all(bounds[:, 1] > means[:, 1])


def test_the_log_is_believed_where_an_estimator_is_wrong_about_its_only_safe_source():
    study = log_of_four(idle=(310.0, 40.0))
    study.alike = np.zeros(4, bool)
    true, _ = study.cohorts.means(study.sums, held=True)

    def looked(claims, named=True):
        own = SimpleNamespace(**vars(study))
        own.cohorts = replace(study.cohorts, named=named)
        said = Judged(claims, np.zeros_like(claims), np.zeros_like(claims))
        judge_of = SimpleNamespace(name="ensemble", of_log=said, by_ensemble=True)
        return verdict(task_of(), own, [judge_of], np.full((4, 2), np.nan))

    right = looked(true)
    assert right.judge is not None
    wrong = true.copy()
    wrong[0, 1] += 60.0  # by the estimator nothing keeps the limit of 10; it is right about the three others
    found = looked(wrong)
    assert found.distrusted
    assert found.judge is None
    assert "not judged" in found.line(task_of())
    assert not found.describe(task_of())["judged_everywhere"]
    chosen = choose_mixture(task_of(), found)
    assert chosen.weights[0] > 0.8
    assert chosen.value()[1] <= 10.0
    # what a group that was found by its outcomes did may be luck: there the estimator is believed
    assert looked(wrong, named=False).judge is not None
