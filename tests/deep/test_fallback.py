"""The fallback: a clone of the best rows after which every cost stayed within its limit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import slater.deep as deep
from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.algorithms.pdca.fallback import NoFallback, SafeClone
from slater.deep.batches import draw, prepare
from slater.limits import resolve_limits
from slater.runs import open_run

from .conformance.table import finished_run
from .problems import PDCA_QUICK, pointmass, pointmass_values

#: the default of before has a fallback
SETTINGS = PDCA_QUICK | {"preset": "model"}


def cloned(data, limits, steps, temperature=1.0):
    task, device = prepare(data, resolve_limits(limits, data.cost_names), 0.9)
    clone = SafeClone((32,), 1e-2, -1.0, 0.0, temperature)

    @jax.jit
    def iteration(step, fallback):
        batch = draw(device, task, jax.random.fold_in(jax.random.key(0), step), 128)
        return clone.update(task, fallback, batch, step)[0]

    fallback = clone.init(task, jax.random.key(1))
    return jax.lax.fori_loop(0, steps, iteration, fallback), task, device


def test_it_imitates_the_safe_rows_and_no_others():
    """Here rows are safe when the point moves left: so must the clone, though the data's mean rests."""
    data = pointmass(episodes=200)
    fallback, task, device = cloned(data, [3], 600, np.inf)
    safe = np.asarray(device.returns[:, 1] <= task.tau[0])
    assert 0.02 < safe.mean() < 0.5
    assert float(fallback.share) == pytest.approx(safe.mean(), abs=0.01)
    moves = np.asarray(fallback.pi.choice(device.obs[:2000], jax.random.key(2)))[:, 0]
    actions = np.asarray(device.actions)[:, 0]
    assert abs(actions.mean()) < 0.05
    assert actions[safe].mean() < -0.1
    near = np.abs(np.asarray(device.obs)[:2000, 0]) < 1.0
    assert moves[near].mean() < -0.05


def test_rows_beyond_the_limits_have_no_say():
    data = pointmass(episodes=50)
    one, task, device = cloned(data, [3], 50)
    beyond = np.zeros(data.size, dtype=bool)
    beyond[np.flatnonzero(data.next_known)] = np.asarray(device.returns[:, 1] > task.tau[0])
    actions = np.where(beyond[:, None], -data.actions, data.actions)
    other, _, _ = cloned(dataclasses.replace(data, actions=actions), [3], 50)
    assert beyond.any()
    assert not np.array_equal(actions, data.actions)
    assert all(map(np.array_equal, jax.tree.leaves(one.pi), jax.tree.leaves(other.pi)))


def test_among_safe_rows_it_prefers_those_of_more_reward():
    """All rows are within 25; moving right is what pays, and the data's mean rests."""
    data = pointmass(episodes=200)
    alike, task, _ = cloned(data, [25], 600, np.inf)
    better, _, _ = cloned(data, [25], 600)
    best, _, _ = cloned(data, [25], 600, 0.3)
    returns = [pointmass_values(f.pi.export(task), 50, 0)[0] for f in (alike, better, best)]
    assert abs(returns[0] - data.episodes.returns.mean()) < 2.0
    assert returns[0] + 3.0 < returns[1] < returns[2]


def test_every_cost_must_be_within_its_own_limit():
    data = pointmass(episodes=100, costs=2)
    both, _, _ = cloned(data, [3, 3], 100)
    first, _, _ = cloned(data, [3, 25], 100)
    second, _, _ = cloned(data, [25, 3], 100)
    assert 0 < float(both.share) <= min(float(first.share), float(second.share))


@pytest.fixture
def run_with():
    folder, _ = finished_run("pdca", "model")
    return folder, open_run(folder).result


@pytest.mark.xdist_group("pdca")
def test_the_game_is_the_same_to_the_bit_with_and_without_it(run_with, tmp_path):
    folder, _ = run_with
    deep.train("pdca", pointmass(), [5], tmp_path, fallback=False, **SETTINGS)
    names = {path.name for path in (tmp_path / "members").iterdir()}
    assert {path.name for path in (folder / "members").iterdir()} == names | {"00000020.safetensors"}
    for name in names:
        one, two = (load_file(place / "members" / name) for place in (folder, tmp_path))
        assert all(np.array_equal(one[key], two[key]) for key in one)


@pytest.mark.xdist_group("pdca")
def test_the_mixture_is_at_least_as_good_as_it_by_the_estimates(run_with):
    _, result = run_with
    clone = next(member for member in result.members if member.kind == "fallback")
    assert clone.step == 20
    assert result.details["fallback"]["weight"] == clone.weight
    assert result.details["fallback"]["step"] == 20
    assert 0 < result.details["fallback"]["share"] < 1
    limit = result.limits[0].discounted * 0.9
    assert clone.careful
    assert clone.estimates["c0"] <= limit
    assert result.estimates["c0"] <= limit * (1 + 1e-6)
    assert result.estimates["reward"] >= clone.estimates["reward"] - 1e-6


def test_data_that_are_never_within_the_limits_give_none():
    data = pointmass(episodes=10)
    always = dataclasses.replace(data, costs=np.ones_like(data.costs))
    fallback, task, _ = cloned(always, [5], 20)
    assert float(fallback.share) == 0.0
    algorithm = PDCA(PDCAConfig(hidden=(8,), gamma=0.9, estimator="model"))
    assert algorithm.output.fallback.policy(fallback) is None
    state = dataclasses.replace(algorithm.init(task, jax.random.key(0)), output=fallback)
    assert algorithm.member(task, state, algorithm.schedule.begins) is None
    kept = dataclasses.replace(fallback, share=jnp.asarray(0.5))
    policy, member = algorithm.member(
        task, dataclasses.replace(state, output=kept), algorithm.schedule.begins
    )
    assert policy is kept.pi
    assert member.kind == "fallback"
    assert member.estimates is None


@pytest.mark.xdist_group("pdca")
def test_a_limit_that_cannot_be_met_is_said_with_cost_and_figures(run_with, tmp_path):
    data = pointmass(episodes=10)
    always = dataclasses.replace(data, costs=np.ones_like(data.costs))
    result = deep.train("pdca", always, [5], tmp_path, **SETTINGS)
    assert result.per_episode["c0"] > 20
    assert f"c0: {result.per_episode['c0']:.3g} per episode, limit 5." in result.warnings[-1]
    assert not any("its own estimate" in text for text in run_with[1].warnings)


def test_a_model_that_cannot_be_trusted_leaves_the_choice_to_it(tmp_path):
    """In these data luck moves the point more than the action does."""
    data = pointmass(episodes=100, noise=0.4)
    longer = SETTINGS | {"steps": 640, "model_steps": 600, "hidden": (32,)}
    result = deep.train("pdca", data, [8], tmp_path, **longer)
    assert not result.details["model_check"]["trusted"]
    assert result.details["fallback"]["weight"] == 1.0
    assert sum(member.weight for member in result.members) == 1.0
    assert "clone of the data" in result.warnings[0]


def test_it_is_only_where_a_model_can_judge_it_for_the_linear_program():
    def fallback(**settings):
        return PDCA(PDCAConfig(**settings)).output.fallback

    assert isinstance(fallback(estimator="model"), SafeClone)
    assert isinstance(fallback(estimator="fqe"), NoFallback)
    assert isinstance(fallback(estimator="model", mixture="uniform"), NoFallback)
    assert isinstance(fallback(estimator="model", fallback=False), NoFallback)
