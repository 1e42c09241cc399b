"""The in-memory form: episodes, transitions, subsets, fingerprint, arrays from Python."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater.data import Dataset, Metadata
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.fingerprint import ROW_FIELDS, Fingerprint
from slater.errors import InputError

from .make import same, walk

flags = st.lists(st.sampled_from(["go", "go", "go", "terminal", "timeout"]), min_size=1, max_size=60)


def rows_of(kinds, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "rewards": rng.normal(size=len(kinds)).astype(np.float32),
        "costs": rng.random((len(kinds), 2)).astype(np.float32),
        "terminals": np.array([kind == "terminal" for kind in kinds]),
        "timeouts": np.array([kind == "timeout" for kind in kinds]),
    }


@given(kinds=flags)
def test_episodes_partition_the_rows_and_add_up(kinds):
    rows = rows_of(kinds)
    table = Episodes.of_rows(**rows)
    assert table.starts[0] == 0
    assert table.stops[-1] == len(kinds)
    np.testing.assert_array_equal(table.starts[1:], table.stops[:-1])
    for index, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True)):
        assert kinds[start : stop - 1].count("go") == stop - 1 - start  # an end only at the end
        assert table.returns[index] == pytest.approx(rows["rewards"][start:stop].astype(float).sum())
        np.testing.assert_allclose(table.costs[index], rows["costs"][start:stop].astype(float).sum(axis=0))
        assert table.complete[index] == (kinds[stop - 1] != "go")
        assert table.terminated[index] == (kinds[stop - 1] == "terminal")


@given(kinds=flags, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_episodes_do_not_depend_on_where_blocks_are_cut(kinds, cuts):
    rows = rows_of(kinds)
    rows["source"] = np.array([f"policy {'x' * (row % 4)}" for row in range(len(kinds))])
    counter = EpisodeCounter(2)
    edges = sorted({0, len(kinds), *(cut for cut in cuts if cut < len(kinds))})
    for start, stop in itertools.pairwise(edges):
        counter.update({name: array[start:stop] for name, array in rows.items()})
    streamed, whole = counter.finish(), Episodes.of_rows(**rows)
    np.testing.assert_array_equal(streamed.source, whole.source)
    for field in dataclasses.fields(Episodes):
        if field.name not in ("source", "stated_horizon"):
            np.testing.assert_allclose(
                getattr(streamed, field.name), getattr(whole, field.name), rtol=1e-12, atol=1e-12
            )


def test_an_incomplete_last_episode_is_never_safe():
    data = walk(episodes=3, tail=4)
    assert len(data.episodes) == 4
    assert not data.episodes.complete[-1]
    assert not data.episodes.within(np.inf)[-1]
    assert data.episodes.within(np.inf)[:-1].all()


def test_within_takes_one_limit_or_one_per_cost():
    data = walk(episodes=8, costs=("near", "far"))
    table = data.episodes
    expected = (table.costs[:, 0] <= 3) & (table.costs[:, 1] <= 1)
    np.testing.assert_array_equal(table.within([3, 1]), expected)
    np.testing.assert_array_equal(table.within(3), (table.costs <= 3).all(axis=1))
    with pytest.raises(InputError, match="2 costs"):
        table.within([1, 2, 3])


def test_next_observations_are_derived_and_unknown_ones_are_no_transitions():
    whole = walk(episodes=6, tail=3)
    derived = walk(episodes=6, tail=3, given_next=False)
    ends = whole.terminals | whole.timeouts
    inside = ~ends
    inside[-1] = False
    np.testing.assert_array_equal(derived.next_observations[inside], whole.next_observations[inside])
    assert derived.next_known[inside].all()
    assert derived.next_known[whole.terminals].all()  # nothing follows a terminal: nothing is unknown
    assert not derived.next_known[whole.timeouts].any()
    assert not derived.next_known[-1]
    # a derived value never crosses into the next episode
    np.testing.assert_array_equal(derived.next_observations[ends], derived.observations[ends])
    batch = derived.transitions()
    assert len(batch.rewards) == derived.next_known.sum()
    assert not (batch.timeouts & ~batch.terminals).any()
    # episode sums keep the rows that are no transitions
    np.testing.assert_allclose(derived.episodes.costs, whole.episodes.costs)
    with pytest.raises(InputError, match="no known next observation"):
        derived.gather([int(np.flatnonzero(~derived.next_known)[0])])
    assert len(whole.gather([0, 5]).rewards) == 2


def test_transitions_are_the_arrays_themselves_where_all_is_known():
    data = walk()
    assert np.shares_memory(data.transitions().observations, data.observations)


@given(cut=st.integers(1, 40))
def test_the_fingerprint_does_not_depend_on_blocks_but_on_every_value(cut):
    data = walk(episodes=5)
    content = Fingerprint(data.cost_names)
    for start in range(0, data.size, cut):
        content.update({name: getattr(data, name)[start : start + cut] for name in ROW_FIELDS})
    assert content.hexdigest() == data.fingerprint


@pytest.mark.parametrize("name", ROW_FIELDS)
def test_the_fingerprint_sees_a_change_in_any_field(name):
    data = walk(episodes=3)
    changed = getattr(data, name).copy()
    changed[5] = ~changed[5] if changed.dtype == bool else changed[5] + 1
    assert dataclasses.replace(data, **{name: changed}).fingerprint != data.fingerprint
    assert dataclasses.replace(data, cost_names=("other",)).fingerprint != data.fingerprint


def test_a_split_is_a_partition_of_whole_episodes_repeatable_from_its_seed():
    data = walk(episodes=20)
    left, right = data.split(0.25, seed=3)
    assert len(right.episodes) == 5
    assert left.size + right.size == data.size
    returns = np.concatenate([left.episodes.returns, right.episodes.returns])
    np.testing.assert_allclose(np.sort(returns), np.sort(data.episodes.returns))
    assert data.split(0.25, seed=3)[1].fingerprint == right.fingerprint
    assert data.split(0.25, seed=4)[1].fingerprint != right.fingerprint


def test_subsets_keep_the_order_and_refuse_nonsense():
    data = walk(episodes=6)
    part = data.subset([4, 1])
    np.testing.assert_allclose(part.episodes.returns, data.episodes.returns[[1, 4]])
    np.testing.assert_array_equal(part.initial_observations, data.initial_observations[[1, 4]])
    assert same(data.subset(np.ones(6, dtype=bool)), data)
    for wrong in ([], [7], [1, 1], [0.5], np.zeros(6, dtype=bool), np.ones(5, dtype=bool)):
        with pytest.raises(InputError):
            data.subset(wrong)


def test_arrays_cannot_be_changed_by_accident():
    data = walk()
    with pytest.raises(ValueError):
        data.rewards[0] = 1


def test_episode_labels_mark_the_ends():
    data = walk(episodes=5, falls=True)
    labels = np.repeat(np.arange(5), data.episodes.lengths)
    labelled = Dataset.from_arrays(
        observations=data.observations,
        actions=data.actions,
        rewards=data.rewards,
        costs=data.costs,
        terminals=data.terminals,
        episode=labels,
        next_observations=data.next_observations,
    )
    assert labelled.fingerprint == data.fingerprint
    broken = data.terminals.copy()
    broken[2] = True
    with pytest.raises(InputError, match="middle of an episode"):
        Dataset.from_arrays(
            observations=data.observations,
            actions=data.actions,
            rewards=data.rewards,
            costs=data.costs,
            terminals=broken,
            episode=labels,
        )


def test_labels_and_flags_together():
    data = walk(episodes=3, falls=False)
    arrays = {
        "observations": data.observations,
        "actions": data.actions,
        "rewards": data.rewards,
        "costs": data.costs,
        "terminals": data.terminals,
    }
    labels = np.repeat([5.0, 6.0, 7.0], 10)
    assert Dataset.from_arrays(**arrays, episode=labels).episodes.complete.all()
    flagged = np.zeros(30, dtype=bool)
    unfinished = Dataset.from_arrays(**arrays, episode=labels, timeouts=flagged)
    np.testing.assert_array_equal(unfinished.episodes.complete, [True, True, False])
    flagged[3] = True
    with pytest.raises(InputError, match="timeouts: is set in the middle of an episode"):
        Dataset.from_arrays(**arrays, episode=labels, timeouts=flagged)
    labels[12] = np.nan
    with pytest.raises(InputError, match="has no label"):
        Dataset.from_arrays(**arrays, episode=labels)


def test_episodes_that_are_interleaved_are_refused():
    data = walk(episodes=2, falls=False)
    order = np.arange(20).reshape(2, 10).T.ravel()  # sorted by time, not by episode
    with pytest.raises(InputError, match="comes back after another one began"):
        Dataset.from_arrays(
            observations=data.observations[order],
            actions=data.actions[order],
            rewards=data.rewards[order],
            costs=data.costs[order],
            terminals=data.terminals[order],
            episode=np.repeat([0, 1], 10)[order],
        )


def test_costs_by_name_and_discrete_actions():
    size = 12
    ends = np.arange(size) % 6 == 5
    data = Dataset.from_arrays(
        observations=np.arange(size),
        actions=np.arange(size) % 3,
        rewards=np.ones(size),
        costs={"speed": np.ones(size), "heat": np.zeros(size)},
        terminals=ends,
        timeouts=np.zeros(size),
        metadata=Metadata(num_actions=4),
    )
    assert data.cost_names == ("speed", "heat")
    assert data.discrete
    assert data.actions.dtype == np.int32
    assert (data.num_actions, data.action_dim, data.observation_dim) == (4, 4, 1)
    np.testing.assert_array_equal(data.episodes.costs, [[6, 0], [6, 0]])
    with pytest.raises(InputError, match="num_actions"):
        _ = data.action_low


def test_action_bounds_are_stated_or_inferred():
    data = walk()
    np.testing.assert_array_equal(data.action_high, [1, 1])
    stated = dataclasses.replace(data, metadata=Metadata(action_low=(-2, -2), action_high=(3, 3)))
    np.testing.assert_array_equal(stated.action_high, [3, 3])
    wide = dataclasses.replace(data, actions=(data.actions * 5).astype(np.float32))
    np.testing.assert_array_equal(wide.action_high, wide.actions.max(axis=0))
    assert data.horizon == 10


def test_arrays_that_do_not_fit_are_all_named_in_one_sentence():
    with pytest.raises(InputError) as caught:
        Dataset.from_arrays(
            observations=np.zeros((5, 3, 2)), actions=np.zeros((4, 2)), rewards=["a"] * 5, costs=np.zeros(5)
        )
    text = str(caught.value)
    assert "more error(s)" in text
    assert "\n" not in text
    for wrong in (
        {"observations": 3.0},
        {"observations": [[1, 2], [3]]},
        {"costs": {}},
        {"costs": {"a": np.zeros(3), "b": np.zeros(2)}},
        {"costs": np.zeros((0,))},
    ):
        arguments = {
            "observations": np.zeros((3, 1)),
            "actions": np.zeros((3, 1)),
            "rewards": np.zeros(3),
            "costs": np.zeros(3),
            "terminals": [0, 0, 1],
            **wrong,
        }
        with pytest.raises(InputError):
            Dataset.from_arrays(**arguments)


def test_metadata_survives_json_and_wrong_types_are_named():
    metadata = Metadata("bullet/BallRun", 100, (-1.0,), (1.0,), None, {"seed": "3"})
    assert Metadata.from_json(metadata.to_json()) == metadata
    for wrong in ({"horizon": "x"}, {"horizon": 0}, {"action_low": 3}, {"env_id": 4}, {"notes": [1]}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Metadata.from_json(wrong)
