"""`slater certify`, `frontier` and `mix` from the command line: exit codes, files, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import slater
from slater import InputError
from slater.certify.verdict import Certificate
from slater.cli import main
from slater.data import Dataset, Metadata, save
from slater.disk import digest_of
from slater.policy import CategoricalPolicy
from slater.policy import save as save_policy
from slater.runs.held_out import hold_out

T = 10


def _policy(logit: float = 0.0) -> CategoricalPolicy:
    """Takes action 1 with probability 1 / (1 + exp(-logit)), whatever it sees."""
    one = np.ones(1, np.float32)
    return CategoricalPolicy(
        (np.zeros((1, 2), np.float32),), (np.array([0.0, logit], np.float32),), 0 * one, one
    )


def _wide(logit: float = 0.0) -> CategoricalPolicy:
    """As `_policy`, for observations of two entries."""
    two = np.ones(2, np.float32)
    layers = (np.zeros((2, 2), np.float32),), (np.array([0.0, logit], np.float32),)
    return CategoricalPolicy(*layers, 0 * two, two)


def _data(rate: float, episodes: int = 120, seed: int = 0, *, propensity: bool = False) -> Dataset:
    """Action 1 costs 1; it is taken with probability `rate`."""
    rng = np.random.default_rng(seed)
    size = episodes * T
    action = (rng.random(size) < rate).astype(np.int32)
    return Dataset.from_arrays(
        observations=rng.standard_normal((size, 1)), actions=action, rewards=np.ones(size),
        costs=action[:, None].astype(float), terminals=np.zeros(size, bool),
        timeouts=np.arange(size) % T == T - 1, next_observations=np.zeros((size, 1)),
        propensity=np.where(action == 1, rate, 1 - rate) if propensity else None,
        metadata=Metadata(horizon=T),
    )  # fmt: skip


def _run(folder: Path, data: str = "nowhere.npz", fingerprint: str = "", *, estimates: bool = True) -> Path:
    """The folder of a finished run with three kept policies, as `slater train` leaves it."""
    folder.mkdir()
    limit = {
        "cost": "cost",
        "given": "cost=3",
        "episode": 3.0,
        "discounted": 30.0,
        "step": 0.3,
        "normalised": 0.3,
    }
    run = {"algorithm": "pdca", "limits": ["cost=3"], "seed": 0, "data": data, "fingerprint": fingerprint}
    task = {
        "obs_dim": 1, "action_dim": 2, "discrete": True, "costs": ["cost"], "gamma": 0.99, "horizon": T,
        "limits": [limit], "scale": [1.0, 1.0], "action_low": [-1.0], "action_high": [1.0],
        "identity": "cd",
    }  # fmt: skip
    (folder / "run.json").write_text(
        json.dumps(
            {
                "version": "0.1.0",
                "versions": {},
                "run": run,
                "config": {"steps": 3},
                "problem": task,
                "env_id": None,
            }
        )
    )
    # discounted sums: 100 is 10 per episode of 10 steps
    values = [(20.0, 0.0), (60.0, 30.0), (90.0, 80.0)]
    members = [
        {"step": k, "kind": "iterate", "weight": float(k == 1), "careful": True}
        | ({"estimates": {"reward": reward, "cost": cost}} if estimates else {})
        for k, (reward, cost) in enumerate(values)
    ]
    (folder / "result.json").write_text(
        json.dumps(
            {"algorithm": "pdca", "seed": 0, "steps": 3, "limits": [limit], "members": members}
            | {"limit_status": {"cost": "within" if estimates else "not known"}, "trusted": True}
        )
    )
    save_policy(_policy(-0.5), folder / "mixture.safetensors")
    return folder


@pytest.mark.parametrize(("rate", "code"), [(0.1, 0), (0.3, 4), (0.6, 1)])
def test_exit_codes_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float, code: int
) -> None:
    save_policy(_policy(), tmp_path / "policy.safetensors")
    save(_data(rate), tmp_path / "own.npz")
    args = [
        "certify",
        str(tmp_path / "policy.safetensors"),
        "--own",
        str(tmp_path / "own.npz"),
        "--limit",
        "3",
        "--largest-step-cost",
        "1",
    ]
    assert main(args) == code
    said = capsys.readouterr().out
    certificate = Certificate.load(tmp_path / "certificate.json")
    assert said.startswith(certificate.sentence)
    if code == 0:
        assert "if no step costs more than 1 and an episode has at most 10 steps" in certificate.sentence
    assert certificate.exit_code == code
    assert certificate.digest == digest_of(tmp_path / "policy.safetensors")
    page = (tmp_path / "certificate.html").read_text()
    assert "<svg" in page
    assert main([*args, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == certificate.verdict


def test_python_gives_the_same_typed(tmp_path: Path) -> None:
    found = slater.certify(_policy(), own=_data(0.1), limits=["3"], largest_step_cost=1.0)
    assert isinstance(found, Certificate)
    assert found.verdict == "pass"
    # nothing says what a step of a bare policy costs at most, and the sample's own largest does not
    unknown = slater.certify(_policy(), own=_data(0.1), limits=["3"])
    assert unknown.verdict == "abstain"
    assert "a step can have at most is not known" in unknown.sentence
    assert slater.certify(lambda s: s, own=_data(0.6), limits=[3.0]).verdict == "fail"


def test_several_candidates_share_the_error_and_one_that_passes_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, logit in (("a", 0.0), ("b", 1.0)):
        save_policy(_wide(logit), tmp_path / f"{name}.safetensors")
    places = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    env = "tests.certify.worlds:Blow?chance=0&rate=0.1&max_episode_steps=10"
    args = ["certify", *places, "--env", env, "--out", str(tmp_path / "out"), "--largest-step-cost", "1"]
    assert main([*args, "--limit", "3"]) == 0
    assert "2 candidates, which share an error of 0.05" in capsys.readouterr().out
    assert Certificate.load(tmp_path / "out" / "2" / "certificate.json").candidates == 2
    assert main([*args, "--limit", "0.2", "--json"]) == 1
    assert [record["verdict"] for record in json.loads(capsys.readouterr().out)] == ["fail", "fail"]


def test_propensities_in_the_data_speak_before_estimates() -> None:
    data = _data(0.5, 300, propensity=True)
    careful = slater.certify(_policy(-0.6), data, limits=["5"], largest_step_cost=1)
    assert (careful.verdict, careful.limits[0].tier) == ("pass", "propensities")
    assert slater.certify(_policy(0.6), data, limits=["5"]).verdict == "fail"


def test_a_policy_may_be_a_column_of_probabilities() -> None:
    data, policy = _data(0.5, 300, propensity=True), _policy(-0.6)
    column = slater.certify.LoggedProbability(np.exp(policy.log_probability(data.observations, data.actions)))
    own = slater.certify(policy, data, limits=["5"], largest_step_cost=1)
    found = slater.certify(column, data, limits=["5"], largest_step_cost=1)
    assert (found.verdict, found.limits[0].tier) == ("pass", "propensities")
    assert found.limits[0].upper == pytest.approx(own.limits[0].upper, rel=0.3)
    assert (
        found.digest != slater.certify(slater.certify.LoggedProbability(np.ones(3000)), data, limits=5).digest
    )
    for wrong, options, says in (
        (np.ones(7), {"data": data}, "7 probabilities of logged actions, and the log that judges has 3000"),
        (np.ones(3000), {"env": "x"}, "cannot act in an environment"),
    ):
        with pytest.raises(InputError, match=says):
            slater.certify(slater.certify.LoggedProbability(wrong), limits=[5], **options)
    with pytest.raises(InputError, match="one number from 0 per row"):
        slater.certify.LoggedProbability([0.5, -1.0])


def test_data_that_trained_the_policy_cannot_judge_it_and_held_out_episodes_can(tmp_path: Path) -> None:
    data = _data(0.5, 400, propensity=True)
    same = _run(tmp_path / "same", fingerprint=data.fingerprint)
    closed = slater.certify(same, data, limits=["6"], fit=False)  # what is left are estimates from the log
    assert closed.verdict == "abstain"
    assert closed.limits[0].tier == "estimates"
    assert any("propensities decide nothing" in x and "trained the policy" in x for x in closed.assumptions)
    train, kept = hold_out(data, 0.5, seed=0)
    other = _run(tmp_path / "other", fingerprint=train.fingerprint)
    kept.save(other)
    found = slater.certify(other, data, limits=["6"], largest_step_cost=1)
    assert found.verdict == "pass"
    assert found.evidence_from.startswith("200 logged episodes")


def test_estimates_alone_abstain_at_once_where_nothing_is_fitted(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", fingerprint="another")
    found = slater.certify(run, _data(0.1), fit=False)
    assert found.verdict == "abstain"
    assert found.limits[0].limit == 3.0
    assert (
        "was not fitted" in found.sentence
        or "tasks of known truth" in found.sentence
        or ("compared with a truth" in found.sentence)
    )


def test_frontier_draws_prices_and_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(_data(0.3), tmp_path / "log.npz")
    run = _run(tmp_path / "run", data=str(tmp_path / "log.npz"))
    assert main(["frontier", str(run), "--limits", "0", "1.5", "3", "8"]) == 0
    assert "price" in capsys.readouterr().out
    record = json.loads((run / "frontier.json").read_text())
    assert [round(p["reward"], 6) for p in record["points"]] == [2.0, 4.0, 6.0, 9.0]
    assert record["points"][1]["prices"] == pytest.approx([4 / 3])
    assert record["trained_for"] == [[3.0]]
    assert "an episode of the log" in (run / "frontier.html").read_text()
    assert (run / "frontier.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["certify", "nowhere", "--limit", "3"], "there is no run or policy file nowhere"),
        (["certify", "POLICY", "--own", "OWN"], "no limit is given"),
        (["certify", "POLICY", "--limit", "3"], "give evidence"),
        (["certify", "POLICY", "--own", "OWN", "--limit", "speed=3"], "speed"),
        (["certify", "POLICY", "--own", "OWN", "--limit", "3", "--confidence", "95"], "confidence is 95"),
        (["certify", "POLICY", "--own", "OWN", "--env", "x", "--limit", "3"], "not both"),
        (
            ["certify", "POLICY", "--limit", "3", "--until-decided"],
            "--until-decided is about running",
        ),
        (["certify", "no_module:f", "--limit", "3"], "cannot be imported"),
        (["certify", "WIDE", "--data", "LOG", "--limit", "3"], "3 entries, but the data have 1"),
        (["certify", "WIDE", "POLICY", "--data", "LOG", "--limit", "3"], "3 entries, but the data have 1"),
        (["certify", "POLICY", "--data", "LOG", "--limit", "speed=3"], "speed"),
        (["certify", "POLICY", "--data", "LOG", "--limit", "3", "--limit", "4"], "2 limits for 1 cost"),
        (["frontier", "RUN", "--limits", "x"], "no number"),
        (["frontier", "BARE"], "nothing to mix by"),
        (["mix", "BARE", "--limit", "3"], "nothing to mix by"),
        (["mix", "RUN", "--limit", "3", "--limit", "4"], "2 limits for 1 cost"),
        (["mix", "RUN", "--limit", "3"], "there is no policy file"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    save_policy(_policy(), tmp_path / "policy.safetensors")
    save(_data(0.1, 5), tmp_path / "own.npz")
    places = {"POLICY": tmp_path / "policy.safetensors", "OWN": tmp_path / "own.npz"}
    if "LOG" in args:  # enough episodes to be fitted to
        places |= {"LOG": tmp_path / "log.npz", "WIDE": tmp_path / "wide.safetensors"}
        save(_data(0.1, 40), places["LOG"])
        three = np.ones(3, np.float32)
        layers = (np.zeros((3, 2), np.float32),), (np.zeros(2, np.float32),)
        wide = CategoricalPolicy(*layers, 0 * three, three)
        save_policy(wide, places["WIDE"])
    if "RUN" in args:
        places["RUN"] = _run(tmp_path / "run")
    if "BARE" in args:
        places["BARE"] = _run(tmp_path / "bare", estimates=False)
    assert main([str(places.get(arg, arg)) for arg in args]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
