"""What `slater train` is told, for one run and for a sweep alike; who hears of a run, and how it may end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slater.commands.parse import Positional, Repeated
from slater.commands.reading import Reading
from slater.errors import InputError
from slater.pairs import parse_pairs
from slater.runs import LimitStatus, read_result

DIVERGED = 3
LIMITS_NOT_KEPT = 4


@dataclass(frozen=True)
class Options:
    """Train a policy from logged data under cost limits.

    Examples:
        slater train pdca ball.hdf5 --limit 20
        slater train pdca log.hdf5 --limit speed=0.05/step --limit wear=20 --out runs/first --steps 50000
        slater train pdca log.csv --columns observations=x,v actions=u rewards=r costs=c episode=e --limit 5
        slater train pdca ball.hdf5 --sweep limit=10,20,40 --seeds 3 --out runs/sweep
        slater train --resume runs/first

    Exit codes: 0 the run completed, 1 a run of a sweep failed, 2 bad input, 3 a loss diverged, 4 a limit is
    not kept by the estimates (with --require-limits only), 130 interrupted and saved.

    """

    algorithm: Positional[str] = "pdca"
    """algorithm, for example pdca"""
    data: Positional[str | None] = None
    """dataset: a file or store that `slater data info` can read, or the name of a published task; without
    one, the sample of bullet/BallCircle that comes with Slater"""
    limit: Repeated = ()
    """limit on a cost, repeated for several: 20 (per episode), 5/discounted, 0.05/step, NAME=20"""
    out: Path | None = None
    """folder of the run, or of all runs of a sweep"""
    resume: Path | None = None
    """continue the run in this folder from its last checkpoint; --steps extends it, the data may have
    moved, anything else that differs from the run is refused"""
    hold_out: float | None = None
    """share of the episodes that are kept from training so that `slater certify` can judge by their
    propensities, as 0.2; the same episodes for every seed, remembered in the run"""
    steps: int | None = None
    """gradient iterations"""
    seed: int = 0
    """seed of the run, or of the first of `--seeds` runs"""
    seeds: int | None = None
    """number of runs, with seeds seed, seed+1, ..."""
    sweep: Repeated = ()
    """NAME=V1,V2,...: one run per value; any setting, or limit; repeated for a grid"""
    set: Repeated = ()
    """NAME=VALUE: any setting of the algorithm (`slater train ALGORITHM --settings` lists them)"""
    settings: bool = False
    """list the algorithm's settings with their defaults, and its presets"""
    preset: str | None = None
    """named settings, for example paper"""
    env: str | None = None
    """environment for rollouts while training, for example bullet/BallCircle"""
    eval_every: int | None = None
    """iterations between rollouts (with --env; 2500 by default); the last iteration has one too"""
    eval_episodes: int = 10
    """episodes per rollout"""
    log_every: int = 100
    """iterations between rows of metrics"""
    checkpoint_every: int = 1000
    """iterations between checkpoints"""
    memory: float = 4.0
    """memory for the data, in GB; a .store that needs more is trained on in shards, another file is refused
    with the line that converts it (the data are in memory about three times)"""
    no_estimate: bool = False
    """do not judge the policy from the data at the end, where the algorithm does not itself"""
    require_limits: bool = False
    """exit with code 4 if a limit is not kept by the estimates, or that is not known"""
    tensorboard: bool = False
    """write the metrics for TensorBoard too, to OUT/tensorboard"""
    wandb: str | None = None
    """send the metrics to this project of Weights & Biases too; WANDB_MODE=offline keeps them in OUT/wandb"""
    trackio: str | None = None
    """keep the metrics in this project of Trackio too, on this machine"""
    engine: Literal["auto", "processes", "vmap"] = "auto"
    """how a sweep runs: a process of one thread per run, or runs that differ in seed and limit as one program
    (for a GPU; data in memory); auto takes vmap where there is a GPU"""
    processes: int | None = None
    """runs at the same time in a sweep of processes (default: one per core)"""
    all_threads: bool = False
    """use every core for this one run: faster alone; its bits may then differ from those in a sweep"""
    reading: Reading = field(default_factory=Reading)


def exit_code(work: Callable[[], Sequence[Path]], require_limits: bool = False) -> int:
    """The exit code of work that gives the folders of its runs.

    Says in one sentence that a run was interrupted or diverged, and how to go on.
    """
    from slater.deep import DivergedError
    from slater.deep.engine.training import Interrupted

    try:
        folders = work()
    except DivergedError as error:
        print(f"slater: the run diverged: {error}", file=sys.stderr)
        return DIVERGED
    except Interrupted as stop:
        line = "" if stop.folder is None else f" With: slater train --resume {stop.folder}"
        print(f"\nslater: {stop}{line}", file=sys.stderr)
        return 130
    if not require_limits:
        return 0
    found = {folder: read_result(folder) for folder in folders}
    broken = [
        f"{folder} ({'not finished' if result is None else result.status})"
        for folder, result in found.items()
        if result is None or result.status is not LimitStatus.WITHIN
    ]
    if broken:
        print(f"slater: limits are not kept, or that is not known, in {', '.join(broken)}", file=sys.stderr)
    return LIMITS_NOT_KEPT if broken else 0


def run_of_point(options: Options, point: Mapping[str, str]) -> tuple[list[str], dict[str, Any], int]:
    """Limits, settings and seed of one run, `point` of a sweep overruling what is given for all."""
    limits = list(options.limit)
    settings: dict[str, Any] = parse_pairs(options.set)
    names = [*settings, *(name.replace("-", "_") for name in point if name != "seed")]
    names += ["steps"] * (options.steps is not None) + ["limit"] * bool(limits)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{twice} is given twice, by options that contradict each other; keep one of them.")
    if options.steps is not None:
        settings["steps"] = options.steps
    for name, value in point.items():
        if name == "limit":
            limits = [value]
        elif name != "seed":
            settings[name.replace("-", "_")] = value
    return limits, settings, int(point.get("seed", options.seed))


def run_options(options: Options) -> dict[str, Any]:
    """What is recorded of a run besides algorithm, limits, settings and seed."""
    return {
        "data": str(options.data), "env": options.env, "eval_episodes": options.eval_episodes,
        "eval_every": options.eval_every or (2500 if options.env else None),
        "log_every": options.log_every, "checkpoint_every": options.checkpoint_every,
        "memory": options.memory, "estimate": not options.no_estimate, "reading": options.reading.record(),
    }  # fmt: skip
