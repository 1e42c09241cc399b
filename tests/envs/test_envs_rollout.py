"""Rollouts: sums that can be checked by hand, seeds that hold for any number of workers, clear errors."""

import json
import math
import os
import pickle

import numpy as np
import pytest
from env_simulators import needs_bullet, needs_gymnasium, needs_rwrl
from env_toys import Broken, Index, Noisy, Threads, TwoMembers
from hypothesis import given, settings
from hypothesis import strategies as st

import slater.envs
from slater.envs import RandomPolicy, Rollout, Summary, Workers, dsrl_scores, record, rollout
from slater.envs.workers import _serve
from slater.errors import InputError

pytestmark = needs_gymnasium

ARRAYS = (
    "returns",
    "discounted_returns",
    "cost",
    "discounted_cost",
    "costs",
    "discounted_costs",
    "lengths",
    "terminated",
)


def same(one: Rollout, other: Rollout) -> bool:
    return one.cost_names == other.cost_names and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    episodes=st.integers(1, 4),
    steps=st.integers(1, 9),
    discount=st.floats(0.0, 1.0),
)
def test_sums_are_those_of_a_loop_by_hand(seed, episodes, steps, discount):
    told = []

    class Listener(Noisy):
        def begin(self, *, rng, deterministic=False):
            actor = super().begin(rng=rng, deterministic=deterministic)
            told.append([])
            actor._observe = lambda reward, costs: told[-1].append((reward, *costs))
            return actor

    options = {"style": "vector", "steps": steps}
    result = rollout(Listener(), "env_toys:Line", episodes, seed, discount=discount, env_options=options)
    assert result.cost_names == ("left", "right")
    assert result.costs.shape == (episodes, 2)
    assert result.lengths.tolist() == [steps] * episodes
    assert result.terminated.all()
    for episode, rows in enumerate(told):
        reward, left, right = np.array(rows).T
        weights = discount ** np.arange(steps)
        assert result.returns[episode] == pytest.approx(reward.sum())
        assert result.discounted_returns[episode] == pytest.approx(weights @ reward)
        assert result.costs[episode].tolist() == [left.sum(), right.sum()]
        assert result.discounted_costs[episode] == pytest.approx([weights @ left, weights @ right])
        assert result.cost[episode] == 2.0 * left.sum()
        assert result.discounted_cost[episode] == pytest.approx(2.0 * weights @ left)
        assert np.array_equal(left, reward < 0)


def test_an_episode_does_not_depend_on_the_others_or_on_the_workers():
    results = [rollout(Noisy(), "env_toys:Line", 9, 5, workers) for workers in (1, 2, 3)]
    assert all(same(results[0], other) for other in results[1:])
    longer = rollout(Noisy(), "env_toys:Line", 12, 5)
    assert np.array_equal(longer.returns[:9], results[0].returns)
    assert not np.array_equal(rollout(Noisy(), "env_toys:Line", 9, 6).returns, results[0].returns)
    assert len(set(results[0].returns)) == 9


@pytest.fixture(scope="module")
def two_workers():
    """Processes that have played other simulators before: their history grows with every test."""
    with Workers(2) as workers:
        yield workers


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param("bullet/BallCircle", marks=needs_bullet),
        pytest.param("bullet/CarRun?costs=speed,boundary", marks=needs_bullet),
        pytest.param("bullet/AntRun", marks=needs_bullet),
        pytest.param("bullet/DroneRun", marks=needs_bullet),
        pytest.param("rwrl/cartpole", marks=needs_rwrl),
    ],
)
def test_simulators_in_parallel_workers_give_the_same_bits(env_id, two_workers):
    policy = RandomPolicy(slater.envs.make(env_id).action_space)
    alone = rollout(policy, env_id, 4, 3)
    assert same(alone, rollout(policy, env_id, 4, 3, two_workers))
    assert same(alone, rollout(policy, env_id, 4, 3, two_workers))  # the processes have a history now
    assert np.ptp(alone.returns) > 0.0


def test_a_worker_whose_parent_died_ends_without_a_traceback(monkeypatch):
    class Gone:
        def recv(self):
            return pickle.dumps((Noisy(), "env_toys:Line", {}, None))

        def send(self, answer):
            raise BrokenPipeError

    monkeypatch.setattr("slater.envs.workers.signal.signal", lambda *_: None)
    _serve(Gone())


def test_stochastic_and_deterministic():
    noisy, calm = (rollout(Noisy(), "env_toys:Line", 3, 1, deterministic=flag) for flag in (False, True))
    start = calm.returns[0] / 7 - 0.5 * 4  # seven rewards: start + 0.5, ..., start + 3.5
    assert calm.discounted_returns[0] == pytest.approx(
        sum(0.99**t * (start + 0.5 * (t + 1)) for t in range(7))
    )
    assert not np.array_equal(noisy.returns, calm.returns)
    space = slater.envs.make("env_toys:Line").action_space
    assert np.ptp(rollout(RandomPolicy(space), "env_toys:Line", 3, deterministic=True).lengths) == 0


def test_a_mixture_draws_one_member_per_episode():
    result = rollout(TwoMembers(), "env_toys:Line", 40, 2, env_options={"steps": 9})
    # one member: nine steps the same way, so the return is 9 start + 45 or 9 start - 45, never between
    assert np.all(np.abs(result.returns) > 10.0)
    assert 8 <= np.sum(result.returns > 0) <= 32


def test_discrete_actions():
    options = {"discrete": True}
    result = rollout(Index(np.int64(2)), "env_toys:Line", 2, env_options=options)
    assert np.all(np.diff(result.returns) != 0)
    space = slater.envs.make("env_toys:Line", discrete=True).action_space
    assert len(rollout(RandomPolicy(space), "env_toys:Line", 3, env_options=options)) == 3
    with pytest.raises(InputError, match="at step 0 of episode 0, an action is 5, but"):
        rollout(Index(5), "env_toys:Line", 2, env_options=options)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("begin", "the policy's begin raised KeyError at step 0 of episode 0: 'no members'"),
        ("act", "the policy's act raised RuntimeError at step 2 of episode 0: out of ideas"),
        ("observe", "the policy's observe raised ValueError at step 2 of episode 0: cannot remember"),
        ("shape", r"at step 2 of episode 0, an action has shape \(4,\), but the environment takes"),
        ("scalar", r"at step 2 of episode 0, an action has shape \(\)"),
        ("nan", "at step 2 of episode 0, an action has the value nan at index 0; it must be finite"),
        ("text", "at step 2 of episode 0, an action has type <U4"),
    ],
)
def test_a_policy_that_fails_gives_one_clear_error(how, message):
    with pytest.raises(InputError, match=message) as here:
        rollout(Broken(how), "env_toys:Line", 3)
    assert "\n" not in str(here.value)


def test_a_policy_that_fails_in_a_worker_gives_the_same_error():
    with Workers(2) as workers:
        with pytest.raises(InputError, match="the policy's act raised RuntimeError at step 2 of episode"):
            rollout(Broken("act"), "env_toys:Line", 5, workers=workers)
        with pytest.raises(InputError, match=r"an action has shape \(4,\)"):
            rollout(Broken("shape"), "env_toys:Line", 5, workers=workers)
        with pytest.raises(InputError, match="a worker process ended with exit code 7"):
            rollout(Broken("exit"), "env_toys:Line", 5, workers=workers)
        # and the workers are of use again
        assert same(
            rollout(Noisy(), "env_toys:Line", 5, workers=workers), rollout(Noisy(), "env_toys:Line", 5)
        )


def test_a_worker_that_ended_before_it_was_given_an_episode_is_said():
    with Workers(2) as workers:
        rollout(Noisy(), "env_toys:Line", 2, workers=workers)
        for process in workers._processes.values():
            process.kill()
            process.join()
        with pytest.raises(InputError, match="a worker process ended with exit code -9"):
            rollout(Noisy(), "env_toys:Line", 5, workers=workers)


def test_a_policy_that_cannot_travel():
    class Local(Noisy):
        pass

    with pytest.raises(
        InputError, match=r"cannot be sent to worker processes .* picklable, or use one worker"
    ):
        rollout(Local(), "env_toys:Line", 2, workers=2)


def test_workers_have_one_thread_each_and_leave_our_environment_alone():
    before = dict(os.environ)
    result = rollout(Threads(), "env_toys:Line", 2, workers=2, env_options={"steps": 1})
    alone = rollout(Noisy(), "env_toys:Line", 2, env_options={"steps": 1}, deterministic=True)
    assert result.returns == pytest.approx(alone.returns - 0.4)  # moved by 1 thread / 10, not by 0.5
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "left"}, "a str is not a policy: it needs the methods act and begin"),
        ({"episodes": 0}, "the number of episodes is 0"),
        ({"seed": -1}, "the seed is -1"),
        ({"workers": 0}, "the number of workers is 0"),
        ({"discount": 1.5}, r"the discount is 1\.5"),
        ({"env_id": "no_such_module:f"}, "cannot be imported"),
        ({"env_options": {"style": "none"}}, "at step 0 of episode 0, env_toys:Line gave no cost"),
        ({"env_options": {"crash_at": 3}}, "gave the reward nan at step 2 of episode 0"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message):
    with pytest.raises(InputError, match=message):
        rollout(**{"policy": Noisy(), "env_id": "env_toys:Line", "episodes": 2} | arguments)


def test_recorded_steps_add_up_to_the_sums():
    options = {"style": "vector"}
    sums = rollout(Noisy(), "env_toys:Line", 4, 3, env_options=options)
    for workers in (1, 2):
        episodes = record(Noisy(), "env_toys:Line", 4, 3, workers, env_options=options)
        for index, episode in enumerate(episodes):
            steps = episode.transitions
            assert steps.observations.shape == (8, 1)
            assert steps.actions.shape == (7, 1)
            assert steps.costs.shape == (7, 2)
            # the reward of this environment is the position after the step, the action the change of it
            assert np.allclose(steps.observations[1:, 0], steps.rewards)
            assert np.allclose(np.diff(steps.observations[:, 0]), steps.actions[:, 0], atol=1e-6)
            assert steps.rewards.sum() == pytest.approx(sums.returns[index], abs=1e-5)
            assert np.array_equal(steps.costs.sum(axis=0), sums.costs[index])
            assert steps.cost.sum() == sums.cost[index]
    (episode,) = record(Index(1), "env_toys:Line", 1, env_options={"discrete": True})
    assert episode.transitions.actions.tolist() == [1] * 7


def test_an_episode_that_never_ends(monkeypatch):
    monkeypatch.setattr("slater.envs.episode.STEP_CAP", 300)
    with pytest.raises(InputError, match="did not end in 300 steps; give max_episode_steps"):
        rollout(Index(0), "env_toys:Grid", 1)
    assert rollout(Index(0), "env_toys:Grid?max_episode_steps=4", 1).lengths.tolist() == [4]


def test_progress_hears_of_every_episode():
    heard = []
    rollout(Noisy(), "env_toys:Line", 5, workers=2, progress=lambda episode: heard.append(episode.index))
    assert sorted(heard) == [0, 1, 2, 3, 4]


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = sum(
        summary.low <= 3.0 <= summary.high
        for summary in (Summary.of(rng.normal(3.0, 2.0, 8), 0.8) for _ in range(2000))
    )
    assert inside / 2000 == pytest.approx(0.8, abs=0.03)  # three standard errors are 0.027


def test_the_summary_and_its_json():
    result = rollout(Noisy(), "env_toys:Line", 6, env_options={"style": "vector"})
    summary = result.summary()
    assert list(summary)[:4] == ["return", "discounted_return", "cost", "discounted_cost"]
    assert summary["costs/left"].mean == result.costs[:, 0].mean()
    assert summary["return"].standard_error == pytest.approx(np.std(result.returns, ddof=1) / math.sqrt(6))
    assert summary["return"].low < summary["return"].mean < summary["return"].high
    text = json.dumps(result.as_dict(), allow_nan=False)
    assert json.loads(text)["episodes"][2]["return"] == result.returns[2]
    assert "6 episodes, stochastic" in result.describe()
    one = rollout(Noisy(), "env_toys:Line", 1)
    assert math.isnan(one.summary()["return"].standard_error)
    assert json.loads(json.dumps(one.as_dict(), allow_nan=False))["summary"]["return"]["low"] is None
    assert one.scores(20.0) is None
    with pytest.raises(InputError, match="the confidence is 1"):
        result.summary(1.0)


@settings(max_examples=50, deadline=None)
@given(share=st.floats(-1, 2), cost=st.floats(0, 1e3), limit=st.floats(0.1, 100))
def test_dsrl_scores(share, cost, limit):
    for env_id, (low, high) in slater.envs.DSRL_RETURNS.items():
        scores = dsrl_scores(f"{env_id}?costs=cost", low + share * (high - low), cost, limit)
        assert scores.reward == pytest.approx(share, abs=1e-9)
        assert scores.cost == pytest.approx(cost / limit)
        assert scores.safe == (cost / limit <= 1.0)
    assert dsrl_scores("bullet/BallRun", 0.0, 0.0, 0.0).cost == 1.0
    assert dsrl_scores("bullet/BallRun", 0.0, 2.0, 0.0).cost == 3.0
    assert dsrl_scores("rwrl/walker", 0.0, 0.0, 1.0) is None
    with pytest.raises(InputError, match="the cost limit is -1"):
        dsrl_scores("bullet/BallRun", 0.0, 0.0, -1.0)
