"""`slater collect`: make a dataset by training policies on R - lambda*C and recording them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slater.commands.behaviours import episode_bar, training_bars
from slater.commands.parse import Positional, parse
from slater.errors import InputError


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
    penalty: tuple[str, ...] = ()
    """lambda of each training, in reward per unit of cost: one number, or one per cost as 0.5,2"""
    preset: Literal["paper"] | None = None
    """paper: recorded in the paper's way, a draw of the policy plus noise of 0.15 on the action, clipped;
    without --behaviour also its penalties, steps and episodes for a Real-World RL domain, on its one cost"""
    steps: int | None = None
    """training steps per penalty (default 100000; paper: 1000000)"""
    keep: int | None = None
    """policies recorded of each training, at equal distances, the last among them (default 1)"""
    episodes: int | None = None
    """recorded episodes per policy (default 300, with --behaviour 100; paper: 1000)"""
    noise: float | None = None
    """standard deviation added to the policy's own before the tanh (default 0.1); for discrete actions the
    probability of a uniform one"""
    deterministic: bool = False
    """leave out the policies' own randomness; only the noise is left"""
    thin: int | None = None
    """episodes to keep in all, thinned on a grid of return and cost (default: all)"""
    seed: int = 0
    """seed of everything"""
    workers: int = 1
    """processes of one thread each, which train penalties side by side and run episodes"""
    batch_size: int | None = None
    """transitions per update (default 128)"""
    hidden: tuple[int, ...] = ()
    """width of each hidden layer (default 128 128)"""
    updates_per_step: float | None = None
    """gradient updates per environment step (default 0.5)"""
    start_steps: int | None = None
    """steps with uniform actions before the policy acts (default 2000)"""
    json: bool = False
    """print the result as JSON"""


def _given(options: Options, *names: str) -> dict[str, Any]:
    """The options that were given, of those named."""
    return {name: value for name in names if (value := getattr(options, name)) not in (None, ())}


def _plan(options: Options) -> Any:
    from slater.collect import CollectionPlan, Recording, SACConfig
    from slater.collect.collecting import paper_plan

    if not options.env:
        raise InputError("name an environment, for example bullet/BallCircle, or give --behaviour FILE.")
    recording = _given(options, "episodes", "noise", "thin")
    recording |= {"seed": options.seed, "mean_only": options.deterministic}
    settings = _given(options, "steps", "keep", "start_steps")
    settings["config"] = SACConfig(**_given(options, "batch_size", "hidden", "updates_per_step"))
    if options.penalty:
        settings["penalties"] = tuple(_penalty(text) for text in options.penalty)
    if options.preset == "paper":
        return paper_plan(options.env, recording=recording, **settings)
    if not options.penalty:
        raise InputError("give the penalties, for example --penalty 0 0.5 2, or --preset paper.")
    return CollectionPlan(options.env, recording=Recording(**{"episodes": 300, **recording}), **settings)


def _penalty(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"the penalty {text!r} is not a number, nor numbers with commas between.") from None


def run(args: list[str]) -> int:
    """Entry point of `slater collect`."""
    options = parse(Options, args, "collect")
    if options.behaviour is not None:
        return _told(options, _recorded(options))
    plan = _plan(options)
    from slater.collect import collect

    names = {f"{index:02d}": plan.steps for index in range(len(plan.penalties))}
    total = len(plan.penalties) * plan.keep * plan.recording.episodes
    parts = options.out.with_name(options.out.name + ".parts")
    with training_bars(names, parts, total) as (watch, progress):
        dataset = collect(plan, options.out, workers=options.workers, watch=watch, progress=progress)
    return _told(options, dataset)


def _recorded(options: Options) -> Any:
    """The dataset of a behaviour file, written."""
    from slater.collect import Recording, load_behaviour, record_behaviour
    from slater.collect.recording import PAPER_WAY
    from slater.data import save

    assert options.behaviour is not None
    for name in ("env", "penalty", "steps", "keep"):
        if getattr(options, name):
            raise InputError(f"--behaviour records policies that are there; leave out {name}.")
    if options.out.exists():
        raise InputError(f"{options.out} is already there; remove it or choose another name.")
    settings: dict[str, Any] = {**PAPER_WAY} if options.preset == "paper" else {}
    settings |= _given(options, "episodes", "noise", "thin")
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
    if options.json:
        ends = {"returns": [returns.min(), returns.max()], "costs": [costs.min(), costs.max()]}
        sizes = {"file": str(options.out), "rows": dataset.size, "episodes": len(returns)}
        print(json.dumps({**sizes, "fingerprint": dataset.fingerprint, **ends}, indent=1, default=float))
        return 0
    print(
        f"{options.out}: {len(returns)} episodes, {dataset.size} rows, returns {returns.min():.1f} to "
        f"{returns.max():.1f}, costs {costs.min():.1f} to {costs.max():.1f}\n"
        f"fingerprint {dataset.fingerprint}"
    )
    return 0
