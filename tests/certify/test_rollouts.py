"""Episodes of the policy itself: verdicts are right as often as they say, also when stopped early."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest

from slater import InputError
from slater.certify.ranges import Ranges
from slater.certify.rollouts import Counted, certify_episodes, certify_rollouts, judge_episodes
from slater.data import Dataset, Metadata
from slater.limits import Limit

STEPS = 20
#: every cost here is of at most 1 a step
ONE = {"largest_step_cost": 1.0}


class Toll(gym.Env[np.ndarray, np.ndarray]):
    """Twenty steps; each costs 1 with the probability that the action says."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(0, 1, (1,), np.float32)
    largest_step_cost = 1.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        cost = float(self.np_random.random() < action[0])
        return np.zeros(2, np.float32), 1.0, False, False, {"cost": cost}


gym.register("TollCertify-v0", entry_point=Toll, max_episode_steps=STEPS)


class Fall(Toll):
    """As `Toll`, but an episode ends for good after four steps."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.lived = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.lived += 1
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.lived == 4, False, info


gym.register("FallCertify-v0", entry_point=Fall, max_episode_steps=STEPS)


def _always(rate: float):
    return lambda observations: np.full((len(observations), 1), rate)


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, "pass"), (0.25, "abstain"), (0.6, "fail")])
def test_a_function_is_judged_in_a_simulator(rate: float, verdict: str) -> None:
    certificate = certify_rollouts(_always(rate), "TollCertify-v0", limits=[5.0], episodes=60)
    limit = certificate.limits[0]
    assert certificate.verdict == verdict
    assert limit.tier == "rollouts"
    assert limit.lower < limit.estimate < limit.upper
    assert limit.share_over is not None
    assert limit.share_over >= np.mean(np.array(certificate.details["episode_costs"]) > 5.0)


def test_running_stops_when_decided_and_goes_to_the_end_when_not() -> None:
    clear = certify_rollouts(_always(0.02), "TollCertify-v0", limits=[10.0], at_most=400)
    assert clear.verdict == "pass"
    assert len(clear.details["episode_costs"]) < 60
    close = certify_rollouts(_always(0.5), "TollCertify-v0", limits=[10.0], at_most=45)
    assert (close.verdict, len(close.details["episode_costs"])) == ("abstain", 45)


def _half_a_kilowatt(observations: np.ndarray) -> np.ndarray:
    return np.where(observations[:, :1] < 19, 0.9, 0.3)


def test_workers_stop_at_the_same_episode_with_the_same_certificate() -> None:
    found = [
        certify_rollouts(
            _half_a_kilowatt, "slater.envs.room:Room", limits=["16"], at_most=400, horizon=24,
            largest_step_cost=3.0, workers=workers,
        )
        for workers in (1, 2)
    ]  # fmt: skip
    assert found[0].as_dict() == found[1].as_dict()
    assert found[0].verdict != "abstain"
    assert 5 < len(found[0].details["episode_costs"]) < 400


def test_repeated_draws_pass_wrongly_at_most_as_often_as_allowed() -> None:
    # true cost 6 at limits of 5.9 and 6.1: the first may not pass, the second may not fail
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        costs = rng.binomial(STEPS, 0.3, size=(40, 1)).astype(float)
        first = judge_episodes(costs, ["cost"], [5.99], [20.0], 0.1)[0]
        second = judge_episodes(costs, ["cost"], [6.01], [20.0], 0.1)[0]
        wrong += (first.verdict == "pass") + (second.verdict == "fail")
    assert wrong <= 40  # two statements of 10% each over 200 draws


def _logged(costs: np.ndarray, *, cut: bool = False) -> Dataset:
    episodes, steps = costs.shape
    size = episodes * steps
    ends = np.arange(size) % steps == steps - 1
    if cut:
        ends[-1] = False
    return Dataset.from_arrays(
        observations=np.zeros((size, 2)), actions=np.zeros((size, 1)), rewards=np.ones(size),
        costs=costs.reshape(size, 1), terminals=np.zeros(size, bool), timeouts=ends,
        next_observations=np.zeros((size, 2)), metadata=Metadata(horizon=steps),
    )  # fmt: skip


def test_a_staged_deployment_is_judged_from_its_file() -> None:
    rng = np.random.default_rng(0)
    data = _logged((rng.random((80, STEPS)) < 0.1).astype(float), cut=True)
    certificate = certify_episodes(data, limits=["4"], largest_step_cost=1.0)
    assert certificate.verdict == "pass"
    assert "if no step costs more than 1 and an episode has at most 20 steps" in certificate.sentence
    assert certificate.evidence_from.startswith("80 ")  # the last has no end, but all of its steps
    # where nothing says what a step costs at most, a policy may fail and not pass
    assert certify_episodes(data, limits=["0.02/step"]).verdict == "fail"
    assert certify_episodes(data, limits=["4"]).verdict == "abstain"
    known = {"cost": (1.0, "the log that trained the policy")}
    assert certify_episodes(data, limits=["4"], known=known).verdict == "pass"
    # that no episode costs more than half of the most narrows the bound
    half = certify_episodes(data, limits=["4"], largest_step_cost=1.0, largest_episode_cost="cost=10")
    assert half.limits[0].upper < certificate.limits[0].upper
    with pytest.raises(InputError, match="an episode is said to cost at most"):
        certify_episodes(data, limits=["4"], largest_episode_cost=1.0)
    # a wider range and more candidates ask for wider bounds
    wide = certify_episodes(data, limits=["4"], largest_step_cost=5.0, candidates=10)
    assert wide.limits[0].upper > certificate.limits[0].upper


def _ragged(lengths: np.ndarray, rate: float, *, terminal: bool) -> Dataset:
    """Episodes of these lengths that cost `rate` in every step, of at most `STEPS` steps."""
    size = int(lengths.sum())
    ends = np.zeros(size, bool)
    ends[np.cumsum(lengths) - 1] = True
    return Dataset.from_arrays(
        observations=np.zeros((size, 2)), actions=np.zeros((size, 1)), rewards=np.ones(size),
        costs=np.full((size, 1), rate), terminals=ends & terminal, timeouts=ends & (not terminal),
        next_observations=np.zeros((size, 2)), metadata=Metadata(horizon=STEPS),
    )  # fmt: skip


def test_episodes_that_were_cut_off_do_not_pass_for_cheap_ones() -> None:
    """Two steps of twenty that cost .5 each: the episode would cost 10, not 1, and the limit is 5."""
    cut = certify_episodes(_ragged(np.full(200, 2), 0.5, terminal=False), limits=["5"], **ONE)
    assert cut.verdict == "abstain"
    assert any("of 200 episodes 200 were cut off before 20 steps" in line for line in cut.assumptions)
    # where they end for good, that is what an episode costs
    assert (
        certify_episodes(_ragged(np.full(200, 2), 0.5, terminal=True), limits=["5"], **ONE).verdict == "pass"
    )
    # few of them leave the verdict to the others, and what is known of them can still break the limit
    few = np.where(np.arange(200) % 50 == 0, 2, STEPS)
    assert certify_episodes(_ragged(few, 0.1, terminal=False), limits=["5"], **ONE).verdict == "pass"
    assert certify_episodes(_ragged(np.full(200, 15), 0.5, terminal=False), limits=["5"]).verdict == "fail"


def test_a_limit_per_step_is_on_the_steps_lived() -> None:
    """Four steps that cost .5 each and then an end: 2 per episode, but .5 per step."""
    data = _ragged(np.full(200, 4), 0.5, terminal=True)
    assert certify_episodes(data, limits=["0.3/step"]).verdict == "fail"
    assert certify_episodes(data, limits=["0.7/step"], **ONE).verdict == "pass"
    found = certify_episodes(data, limits=["0.3/step"])
    assert any("0.3/step is on the steps lived" in line for line in found.assumptions)
    for rate, verdict in ((0.3, "fail"), (0.7, "pass")):
        ran = certify_rollouts(_always(0.5), "FallCertify-v0", limits=[f"{rate}/step"], episodes=300)
        assert ran.verdict == verdict
        stopped = certify_rollouts(_always(0.5), "FallCertify-v0", limits=[f"{rate}/step"], at_most=300)
        assert stopped.verdict == verdict


def test_what_episodes_count_is_on_the_side_of_a_limit_per_step_that_their_cost_is() -> None:
    rng = np.random.default_rng(0)
    ranges = Ranges.of(["c"], 1.0)
    for _ in range(100):
        lengths = rng.integers(1, STEPS + 1, 30)
        costs = (lengths * rng.random(30))[:, None]
        rate = float(rng.uniform(0.2, 0.8))
        counted = Counted.of(costs, lengths, lengths < STEPS, [Limit.per_step(rate, "c")], STEPS, ranges)
        np.testing.assert_array_equal(counted.at_least, counted.at_most)
        kept = costs.sum() <= rate * lengths.sum()
        assert (counted.at_most.mean() <= rate * STEPS) == kept
        assert counted.at_most.max() <= counted.largest[0] + 1e-9


def test_episodes_longer_than_those_of_the_limit_are_refused() -> None:
    with pytest.raises(InputError, match="20 steps, more than the horizon of 10"):
        certify_rollouts(_always(0.1), "TollCertify-v0", limits=[5.0], episodes=2, horizon=10)


def test_ten_episodes_without_cost_do_not_pass_a_small_limit() -> None:
    assert certify_episodes(_logged(np.zeros((10, STEPS))), limits=["1"], **ONE).verdict == "abstain"


def test_bad_input_gets_one_sentence() -> None:
    data = _logged(np.zeros((3, STEPS)))
    with pytest.raises(InputError, match="speed"):
        certify_episodes(data, limits=["speed=4"])
    with pytest.raises(InputError, match="must be positive and finite"):
        certify_episodes(data, limits=["4"], largest_step_cost=math.inf)
    with pytest.raises(InputError, match="step 0 of episode 0 costs 2 of cost, more than the 1"):
        certify_episodes(_logged(np.full((3, STEPS), 2.0)), limits=["4"], largest_step_cost=1.0)
    with pytest.raises(InputError, match="shape"):
        certify_rollouts(lambda s: np.zeros((len(s), 3)), "TollCertify-v0", limits=[5.0], episodes=1)
    with pytest.raises(InputError, match="at most 0"):
        certify_rollouts(_always(0.1), "TollCertify-v0", limits=[5.0], at_most=0)
