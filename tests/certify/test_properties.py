"""One policy, one verdict; every option acts or is refused; defaults are right as often as they say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from slater.certify import estimates
from slater.certify.bounds import share_lower
from slater.certify.conformal import CLASSES, Calibration
from slater.certify.ledger import enter, ledger_path
from slater.cli import main
from slater.data import Metadata, load, save
from slater.deep.log_model.log_model import settings_of
from slater.runs.held_out import hold_out
from slater.tuning.search import split_episodes

from .coverage import CASES, KINDS, Case, trained_both
from .worlds import BLOW, T, blow_log, log_of, trained

FULL = bool(os.environ.get("SLATER_FULL"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("properties"), hold_out=0.4, episodes=250)


@pytest.fixture(scope="module")
def evidence(run: Path) -> dict[str, list[str]]:
    """The options that give each kind of evidence."""
    costs = (np.random.default_rng(0).random((60, T)) < 0.1).astype(float)
    save(log_of(costs, 8, metadata=Metadata(num_actions=2)), run.parent / "own.npz")
    log = str(run.parent / "log.npz")
    # the same without propensities: the log's model is asked
    bare = replace(load(log), propensity=None)
    save(bare, run.parent / "bare.npz")
    return {
        "own": ["--own", str(run.parent / "own.npz")],
        "env": ["--env", BLOW, "--episodes", "25"],
        "data": ["--data", log],
        "log": ["--data", str(run.parent / "bare.npz")],
    }


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A log's model that is fitted quickly, and sixty tasks by which its word counts."""
    scores = [{kind: [x, x, 10] for kind in CLASSES} for x in np.linspace(0, 2, 60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLATER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(estimates.logs, "settings_of", lambda data=None: settings_of(steps=60, hidden=(8, 8)))
        patch.setattr(
            estimates.conformal,
            "shipped_calibration",
            lambda made: Calibration.of_tasks(scores, {}, "made up"),
        )
        yield


def _certificate(out: Path, *args: object) -> dict[str, Any] | None:
    """What `slater certify` wrote, without names and places; None where it was refused."""
    shutil.rmtree(out, ignore_errors=True)
    code = main(["certify", *map(str, args), "--out", str(out)])
    if code == 2:
        return None
    found = json.loads((out / "certificate.json").read_text())
    return {name: value for name, value in found.items() if name not in ("policy", "digest")}


@settings(
    max_examples=60 if FULL else 9, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    kind=st.sampled_from(["own", "env", "data", "log"]),
    limit=st.sampled_from([[], ["300/discounted"], ["2/step"], ["cost=40"]]),
    confidence=st.sampled_from([[], ["0.5"], ["0.9"], ["0.999"]]),
    most=st.sampled_from([[], ["900"], ["cost=700"]]),
    candidates=st.sampled_from([[], ["3"]]),
)
def test_one_policy_one_verdict(
    run: Path, evidence: dict[str, list[str]], tmp_path: Path, kind: str, **options: list[str]
) -> None:
    """A run, its mixture, the policy it kept and a copy elsewhere get the same certificate."""
    (kept,) = (run / "policies").iterdir()
    copy = shutil.copy(run / "mixture.safetensors", tmp_path / "copy.safetensors")
    places = [run, run / "mixture.safetensors", kept, copy]
    names = {"most": "--largest-step-cost"}
    words = [word for name, given in options.items() for word in
             ([names.get(name, f"--{name}"), *given] if given else [])]  # fmt: skip
    found = [_certificate(tmp_path / "out", place, *evidence[kind], *words) for place in places]
    assert found[0] is not None
    tiers = {"own": "rollouts", "env": "rollouts", "data": "propensities", "log": "estimates"}
    assert found[0]["limits"][0]["tier"] == tiers[kind]
    assert all(one == found[0] for one in found)


def test_an_export_gets_the_verdict_too(run: Path, evidence: dict[str, list[str]], tmp_path: Path) -> None:
    assert main(["export", str(run), "--onnx", str(tmp_path / "p.onnx")]) == 0
    found = [_certificate(tmp_path / "out", place, *evidence["own"]) for place in (run, tmp_path / "p.onnx")]
    assert found[0] is not None
    assert found[0] == found[1]


OPTIONS = {
    "--limit": ["41"],
    "--confidence": ["0.8"],
    "--candidates": ["5"],
    "--largest-step-cost": ["900"],
    "--largest-episode-cost": ["700"],
    "--largest-weight": ["2.5"],
    "--horizon": ["12"],
    "--episodes": ["30"],
    "--seed": ["1"],
    "--deterministic": [],
    "--until-decided": [],
    "--at-most": ["20"],
    "--plan": [],
    "--data": ["LOG"],
    "--own": ["OWN"],
    "--env": [BLOW],
}


@pytest.mark.parametrize("kind", ["own", "env", "data", "log"])
def test_every_option_acts_or_is_refused(
    run: Path, evidence: dict[str, list[str]], tmp_path: Path, kind: str
) -> None:
    """`--workers` changes nothing but the time."""
    own = [word for word in evidence[kind] if word not in ("--episodes", "25")]
    base = _certificate(tmp_path / "base", run, *own)
    assert base is not None
    acted = []
    for option, values in OPTIONS.items():
        if option in own:
            continue
        words = [{"LOG": evidence["data"][1], "OWN": evidence["own"][1]}.get(v, v) for v in values]
        found = _certificate(tmp_path / "other", run, *own, option, *words)
        assert found is None or found != base, f"{option} is ignored beside {own[0]}"
        acted += [option] * (found is not None)
    assert {"--limit", "--confidence", "--candidates", "--largest-step-cost", "--horizon"} <= set(acted)


@settings(
    max_examples=200 if FULL else 15, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    kind=st.sampled_from(["own", "env", "data"]),
    beside=st.lists(st.sampled_from(sorted(OPTIONS)), max_size=2, unique=True),
    option=st.sampled_from(sorted(OPTIONS)),
)
def test_beside_other_options_too(
    run: Path, evidence: dict[str, list[str]], tmp_path: Path, kind: str, beside: list[str], option: str
) -> None:
    """Whatever else is given: an option changes the certificate, or the line is refused."""
    own = [word for word in evidence[kind] if word not in ("--episodes", "25")]

    def words(options: list[str]) -> list[str]:
        values = {"LOG": evidence["data"][1], "OWN": evidence["own"][1]}
        return own + [values.get(w, w) for one in options for w in [one, *OPTIONS[one]]]

    assume(option not in [*beside, *own] and not set(beside) & set(own))
    base = _certificate(tmp_path / "base", run, *words(beside))
    assume(base is not None)
    found = _certificate(tmp_path / "other", run, *words([*beside, option]))
    assert found is None or found != base, f"{option} is ignored beside {kind} and {beside}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return trained_both(tmp_path_factory.mktemp("coverage"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}, {case.large:g}")
def test_defaults_pass_wrongly_at_most_as_often_as_they_say(
    both: dict[bool, Path], tmp_path: Path, case: Case
) -> None:
    """The true mean is above the limit, so that every pass is wrong; 95% is the default."""
    repeats = 400 if FULL else 4
    passes = sum(case.code(both, seed, tmp_path) == 0 for seed in range(repeats))
    assert share_lower(passes, repeats, 0.025) <= 0.05


def test_in_worlds_that_are_drawn_too(both: dict[bool, Path], tmp_path: Path) -> None:
    passes = []

    @settings(
        max_examples=400 if FULL else 20, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(
        kind=st.sampled_from(KINDS), large=st.sampled_from([1.0, 60.0, 600.0]),
        chance=st.floats(0.005, 0.5), rate=st.floats(0.05, 0.8), seed=st.integers(0, 10**6),
    )  # fmt: skip
    def judged(kind: str, large: float, chance: float, rate: float, seed: int) -> None:
        passes.append(Case(kind, chance, large, rate).code(both, seed, tmp_path) == 0)

    judged()
    assert share_lower(sum(passes), len(passes), 0.025) <= 0.05


def test_the_defaults_can_pass_at_all(both: dict[bool, Path], tmp_path: Path) -> None:
    """Else the rates above say nothing."""
    for kind in ("environment", "own episodes", "propensities"):
        words = Case(kind, 0.1, 1.0, 0.1).words(0, tmp_path)
        words[-1] = 2.0
        assert main(["certify", str(both[False]), *map(str, words), "--out", str(tmp_path / "out")]) == 0


def test_certificates_on_one_log_share_the_error(run: Path, tmp_path: Path) -> None:
    """The k-th other policy gets less; the same policy, and candidates said to be together, do not."""
    log = tmp_path / "log.npz"
    save(load(run.parent / "log.npz"), log)
    first = enter(log, "f", ["a"], 1)
    assert enter(log, "f", ["a"], 1) == first
    second = enter(log, "f", ["b"], 1)
    assert second.share < first.share / 3
    assert enter(log, "f", ["c"], 3).number == enter(log, "f", ["d"], 3).number == 3
    assert enter(log, "another log", ["e"], 1).number == 1
    assert sum(6 / (np.pi * k) ** 2 for k in range(1, 10_000)) <= 1.0
    ledger_path(log).unlink()
    options = ["--data", log, "--limit", 40]
    uppers = []
    for policy in (run, run / "mixture.safetensors", _other(run, tmp_path)):
        found = _certificate(tmp_path / "out", policy, *options)
        assert found is not None
        uppers.append(found["limits"][0]["upper"])
        assert any("on this log" in line for line in found["assumptions"])
    assert uppers[0] == uppers[1]
    assert len(json.loads(ledger_path(log).read_text())["logs"].popitem()[1]) == 2


def _other(run: Path, place: Path) -> Path:
    """Another policy of the same origin."""
    from slater.policy import load as load_policy
    from slater.policy import save as save_policy

    member = load_policy(run / "mixture.safetensors").members[0]  # type: ignore[union-attr]
    shifted = replace(member, biases=(*member.biases[:-1], member.biases[-1] + np.float32([0.5, 0.0])))  # type: ignore[union-attr, call-arg]
    save_policy(shifted, place / "other.safetensors")
    return place / "other.safetensors"


def test_what_chose_settings_does_not_certify() -> None:
    data = blow_log(100)
    kept = set(hold_out(data, 0.4, seed=0)[1].episodes)
    for seed in range(3):
        judging = split_episodes(data, 0.2, seed)[1]
        first = {row.tobytes() for row in judging.initial_observations}
        numbers = {e for e, row in enumerate(data.initial_observations) if row.tobytes() in first}
        assert len(numbers) == 20
        assert not numbers & kept
