"""Ways in which an unsafe policy once passed: each is refused or abstained on, with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import slater
from slater.cli import main
from slater.data import Metadata, load, save

from .worlds import BLOW, T, blow_log, log_of, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("faults"))


def _certify(*args: object) -> int:
    return main(["certify", *map(str, args)])


def _own(place: Path, rate: float, episodes: int = 200, seed: int = 5, steps: int = T) -> Path:
    """Episodes that cost 1 with probability `rate` in every step, of `steps` steps."""
    costs = (np.random.default_rng(seed).random((episodes, steps)) < rate).astype(float)
    save(log_of(costs, seed, metadata=Metadata(num_actions=2)), place / "own.npz")
    return place / "own.npz"


def test_a_rare_large_cost_that_the_log_has_does_not_pass(run: Path, tmp_path: Path) -> None:
    """The true mean is 8, the limit 3. A cost of at most 1 a step, once assumed, passed half of the seeds."""
    options = ["--env", BLOW, "--episodes", 60, "--out", tmp_path]
    codes = [_certify(run, *options, "--seed", seed) for seed in range(8)]
    assert 0 not in codes


def test_a_draw_outside_the_range_names_cost_step_and_remedy_and_decides_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "mixture.safetensors", tmp_path / "m.safetensors")
    env = "tests.certify.worlds:Blow?chance=0.1&large=900&max_episode_steps=10"
    assert _certify(tmp_path / "m.safetensors", "--env", env, "--episodes", 60) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("900", "600", "step 0", "largest"))


@pytest.mark.parametrize("evidence", ["--own", "--env", "--data"])
def test_a_stated_range_below_what_is_known_is_refused_on_every_tier(
    run: Path, tmp_path: Path, evidence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(blow_log(60, seed=9), tmp_path / "other.npz")
    where = BLOW if evidence == "--env" else tmp_path / "other.npz"
    assert _certify(run, evidence, where, "--largest-step-cost", 1, "--out", tmp_path) == 2
    assert "600" in capsys.readouterr().err


def test_ranges_are_given_by_the_name_of_the_cost(run: Path, tmp_path: Path) -> None:
    own = _own(tmp_path, 0.01)
    options = ["--own", own, "--limit", 5, "--out", tmp_path]
    assert _certify(run, *options, "--largest-step-cost", "cost=700") == 4
    assert _certify(run, *options, "--largest-step-cost", "speed=700") == 2


def test_pieces_of_cut_episodes_are_no_episodes(run: Path, tmp_path: Path) -> None:
    """Three steps of ten, .57 a step: 5.7 an episode, and the limit is 3."""
    shutil.copy(run / "mixture.safetensors", tmp_path / "m.safetensors")
    pieces = _own(tmp_path, 0.57, episodes=4000, steps=3)
    for policy, horizon in ((run, []), (tmp_path / "m.safetensors", []), (run, ["--horizon", T])):
        options = ["--own", pieces, "--limit", 3, "--out", tmp_path]
        assert _certify(policy, *options, *horizon) != 0


def test_a_file_is_judged_by_its_own_contract(run: Path, tmp_path: Path) -> None:
    """Limits, discount, horizon and what trained it are the same for a run and for a copy of its file."""
    shutil.copy(run / "mixture.safetensors", tmp_path / "m.safetensors")
    own = _own(tmp_path, 0.01)
    records = []
    for number, policy in enumerate((run, tmp_path / "m.safetensors")):
        out = tmp_path / str(number)
        assert _certify(policy, "--own", own, "--limit", "40/discounted", "--out", out) in (0, 1, 4)
        records.append(json.loads((out / "certificate.json").read_text()))
    assert records[0]["limits"] == records[1]["limits"]
    found = slater.certify(tmp_path / "m.safetensors", run.parent / "log.npz", fit=False)
    assert found.verdict == "abstain"
    assert any("trained the policy" in line for line in found.assumptions)


def test_the_training_log_is_not_the_policys_own(run: Path, tmp_path: Path) -> None:
    log = load(run.parent / "log.npz")
    save(log.subset(np.arange(1, 100)), tmp_path / "less.npz")
    for own in (run.parent / "log.npz", tmp_path / "less.npz"):
        assert _certify(run, "--own", own, "--limit", 5000, "--out", tmp_path) in (2, 4)


def test_training_data_less_an_episode_are_no_other_log(run: Path, tmp_path: Path) -> None:
    log = load(run.parent / "log.npz")
    save(log.subset(np.arange(1, 100)), tmp_path / "less.npz")
    found = slater.certify(run, tmp_path / "less.npz", limits=[5000], fit=False)
    assert found.verdict == "abstain"
    assert any("trained the policy" in line for line in found.assumptions)


def test_episodes_of_other_actions_are_not_the_policys_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 60 * T
    actions = np.random.default_rng(0).uniform(-1, 1, (size, 1))
    save(log_of(np.zeros((60, T)), 3, actions=actions, metadata=Metadata()), tmp_path / "own.npz")
    assert _certify(run, "--own", tmp_path / "own.npz", "--limit", 5000, "--out", tmp_path) == 2
    assert "discrete" in capsys.readouterr().err


def test_copies_of_episodes_count_once_or_not_at_all(run: Path, tmp_path: Path) -> None:
    four = log_of(np.zeros((4, T)), 4)
    rows = {name: np.concatenate([a] * 60) for name, a in four.rows().items()}
    del rows["next_known"]
    many = type(four).from_arrays(**rows, metadata=four.metadata)
    save(many, tmp_path / "own.npz")
    options = ["--own", tmp_path / "own.npz", "--limit", 3000, "--out", tmp_path]
    assert _certify(run, *options) == 4
    assert "copies" in json.loads((tmp_path / "certificate.json").read_text())["sentence"]


def test_one_file_of_own_episodes_is_of_one_policy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "policy.safetensors", tmp_path / "p.safetensors")
    own = _own(tmp_path, 0.0)
    assert _certify(run, tmp_path / "p.safetensors", "--own", own, "--limit", 3000, "--out", tmp_path) == 2
    assert "one policy" in capsys.readouterr().err


def test_stated_candidates_count(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "policy.safetensors", tmp_path / "p.safetensors")
    save(blow_log(60, seed=9), tmp_path / "other.npz")
    options = ["--data", tmp_path / "other.npz", "--candidates", 20, "--json"]
    assert _certify(run, tmp_path / "p.safetensors", *options, "--out", tmp_path / "out") == 4
    assert [one["candidates"] for one in json.loads(capsys.readouterr().out)] == [20, 20]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--candidates", "-5"], "candidates"),
        (["--candidates", "0"], "candidates"),
        (["--horizon", "0"], "horizon"),
        (["--horizon", "-3"], "horizon"),
        (["--seed", "3"], "--seed"),
        (["--episodes", "7"], "--episodes"),
        (["--deterministic"], "--deterministic"),
        (["--workers", "2"], "--workers"),
        (["--at-most", "50"], "--at-most"),
        (["--data", "x.npz"], "--data"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    run: Path, tmp_path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _certify(run, "--own", _own(tmp_path, 0.0), "--out", tmp_path, *options) == 2
    assert says in capsys.readouterr().err


def test_a_policy_of_other_actions_than_the_logs_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = np.random.default_rng(0).integers(0, 5, 60 * T)
    wide = {"actions": actions, "metadata": Metadata(horizon=T)}
    for name, fields in (("plain", {}), ("likely", {"propensity": np.full(60 * T, 0.2)})):
        save(log_of(np.zeros((60, T)), 3, **wide, **fields), tmp_path / f"{name}.npz")
        assert _certify(run, "--data", tmp_path / f"{name}.npz", "--limit", 3, "--out", tmp_path) == 2
        assert "5 actions" in capsys.readouterr().err


def test_an_environment_that_is_no_module_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _certify(run, "--env", "../x:y", "--out", tmp_path) == 2
    assert "../x" in capsys.readouterr().err


def test_mix_converts_discounted_limits_by_the_discount_of_the_runs(tmp_path: Path) -> None:
    from slater.certify.pools import episode_thresholds
    from slater.runs import open_run

    run = trained(tmp_path, limit="2/discounted", gamma=0.9)
    task = open_run(run).task
    expected = [limit.episode for limit in task.limits]
    files = [str(run), str(run / "mixture.safetensors")]
    for place in files:
        assert episode_thresholds([place], ["2/discounted"], load(tmp_path / "log.npz")) == expected
