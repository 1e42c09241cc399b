"""Every option acts or is refused: what a user types is never taken in silence.

Each option of a command is given beside a line that works. Then the command ends with code 2, or what it
prints or writes is another. Options whose effect is time or memory alone are named here, with the reason; an
option that this file does not know fails a test.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slater import cli
from slater.commands import compare, evaluate, export, frontier, mix, train_options
from slater.commands import runs as listing
from slater.commands.parse import _parameters
from slater.data import save
from slater.deep.algorithms import registry
from slater.envs.install import GYMNASIUM

from .problems import QUICK_WORDS, pointmass
from .test_commands import ENVIRONMENT
from .toy import Toy

pytest.importorskip("gymnasium", reason=GYMNASIUM)
pytest.importorskip("onnx", reason="pip install 'slater-rl[onnx]'")
pytestmark = pytest.mark.xdist_group("options_act")

ENV, OTHER = "options_env:make", "options_env:other"
#: what the options of a command are given as; None: it is the usual way, or changes time and memory alone,
#: or needs what is not here (data that lack numbers, limits per week, Weights & Biases, Trackio)
EVALUATE = {
    "env": ["--env", OTHER], "episodes": ["--episodes", "3"], "seed": ["--seed", "5"],
    "limit": ["--limit", "9"], "mixture": None, "last": ["--last"], "deterministic": ["--deterministic"],
    "members": ["--members"], "workers": None,
    "json": ["--json"],
}  # fmt: skip
TRAIN = {
    "limit": ["--limit", "9"], "resume": ["--resume", "{run}"], "hold_out": ["--hold-out", "0.3"],
    "steps": ["--steps", "7"], "seed": ["--seed", "3"], "seeds": ["--seeds", "1"],
    "sweep": ["--sweep", "gamma=0.5"], "set": ["--set", "gamma=0.5"], "settings": ["--settings"],
    "preset": ["--preset", "paper"], "env": ["--env", OTHER], "eval_every": ["--eval-every", "1"],
    "eval_episodes": ["--eval-episodes", "2"], "log_every": ["--log-every", "1"], "checkpoint_every": None,
    "memory": ["--memory", "0"], "no_estimate": ["--no-estimate"], "require_limits": ["--require-limits"],
    "tensorboard": ["--tensorboard"], "wandb": None, "trackio": None, "engine": ["--engine", "processes"],
    "processes": ["--processes", "1"], "all_threads": None, "out": ["--out", "{place}/other"],
    "columns": ["--columns", "rewards=costs"], "cost_names": ["--cost-names", "wear"],
    "env_id": ["--env-id", "somewhere"], "horizon": ["--horizon", "50"], "action_low": ["--action-low", "-2"],
    "action_high": ["--action-high", "2"], "num_actions": ["--num-actions", "3"], "discrete": ["--discrete"],
    "clip_actions": None, "drop_missing": None, "fill": None, "step": None, "history": ["--history"],
}  # fmt: skip
COMMANDS: dict[str, tuple[Any, list[str], dict[str, list[str] | None]]] = {
    "evaluate run": (evaluate.Options, ["evaluate", "{run}", "--env", ENV, "--episodes", "2"], EVALUATE),
    "evaluate file": (
        evaluate.Options, ["evaluate", "{run}/policy.safetensors", "--env", ENV, "--episodes", "2"], EVALUATE,
    ),
    "evaluate members": (
        evaluate.Options, ["evaluate", "{run}", "--env", ENV, "--episodes", "2", "--members"],
        {**EVALUATE, "members": None, "mixture": ["--mixture"]},
    ),
    "mix": (
        mix.Options, ["mix", "{run}", "--limit", "9", "--out", "{place}/mixed"],
        {"out": ["--out", "{place}/other"], "limit": ["--limit", "3"], "margin": ["--margin", "0.9"],
         "data": ["--data", "nowhere.npz"], "json": ["--json"]},
    ),
    "frontier": (
        frontier.Options, ["frontier", "{run}", "--out", "{place}/frontier"],
        {"limits": ["--limits", "3", "7"], "margin": ["--margin", "0.5"], "data": ["--data", "nowhere.npz"],
         "out": ["--out", "{place}/other"], "json": ["--json"]},
    ),
    "export": (
        export.Options, ["export", "{run}", "--onnx", "{place}/a.onnx"],
        {"onnx": ["--onnx", "{place}/b.onnx"]},
    ),
    "compare": (
        compare.Options, ["compare", "{run}"],
        {"env": ["--env", ENV], "episodes": ["--episodes", "3"], "seed": ["--seed", "4"], "json": ["--json"]},
    ),
    "compare env": (
        compare.Options, ["compare", "{run}", "--env", ENV, "--episodes", "2"],
        {"env": ["--env", OTHER], "episodes": ["--episodes", "3"], "seed": ["--seed", "4"],
         "json": ["--json"]},
    ),
    "runs": (listing.Options, ["runs", "{run}"], {"json": ["--json"]}),
    "train": (
        train_options.Options,
        ["train", "toy", "{log}", "--out", "{place}/new", "--no-estimate", *QUICK_WORDS],
        {**TRAIN, "no_estimate": None},
    ),
    "train env": (
        train_options.Options,
        ["train", "toy", "{log}", "--out", "{place}/new", "--env", ENV, "--eval-every", "30", *QUICK_WORDS],
        {name: TRAIN[name] for name in ("env", "eval_every", "eval_episodes", "no_estimate")},
    ),
}  # fmt: skip
WHOLE = [name for name in COMMANDS if name != "train env"]
CASES = [
    (name, option) for name, (_, _, values) in COMMANDS.items() for option, words in values.items() if words
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A log, a finished run of it, and two environments."""
    place = tmp_path_factory.mktemp("options")
    second = "\ndef other(**options):\n    return Line2()\nclass Line2(Line):\n    def step(self, action):\n"
    second += "        return super().step(0.5 * action)\n"
    (place / "options_env.py").write_text(ENVIRONMENT + second)
    save(pointmass(), place / "log.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setitem(registry._REGISTRY, "toy", Toy)
        words = ["train", "toy", place / "log.npz", "--out", place / "run", *QUICK_WORDS]
        assert cli.main([str(word) for word in words]) == 0
        yield place


def _seen(shop: Path, line: list[str], more: list[str], place: Path, capsys) -> tuple[int, str, dict]:
    """Exit code, what was printed, and what was written, without times."""
    place.mkdir()
    (shop / "run" / "evaluations.jsonl").unlink(missing_ok=True)
    names = {"run": str(shop / "run"), "log": str(shop / "log.npz"), "place": str(place)}
    # an option that is in the line already is given its other value, not twice
    words, flag = list(line), more[0] if more else ""
    if flag in words and flag not in ("--set",):
        del words[words.index(flag) : words.index(flag) + 2]
    code = cli.main([word.format(**names) for word in [*words, *more]])
    written = {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != "run.json" and not path.name.startswith(".")
    }
    for name, content in written.items():
        if name.endswith("metrics.jsonl"):
            rows = [json.loads(row) for row in content.splitlines()]
            written[name] = json.dumps(
                [{k: v for k, v in row.items() if k not in ("seconds", "steps_per_second")} for row in rows]
            ).encode()
    out = capsys.readouterr().out.replace(str(place), "PLACE")
    return code, re.sub(r'"(seconds|steps_per_second)": [\d.e+-]+', "", out), written


@pytest.fixture(scope="module")
def usual(shop):
    return {}


@pytest.mark.parametrize(("name", "option"), CASES)
def test_an_option_acts_or_is_refused(shop, usual, name, option, tmp_path, capsys):
    _, line, values = COMMANDS[name]
    if name not in usual:
        usual[name] = _seen(shop, line, [], tmp_path / "a", capsys)
        assert usual[name][0] == 0
        (tmp_path / "a").rename(tmp_path / "usual")
    found = _seen(shop, line, values[option], tmp_path / "a", capsys)
    assert found[0] == 2 or found != usual[name]


@pytest.mark.parametrize("name", WHOLE)
def test_every_option_is_tried(name):
    options, _, values = COMMANDS[name]
    positional = {"run", "runs", "policy", "folder", "algorithm", "data"} if name != "mix" else {"runs"}
    known = {field.name for field in _parameters(options)}
    assert known - set(values) <= positional
    assert set(values) <= known
