"""Verdicts from the log alone: one number with the run's, gates, and bounds by a calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slater import InputError
from slater.certify import estimates
from slater.certify.conformal import Calibration
from slater.certify.estimates import FEWEST_EPISODES, NOT_FITTED, asked, certify_candidates
from slater.certify.pools import mix_policies
from slater.certify.verdict import Certificate
from slater.data import Dataset, save
from slater.deep.log_model.log_model import settings_of
from slater.policy import GaussianPolicy, Mixture
from slater.policy import load as load_policy
from slater.policy import save as save_policy

T = 20
SETTINGS = settings_of(steps=300, hidden=(16, 16))
#: sixty tasks with scores of 0 to 2 deviations
DECIDES = Calibration.of_tasks(
    [{kind: [x, x, 10] for kind in ("clone", "played", "mixture")} for x in np.linspace(0, 2, 60)],
    {},
    "made up",
)


def _walk(action: np.ndarray, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.clip(x + 0.2 * action + 0.05 * rng.standard_normal(len(x)), -1.5, 1.5)


def _log(episodes: int, seed: int = 0) -> Dataset:
    """A walk on a line: actions push, being beyond 0 costs 1; pushes differ between episodes."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.6, -0.2, episodes)
    aim = np.where(np.arange(episodes) % 2, 0.3, -0.3)
    parts = []
    for _ in range(T):
        action = np.clip(aim + 0.4 * rng.standard_normal(episodes), -1, 1)
        following = _walk(action, x, rng)
        parts.append((x, action, (following > 0).astype(float), following))
        x = following
    s, a, c, f = (np.stack([p[i] for p in parts], axis=1).ravel() for i in range(4))
    ends = np.tile(np.arange(T) == T - 1, episodes)
    return Dataset.from_arrays(
        observations=s[:, None], actions=a[:, None], rewards=np.ones(len(s)), costs=c[:, None],
        terminals=np.zeros(len(s), bool), timeouts=ends, next_observations=f[:, None],
        source=np.where(np.arange(episodes) % 2, "bold", "careful"),
    )  # fmt: skip


def _push(mean: float) -> GaussianPolicy:
    """Pushes by tanh(mean), more or less, whatever the state."""
    one = np.ones(1, np.float32)
    return GaussianPolicy(
        (np.zeros((1, 2), np.float32),), (np.array([mean, -1.0], np.float32),), 0 * one, one, -one, one,
        (-5.0, 0.0),
    )  # fmt: skip


def _truth(mean: float) -> float:
    rng = np.random.default_rng(9)
    x = rng.uniform(-0.6, -0.2, 4000)
    total = np.zeros(4000)
    for _ in range(T):
        x = _walk(np.tanh(mean + np.exp(-1.0) * rng.standard_normal(4000)), x, rng)
        total += x > 0
    return float(total.mean())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fitted log that the tests of this file share."""
    return tmp_path_factory.mktemp("logs")


def _certified(cache: Path, policy: object, limit: float, **options: object) -> Certificate:
    options = {
        "settings": SETTINGS,
        "calibration": DECIDES,
        "confidence": 0.9,
        "kinds": {"p": "clone"},
    } | options
    return certify_candidates(
        _log(80), {"p": policy}, limits=[limit], gamma=0.95, cache=cache, **options
    )[0]  # fmt: skip


def test_a_careful_policy_passes_a_costly_one_fails_and_between_is_open(cache: Path) -> None:
    truth = {mean: _truth(mean) for mean in (-0.3, 0.3)}
    assert truth[-0.3] < 1 < 8 < truth[0.3]
    found = _certified(cache, _push(-0.3), 8.0)
    assert found.verdict == "pass"
    limit = found.limits[0]
    assert limit.lower <= limit.estimate <= limit.upper <= 8.0
    assert limit.estimate == pytest.approx(truth[-0.3], abs=2.0)
    assert "if this task is like the 60 on which such estimates were tried" in found.sentence
    assert "an estimate" in found.sentence
    # a run's own interval is drawn beside it
    assert limit.evidence[0].estimate == limit.estimate
    failed = _certified(cache, _push(0.3), 0.2 * truth[0.3])
    assert failed.verdict == "fail"
    assert failed.limits[0].estimate == pytest.approx(truth[0.3], abs=3.0)
    at_it = _certified(cache, _push(0.3), failed.limits[0].estimate * 1.001)
    assert at_it.verdict == "abstain"
    assert "by this evidence it may be anything from" in at_it.sentence
    # and the most that an episode can cost bounds what is said
    assert _certified(cache, _push(0.3), 25.0, largest_step_cost=1.0).limits[0].upper <= T


def test_bounds_widen_with_confidence_and_one_policy_has_one_estimate(cache: Path) -> None:
    found = [_certified(cache, _push(0.0), 10.0, confidence=c).limits[0] for c in (0.6, 0.8, 0.95)]
    assert len({limit.estimate for limit in found}) == 1
    assert found[0].upper < found[1].upper < found[2].upper
    assert found[0].lower >= found[1].lower >= found[2].lower
    # what is said of a policy does not depend on the other candidates, nor on their order
    several = {str(mean): _push(mean) for mean in (0.3, 0.0, -0.3)}
    said = asked(_log(80), list(several.values()), [10.0], 0.95, SETTINGS, cache)
    assert said.mean[1, 1] == pytest.approx(found[0].estimate, rel=0.1, abs=0.3)


def test_a_mixture_has_the_means_of_its_members_and_at_most_their_spread(cache: Path) -> None:
    one, other = _push(-0.3), _push(0.3)
    mixed = Mixture((one, other), np.array([0.25, 0.75]))
    said = asked(_log(80), [one, other, mixed], [10.0], 0.95, SETTINGS, cache)
    np.testing.assert_allclose(said.mean[2], 0.25 * said.mean[0] + 0.75 * said.mean[1], rtol=0.1, atol=0.3)
    assert np.all(said.deviation[2] <= 1.1 * (0.25 * said.deviation[0] + 0.75 * said.deviation[1]) + 0.05)


def test_too_few_tasks_abstain_with_an_estimate_and_without_bounds(cache: Path) -> None:
    found = _certified(cache, _push(-0.3), 8.0, confidence=0.99)
    assert found.verdict == "abstain"
    assert "needs 99 tasks of known truth" in found.limits[0].reason
    assert np.isfinite(found.limits[0].estimate)
    assert np.isnan(found.limits[0].upper)
    # candidates beyond those that a task of the bank has share the error
    assert _certified(cache, _push(-0.3), 8.0, candidates=10).verdict == "pass"
    assert "needs 99" in _certified(cache, _push(-0.3), 8.0, candidates=100).limits[0].reason


def test_a_log_of_other_settings_is_not_what_was_tried(cache: Path) -> None:
    found = _certified(cache, _push(-0.3), 8.0, calibration=None)
    assert found.verdict == "abstain"
    assert "never compared with a truth" in found.limits[0].reason


def test_where_nothing_says_how_a_policy_was_made_it_was_searched_for(cache: Path) -> None:
    found = _certified(cache, _push(-0.3), 8.0, kinds={})
    assert found.details["class"] == "played"
    assert any("nothing says how the policy was made" in line for line in found.assumptions)


def test_few_episodes_names_of_states_and_no_fit_close_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates.logs, "fit_log_model", lambda *_: 1 / 0)
    options = {"limits": [10.0], "calibration": DECIDES, "confidence": 0.9}
    few = certify_candidates(_log(10), {"p": _push(0.3)}, **options)[0]
    assert few.verdict == "abstain"
    assert few.limits[0].reason == f"10 complete episodes; {FEWEST_EPISODES} are needed."
    data = _log(60)
    longer = replace(data, metadata=replace(data.metadata, horizon=2 * T))
    assert "0 complete episodes" in certify_candidates(longer, {"p": _push(0.3)}, **options)[0].sentence
    one_hot = np.eye(2, dtype=np.float32)[np.zeros(len(data), int)]
    names = replace(data, observations=one_hot, next_observations=one_hot)
    assert "one-hot" in certify_candidates(names, {"p": _push(0.3)}, **options)[0].sentence
    quick = certify_candidates(data, {"p": _push(0.3)}, fit=False, **options)[0]
    assert [gate.name for gate in quick.limits[0].gates if not gate.passed] == [NOT_FITTED]


def test_what_the_observation_hides_closes_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "asked", lambda *a: asked(*a)._replace(past=("cost",)))
    found = _certified(cache, _push(-0.3), 8.0)
    assert found.verdict == "abstain"
    assert "says more of cost than the observation does" in found.sentence


def test_a_policy_that_is_no_network_is_refused_in_a_sentence(cache: Path) -> None:
    with pytest.raises(InputError, match="run it in a simulator"):
        _certified(cache, lambda s: np.zeros((len(s), 1)), 8.0)


def test_policy_files_are_mixed_by_the_joint_bound_of_one_log(cache: Path, tmp_path: Path) -> None:
    save(_log(80), tmp_path / "log.npz")
    for name, mean in (("careful", -0.3), ("bold", 0.3)):
        save_policy(_push(mean), tmp_path / f"{name}.safetensors")
    places = [tmp_path / f"{name}.safetensors" for name in ("careful", "bold")]
    options = {"data": tmp_path / "log.npz", "gamma": 0.95}
    point = mix_policies(places, ["6"], tmp_path / "mixed", cache=cache, settings=SETTINGS, **options)
    assert point.costs_high[0] > point.costs[0]  # spreads are known, and the limit is kept by the bound
    assert point.costs_high[0] <= 0.9 * 6 * 1.01
    assert isinstance(load_policy(tmp_path / "mixed" / "mixture.safetensors"), Mixture)
    with pytest.raises(InputError, match="given twice"):
        mix_policies([places[0], places[0]], ["6"], tmp_path / "x", **options)
