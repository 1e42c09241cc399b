"""CDT: what its transformer, its data and its policy promise."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slater.deep as deep
from slater import policy as policies
from slater.data import Dataset
from slater.deep.algorithms.cdt import CDT, Contexts
from slater.deep.algorithms.frontier import frontier, relabel, sampling_weights
from slater.deep.algorithms.registry import make_config
from slater.deep.batches import prepare
from slater.deep.engine.iterations import initial_state
from slater.deep.nets.transformer import dropout
from slater.errors import InputError
from slater.limits import resolve_limits

from ..problems import pointmass

SMALL = {"steps": 30, "batch_size": 16, "hidden": (16, 16), "heads": 2, "context": 4, "gamma": 0.9}


def make(discrete: bool = False, costs: int = 1, **settings):
    """Algorithm, problem, sequences and a network with weights large enough to matter."""
    dataset = pointmass(discrete=discrete, costs=costs, episodes=12)
    algorithm = CDT(make_config(CDT, {**SMALL, **settings}))
    limits = resolve_limits([5.0] * costs, dataset.cost_names)
    task, transitions = prepare(dataset, limits, 0.9)
    algorithm = algorithm.informed(dataset, task)
    data = algorithm.data(dataset, task, transitions)
    net = initial_state(algorithm, task, jax.random.key(1)).net
    rng = np.random.default_rng(2)
    net = jax.tree.map(lambda x: jnp.asarray(x + 0.3 * rng.normal(size=x.shape), x.dtype), net)
    return algorithm, task, dataset, data, net


@eqx.filter_jit  # one compilation per length, where separate operations would be hundreds
def heads(net, batch):
    return net.heads(batch, None)


def test_a_later_token_cannot_change_an_earlier_prediction():
    algorithm, task, _, data, net = make(costs=2)
    batch = algorithm.draw(task, data, jax.random.key(0))
    before = heads(net, batch)
    for t in range(SMALL["context"]):
        # everything after the state token of step t: its action, and all of what follows
        late = jnp.arange(SMALL["context"]) > t
        changed = batch._replace(
            action=jnp.where((late | (jnp.arange(4) == t))[None, :, None], 9.0, batch.action),
            togo=jnp.where(late[None, :, None], -7.0, batch.togo),
            obs=jnp.where(late[None, :, None], 5.0, batch.obs),
            time=jnp.where(late[None], 0, batch.time),
        )
        after = heads(net, changed)
        np.testing.assert_array_equal(before[0][:, : t + 1], after[0][:, : t + 1])  # actions up to t
        np.testing.assert_array_equal(before[1][:, :t], after[1][:, :t])  # costs before t
        assert not np.allclose(before[1][:, t], after[1][:, t])  # the cost of step t sees its action


@pytest.mark.parametrize("discrete", [False, True])
def test_the_numpy_actor_with_its_cache_is_the_jax_network(discrete, tmp_path):
    _, task, dataset, _, net = make(discrete, costs=2, jump=1)
    policy = net.export(task)
    policies.save(policy, tmp_path / "p.safetensors")
    loaded = policies.load(tmp_path / "p.safetensors")
    rng, context = np.random.default_rng(0), SMALL["context"]
    actor = loaded.begin(rng=rng, deterministic=True)
    togo = np.append(policy.target_return, policy.limits)
    history = {name: [] for name in Contexts._fields}
    targets = policy.targets
    for t in range(11):
        obs = dataset.observations[t]
        kept = np.clip(togo, targets.least, targets.most)
        history["togo"].append((kept - targets.centre) / targets.spread)
        history["obs"].append((obs - task.obs_mean) / task.obs_std)
        history["time"].append(t)
        action = actor.act(obs)
        # the published rule: the network on the last `context` steps, the action of the present one unknown
        size = 3 if discrete else 2
        pad = np.zeros(size)
        window = {
            "togo": history["togo"], "obs": history["obs"], "time": history["time"],
            "action": [*history["action"], pad],
        }  # fmt: skip
        parts = {k: jnp.asarray(np.array(v[-context:], np.float32))[None] for k, v in window.items()}
        parts["time"] = parts["time"].astype(int)
        batch = Contexts(**parts, costs=jnp.zeros(()), valid=jnp.ones(()))
        outputs = np.asarray(heads(net, batch)[0][0, -1])
        expected = policy.actions_of(outputs[None], rng, True)[0]
        np.testing.assert_allclose(action, expected, atol=2e-5)
        history["action"].append(np.eye(3)[action] if discrete else action)
        reward, costs = 0.3, np.array([1.0, 0.0])
        actor.observe(reward, costs)
        togo = togo - np.append(reward, costs)


def test_a_jump_keeps_the_cache_and_restarts_from_the_steps_that_are_left():
    """With jump j the context is, after it was full, the last context - j steps and what came since."""
    _, task, dataset, _, net = make()
    sliding = dataclasses.replace(net.export(task), jump=1)
    jumping = dataclasses.replace(sliding, jump=3)
    actors = [p.begin(rng=np.random.default_rng(0), deterministic=True) for p in (sliding, jumping)]
    for t in range(12):
        a, b = (actor.act(dataset.observations[t]) for actor in actors)
        lengths = [len(actor.steps) for actor in actors]
        assert lengths == [min(t + 1, 4), t + 1 if t < 4 else (t - 4) % 3 + 2]
        if lengths[0] == lengths[1]:
            assert t >= 4 or np.allclose(a, b, atol=1e-6)
        # both must have done the same, or they are in different episodes
        actors[1].steps[-1][3] = actors[0].steps[-1][3]
        for actor in actors:
            actor.observe(0.1, np.array([0.0]))


def test_rows_of_a_batch_are_first_steps_of_episodes_of_their_own():
    _, task, dataset, _, net = make()
    policy = net.export(task)
    rows = policy.act(dataset.observations[:7], rng=np.random.default_rng(0), deterministic=True)
    for obs, action in zip(dataset.observations[:7], rows, strict=True):
        actor = policy.begin(rng=np.random.default_rng(0), deterministic=True)
        np.testing.assert_allclose(actor.act(obs), action, atol=1e-6)


points = st.integers(3, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-100, 100), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=n, max_size=n),
    )
)


@settings(max_examples=60, deadline=None)
@given(points, st.integers(0, 2**31), st.booleans())
def test_augmentation_never_makes_an_episode_cheaper_than_it_is(point, seed, two):
    returns, costs = np.array(point[0]), np.array(point[1], dtype=float)[:, : 1 + two]
    made = relabel(returns, costs, share=1.0, headroom=0.1, decrease=0.2, rng=np.random.default_rng(seed))
    label_return = returns[made.episode] + made.shift[:, 0]
    label_costs = costs[made.episode] + made.shift[:, 1:]
    assert np.all(made.shift[:, 1:] >= 0)  # never cheaper
    assert np.all(made.shift[:, 0] >= -1e-6)  # the label is at or beyond the frontier
    best = frontier(returns, costs, label_costs)
    assert np.all(label_return >= best - 1e-6)
    span = np.ptp(returns)
    assert np.all(returns[made.episode] >= best - 0.2 * span - 1e-6)  # and its episode is near it


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=2, max_size=20), st.floats(0, 0.99))
def test_cheaper_episodes_are_drawn_more_often_and_none_is_lost(costs, strength):
    column = np.array(costs)[:, None]
    weights = sampling_weights(column, strength, None)
    np.testing.assert_allclose(weights.sum(), 1.0)
    assert np.all(weights > 0)
    order = np.argsort(costs, kind="stable")
    assert np.all(np.diff(weights[order]) <= 1e-12)


def test_contexts_are_cut_from_whole_episodes_with_what_is_still_to_come():
    algorithm, task, dataset, data, _ = make(costs=2, augment=0.5, batch_size=200)
    batch = algorithm.draw(task, data, jax.random.key(3))
    raw = np.asarray(batch.togo * data.spread + data.centre)
    table = dataset.episodes
    seen = 0
    for b in range(200):
        valid = np.asarray(batch.valid[b])
        obs = np.asarray(batch.obs[b, 0]) * task.obs_std + task.obs_mean
        rows = np.flatnonzero(np.all(np.abs(dataset.observations - obs) < 1e-4, axis=1))
        start = int(batch.time[b, 0])
        rows = [r for r in rows if r - table.starts[np.searchsorted(table.stops, r, "right")] == start]
        if start == 0 or len(rows) != 1:
            continue  # the first observation is that of every episode
        episode = int(np.searchsorted(table.stops, rows[0], "right"))
        assert valid.sum() == min(4, table.stops[episode] - rows[0])
        # differences of what is to go are the utilities, whatever constant a relabelled episode adds
        steps = np.arange(rows[0], rows[0] + valid.sum() - 1)
        utilities = np.concatenate([dataset.rewards[steps, None], dataset.costs[steps]], axis=1)
        np.testing.assert_allclose(-np.diff(raw[b][valid], axis=0), utilities, atol=1e-3)
        rest = dataset.costs[rows[0] : table.stops[episode]].sum(axis=0)
        assert np.all(raw[b, 0, 1:] >= rest - 1e-3)  # told to be as costly as it is, or more
        seen += 1
    assert seen > 100


def test_the_target_return_comes_from_episodes_within_the_limit_and_the_model_serves_all_limits():
    _, task, dataset, _, net = make()
    policy = net.export(task)
    table = dataset.episodes
    for limit in (3.0, 8.0, 30.0):
        other = policy.with_limits([limit])
        within = table.returns[table.costs[:, 0] <= limit]
        np.testing.assert_allclose(other.target_return, np.quantile(within, 0.9), rtol=1e-5)
        assert other.arrays is policy.arrays
    cheapest = table.returns[table.costs[:, 0].argmin()]
    if table.costs.min() > 0:
        np.testing.assert_allclose(policy.with_limits([0.0]).target_return, cheapest, rtol=1e-5)
    with pytest.raises(InputError, match="1 costs"):
        policy.with_limits([1.0, 2.0])


def test_with_budgets_a_context_is_told_what_is_left_of_a_limit_that_its_episode_keeps():
    plain, task, _, data, _ = make(costs=2, augment=0.0, batch_size=64)
    told = CDT(make_config(CDT, {**SMALL, "augment": 0.0, "batch_size": 64, "costs_to_go": "budget"}))
    key = jax.random.key(3)
    before, after = (a.draw(task, data, key) for a in (plain, told))
    more = np.asarray(after.togo - before.togo) * np.asarray(data.spread)
    np.testing.assert_allclose(more[..., 0], 0.0, atol=1e-4)  # returns are as they were
    rest = more[:, 0, 1:]
    np.testing.assert_allclose(more[..., 1:], np.repeat(rest[:, None], 4, axis=1), atol=1e-3)
    assert np.all(rest >= -1e-3)
    assert np.all(rest <= np.asarray(data.spare).max(axis=0) + 1e-3)
    assert rest.max() > 1  # some episodes leave room


def test_an_actor_counts_down_its_budget_takes_another_limit_and_refuses_to_go_on_untold():
    _, task, dataset, _, net = make()
    policy = net.export(task)
    actor = policy.begin(rng=np.random.default_rng(0), deterministic=True)
    actor.act(dataset.observations[0])
    with pytest.raises(InputError, match="was not told what its last action cost"):
        actor.act(dataset.observations[1])
    actor.observe(0.5, np.array([2.0]))
    assert (actor.ledger.left[0], actor.wanted) == pytest.approx((3.0, policy.target_return - 0.5))
    actor.change_limits([9.0])
    other = policy.with_limits([9.0])
    assert (actor.ledger.left[0], actor.wanted) == pytest.approx((7.0, other.target_return - 0.5))


def test_dropout_keeps_the_mean_and_zeroes_its_share():
    x = jnp.ones((1000, 101))
    y = np.asarray(dropout(x, 0.1, jax.random.key(0)))
    assert abs((y == 0).mean() - 26 / 256) < 0.005
    assert abs(y.mean() - 1.0) < 0.01
    np.testing.assert_array_equal(dropout(x, 0.1, None), x)


@pytest.mark.slow
def test_asked_for_less_cost_it_costs_less(tmp_path):
    """On data whose noise has two scales, one trained model follows the limit it is given."""
    rng = np.random.default_rng(0)
    episodes, length = 120, 10
    bold = rng.uniform(0, 1, episodes)  # each episode takes the costly, paying action with its own rate
    actions = (rng.random((episodes, length)) < bold[:, None]).astype(np.int32)
    ends = np.zeros((episodes, length), bool)
    ends[:, -1] = True
    obs = np.tile(np.linspace(0, 1, length, dtype=np.float32)[None, :, None], (episodes, 1, 1))
    dataset = Dataset.from_arrays(
        observations=obs.reshape(-1, 1), actions=actions.ravel(), rewards=actions.ravel().astype(float),
        costs=actions.ravel().astype(float), terminals=ends.ravel(), timeouts=np.zeros(ends.size, bool),
    )  # fmt: skip
    options = {**SMALL, "steps": 400, "batch_size": 64, "learning_rate": 3e-3, "warmup": 20, "dropout": 0.0}
    deep.train("cdt", dataset, [3.0], tmp_path / "run", **options)
    policy = policies.load(tmp_path / "run" / "mixture.safetensors")
    costs = []
    for limit in (0.0, 3.0, 7.0):
        total = 0.0
        for seed in range(30):
            actor = policies.with_limits(policy, [limit]).begin(rng=np.random.default_rng(seed))
            for t in range(length):
                action = int(actor.act(obs[0, t]))
                actor.observe(float(action), np.array([float(action)]))
                total += action
        costs.append(total / 30)
    assert costs[0] <= 1.0
    assert costs[0] < costs[1] < costs[2]
    assert costs[1] <= 4.5
    assert costs[2] >= 4.5


def test_data_that_cdt_cannot_use_is_refused_in_one_sentence(tmp_path):
    data = pointmass(episodes=2, length=5)
    endless = dataclasses.replace(data, timeouts=np.zeros_like(data.timeouts))
    with pytest.raises(InputError, match="no episode of this data ends"):
        deep.train("cdt", endless, [1.0], tmp_path / "a", **SMALL)
    with pytest.raises(InputError, match="set targets to data"):
        deep.train("cdt", data, [1.0], tmp_path / "b", preset="released", **SMALL)
    with pytest.raises(InputError, match="heads divide"):
        deep.train("cdt", data, [1.0], tmp_path / "c", **{**SMALL, "hidden": (15, 15)})
    assert not (tmp_path / "a").exists()


def test_an_episode_without_an_end_is_left_out():
    data = pointmass(episodes=6, length=5)
    timeouts = data.timeouts.copy()
    timeouts[-1] = False
    cut = dataclasses.replace(data, timeouts=timeouts)
    algorithm = CDT(make_config(CDT, {**SMALL, "augment": 0.0}))
    task, transitions = prepare(cut, resolve_limits([5.0], cut.cost_names), 0.9)
    sequences = algorithm.data(cut, task, transitions)
    assert len(sequences.start) == 5
    assert algorithm.targets is None  # nothing that is called changes the algorithm
    assert len(algorithm.informed(cut, task).targets.episodes) == 5
