"""The estimators of Tier 3 on a world of known truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from slater import InputError
from slater.certify.acting import acting, parts_of
from slater.certify.calibration import Calibration, calibration_gate, read_calibration, shipped_record
from slater.certify.distance import outside_of
from slater.certify.estimators import Estimators
from slater.certify.judge import find_policy
from slater.certify.opinions import certify_candidates, certify_estimates
from slater.certify.pools import mix_policies
from slater.data import Dataset, save
from slater.deep.ope.cloning import CloneSettings
from slater.deep.ope.ensemble import EnsembleSettings, ensemble_values
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.study import StudySettings, study
from slater.deep.task import normalised, state_task
from slater.limits import Limit
from slater.policy import GaussianMixturePolicy, GaussianPolicy, Mixture
from slater.policy import load as load_policy
from slater.policy import save as save_policy

T = 20
LIMIT = Limit.episode(10.0, "cost")
#: one that decides, so that a wrong verdict could show
DECIDES = Calibration(
    confidence=0.95, factor=2.5, lower_factor=2.5, policies=150, tasks=7, gated=90, gated_tasks=6, too_low=1,
    too_high=1, unbounded=0, over=40, false_passes=1, within=50, false_fails=1, pairs=270, passes=100,
    fails=50,
)  # fmt: skip
SETTINGS = StudySettings(
    cohorts=2, ensemble=EnsembleSettings(copies=3, steps=700, hidden=(32, 32), outcome_hidden=(32,)),
    clones=CloneSettings(steps=200, chunk=100, hidden=(16,)),
    in_sample=InSampleSettings(multipliers=(0.0,), steps=1, hidden=(8,)),
)  # fmt: skip


QUICK = replace(SETTINGS, ensemble=replace(SETTINGS.ensemble, steps=300))


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
    """Pushes by tanh(mean) whatever the state."""
    one = np.ones(1, np.float32)
    return GaussianPolicy(
        (np.zeros((1, 2), np.float32),), (np.array([mean, -2.0], np.float32),), 0 * one, one, -one, one,
        (-5.0, 0.0),
    )  # fmt: skip


def _truth(mean: float) -> float:
    rng = np.random.default_rng(9)
    x = rng.uniform(-0.6, -0.2, 4000)
    total = np.zeros(4000)
    for _ in range(T):
        action = np.tanh(mean + np.exp(-2.0) * rng.standard_normal(4000))
        x = _walk(action, x, rng)
        total += x > 0
    return float(total.mean())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The studies that the tests of this file share."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def estimators(cache: Path) -> Estimators:
    """Both estimators of the walk's log."""
    data = _log(60)
    task = state_task(data, (LIMIT,), 0.95)
    return Estimators(data, task, study(data, task, SETTINGS, cache))


def test_both_estimators_see_the_cost_and_decide_nothing_without_a_good_calibration(cache: Path) -> None:
    poor = replace(DECIDES, policies=10)
    found = certify_candidates(
        _log(60), {str(mean): _push(mean) for mean in (-0.3, 0.3)}, limits=[10.0], gamma=0.95,
        settings=SETTINGS, cache=cache, calibration=poor,
    )  # fmt: skip
    answers = []
    for mean, certificate in zip((-0.3, 0.3), found, strict=True):
        limit = certificate.limits[0]
        answers.append({e.estimator: e.estimate for e in limit.evidence})
        assert certificate.verdict == "abstain"
        assert certificate.candidates == 2
        assert {g.name for g in limit.gates} >= {"closed-loop check", "distance from the data", "calibration"}
        assert len(certificate.details["coverage"]["visited"]) > 100
        assert answers[-1]["model ensemble"] == pytest.approx(_truth(mean), abs=2.5)
        assert answers[-1]["fitted Q"] == pytest.approx(_truth(mean), abs=2.5)
    assert answers[1]["fitted Q"] > answers[0]["fitted Q"] + 3
    assert "estimate" in found[0].assumptions[0]


def test_the_careful_policy_passes_and_the_costly_one_does_not(cache: Path) -> None:
    def verdict(mean: float, limit: float) -> str:
        return certify_estimates(
            _log(60), _push(mean), limits=[limit], gamma=0.95, settings=SETTINGS, cache=cache,
            calibration=DECIDES,
        ).verdict  # fmt: skip

    assert verdict(-0.3, 12.0) == "pass"
    assert verdict(0.3, 0.5 * _truth(0.3)) != "pass"


def test_functions_and_mixtures_are_judged_like_networks(estimators: Estimators) -> None:
    def by_hand(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), 1), np.tanh(0.3))

    one, other = estimators.judged([_push(0.3), by_hand])
    for mine, theirs in zip(one.opinions, other.opinions, strict=True):
        assert mine.mean[0] == pytest.approx(theirs.mean[0], abs=1.5)
    mixed = Mixture((_push(-0.3), _push(0.3)), np.array([0.5, 0.5]))
    half, low = estimators.judged([mixed, _push(-0.3)])
    for k in range(2):
        middle = 0.5 * (low.opinions[k].mean[0] + one.opinions[k].mean[0])
        assert half.opinions[k].mean[0] == pytest.approx(middle, abs=0.5)


def test_a_policy_of_several_modes_is_judged_by_what_it_does(estimators: Estimators) -> None:
    """Two components that are the same push are that push; a mixture of such members is a mixture."""
    one = np.ones(1, np.float32)
    bias = np.array([0.0, 0.0, 0.3, -2.0, 0.3, -2.0], np.float32)  # logits, then mean and log std of each
    both = GaussianMixturePolicy(
        (np.zeros((1, 6), np.float32),), (bias,), 0 * one, one, -one, one, (-5.0, 0.0), 2
    )
    plain, modes, mixed = estimators.judged([_push(0.3), both, Mixture((both, both), np.array([0.4, 0.6]))])
    for k, opinion in enumerate(plain.opinions):
        for other in (modes, mixed):
            assert other.opinions[k].mean[0] == pytest.approx(opinion.mean[0], abs=1.5)


def test_an_answer_does_not_depend_on_the_other_candidates(estimators: Estimators) -> None:
    several = [_push(mean) for mean in (-0.3, 0.3, 0.0, 0.1, 0.2, -0.1)]  # more than are done side by side
    together = estimators.judged(several)
    for policy, said in zip(several, together, strict=True):
        (alone,) = estimators.judged([policy])
        for mine, theirs in zip(said.opinions, alone.opinions, strict=True):
            # but for rounding in another order: with one state and one action the features are nearly
            # dependent, and T regressions in single precision make of it up to a fortieth of T
            np.testing.assert_allclose(mine.mean, theirs.mean, atol=T / 40)
        assert said.outside == alone.outside


def test_files_and_named_functions_are_judged_like_networks(
    estimators: Estimators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_controller.py").write_text(
        "import numpy as np\n\ndef push(observations):\n    return np.full((len(observations), 1), 0.291)\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = {"my_controller:push": find_policy("my_controller:push").policy}
    save_policy(_push(0.3), tmp_path / "p.safetensors")
    asked["p.safetensors"] = find_policy(tmp_path / "p.safetensors").policy
    pytest.importorskip("onnxruntime")
    from slater.policy.onnx_file import save_onnx

    save_onnx(_push(0.3), tmp_path / "p.onnx")
    asked["p.onnx"] = find_policy(tmp_path / "p.onnx").policy
    save_onnx(Mixture((_push(0.3), _push(0.3)), np.array([0.5, 0.5])), tmp_path / "m.onnx")
    asked["m.onnx"] = find_policy(tmp_path / "m.onnx").policy
    assert len(parts_of(asked["m.onnx"])) == 2
    (own,) = estimators.judged([_push(0.3)])
    for name, said in zip(asked, estimators.judged(list(asked.values())), strict=True):
        for k, opinion in enumerate(said.opinions):
            assert opinion.mean[0] == pytest.approx(own.opinions[k].mean[0], abs=1.5), name


def test_policy_files_are_pooled_by_bounds_from_one_log(cache: Path, tmp_path: Path) -> None:
    save(_log(60), tmp_path / "log.npz")
    for name, mean in (("careful", -0.3), ("bold", 0.3)):
        save_policy(_push(mean), tmp_path / f"{name}.safetensors")
    places = [tmp_path / f"{name}.safetensors" for name in ("careful", "bold")]
    point = mix_policies(
        places, ["4"], tmp_path / "mixed", data=tmp_path / "log.npz", gamma=0.95, cache=cache,
        settings=SETTINGS,
    )  # fmt: skip
    assert point.costs_high[0] > point.costs[0]  # spreads are known, and the limit is kept by the bound
    assert point.costs_high[0] <= 0.9 * 4 + 1e-6
    mixed = load_policy(tmp_path / "mixed" / "mixture.safetensors")
    assert isinstance(mixed, Mixture)
    with pytest.raises(InputError, match="given twice"):
        mix_policies([places[0], places[0]], ["4"], tmp_path / "x", data=tmp_path / "log.npz", gamma=0.95)


def test_rollouts_step_by_step_are_those_of_the_ensemble(estimators: Estimators) -> None:
    # the study's own clone in JAX, all steps at once, against its export in NumPy between steps
    task, found = estimators.task, estimators.study
    clone = found.policy(0)
    first = normalised(found.initial, task)[np.random.default_rng(0).integers(60, size=400)]
    values = np.asarray(ensemble_values(task, found.ensemble, clone, first, jax.random.key(0)).mean)
    exported, rng = clone.export(task), np.random.default_rng(0)
    for policy in (exported, lambda s: exported.act(s, rng=rng)):  # compiled; step by step
        own, states = estimators.modelled(policy, 0)
        sums = own.mean(axis=(0, 1))
        said = sums[:-1] * task.scale / (T * (1 - 0.95))
        np.testing.assert_allclose(said, values.mean(axis=0)[:-1], atol=0.6)
        assert sums[-1] == pytest.approx(T)
        assert states.shape == (T * own.shape[1], 1)


def _noisy() -> tuple[Dataset, Callable[[float], float]]:
    """Costs that no state foretells: a coin of .3 in every step."""
    data = _log(60)
    costs = (np.random.default_rng(5).random(data.costs.shape) < 0.3).astype(np.float32)
    return replace(data, costs=costs), lambda mean: 0.3 * T


@pytest.fixture(params=["made up", "shipped"])
def deciding(request: pytest.FixtureRequest) -> Calibration:
    """A calibration under which the estimates decide: one with small factors, and the package's own."""
    if request.param == "made up":
        return DECIDES
    record = shipped_record()
    assert record is not None
    found = read_calibration(record, 0.9, imitates=True)
    assert found is not None
    assert calibration_gate(found, 0.1).passed
    return found


def test_where_nothing_is_wrong_the_estimates_decide(cache: Path, deciding: Calibration) -> None:
    """The other tests of this calibration say nothing unless it can pass and fail a policy at all."""
    verdicts = [
        certify_estimates(
            _log(60), _push(mean), limits=[limit], gamma=0.95, settings=SETTINGS, cache=cache,
            calibration=deciding, confidence=0.9,
        ).verdict
        for mean, limit in ((-0.3, 18.0), (0.3, 0.45 * _truth(0.3)))
    ]  # fmt: skip
    assert verdicts[0] == "pass"
    assert verdicts[1] in (("fail",) if deciding is DECIDES else ("fail", "abstain"))


def test_costs_that_are_noise_are_abstained_on_or_right(cache: Path, deciding: Calibration) -> None:
    data, truth = _noisy()
    for limit in (0.6 * truth(0.0), 1.6 * truth(0.0)):
        found = certify_estimates(
            data, _push(0.0), limits=[limit], gamma=0.95, settings=QUICK, cache=cache, calibration=deciding,
            confidence=0.9,
        )  # fmt: skip
        wrong = "pass" if limit < truth(0.0) else "fail"
        assert found.verdict != wrong


def test_a_policy_far_from_the_data_abstains_and_says_why(cache: Path, deciding: Calibration) -> None:
    # always the hardest push: states that hardly an episode of the log has seen
    far = certify_estimates(
        _log(60), _push(3.0), limits=[10.0], gamma=0.95, settings=SETTINGS, cache=cache, calibration=deciding,
        confidence=0.9,
    )  # fmt: skip
    gates = {g.name: g for g in far.limits[0].gates}
    assert far.verdict == "abstain"
    assert not gates["distance from the data"].passed


def test_a_region_that_the_log_has_not_seen_is_not_taken_to_be_safe(
    cache: Path, deciding: Calibration
) -> None:
    # episodes that stay where nothing costs; the policy goes where every step does
    log = _log(120)
    safe = log.subset(np.flatnonzero(log.episodes.costs[:, 0] == 0))
    assert len(safe.episodes) > 30
    found = certify_estimates(
        safe, _push(0.6), limits=[3.0], gamma=0.95, settings=QUICK, cache=cache, calibration=deciding,
        confidence=0.9,
    )  # fmt: skip
    assert _truth(0.6) > 6.0
    assert found.verdict != "pass"


def test_ten_episodes_abstain_and_say_so(deciding: Calibration) -> None:
    few = certify_estimates(_log(10), _push(0.3), limits=[10.0], settings=SETTINGS, calibration=deciding)
    assert few.verdict == "abstain"
    assert "10 complete episodes are too few" in few.limits[0].reason


def test_a_wrong_horizon_leaves_no_complete_episode_and_abstains(deciding: Calibration) -> None:
    data = _log(60)
    longer = replace(data, metadata=replace(data.metadata, horizon=2 * T))
    found = certify_estimates(longer, _push(-0.3), limits=[10.0], settings=SETTINGS, calibration=deciding)
    assert found.verdict == "abstain"
    assert "complete episodes are too few" in found.limits[0].reason
    # one that is too short is refused with the data
    with pytest.raises(InputError, match="longer than the stated horizon of 10"):
        Dataset.from_arrays(
            observations=data.observations, actions=data.actions, rewards=data.rewards, costs=data.costs,
            terminals=data.terminals, timeouts=data.timeouts, metadata=replace(data.metadata, horizon=T // 2),
        )  # fmt: skip


def test_estimators_of_other_settings_are_not_those_that_were_calibrated(cache: Path) -> None:
    found = certify_estimates(
        _log(60), _push(-0.3), limits=[18.0], gamma=0.95, settings=SETTINGS, cache=cache, confidence=0.9,
        imitates=True,
    )  # fmt: skip
    assert found.verdict == "abstain"
    assert "calibrat" in found.limits[0].reason


def test_states_far_from_the_log_are_counted() -> None:
    rng = np.random.default_rng(0)
    outside = outside_of(rng.standard_normal((4000, 3)))
    assert outside(rng.standard_normal((2000, 3))) < 0.05
    assert outside(rng.normal((6.0, 0.0, 0.0), 1.0, (2000, 3))) > 0.9


def test_policies_that_cannot_be_rolled_out_get_one_sentence() -> None:
    task = state_task(_log(4), (LIMIT,), 0.95)
    rng = np.random.default_rng(0)
    wide = GaussianPolicy(
        (np.zeros((2, 2), np.float32),), (np.zeros(2, np.float32),), np.zeros(2, np.float32),
        np.ones(2, np.float32), -np.ones(1, np.float32), np.ones(1, np.float32), (-5.0, 0.0),
    )  # fmt: skip
    with pytest.raises(InputError, match="2 entries, but the data have 1"):
        acting(wide, task, rng)
    with pytest.raises(InputError, match=r"actions of shape \(7, 3\)"):
        acting(lambda s: np.zeros((len(s), 3)), task, rng)(np.zeros((7, 1)))
    with pytest.raises(InputError, match="not a number"):
        acting(lambda s: np.full((len(s), 1), np.nan), task, rng)(np.zeros((7, 1)))
