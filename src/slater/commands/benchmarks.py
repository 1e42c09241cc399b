"""`slater reproduce table2`, `figure2` and `tables`: the paper's benchmarks with simulators."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from slater.commands.parse import Positional, Repeated, at_least_one, parse
from slater.errors import InputError

FAILED = 1


@dataclass(frozen=True)
class _Common:
    """Options of both benchmarks."""

    budget: Literal["quick", "small", "paper", "equal"] = "small"
    """size: quick (minutes, no statement about quality), small (hours on two cores), paper (its numbers),
    equal (table2: the same processor time for every method); the options below overrule it"""
    minutes: float | None = None
    """with the budget equal: minutes of one core for a cell, model of the log and choice at the end included,
    rollouts not (default 3); a method's schedule is scaled to what it reaches in them, at most its authors'
    iterations; one model for all limits has the time of one cell, and in a second row that of all limits"""
    once: bool = False
    """with the budget equal: leave out the second row of a model for all limits, of the time of all cells"""
    bare: bool = False
    """take names of sources and propensities away from the data first, as DSRL's files have none"""
    data: str | None = None
    """folder of the datasets: DSRL files by their own names, else ballrun.hdf5, cartpole.hdf5, ... as
    slater behaviours data makes them; or "dsrl", the published files, downloaded once; or "sample",
    BallCircle data in the package (default: data; table2 with the quick budget: sample)"""
    tasks: tuple[str, ...] | None = None
    """tasks by name, for example BallRun CarCircle; those of the budget that have data unless given"""
    algorithms: tuple[str, ...] | None = None
    """algorithms, each NAME or NAME:PRESET, for example pdca pdca:paper cpq"""
    limits: tuple[str, ...] | None = None
    """limits on the cost per episode, as 10 20 40, or per step, as 0.05/step"""
    seed: int = 0
    """first seed"""
    seeds: int | None = None
    """number of seeds"""
    steps: int | None = None
    """gradient iterations of every algorithm"""
    episodes: int | None = None
    """episodes per policy in the final measurement"""
    curve_every: int | None = None
    """iterations between rollouts while training"""
    curve_episodes: int = 5
    """episodes per rollout while training"""
    set: Repeated = ()
    """NAME=VALUE for every algorithm that has the setting, or ALGORITHM[:PRESET]:NAME=VALUE for one"""
    acting: Literal["draws", "likeliest", "published", "both"] | None = None
    """how policies act where they are measured: by draws, by their most likely action, as their authors
    measured them, or as their authors and the other way too (default: draws; with the budget equal:
    published)"""
    engine: Literal["local", "ray"] = "local"
    """local: single-threaded processes here; ray: tasks on a Ray cluster (RAY_ADDRESS, else a local one)"""
    workers: int | None = None
    """processes at a time; one per core unless given"""
    out: Path | None = None
    """output folder; unless given, runs/ and the experiment's name with the budget"""
    json: bool = False
    """print one JSON object with the means instead of the Markdown tables"""


@dataclass(frozen=True)
class Table2Args(_Common):
    """Table 2: Bullet Safety Gym, tasks x algorithms x limits 10/20/40 x seeds, by the paper's protocol.

    Writes table2.csv, table2-means.csv, table2.md (beside published figures), figures (PNG, SVG), settings
    and a self-contained report.html. A stopped run goes on where it was when the same command is given
    again; the outputs cover every cell that the output folder holds.

    Examples:
        slater reproduce table2 --budget quick
        slater reproduce table2 --budget small --data data --algorithms pdca pdca:paper
        slater reproduce table2 --budget equal --minutes 3 --bare --data data --out runs/equal
        slater reproduce table2 --tasks BallRun --limits 20 --seeds 3 --steps 100000 --set hidden=128x128

    """


@dataclass(frozen=True)
class Figure2Args(_Common):
    """Figure 2: Real-World RL, reward and cost against iterations, PDCA and COptiDICE.

    Limits .05 per step for cartpole and walker, .01 for quadruped and humanoid; a rollout of 5 episodes
    every 1,000 iterations; standard errors over seeds. Writes figure2.csv, figure2-curves.csv, figure2.md,
    figures (PNG, SVG), settings and a self-contained report.html.

    Examples:
        slater reproduce figure2 --budget small --data data
        slater reproduce figure2 --tasks cartpole --seeds 5

    """


@dataclass(frozen=True)
class TablesArgs:
    """Tables, figures and report anew, from the finished cells of one or more folders of one benchmark.

    Example:
        slater reproduce tables runs/table2-small runs/table2-pdca --out docs/results/table2

    """

    folders: Positional[tuple[Path, ...]]
    """output folders of slater reproduce table2, or of figure2"""
    out: Path
    """folder to write to"""
    json: bool = False
    """print one JSON object with the means instead of the Markdown tables"""


def run(experiment: str, args: list[str]) -> int:
    """Entry point of `slater reproduce EXPERIMENT` for the benchmarks."""
    if experiment == "tables":
        return _tables(parse(TablesArgs, args, "reproduce tables"))
    kind: type[_Common] = Table2Args if experiment == "table2" else Figure2Args
    options = parse(kind, args, f"reproduce {experiment}")
    at_least_one(options, "seeds", "workers")
    return _run(experiment, options)


def _run(experiment: str, options: _Common) -> int:
    from slater.experiments.suite import BenchmarkPlan, run_plan
    from slater.experiments.task_data import TASK_ENVS, task_name

    module = import_module(f"slater.experiments.{experiment}")
    if options.budget not in module.BUDGETS:
        known = ", ".join(module.BUDGETS)
        raise InputError(f"{experiment} has no budget {options.budget!r}; it has {known}.")
    budget = module.BUDGETS[options.budget]
    minutes = budget.minutes if options.minutes is None else options.minutes
    if minutes is not None and budget.minutes is None:
        raise InputError("--minutes belongs to --budget equal.")
    if minutes is not None and options.steps is not None:
        raise InputError("with --budget equal time decides; leave out --steps.")
    tasks = tuple(task_name(text) for text in options.tasks or budget.tasks)
    for task in tasks:
        if not TASK_ENVS[task].startswith(module.FAMILY):
            other = "figure2" if experiment == "table2" else "table2"
            raise InputError(f"{task} belongs to slater reproduce {other}, not to {experiment}.")
    plan = BenchmarkPlan(
        tasks=tasks,
        limits={task: options.limits or budget.limits or module.LIMITS[task] for task in tasks},
        algorithms=options.algorithms or module.ALGORITHMS,
        seeds=tuple(range(options.seed, options.seed + (options.seeds or budget.seeds))),
        steps=budget.steps if options.steps is None else options.steps,
        episodes=budget.episodes if options.episodes is None else options.episodes,
        curve_every=options.curve_every or module.CURVE_EVERY,
        curve_episodes=options.curve_episodes,
        data=options.data or budget.data,
        sets=options.set,
        seconds=None if minutes is None else 60.0 * minutes,
        once=options.once,
        bare=options.bare,
        acting=options.acting or ("draws" if minutes is None else "published"),
        skip_missing=options.tasks is None,
        workers=options.workers,
        engine="fresh" if options.engine == "local" else "ray",
    )
    out = options.out or Path("runs") / f"{experiment}-{options.budget}"
    folder = run_plan(experiment, plan, out)
    if not folder.rows:
        raise InputError(f"every cell failed; the first one: {folder.left_out[-folder.failed]}")
    _write(experiment, out, folder, options.json)
    return FAILED if folder.failed else 0


def _tables(options: TablesArgs) -> int:
    from slater.experiments.suite import read_folders
    from slater.jobs.cells import prepare

    folder = read_folders(options.folders)
    if folder.experiment not in ("table2", "figure2"):
        raise InputError(f"{options.folders[0]} holds {folder.experiment}, not table2 or figure2.")
    prepare(options.out)
    _write(folder.experiment, options.out, folder, options.json)
    return 0


def _write(experiment: str, out: Path, folder: Any, as_json: bool) -> None:
    means = import_module(f"slater.experiments.{experiment}").write(out, folder)
    if as_json:
        print(json.dumps({"out": str(out), "means": means, "left_out": folder.left_out}))
        return
    print((out / f"{experiment}.md").read_text())
    Console(stderr=True).print(f"tables, figures, settings and report.html are in {out}")
