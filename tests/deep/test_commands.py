"""`slater train`, `slater runs` and `slater evaluate`, through the dispatcher and on real files."""

import json
import os
import re

import numpy as np
import pytest

from slater import cli
from slater.data import save
from slater.envs import install

from .problems import PDCA_WORDS, pointmass

FULL = os.environ.get("SLATER_FULL") == "1"
SMALL = [
    word for text in ("steps=40", "batch_size=32", "hidden=16", "gamma=0.9") for word in ("--set", text)
]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npz"
    save(pointmass(), path)
    return path


def slater(*args) -> int:
    return cli.main([str(arg) for arg in args])


@pytest.mark.xdist_group("pdca")
def test_train_prints_the_limit_in_all_units_and_runs_lists_the_run(data, tmp_path, capsys):
    words = ["0.2/step" if word == "5" else word for word in PDCA_WORDS]  # 5 per episode of 25 steps
    assert slater("train", "pdca", data, "--out", tmp_path / "runs" / "x", *words) == 0
    shown = capsys.readouterr().err
    assert "per episode" in shown
    assert "0.2*" in shown
    assert re.search(r"\b5\b.*\b2\b", shown)  # per episode, and discounted: 0.2 / (1 - 0.9)
    result = json.loads((tmp_path / "runs" / "x" / "result.json").read_text())
    assert "with 95% probability, as far as the log tells: c0 at most" in " ".join(shown.split())
    assert set(result["posterior"]["at_most"]) == {"c0"}
    assert {"reward", "length", "within_limits"} < set(result["reference"])  # the best of the log itself
    assert slater("runs", tmp_path / "runs", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "done"
    assert row["limits"] == "c0=0.2/step"
    assert slater("runs", tmp_path / "runs") == 0
    assert "pdca" in capsys.readouterr().out
    # a finished run may be resumed: there is nothing left to do, and nothing breaks
    assert slater("train", "--resume", tmp_path / "runs" / "x") == 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["bc-safe", "pdca"] if FULL else ["bc-safe"])
def test_a_sweep_gives_what_single_runs_give(algorithm, data, tmp_path, capsys):
    sets = PDCA_WORDS[2:] if algorithm == "pdca" else SMALL
    sets = [*sets, "--no-estimate"]
    sweep = ["--sweep", "limit=2,8", "--seeds", "1", "--processes", "2", "--seed", "1"]
    assert slater("train", algorithm, data, *sweep, "--out", tmp_path / "sweep", *sets) == 0
    assert capsys.readouterr().out.count("done") == 2
    alone = ["--limit", "8", "--seed", "1", "--out", tmp_path / "alone"]
    assert slater("train", algorithm, data, *alone, *sets) == 0
    one, other = (
        (tmp_path / "sweep" / f"limit={limit}-seed=1" / "policy.safetensors").read_bytes() for limit in (8, 2)
    )
    assert one == (tmp_path / "alone" / "policy.safetensors").read_bytes()
    assert one != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pdca", "nowhere.hdf5", "--limit", "5", "--out", "{out}"], "nowhere.hdf5"),
        (["pdca", "{data}", "--out", "{out}"], "limit"),
        (["wild", "{data}", "--limit", "5", "--out", "{out}"], "there is no algorithm 'wild'"),
        (["pdca", "{data}", "--limit", "5", "--out", "{out}", "--set", "stepz=1"], "did you mean 'steps'"),
        (["pdca", "{data}", "--limit", "5", "--out", "{out}", "--preset", "own"], "no preset 'own'"),
        (["pdca", "{data}", "--out", "{out}", "--sweep", "limit"], "not NAME=V1,V2"),
        (["--resume", "{out}"], "not a run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, words, data, tmp_path, capsys):
    filled = [text.format(data=data, out=tmp_path / "run") for text in arguments]
    assert slater("train", *filled) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


#: an environment of the same shape as the data, named as `module:callable`
ENVIRONMENT = """
import gymnasium, numpy as np
class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = 0.0, 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.x = 0.9 * self.x + 0.3 * float(action[0]); self.t += 1
        obs = np.array([self.x, self.x**2], np.float32)
        return obs, self.x + 0.1, False, self.t >= 25, {"cost": float(self.x > 0.1)}
def make(**options):
    return Line()
"""


@pytest.mark.xdist_group("pdca")
def test_evaluate_compares_with_the_limit(data, tmp_path, capsys, monkeypatch):
    pytest.importorskip("gymnasium", reason=install.GYMNASIUM)
    (tmp_path / "line_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = "line_env:make"
    out = tmp_path / "run"
    assert (
        slater(
            "train",
            "pdca",
            data,
            "--out",
            out,
            "--env",
            env,
            "--eval-every",
            "20",
            *PDCA_WORDS,
        )
        == 0
    )
    capsys.readouterr()
    assert slater("evaluate", out, "--episodes", "5", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["episodes"]) == 5
    (verdict,) = answer["limits"]
    assert verdict["limit"] == 5.0
    assert (verdict["status"] == "within") == (verdict["mean"] <= 5.0)
    over = [episode["cost"] > 5.0 for episode in answer["episodes"]]
    assert verdict["episodes_above"] == np.mean(over)
    assert slater("evaluate", out, "--last", "--episodes", "3") == 0
    said = capsys.readouterr().out
    assert "the limit 5; " in said
    assert "% of the episodes are above it" in said
    assert slater("evaluate", out, "--members", "--episodes", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    outputs = {row["output"]: row for row in answer["outputs"]}
    cost = verdict["cost"]
    measured = np.array([[row["return"], row[cost]] for row in answer["members"]])
    weights = np.array([row["weight"] for row in answer["members"]])
    assert np.allclose(weights @ measured, [outputs["mixture"]["return"], outputs["mixture"][cost]])
    played = measured[[row["step"] <= 60 for row in answer["members"]]]  # the log's own come after
    assert 0 < len(played) < len(measured)
    assert np.allclose(played.mean(axis=0), [outputs["uniform"]["return"], outputs["uniform"][cost]])
    safe = [row["return"] for row in outputs.values() if row[cost] <= 5.0]
    assert not safe or outputs["hindsight"]["return"] >= max(safe) - 1e-6
    assert slater("evaluate", out, "--members", "--episodes", "1") == 0
    assert "hindsight" in capsys.readouterr().out
    assert slater("evaluate", out, "--last", "--mixture") == 2
    assert slater("evaluate", tmp_path / "nowhere", "--env", env) == 2
