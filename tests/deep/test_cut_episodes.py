"""Cut-off episodes in what the algorithms are told of the data: by rate, or not at all."""

from dataclasses import replace

import numpy as np
import pytest

from slater.data import Dataset, Metadata
from slater.deep.algorithms.bc import choose_episodes
from slater.deep.algorithms.cdt import CDT
from slater.deep.algorithms.registry import make_config
from slater.deep.batches import prepare
from slater.limits import resolve_limits

from .problems import pointmass

LENGTH = 25


def cut(data, kept):
    """The data with episode e cut off after kept[e] steps."""
    rows = np.concatenate(
        [np.arange(start, start + n) for start, n in zip(data.episodes.starts, kept, strict=True)]
    )
    ends = np.zeros(data.size, bool)
    ends[[start + n - 1 for start, n in zip(data.episodes.starts, kept, strict=True)]] = True
    names = ("observations", "actions", "rewards", "costs", "next_observations")
    return Dataset.from_arrays(
        **{name: getattr(data, name)[rows] for name in names}, terminals=np.zeros(len(rows)),
        timeouts=ends[rows], cost_names=data.cost_names, metadata=Metadata(horizon=LENGTH),
    )  # fmt: skip


@pytest.fixture(scope="module")
def logs():
    whole = pointmass(episodes=12, length=LENGTH)
    kept = np.full(12, LENGTH)
    kept[3], kept[7] = 1, 20
    return whole, cut(whole, kept)


def task_of(data, limit="5"):
    return prepare(data, resolve_limits([limit], data.cost_names), 0.9)


def test_a_single_row_is_not_cloned_as_a_safe_episode(logs):
    _, short = logs
    task, _ = task_of(short, "1000")
    chosen = choose_episodes(short.episodes, task, "safe")
    assert np.flatnonzero(~chosen).tolist() == [3]
    table = short.episodes
    rate = table.costs[7, 0] * LENGTH / 20
    assert rate > 0
    for share, safe in ((0.99, False), (1.0, True)):
        task, _ = task_of(short, f"{rate * share}")
        assert choose_episodes(table, task, "safe")[7] == safe


def test_cdt_is_told_what_a_cut_episode_would_have_come_to(logs):
    _, short = logs
    algorithm = CDT(make_config(CDT, {"hidden": (16,), "heads": 2, "augment": 0.0}))
    task, data = task_of(short)
    sequences = algorithm.data(short, task, data)
    assert len(sequences.start) == 11  # the single row is left out
    table = short.episodes
    first = np.asarray(sequences.togo)[table.starts[7]]
    np.testing.assert_allclose(first, [table.returns[7] * 1.25, table.costs[7, 0] * 1.25], rtol=1e-5)
    np.testing.assert_allclose(algorithm.informed(short, task).targets.episodes[6], first, rtol=1e-5)


def test_what_follows_a_single_row_is_the_mean_of_the_data(logs):
    _, short = logs
    _, data = task_of(short)
    row = short.episodes.starts[3]
    utilities = np.asarray(data.utilities)
    expected = utilities[row] + 0.9 * utilities.mean(axis=0) / 0.1
    np.testing.assert_allclose(np.asarray(data.returns)[row], expected, rtol=1e-4)
    part = slice(short.episodes.starts[7], short.episodes.stops[7])
    own = utilities[part][-1] + 0.9 * utilities[part].mean(axis=0) / 0.1
    np.testing.assert_allclose(np.asarray(data.returns)[part][-1], own, rtol=1e-4)


def test_without_cut_episodes_nothing_changes(logs):
    whole, _ = logs
    for data in (whole, replace(whole, metadata=Metadata())):
        _, arrays = task_of(data)
        utilities = np.asarray(arrays.utilities, np.float64)
        last = whole.episodes.stops - 1
        rates = utilities.reshape(12, LENGTH, -1).mean(axis=1)
        expected = utilities[last] + 0.9 * rates / 0.1
        np.testing.assert_allclose(np.asarray(arrays.returns)[last], expected, rtol=1e-5)
