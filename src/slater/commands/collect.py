"""`slater collect`: make a dataset by training policies on R - lambda*C and recording them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from slater.commands.parse import Positional, parse
from slater.errors import InputError
from slater.progress import PlainProgress

__all__ = ["run"]


@dataclass(frozen=True)
class Options:
    """Make a dataset: record the policies of a behaviour file, or train one for each penalty and record it.

    Examples:
        slater collect bullet/BallCircle --penalty 0 0.5 2 --steps 100000 --episodes 300 --out ball.hdf5
        slater collect --behaviour behaviours/ballrun.safetensors --episodes 50 --noise 0.1 --out ballrun.hdf5
        slater collect rwrl/cartpole --preset paper --steps 100000 --out cartpole.hdf5

    """

    out: Path
    """file to write: .hdf5 in the DSRL schema, or another format that slater data knows"""
    env: Positional[str] = ""
    """environment, for example bullet/BallCircle or rwrl/cartpole; not with --behaviour, which names its
    own"""
    behaviour: Path | None = None
    """file of trained policies (slater behaviours train): record them, train nothing"""
    deterministic: bool = False
    """with --behaviour: leave out the policies' own randomness; only the noise is left"""
    penalty: tuple[str, ...] = ()
    """lambda of each policy, in reward per unit of cost: one number, or one per cost as 0.5,2"""
    preset: Literal["paper"] | None = None
    """paper: the paper's penalties, noise, steps and episodes for a Real-World RL domain, on its one cost;
    with
    --behaviour: recorded in the paper's way, a draw of the policy plus noise of 0.15 on the action,
    clipped"""
    steps: int | None = None
    """training steps per penalty (default 100000; paper: 1000000)"""
    episodes: int | None = None
    """recorded episodes per penalty (default 300; paper: 1000) or per policy of the behaviour (default
    100)"""
    noise: float | None = None
    """noise on recorded actions, standard deviation in half action ranges (default 0.15); with --behaviour,
    standard deviation added to the policy's own before the tanh (default 0.1)"""
    keep_training: bool = False
    """keep the training episodes too"""
    thin: int | None = None
    """episodes to keep in all, thinned on a grid of return and cost (default: all)"""
    seed: int = 0
    """seed of everything"""
    workers: int = 1
    """processes of one thread each, which train penalties side by side or run a behaviour's episodes"""
    batch_size: int = 256
    """transitions per update"""
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer"""
    updates_per_step: float = 1.0
    """gradient updates per environment step"""
    reward_scale: float = 1.0
    """factor on R - lambda*C in training"""
    start_steps: int = 1_000
    """steps with uniform actions before the policy acts"""
    json: bool = False
    """print the result as JSON"""


def _plan(options: Options) -> Any:
    from slater.collect import SACConfig
    from slater.collect.plan import CollectionPlan, paper_plan

    config = SACConfig(
        hidden=options.hidden, batch_size=options.batch_size, updates_per_step=options.updates_per_step,
        reward_scale=options.reward_scale, start_steps=options.start_steps,
    )  # fmt: skip
    given = {
        "steps": options.steps,
        "episodes": options.episodes,
        "noise": options.noise,
        "thin": options.thin,
        "penalties": tuple(_penalty(text) for text in options.penalty) or None,
    }
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings |= {"keep_training": options.keep_training, "seed": options.seed, "config": config}
    if options.preset == "paper" and options.env:
        return paper_plan(options.env, **settings)
    if not options.env:
        raise InputError("name an environment, for example bullet/BallCircle, or give --behaviour FILE.")
    if "penalties" not in settings:
        raise InputError("give the penalties, for example --penalty 0 0.5 2, or --preset paper.")
    return CollectionPlan(options.env, **settings)


def _penalty(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"the penalty {text!r} is not a number, nor numbers with commas between.") from None


@dataclass
class _Picture:
    """The frontier in numbers: one line per finished penalty, and a live line for each that trains."""

    plan: Any
    console: Console = field(default_factory=lambda: Console(stderr=True))
    recent: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    tasks: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress = PlainProgress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[figures]}"), console=self.console,
            transient=True,
        )  # fmt: skip

    def watch(self, index: int, steps: int, total_return: float, cost: float) -> None:
        if index not in self.tasks:
            self.tasks[index] = self.progress.add_task(
                f"penalty {_text(self.plan.penalties[index])}", total=self.plan.steps, figures=""
            )
        recent = self.recent.setdefault(index, [])
        recent.append((total_return, cost))
        mean = np.mean(recent[-20:], axis=0)
        figures = f"return {mean[0]:.1f}, cost {mean[1]:.1f} (last 20 episodes)"
        self.progress.update(self.tasks[index], completed=min(steps, self.plan.steps), figures=figures)

    def finished(self, stage: Any) -> None:
        if stage.index in self.tasks:
            self.progress.remove_task(self.tasks[stage.index])
        self.progress.console.print(
            f"penalty {_text(stage.penalty):>10}: return {stage.mean_return:9.2f}, "
            f"cost {stage.mean_cost:8.2f} per episode ({stage.episodes} recorded)",
            highlight=False,
        )


def _text(penalty: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in penalty)


def run(args: list[str]) -> int:
    """Entry point of `slater collect`."""
    options = parse(Options, args, "collect")
    if options.behaviour is not None:
        return _told(options, _recorded(options))
    plan = _plan(options)
    from slater.collect import collect

    picture = _Picture(plan)
    try:
        with picture.progress:
            dataset = collect(
                plan, options.out, workers=options.workers, watch=picture.watch, finished=picture.finished
            )
    except KeyboardInterrupt:
        picture.console.print(f"What is done is in {options.out}.parts; give the same command to go on.")
        raise
    return _told(options, dataset)


def _recorded(options: Options) -> Any:
    """The dataset of a behaviour file, written."""
    from slater.collect import Recording, load_behaviour, record_behaviour
    from slater.collect.recording import PAPER_WAY
    from slater.commands.behaviours import episode_bar
    from slater.data import save

    assert options.behaviour is not None
    for name in ("env", "penalty", "steps", "keep_training", "thin"):
        if getattr(options, name):
            raise InputError(
                f"--behaviour records policies that are there; leave out {name.replace('_', '-')}."
            )
    if options.out.exists():
        raise InputError(f"{options.out} is already there; remove it or choose another name.")
    given = {"episodes": options.episodes, "noise": options.noise}
    settings: dict[str, Any] = {**PAPER_WAY} if options.preset == "paper" else {}
    settings |= {name: value for name, value in given.items() if value is not None}
    recording = Recording(seed=options.seed, mean_only=options.deterministic, **settings)
    total = len(load_behaviour(options.behaviour).sources) * recording.episodes
    with episode_bar(options.behaviour.stem, total) as progress:
        data = record_behaviour(options.behaviour, recording, workers=options.workers, progress=progress)
    save(data, options.out)
    return data


def _told(options: Options, dataset: Any) -> int:
    """Say what was made."""
    episodes = dataset.episodes
    returns, costs = episodes.returns, episodes.costs.sum(axis=1)
    result = {
        "file": str(options.out),
        "rows": dataset.size,
        "episodes": len(returns),
        "fingerprint": dataset.fingerprint,
        "returns": [float(returns.min()), float(returns.max())],
        "costs": [float(costs.min()), float(costs.max())],
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(
        f"{options.out}: {len(returns)} episodes, {dataset.size} rows, returns {returns.min():.1f} to "
        f"{returns.max():.1f}, costs {costs.min():.1f} to {costs.max():.1f}\n"
        f"fingerprint {dataset.fingerprint}"
    )
    return 0
