"""What a default run says of its evidence, on a bare log of a world whose truth is known."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import slater.deep as deep
from slater.certify.estimates import asked
from slater.deep.engine.folder import algorithm_of
from slater.deep.log_model import log_model as logs
from slater.deep.log_model.clones import CLONE_LOG_STD
from slater.deep.log_model.fitting import Log
from slater.deep.log_model.log_model import cache_folder, fit_log_model
from slater.deep.nets.policy import make_policy
from slater.deep.ope.posterior import posterior_of
from slater.deep.task import state_task
from slater.experiments.small_worlds import WORLDS
from slater.experiments.worlds import recorded
from slater.limits import resolve_limits
from slater.policy import GaussianMixturePolicy, load
from slater.runs import open_run, read_run
from slater.runs.result import from_log

pytestmark = pytest.mark.xdist_group("output")
SETTINGS = {"steps": 60, "batch_size": 32, "hidden": (16, 16), "joint_steps": 5,
            "model_steps": 400}  # fmt: skip


@pytest.fixture(scope="module")
def gamble():
    """Action > 0 pays 1 and costs 1 with probability .25, action < 0 pays .3."""
    return recorded(WORLDS["gamble"](), 60, 0)


@pytest.fixture(scope="module")
def folder(gamble, tmp_path_factory):
    out = tmp_path_factory.mktemp("default") / "run"
    deep.train("pdca", gamble, limits=["1"], out=out, **SETTINGS)
    return out


@pytest.fixture(scope="module")
def log(gamble, folder):
    """The log model that the run was made with."""
    algorithm = algorithm_of(read_run(folder))
    task = algorithm.task(gamble, read_run(folder).limits)
    return fit_log_model(gamble, task, algorithm.config.log_model(), cache_folder())


def test_a_run_says_its_status_its_posterior_and_its_reference(folder, gamble):
    result = open_run(folder).result
    found = result.details["posterior"]
    assert found["confidence"] == 0.95
    assert set(found["at_most"]) == {"cost"}
    assert len(found["scale"]) == 2
    assert result.per_episode is not None
    bound, mean = found["at_most"]["cost"], result.per_episode["cost"]
    assert bound >= mean
    # one sentence of one posterior: within where the bound is, above where the mean is
    word = "within" if bound <= 1.001 else "above" if mean > 1.0 else "not known"
    assert str(result.status) == word
    reference = result.details["reference"]
    assert reference["length"] == pytest.approx(20.0)
    assert 6.0 <= reference["reward"] <= 20.0
    assert found["behaviours"] >= 1
    # never to play pays 6 and costs 0; the log plays half of the time, 13 at 2.5
    assert gamble.episodes.costs.mean() == pytest.approx(2.5, abs=0.4)
    assert json.loads((folder / "result.json").read_text())["posterior"] == found


def test_every_member_has_an_estimate_and_how_wide_it_is(folder):
    saved = open_run(folder)
    members = saved.result.members
    logged = [member for member in members if from_log(member.kind)]
    assert len(members) > len(logged) > 3  # and those of the game
    assert "clone of the log" in [member.kind for member in logged]
    assert sum(member.weight for member in members) == pytest.approx(1.0)
    for member in members:
        assert set(member.estimates) == set(member.spread) == {"reward", "cost"}
        assert min(member.spread.values()) > 0
    policies = [saved.kept_policy(member) for member in members]
    assert {type(policy) for policy in policies} == {GaussianMixturePolicy}
    assert {policy.log_std_range for policy in policies} == {CLONE_LOG_STD}
    mixture = load(folder / "mixture.safetensors")
    assert len(mixture.members) == sum(member.weight > 0 for member in members)
    alone = saved.result.details["without_game"]
    assert sum(alone.values()) == pytest.approx(1.0)
    assert set(alone) <= {member.kind for member in logged}


def test_other_limits_and_seeds_share_the_log(folder, gamble, tmp_path, monkeypatch):
    first = open_run(folder).result
    logs._last.clear()
    monkeypatch.setattr(Log, "fitted", lambda *_: 1 / 0)  # what is there is read
    other = deep.train("pdca", gamble, limits=["3"], out=tmp_path / "3", seed=1, **SETTINGS)
    # what the log says of its own policies is not about limits and seeds
    for member, own in zip(first.members, other.members, strict=False):
        if from_log(member.kind) and member.kind == own.kind:
            assert member.estimates == pytest.approx(own.estimates, rel=1e-5)
    assert other.status == "within"  # of a limit of 3, by some mixture of a log that costs 2.5


def test_a_certificate_says_the_number_that_the_run_says(folder, gamble, log):
    """Of the mixture, and of every policy that was kept, from their files."""
    saved = open_run(folder)
    settings = algorithm_of(read_run(folder)).config.log_model()
    policies = [load(folder / "mixture.safetensors"), *map(saved.kept_policy, saved.result.members)]
    said = asked(gamble, policies, [1.0], saved.task.gamma, settings, cache_folder())
    units = saved.task.units

    def per_episode(sums):
        return [units.rescale(x, "discounted", "episode") for x in sums.values()]

    own = np.array([per_episode(member.estimates) for member in saved.result.members])
    wide = np.array([per_episode(member.spread) for member in saved.result.members])
    logged = np.array([from_log(member.kind) for member in saved.result.members])
    np.testing.assert_allclose(said.mean[1:][logged], own[logged], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(said.deviation[1:][logged], wide[logged], rtol=1e-2)
    # of what was searched for in one half of the log, a file does not say in which: the worse word counts
    assert np.all(said.mean[1:][~logged, 1] >= own[~logged, 1] - 1e-3)
    assert np.all(said.mean[1:][~logged, 0] <= own[~logged, 0] + 1e-3)
    assert np.all(said.better[1:][~logged, 1] <= own[~logged, 1] + 1e-3)
    weights = np.array([member.weight for member in saved.result.members])
    np.testing.assert_allclose(said.mean[0], weights @ said.mean[1:], rtol=1e-3, atol=1e-3)


def test_other_policies_their_order_and_kinds_do_not_matter(log, gamble):
    """What is said of a policy is not about the others that are asked about."""
    task = log.task
    plain = make_policy(task, (8,), jax.random.key(0), (-2.0, 0.0))
    mixed = make_policy(task, (16, 16), jax.random.key(1), CLONE_LOG_STD, 5)
    count = len(log.kinds)
    alone = posterior_of(log)
    assert alone.mean.shape == (count, 2)
    assert alone.covariance.shape == (2, count, count)
    first, second = posterior_of(log, [plain, mixed]), posterior_of(log, [mixed, plain])
    back = [*range(count), count + 1, count]
    for found, order in ((first, [*range(count + 2)]), (second, back)):
        np.testing.assert_allclose(found.mean[order][:count], alone.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.mean[order], first.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            found.covariance[:, order][:, :, order], first.covariance, rtol=1e-3, atol=1e-6
        )
    for wide in first.covariance:
        assert np.linalg.eigvalsh((wide + wide.T) / 2).min() >= -1e-7
    # the limit takes no part
    other = replace(log, task=state_task(gamble, resolve_limits(["3"], gamble.cost_names), task.gamma))
    np.testing.assert_allclose(posterior_of(other).mean, alone.mean, rtol=1e-6)


@pytest.mark.parametrize("price", [0.01, 1.0, 3.0])
def test_a_game_starts_at_the_candidate_that_is_best_at_its_prices(folder, gamble, log, price):
    """The first two parts; the third goes on where the second ended."""
    algorithm = algorithm_of(read_run(folder))
    task = algorithm.task(gamble, resolve_limits(["1"], gamble.cost_names))
    empty = algorithm.init(task, jax.random.key(0))
    state = algorithm.prepared(task, empty, gamble, lambda *told: None)
    lam = state.dual.lam * price
    state = replace(state, dual=algorithm.dual.restart(state.dual, lam))
    values = np.asarray(state.values)
    worth = values[:, 0] - values[:, 1:] @ np.asarray(state.dual.lam * state.price_unit)
    best = jax.tree.map(lambda leaf: leaf[int(np.argmax(worth))], state.candidates)
    # of all candidates of the log too: one is kept for every price
    found = posterior_of(log)
    every = found.mean[:, 0] - found.mean[:, 1:] @ np.asarray(state.dual.lam * state.price_unit)
    assert worth.max() == pytest.approx(every.max(), rel=1e-4, abs=1e-5)
    length = algorithm.schedule.part_length
    for part in (0, 1):
        began = algorithm._started(state, jax.numpy.asarray(part * length)).player
        for policy in (began.policy, began.anchor):
            jax.tree.map(np.testing.assert_array_equal, policy, best)
    later = algorithm._started(state, jax.numpy.asarray(2 * length)).player
    jax.tree.map(np.testing.assert_array_equal, later.policy, state.player.policy)
    jax.tree.map(np.testing.assert_array_equal, later.anchor, state.player.policy)
