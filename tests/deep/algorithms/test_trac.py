"""TraC: what its labels are, on episodes that are known."""

import numpy as np
import pytest

import slater.deep as deep
from slater.data import Dataset, Metadata
from slater.deep.algorithms.registry import make_config
from slater.deep.algorithms.trac import TraC, label_segments
from slater.errors import InputError

from ..problems import QUICK, pointmass


def episodes(costs: list[list[float]], rewards: list[list[float]]) -> Dataset:
    ends = np.concatenate([[0] * (len(c) - 1) + [1] for c in costs]).astype(bool)
    short = np.concatenate([[0] * (len(c) - 1) + [len(c) < 8] for c in costs]).astype(bool)
    return Dataset.from_arrays(
        observations=np.arange(len(ends), dtype=np.float32)[:, None], actions=np.zeros(len(ends), np.int32),
        rewards=np.concatenate(rewards), costs=np.concatenate(costs)[:, None], terminals=short,
        timeouts=ends & ~short, metadata=Metadata(horizon=8, num_actions=2),
    )  # fmt: skip


def labels(data: Dataset, limit: float, **settings):
    algorithm = TraC(make_config(TraC, settings))
    return label_segments(data, algorithm.task(data, [limit]), algorithm.config)


def test_segments_are_labelled_by_their_share_of_the_limit_and_weighed_by_return():
    flat = [1.0] * 8
    data = episodes(
        [[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 1], [0] * 8, [0] * 5],
        [flat, flat, [3.0] * 8, [0.0] * 5],
    )
    found = labels(data, 2, ratio=0.5, desired=0.5, undesired=0.2)
    # 4 steps may cost 1. Of 8 segments one is unsafe, at the start of episode 1; of the others the best half
    # are those of episode 2 and, of equal ones, the first; the short episode's last overlaps its first
    unsafe = found.start == 8
    assert not found.good[unsafe].any()
    assert found.weight[unsafe] == pytest.approx([1.0])
    best = np.isin(found.start, [16, 20])
    assert found.good[best].all()
    assert found.weight[best] == pytest.approx([1.0, 1.0])
    worst = ~found.good & ~unsafe
    assert set(found.start[worst]) <= {24, 25}
    assert found.weight[worst] == pytest.approx(np.ones(worst.sum()))  # the mirror of the least return
    assert np.all(found.length == 4)
    ends = set(zip(found.start, found.start + found.length, strict=True))
    assert all(any(a >= s and b <= e for s, e in [(0, 8), (8, 16), (16, 24), (24, 29)]) for a, b in ends)


def test_whole_episodes_and_short_ones_are_segments_too():
    data = episodes([[1] + [0] * 7, [0] * 5], [[1.0] * 8, [0.5] * 5])
    found = labels(data, 1, ratio=1.0, desired=1.0)
    assert found.length.tolist() == [8, 5]
    assert found.good.all()


def test_the_output_is_the_policy_that_the_log_likes_best(tmp_path):
    data = pointmass(discrete=True)
    settings = {**QUICK, "clone_steps": 20, "segments": 4, "choose_iterations": 40, "choose_among": 2}
    result = deep.train("trac", data, ["5"], tmp_path / "run", **settings)
    judged = [member for member in result.members if member.careful]
    assert len(judged) == 2
    (taken,) = [member for member in judged if member.weight == 1]
    estimates = [member.estimates for member in judged]
    within = [e for e in estimates if e["c0"] <= 2.0]  # 5 per episode is 2 discounted
    best = max(within, key=lambda e: e["reward"]) if within else min(estimates, key=lambda e: e["c0"])
    assert taken.estimates == best


def test_limits_that_no_segment_keeps_are_refused(tmp_path):
    data = episodes([[1.0] * 8, [1.0] * 8], [[1.0] * 8] * 2)
    with pytest.raises(InputError, match=r"no segment of 4 steps keeps its share of the limits \(\[0.5\]\)"):
        deep.train("trac", data, [1.0], tmp_path / "run", steps=10, gamma=0.9)
