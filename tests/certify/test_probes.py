"""What an adversary tried on certificates and got away with, and what ended in a traceback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import slater
from slater.certify.exact import certify_counts
from slater.certify.held_out import certifying_part, own_actions
from slater.certify.judge import certify
from slater.certify.ledger import enter, ledger_path
from slater.certify.propensities import certify_propensities
from slater.certify.subjects import LoggedProbability, find_policy
from slater.certify.verdict import Certificate
from slater.cli import main
from slater.data import Dataset, Metadata, load, save
from slater.errors import InputError
from slater.experiments.verdict_worlds import LOGS, finite
from slater.runs.held_out import read_held_out

from .worlds import BLOW, QUICK, Blow, T, blow_log, log_of, trained

WORLD = LOGS["one step"]
LOG = WORLD.log(np.random.default_rng(0), 300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("probes"), hold_out=0.4, episodes=120)


def _rows(data: Dataset) -> dict[str, Any]:
    return {name: array for name, array in data.rows().items() if name != "next_known"}


def _own(run: Path, own: Dataset, **options: Any) -> Certificate:
    return certify(run, own=own, limits=3000, **{"largest_step_cost": 700, **options})


# -- episodes that are not the policy's own, or not held out ------------------------------------------------


def test_episodes_of_its_log_are_not_its_own_even_if_they_were_held_out_or_their_rewards_changed(
    run: Path,
) -> None:
    """Held-out episodes are of whoever made the log; once they passed as the policy's own."""
    log = load(run.parent / "log.npz")
    kept = read_held_out(run)
    assert kept is not None
    trained_ones = log.subset(np.setdiff1d(np.arange(len(log.episodes)), kept.episodes))
    changed = {**_rows(trained_ones), "rewards": trained_ones.rewards * 2, "costs": trained_ones.costs * 0.5}
    for own in (
        log.subset(list(kept.episodes)),
        Dataset.from_arrays(**changed, metadata=log.metadata),
    ):
        found = _own(run, own)
        assert found.verdict == "abstain"
        assert "of the log that trained the policy" in found.sentence


def test_a_log_in_other_units_of_cost_trained_the_policy_all_the_same(run: Path) -> None:
    log = load(run.parent / "log.npz")
    kept = read_held_out(run)
    assert kept is not None
    part = log.subset(np.setdiff1d(np.arange(len(log.episodes)), kept.episodes))
    other = Dataset.from_arrays(**{**_rows(part), "costs": part.costs * 0.5}, metadata=log.metadata)
    assumed = certify(run, other, limits=3000, fit=False).assumptions
    assert any("propensities decide nothing" in line and "trained the policy" in line for line in assumed)


def test_held_out_copies_of_episodes_that_trained_are_left_out(tmp_path: Path) -> None:
    """Of a log that has episodes twice, one may train and the other be held out."""
    one = blow_log(60, seed=3)
    rows = {name: np.concatenate([array, array]) for name, array in _rows(one).items()}
    save(Dataset.from_arrays(**rows, metadata=one.metadata), tmp_path / "log.npz")
    slater.train(
        tmp_path / "log.npz", "bc", [3], out=tmp_path / "run", progress=False, estimate=False, hold_out=0.2,
        **QUICK,
    )  # fmt: skip
    kept = read_held_out(tmp_path / "run")
    assert kept is not None
    leaked = sum((episode + 60) % 120 not in kept.episodes for episode in kept.episodes)
    assert leaked > 0
    origin = find_policy(tmp_path / "run").origin
    whole = load(tmp_path / "log.npz")
    part, gate = certifying_part(whole, origin.held_out, origin.fingerprint, origin.trained_on)
    assert len(part.episodes) == len(kept.episodes) - leaked
    assert f"{leaked} are copies of episodes that trained" in gate.reason


@pytest.mark.parametrize("discrete", [True, False])
def test_actions_that_the_policy_would_not_take_are_not_its_own(discrete: bool) -> None:
    """Its own draws, its likeliest actions and rounded ones are; another's are not, in either direction."""
    from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture

    rng = np.random.default_rng(1)
    size, wide = 100 * T, np.ones(1, np.float32)
    norm = {"obs_mean": np.zeros(2, np.float32), "obs_std": np.ones(2, np.float32)}

    def policy(lean: float) -> Any:
        weights = np.array([[lean, -lean], [0.0, 0.0]], np.float32)
        if discrete:
            return CategoricalPolicy(**norm, weights=(weights,), biases=(np.zeros(2, np.float32),))
        weights[:, 1] = 0.0
        bias = np.array([0.0, -1.0], np.float32)
        return GaussianPolicy(
            **norm, weights=(weights,), biases=(bias,), low=-wide, high=wide, log_std_range=(-5.0, 2.0)
        )

    own, other = policy(1.0), policy(-1.0)
    plain = log_of(np.zeros((100, T)), 5)
    half = np.where(np.arange(size)[:, None] < size // 2, 0, 1)
    half = half[:, 0] if discrete else half
    by = {name: one.act(plain.observations, rng=rng) for name, one in (("own", own), ("other", other))}
    likeliest = own.act(plain.observations, rng=rng, deterministic=True)
    cases: list[tuple[Any, Any, bool]] = [
        (own, by["own"], True), (own, likeliest, True), (own, by["other"], False),
        (Mixture((own, other), np.array([0.5, 0.5])), np.where(half, by["own"], by["other"]), True),
    ]  # fmt: skip
    if not discrete:
        cases.append((own, np.round(by["own"], 2), True))
    for judged, actions, expected in cases:
        metadata = plain.metadata if discrete else replace(plain.metadata, num_actions=None)
        data = log_of(np.zeros((100, T)), 5, actions=actions, metadata=metadata)
        assert own_actions(data, judged).passed == expected


def test_a_trial_that_was_ended_because_of_what_it_cost_counts(run: Path) -> None:
    """The last episode of a trial has no end in the file: once it was left out, with its cost."""
    costs = np.zeros((60, T))
    costs[-1, 3] = 600.0
    rows = _rows(log_of(costs, 8))
    keep = np.arange(60 * T) <= 59 * T + 3
    ended = Dataset.from_arrays(
        **{name: array[keep] for name, array in rows.items()}, metadata=log_of(costs, 8).metadata
    )
    assert not ended.episodes.complete[-1]
    found = _own(run, ended)
    assert max(row[0] for row in found.details["episode_costs"]) == 600.0
    assert "were cut off" in " ".join(found.assumptions)


# -- the ledger ---------------------------------------------------------------------------------------------


def _many(place: Path, first: int) -> None:
    for number in range(10):
        enter(place, "rows", [f"{first}-{number}"], 1)


def test_certificates_that_are_made_at_once_are_all_entered(tmp_path: Path) -> None:
    each = [threading.Thread(target=_many, args=(tmp_path / "log.npz", k)) for k in range(3)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    assert len(json.loads(ledger_path(tmp_path / "log.npz").read_text())["logs"]["rows"]) == 30


def test_a_link_to_a_log_has_the_ledger_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.npz").write_text("rows")
    (tmp_path / "link.npz").symlink_to(tmp_path / "log.npz")
    monkeypatch.chdir(tmp_path)
    assert ledger_path("link.npz") == ledger_path("./log.npz") == ledger_path(tmp_path / "log.npz")


def test_a_verdict_at_the_end_of_training_is_entered_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever trains again until a verdict is a pass gives luck as many chances."""
    save(blow_log(60), tmp_path / "log.npz")
    for seed in range(2):
        words = ["train", "bc", tmp_path / "log.npz", "--limit", 700, "--hold-out", 0.4, "--steps", 2]
        more = ["--set", "hidden=8", "--set", "batch_size=16", "--seed", seed, "--no-estimate", "--out"]
        assert main([str(word) for word in [*words, *more, tmp_path / f"run{seed}"]]) == 0
    logs = json.loads(ledger_path(tmp_path / "log.npz").read_text())["logs"]
    assert [len(entries) for entries in logs.values()] == [2]


@pytest.mark.parametrize("entries", [7, [7], [{}], [{"policies": "ab", "candidates": 1}],
                                     [{"policies": [], "candidates": -5}]])  # fmt: skip
def test_a_damaged_ledger_is_named(tmp_path: Path, entries: Any) -> None:
    record = {"format": "slater-ledger-1", "logs": {"rows": entries}}
    ledger_path(tmp_path / "log.npz").write_text(json.dumps(record))
    with pytest.raises(InputError, match="ledger of certificates"):
        enter(tmp_path / "log.npz", "rows", ["a"], 1)


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.float32(700), np.int64(700), [np.float32(700)], {"cost": "700"}])
def test_numbers_of_any_kind_are_numbers(run: Path, value: Any) -> None:
    found = _own(run, log_of(np.zeros((30, T)), 8), largest_step_cost=value)
    assert found.limits[0].condition.startswith("no step costs more than 700")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"confidence": "0.95"}, "confidence"), ({"candidates": 2.5}, "candidates"),
        ({"candidates": float("nan")}, "candidates"), ({"horizon": "10"}, "horizon"),
        ({"horizon": float("nan")}, "horizon"), ({"env": BLOW, "episodes": 2.5}, "episodes"),
        ({"env": BLOW, "seed": 1.5}, "seed"), ({"env": BLOW, "workers": 0}, "workers"),
        ({"env": BLOW, "at_most": 0}, "most episodes"), ({"largest_weight": "3"}, "largest weight"),
        ({"largest_weight": 0.5}, "at least 1"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_named(run: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        certify(run, None, 3000, **options)


def test_the_longest_episode_that_was_seen_is_not_the_longest_there_is() -> None:
    """One in seventy lasts 600 steps and costs 600: sixty short ones once passed."""
    one = log_of(np.zeros((60, 1)), terminal=True, metadata=Metadata(num_actions=2))
    cases: list[tuple[Any, str]] = [(policy_of_zeros, "own"), (LoggedProbability(np.full(60, 0.5)), "data")]
    for policy, evidence in cases:
        given: dict[str, Any] = {evidence: one}
        found = certify(policy, limits=0.5, largest_step_cost=1, **given)
        assert found.verdict == "abstain"
        assert "how many steps an episode can have at most is not known" in found.sentence
        assert certify(policy, limits=0.5, largest_step_cost=1, horizon=1, **given).verdict == "pass"
        given = {evidence: replace(one, metadata=replace(one.metadata, horizon=1))}
        assert certify(policy, limits=0.5, largest_step_cost=1, **given).verdict == "pass"
    env = "tests.certify.test_probes:_Short"
    assert certify(policy_of_zeros, limits=0.5, largest_step_cost=1, env=env).verdict == "abstain"
    assert certify(policy_of_zeros, limits=0.5, largest_episode_cost=1, env=env).verdict == "pass"


def policy_of_zeros(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), int)


class _Short(Blow):
    """Ends after a step, at no cost, as far as a hundred episodes can tell."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._seen(), 1.0, True, False, {"cost": 0.0}


class _Says(Blow):
    """An environment with a strange word or value."""

    def __init__(self, what: str = "", value: Any = None) -> None:
        super().__init__()
        self.what = what
        if what == "range":
            self.largest_step_cost = value
        if what == "space":
            self.observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))})  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        seen, reward, ended, cut, info = super().step(action)
        return seen, reward, ended, cut, {"cost": np.ones(2)} if self.what == "cost" else info


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("what=cost", "no number"), ("what=space", "does not fit"),
        ('what=range&value="a lot"', "largest_step"),
        ("what=range&value=NaN", "largest_step"), ("what=range&value=-5", "largest_step"),
        ("max_episode_steps=0", "at least 1"), ("max_episode_steps=-1", "at least 1"),
        ("max_episode_steps=1e3", "whole number"),
    ],
)  # fmt: skip
def test_an_environment_that_says_nonsense_is_named(run: Path, query: str, says: str) -> None:
    ten = "" if "max_episode_steps" in query else "&max_episode_steps=10"
    with pytest.raises(InputError, match=says):
        certify(run, None, 3000, env=f"tests.certify.test_probes:_Says?{query}{ten}", episodes=2)


def test_an_infinite_range_of_an_environment_is_none(run: Path) -> None:
    env = "tests.certify.test_probes:_Says?what=range&value=Infinity&max_episode_steps=10"
    assert certify(run, None, 30000, env=env, episodes=2, largest_step_cost=700).verdict == "pass"


@pytest.mark.parametrize("episodes", [1, 2, 3])
def test_one_episode_with_propensities_is_little_evidence_and_no_traceback(episodes: int) -> None:
    few = LOG.subset(np.arange(len(LOG.episodes)) < episodes)
    found = certify_propensities(few, WORLD.target, limits=[0.1], largest_step_cost=1.0)
    assert found.verdict == "abstain"


class _Likely:
    """A policy whose likelihood is any function."""

    def __init__(self, log_probability: Callable[..., Any]) -> None:
        self.log_probability = log_probability

    def act(self, observations: np.ndarray, *, rng: Any, deterministic: bool = False) -> np.ndarray:
        return np.zeros(len(observations), int)

    def begin(self, **options: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("likelihood", "says"),
    [
        (lambda o, a: np.ones(len(o)), "above 1"), (lambda o, a: np.full(len(o), np.nan), "not a number"),
        (lambda o, a: np.full(len(o), np.inf), "infinity"), (lambda o, a: np.zeros((len(o), 2)), "shape"),
        (lambda o, a: None, "shape"),
    ],
)  # fmt: skip
def test_a_likelihood_that_is_none_is_named(likelihood: Callable[..., Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        certify_propensities(LOG, _Likely(likelihood), limits=[2], largest_step_cost=1.0)


@pytest.mark.parametrize("factor", [1e-300, 1e-160, 0.5])
def test_of_propensities_that_are_wrong_no_bound_is_shown(factor: float) -> None:
    """At 1e-160 and below the squares of weights overflowed, and the test of propensities held its peace."""
    assert LOG.propensity is not None
    wrong = replace(LOG, propensity=LOG.propensity * factor)
    only = certify_propensities(wrong, WORLD.target, limits=[0.1], largest_step_cost=1.0).limits[0]
    assert only.verdict == "abstain"
    assert "propensities are wrong" in only.reason
    assert (only.lower, only.upper) == (0.0, 1.0)  # what any policy costs


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"largest_cost": np.inf}, "largest cost"), ({"largest_cost": "1"}, "largest cost"),
        ({"limits": [np.nan]}, "limits"), ({"limits": [np.inf]}, "limits"), ({"limits": [-1.0]}, "limits"),
        ({"cost_names": ["a", "b"]}, "names"), ({"cost_names": []}, "names"),
    ],
)  # fmt: skip
def test_finite_problems_name_what_is_wrong(options: dict[str, Any], says: str) -> None:
    counts, policy, _ = finite("random costs", np.random.default_rng(0), 100)
    with pytest.raises(InputError, match=says):
        certify_counts(counts, policy, **{"limits": [3.0], "largest_cost": 1.0, **options})


@pytest.mark.parametrize("change", [{"limits": []}, {"confidence": "x"}, {"verdict of a limit": "maybe"}])
def test_a_certificate_that_was_tampered_with_is_none(
    run: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    record = _own(run, log_of(np.zeros((30, T)), 8)).as_dict()
    if "verdict of a limit" in change:
        record["limits"][0]["verdict"] = "maybe"
    else:
        record.update(change)
    (tmp_path / "certificate.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="certificate"):
        Certificate.load(tmp_path / "certificate.json")
