"""A second, better study of a log whose first one is wrong; what it is made of, and when it is made."""

import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.ope import ensemble as ensembles
from slater.deep.ope import study as studies
from slater.deep.ope.beside import side_by_side
from slater.deep.ope.cloning import CloneSettings, clone_many, thorough_clones
from slater.deep.ope.cohorts import Cohorts, outcomes
from slater.deep.ope.ensemble import EnsembleSettings, fit_ensemble, joined, networks_apart
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.study import StudySettings, study
from slater.deep.task import state_task
from slater.limits import resolve_limits

from . import worlds

QUICK = StudySettings(
    cohorts=3,
    ensemble=EnsembleSettings(copies=3, steps=1500, hidden=(32, 32), outcome_hidden=(32, 32), batch_size=64),
    clones=CloneSettings(steps=1500, chunk=500, hidden=(32, 32), batch_size=64),
    in_sample=InSampleSettings(
        steps=2000, hidden=(32, 32), multipliers=(0.0, 1.0, float("inf")), expectile=0.9
    ),
)
TINY = replace(
    QUICK, ensemble=replace(QUICK.ensemble, steps=40), clones=replace(QUICK.clones, steps=40, chunk=20),
    steering=1, enough_sources=2,
)  # fmt: skip


def two_sources():
    data = worlds.noise().log([worlds.towards(goal, 0.3) for goal in (0.2, 0.8)], 20, 0, named=True)
    return data, state_task(data, resolve_limits(["1.5"], data.cost_names), 0.95)


def same(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def test_works_side_by_side_give_what_they_give_alone_and_are_told_of_together():
    heard = []

    def work(number, tick):
        for part in range(4):
            tick("own word", part + 1, 4)
        return number

    works = [lambda tick, n=n: work(n, tick) for n in range(5)]
    assert side_by_side(works, [10] * 5, "all", lambda *now: heard.append(now)) == [0, 1, 2, 3, 4]
    assert heard[-1] == ("all", 50, 50)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


def test_one_work_that_fails_ends_the_others():
    ended, begun = [], threading.Event()

    def endless(tick):
        try:
            while True:
                begun.set()
                tick("endless", 0, 1)
                time.sleep(0.01)
        except CancelledError:
            ended.append(True)
            raise

    def fails(tick):
        begun.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        side_by_side([fails, endless], [1, 1], "both")
    assert ended == [True]


def test_a_study_does_not_depend_on_what_runs_beside_it(monkeypatch):
    data, task = two_sources()
    settings = replace(TINY.thorough, ensemble=replace(TINY.thorough.ensemble, hidden=(16, 16)))
    beside = study(data, task, settings)
    monkeypatch.setattr(studies, "side_by_side", lambda works, *_: [work(lambda *_: None) for work in works])
    after = study(data, task, settings)
    assert same((beside.policies, beside.ensemble), (after.policies, after.ensemble))
    monkeypatch.undo()
    monkeypatch.setattr(studies, "clone_many", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        study(data, task, settings)


def test_the_networks_of_a_thorough_ensemble_are_those_that_are_fitted_alone():
    data, task = two_sources()
    settings = EnsembleSettings(3, 30, 16, hidden=(16, 16), normalised=True, left_out=0.5)
    alone = [fit(None) for fit in networks_apart(data, task, settings)]
    together = fit_ensemble(data, task, settings)
    assert together.copies == 3
    assert same(joined(alone), together)
    assert not same(alone[0].dynamics, alone[1].dynamics)


def test_networks_do_without_episodes_of_their_own(monkeypatch):
    data, task = two_sources()
    monkeypatch.setattr(ensembles, "_fitted", lambda task, settings, start, device, rows, tick: rows[0])
    settings = EnsembleSettings(3, hidden=(8,), left_out=0.5)
    episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)
    seen = [set(episode[np.asarray(fit(None))]) for fit in networks_apart(data, task, settings)]
    assert all(0.2 < len(own) / len(data.episodes) < 0.8 for own in seen)
    assert seen[0] != seen[1]
    whole = networks_apart(data, task, replace(settings, left_out=0.0))[0](None)
    np.testing.assert_array_equal(whole, np.arange(len(episode)))


def imitated(settings, sources=3, rows=400):
    """Mean KL per held-out row of clones of sources tanh(N(sin(3 s + k), .2)), from few rows each."""
    rng = np.random.default_rng(0)
    total = sources * 2 * rows
    which = np.repeat(np.arange(sources), 2 * rows)
    s = rng.uniform(-1, 1, size=(total, 1)).astype(np.float32)
    noise = rng.normal(size=s.shape)
    before = np.sin(3 * s + which[:, None]) + 0.2 * noise
    a = np.tanh(before)
    density = -0.5 * noise**2 - np.log(0.2 * np.sqrt(2 * np.pi)) - np.log1p(-(a**2))
    own = np.arange(total).reshape(sources, 2, rows)
    data, _ = two_sources()
    task = state_task(data, resolve_limits(["1.5"], data.cost_names), 0.95)
    task = replace(task, obs_dim=1, obs_mean=np.zeros(1, np.float32), obs_std=np.ones(1, np.float32))
    _, likelihoods = clone_many(
        task, jnp.asarray(s), jnp.asarray(a, jnp.float32), jnp.asarray(own[:, 0]), jnp.asarray(own[:, 1]),
        settings, jnp.asarray(density[:, 0], jnp.float32), np.ones(sources, bool),
    )  # fmt: skip
    return float(np.mean(density[own[:, 1]].mean(axis=(1, 2)) - likelihoods))


def test_thorough_clones_are_nearer_to_their_sources():
    quick = CloneSettings(steps=400, chunk=100, hidden=(32, 32), batch_size=64)
    first, second = imitated(quick), imitated(thorough_clones(quick))
    assert second < 0.5 * first
    assert second < 0.02


def test_of_several_clones_the_one_is_kept_that_does_what_its_cohort_did():
    """Two policies and a model that is right about both: each cohort gets its own, in either order."""
    data, task = two_sources()
    found = study(data, task, replace(QUICK, enough_sources=2))
    swapped = jax.tree.map(lambda leaf: leaf[::-1], found.policies)
    sums = outcomes(data, task)
    for tries in ([found.policies, swapped], [swapped, found.policies]):
        kept, _ = studies._as_cohorts_did(
            task, found.cohorts, sums, found.ensemble, data.initial_observations,
            [(policies, np.zeros(2)) for policies in tries],
        )  # fmt: skip
        assert same(kept, found.policies)


def test_networks_of_squared_errors_sample_no_noise():
    """x' = x + .2 a + .1 xi: a likelihood finds the noise, squared errors find the same mean."""
    data, task = two_sources()
    settings = EnsembleSettings(1, 1_500, hidden=(32, 32), normalised=True, left_out=0.0)
    s, a = jnp.linspace(-1, 1, 64)[:, None], jnp.zeros((64, task.action_dim))
    noisy, silent = (fit_ensemble(data, task, replace(settings, squared=own)) for own in (False, True))

    def changes(ensemble):
        return ensemble.change(jax.tree.map(lambda leaf: leaf[0], ensemble.dynamics), s, a)

    (mean, log_std), (same_mean, least) = changes(noisy), changes(silent)
    assert np.all(np.asarray(log_std) > -2)
    np.testing.assert_allclose(least, ensembles.LOG_STD[0], atol=1e-6)
    assert float(jnp.sqrt(jnp.mean((mean - same_mean) ** 2))) < 0.2


def test_two_held_out_episodes_have_the_error_of_their_cohort():
    labels, held = np.zeros(10, int), np.arange(10) < 2
    sums = np.array([[5.0], [5.0], *([0.0], [10.0]) * 4])
    cohorts = Cohorts(("one",), labels, held, named=True)
    assert cohorts.means(sums, held=True)[1] == 0.0
    mean, error = cohorts.means(sums, held=True, pooled=True)
    assert mean == 5.0
    np.testing.assert_allclose(error, sums.std(ddof=1) / np.sqrt(2))
