"""Cut-off episodes: judged by their rate, or not at all; never safe because they are short."""

import json
from dataclasses import replace

import numpy as np
import pytest

from slater.cli import main
from slater.data import Dataset, Metadata, StoredDataset, inspect, save
from slater.limits import Limit, Units

from .make import walk

HORIZON = 20


def log(kinds, horizon=HORIZON):
    """Episodes (length, end, cost per step, reward per step), end one of terminal, timeout, none."""
    observations, rewards, costs, terminals, timeouts = [], [], [], [], []
    for number, (length, end, cost, reward) in enumerate(kinds):
        observations += [[number, step] for step in range(length)]
        rewards += [reward] * length
        costs += [cost] * length
        terminals += [False] * (length - 1) + [end == "terminal"]
        timeouts += [False] * (length - 1) + [end == "timeout"]
    return Dataset.from_arrays(
        observations=observations, actions=np.zeros((len(rewards), 1)), rewards=rewards, costs=costs,
        terminals=terminals, timeouts=timeouts, metadata=Metadata(horizon=horizon),
    )  # fmt: skip


KINDS = [
    (20, "timeout", 1.0, 1.0),  # timed out: 20 of cost
    (5, "terminal", 1.0, 9.0),  # ended: 5 of cost, 1 per step lived
    (10, "timeout", 0.5, 2.0),  # cut off at half: 10 of cost by rate, return 40
    (1, "timeout", 0.0, 99.0),  # one row without a cost
    (19, "none", 0.0, 99.0),  # unfinished
]


def test_the_three_kinds_and_what_they_are_judged_by():
    table = log(KINDS).episodes
    assert table.terminated.tolist() == [False, True, False, False, False]
    assert table.timed_out.tolist() == [True, False, False, False, False]
    assert table.cut_off.tolist() == [False, False, True, True, True]
    assert table.judged.tolist() == [True, True, True, False, False]
    assert table.costs_per_episode[:3, 0].tolist() == [20, 5, 10]
    assert table.returns_per_episode[:3].tolist() == [20, 45, 40]
    assert table.within(10).tolist() == [False, True, True, False, False]
    assert table.within(9.9).tolist() == [False, True, False, False, False]


def test_a_limit_per_step_is_on_the_steps_lived():
    table, units = log(KINDS).episodes, Units(0.9, HORIZON)
    assert table.keep([Limit.per_step(0.5)], units).tolist() == [False, False, True, False, False]
    assert table.keep([Limit.per_step(1)], units).tolist() == [True, True, True, False, False]
    assert table.keep([Limit.episode(10)], units).tolist() == table.within(10).tolist()
    assert table.keep([Limit.discounted(5)], units).tolist() == table.within(10).tolist()


def test_a_limit_that_all_episodes_keep_or_none_is_said():
    """Five per step where a step costs at most 1 is a mistaken unit: train says that it does not bind."""
    table, units = log(KINDS).episodes, Units(0.9, HORIZON)
    (all_keep,) = table.doubts([Limit.per_step(5, "cost")], units)
    assert all_keep == "every episode of the data keeps the limit cost=5/step: it may not bind."
    (none_keep,) = table.doubts([Limit.episode(2, "cost")], units)
    assert none_keep == "no episode of the data keeps the limit cost=2."
    assert table.doubts([Limit.episode(12, "cost")], units) == []


def test_without_a_stated_horizon_the_longest_episode_is_the_horizon():
    table = replace(log(KINDS[:4], None).episodes)
    assert table.horizon == 20
    assert table.judged.tolist() == [True, True, True, False]


@pytest.mark.parametrize("falls", [False, True])
def test_logs_without_cut_episodes_are_judged_by_their_sums(falls):
    table = walk(falls=falls).episodes
    assert table.judged.all()
    assert not table.cut_off.any()
    np.testing.assert_array_equal(table.costs_per_episode, table.costs)
    np.testing.assert_array_equal(table.returns_per_episode, table.returns)


def test_a_store_and_a_choice_of_it_know_the_horizon_of_the_whole(tmp_path):
    save(log(KINDS, None), tmp_path / "a.store")
    part = StoredDataset(tmp_path / "a.store").subset([2, 3])
    assert part.episodes.horizon == HORIZON
    assert part.episodes.judged.tolist() == [True, False]


def test_info_and_check_count_them(tmp_path, capsys):
    save(log(KINDS), tmp_path / "a.hdf5")
    assert main(["data", "info", str(tmp_path / "a.hdf5"), "--limit", "10", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["cut_off_judged_by_rate"], record["cut_off_not_judged"]) == (1, 1)
    (share,) = record["limits"]
    assert (share["safe_episodes"], share["share"]) == (2, pytest.approx(2 / 3))
    assert (share["best_return"], share["best_costs"]) == (45, [5])  # not the 99 of the single row
    assert record["frontier"]["cost"] == [[5, 45]]
    assert record["episode_return"]["max"] == 45
    assert main(["data", "info", str(tmp_path / "a.hdf5")]) == 0
    assert "1 judged by their rate" in capsys.readouterr().out
    messages = {problem.message: problem.rows for problem in inspect(tmp_path / "a.hdf5").warnings}
    assert [rows for text, rows in messages.items() if "judged by its rate" in text] == [(34,)]
    assert [rows for text, rows in messages.items() if "is not judged" in text] == [(35,)]
    save(log(KINDS[:4], None), tmp_path / "b.hdf5")
    (warning,) = (w for w in inspect(tmp_path / "b.hdf5").warnings if w.field == "horizon")
    assert "1 cut off before are judged by their rate, 1 that lived less than half" in warning.message


def test_where_no_episode_is_judged_info_says_so(tmp_path, capsys):
    save(log([(3, "timeout", 0.0, 1.0)] * 4), tmp_path / "a.hdf5")
    assert main(["data", "info", str(tmp_path / "a.hdf5")]) == 0
    out = capsys.readouterr().out
    assert "no episode is judged" in out
    assert "no safe episode" in out
    assert main(["data", "info", str(tmp_path / "a.hdf5"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episode_return"]["mean"] is None
    assert main(["data", "info", str(tmp_path / "a.hdf5"), "--out", str(tmp_path / "a.png")]) == 2
