"""The frontier is the linear program's: concave and growing in the limit, with the price as its slope."""

from __future__ import annotations

import numpy as np
import pytest

from slater import InputError
from slater.certify.frontier import Candidate, Pool, mix, trace


def _pool(seed: int = 0, count: int = 12, costs: int = 1) -> Pool:
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0, 50, (count, costs))
    reward = 100 * np.sqrt(cost.mean(axis=1) / 50) + rng.normal(0, 5, count)
    names = tuple(f"cost {i}" for i in range(costs))
    return Pool(names, tuple(Candidate(f"p{k}", float(reward[k]), tuple(cost[k])) for k in range(count)))


def test_reward_grows_with_the_limit_and_bends_down() -> None:
    frontier = trace(_pool(), [np.linspace(5, 60, 23)])
    reward = np.array([p.reward for p in frontier.points if p.within])
    assert (np.diff(reward) >= -1e-9).all()
    assert (np.diff(reward, 2) <= 1e-6).all()
    assert all(p.costs[0] <= p.limits[0] + 1e-6 for p in frontier.points if p.within)
    # at most one more member than there are limits
    assert max(len(p.weights) for p in frontier.points) <= 2


def test_the_price_is_what_one_more_unit_buys() -> None:
    pool = _pool(3)
    for limit in (12.0, 20.0, 31.0):
        here, more = mix(pool, [limit]), mix(pool, [limit + 1e-4])
        assert here.prices[0] == pytest.approx((more.reward - here.reward) / 1e-4, abs=1e-3)
    assert mix(pool, [1000.0]).prices == (0.0,)


def test_out_of_reach_is_said_and_safest_first() -> None:
    pool = Pool(("cost",), (Candidate("wild", 10.0, (30.0,)), Candidate("tame", 1.0, (8.0,))))
    point = mix(pool, [5.0])
    assert not point.within
    assert point.weights == {"tame": 1.0}
    assert trace(pool, [[5.0]]).as_dict()["points"][0]["prices"] is None


def test_spread_and_margin_hold_back() -> None:
    sure = Pool(("cost",), (Candidate("a", 10.0, (20.0,)), Candidate("b", 0.0, (0.0,))))
    rich, safe = Candidate("a", 10.0, (20.0,), 1.0, (5.0,)), Candidate("b", 0.0, (0.0,), 0.0, (0.0,))
    unsure = Pool(("cost",), (rich, safe))
    assert mix(sure, [10.0]).weights["a"] == pytest.approx(0.5)
    assert mix(unsure, [10.0]).weights["a"] == pytest.approx(0.4)
    assert mix(unsure, [10.0]).costs_high[0] == pytest.approx(10.0)
    assert mix(sure, [10.0], margin=0.2).weights["a"] == pytest.approx(0.4)


def test_two_limits_make_a_grid() -> None:
    frontier = trace(_pool(costs=2), resolution=4)
    assert len(frontier.points) == 16
    assert all(len(p.prices) == 2 for p in frontier.points)


def test_pooling_more_policies_is_never_worse() -> None:
    one, two = _pool(0), _pool(1)
    for limit in (10.0, 25.0, 40.0):
        both = mix(Pool.union([one, two]), [limit]).reward
        assert both >= max(mix(one, [limit]).reward, mix(two, [limit]).reward) - 1e-6


def test_bad_input_gets_one_sentence() -> None:
    with pytest.raises(InputError, match="2 limits for 1 costs"):
        mix(_pool(), [1.0, 2.0])
    with pytest.raises(InputError, match="no policy with estimates"):
        Pool(("cost",), ())
    with pytest.raises(InputError, match="over the same costs"):
        Pool.union([_pool(), _pool(costs=2)])
    with pytest.raises(InputError, match="margin is 1"):
        mix(_pool(), [1.0], margin=1.0)
    with pytest.raises(InputError, match="cannot be drawn"):
        trace(_pool(costs=3))
    with pytest.raises(InputError, match="not from 0 to"):
        trace(_pool(), [[-1.0]])


def test_a_frontier_is_told_in_ten_rows_and_a_mixture_in_one() -> None:
    alone = Pool(("cost",), (Candidate("only", 3.0, (8.0,)),))
    told = trace(alone, [np.linspace(1, 60, 30)]).rows()
    assert [(p.within, p.limits[0] <= 11.0, last) for p, last in told] == [
        (False, True, False),
        (True, True, True),
    ]
    for costs in (1, 2):
        frontier = trace(_pool(costs=costs), marked=[(20.0,) * costs])
        rows = [p for p, _ in frontier.rows()]
        assert 2 <= len(rows) <= 10
        mixtures = [tuple(sorted((n, round(w, 6)) for n, w in p.weights.items())) for p in rows if p.within]
        assert len(set(mixtures)) == len(mixtures)
        # from the poorest to the richest that there is
        assert rows[-1].reward == pytest.approx(max(p.reward for p in frontier.points))
        assert [p.reward for p in rows] == sorted(p.reward for p in rows)
        assert len(frontier.table().splitlines()) == len(rows) + 1
