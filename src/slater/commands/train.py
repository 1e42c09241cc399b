"""`slater train`: a file of logged experience goes in, a policy that respects its limits comes out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from slater.commands.parse import Positional, Repeated, field_texts, parse_given
from slater.commands.reading import OwnLog
from slater.commands.runs import run_row, run_table
from slater.disk import locked
from slater.errors import InputError
from slater.jobs.sweep import TrainJob
from slater.limits import Limit, resolve_limits
from slater.pairs import parse_pairs
from slater.progress import PlainLive
from slater.runs import Run, is_run, read_result, read_run
from slater.runs.held_out import FILE as HELD_OUT
from slater.runs.held_out import HeldOut, keep, read_held_out, training_part, without_held_out
from slater.threads import use_one_thread

__all__ = ["run"]

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
    reading: OwnLog = field(default_factory=OwnLog)
    limit: Repeated = ()
    """limit on a cost, repeated for several: 20 (per episode), 5/discounted, 0.05/step, NAME=20"""
    out: Path | None = None
    """folder of the run, or of all runs of a sweep"""
    resume: Path | None = None
    """continue the run in this folder from its last checkpoint; --steps extends it, the data may have
    moved, anything else that differs from the run is refused"""
    hold_out: float | None = None
    """share of the episodes that are kept from training so that `slater certify` can judge by them, as
    0.2; the same episodes for every seed, remembered in the run"""
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
    """iterations between rollouts (with --env; 2500 by default)"""
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
    engine: Literal["auto", "processes", "vmap"] = "auto"
    """how a sweep runs: a process of one thread per run, or runs that differ in seed and limit as one program
    (for a GPU; data in memory); auto takes vmap where there is a GPU"""
    processes: int | None = None
    """runs at the same time in a sweep of processes (default: one per core)"""
    all_threads: bool = False
    """use every core for this one run: faster alone; its bits may then differ from those in a sweep"""


def run(args: list[str]) -> int:
    """Entry point of `slater train`."""
    options, given = parse_given(Options, args, "train")
    if options.settings:
        return _print_settings(options.algorithm)
    if options.resume is not None:
        return _guarded(lambda: _resume(options, given), options.require_limits)
    if options.data is None:
        options = replace(options, data=_sample())
    swept = options.seeds is not None or bool(options.sweep)
    if not swept and options.engine == "vmap":
        raise InputError("--engine vmap is for sweeps; add --seeds N or --sweep NAME=V1,V2,...")
    if swept:
        return _sweep(options if options.out else replace(options, out=_new_folder(options, "sweep")))
    return _guarded(lambda: _train(options), options.require_limits)


def _new_folder(options: Options, *words: str) -> Path:
    """A folder of its own below runs/, named after the algorithm and the data; said where it is."""
    from slater.front import new_run_folder

    folder = new_run_folder("-".join([options.algorithm, Path(str(options.data)).stem, *words]))
    print(f"slater: results go to {folder}", file=sys.stderr)
    return folder


def _guarded(work: Callable[[], Sequence[Path]], require_limits: bool = False) -> int:
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
    broken = [str(folder) for folder, result in found.items() if result is None or not result.keeps_limits]
    if broken:
        print(f"slater: limits are not kept, or that is not known, in {', '.join(broken)}", file=sys.stderr)
    return LIMITS_NOT_KEPT if broken else 0


def _sample() -> str:
    from slater.data.samples import ballcircle

    path = ballcircle()
    print(f"slater: no data is given; training on the sample of bullet/BallCircle, {path}", file=sys.stderr)
    return str(path)


def _train(options: Options) -> list[Path]:
    if not options.all_threads:
        use_one_thread()
    from slater.deep import find, train
    from slater.deep.engine.sources import open_for_training
    from slater.front import remove_if_unused

    assert options.data is not None
    find(options.algorithm)  # a wrong name is said before the data are read
    data = open_for_training(options.data, options.memory, options.reading.record())
    whole = data
    data, kept = without_held_out(data, options.hold_out)
    limits, settings, seed = _point(options, {})
    folder = options.out or _new_folder(options)
    keep(kept, folder)
    try:
        train(
            options.algorithm, data, limits, folder, seed=seed, preset=options.preset,
            watcher=_watcher(options, folder), options=_run_options(options), **settings,
        )  # fmt: skip
    except InputError:
        if kept is not None and not is_run(folder):
            (folder / HELD_OUT).unlink(missing_ok=True)
        if options.out is None:
            remove_if_unused(folder)
        raise
    if kept is not None:
        _print_verdicts(folder, whole, kept)
    return [folder]


def _print_verdicts(folder: Path, whole: Any, kept: HeldOut) -> None:
    """One line per limit: what the held-out episodes allow to be said, without fitting anything."""
    from slater.certify.judge import certify

    found = certify(folder, whole, fit=False)
    print(f"verdict on {len(kept.episodes)} held-out episodes:")
    for limit in found.limits:
        print(f"  {limit}")
    print(f"for estimates and pictures: slater certify {folder}")


def _print_sweep_verdicts(jobs: Sequence[TrainJob], options: Options) -> None:
    """The lines of `_print_verdicts`, run by run; all of them kept the same episodes."""
    from slater.certify.judge import certify
    from slater.deep.engine.sources import open_for_training

    if not jobs:
        return
    assert options.data is not None
    whole: Any = open_for_training(options.data, options.memory, options.reading.record())
    kept = read_held_out(jobs[0].folder)
    print(f"verdicts on {len(kept.episodes) if kept else 0} held-out episodes, the same for every run:")
    for job in jobs:
        for limit in certify(job.folder, whole, fit=False).limits:
            print(f"  {job.folder.name}: {limit}")
    print(f"for estimates and pictures: slater certify {jobs[0].folder}")


def _point(options: Options, point: Mapping[str, str]) -> tuple[list[str], dict[str, Any], int]:
    """Limits, settings and seed of one run, `point` of a sweep overruling what is given for all."""
    limits = list(options.limit)
    settings: dict[str, Any] = parse_pairs(options.set)
    if options.steps is not None:
        settings["steps"] = options.steps
    for name, value in point.items():
        if name == "limit":
            limits = [value]
        elif name != "seed":
            settings[name.replace("-", "_")] = value
    return limits, settings, int(point.get("seed", options.seed))


def _run_options(options: Options) -> dict[str, Any]:
    """What is recorded of a run besides algorithm, limits, settings and seed."""
    return {
        "data": str(options.data), "env": options.env, "eval_episodes": options.eval_episodes,
        "eval_every": options.eval_every or (2500 if options.env else None),
        "log_every": options.log_every, "checkpoint_every": options.checkpoint_every,
        "memory": options.memory, "estimate": not options.no_estimate, "reading": options.reading.record(),
    }  # fmt: skip


def _resume(options: Options, given: frozenset[str]) -> list[Path]:
    if not options.all_threads:
        use_one_thread()
    from slater.deep import resume
    from slater.deep.engine.sources import open_for_training

    assert options.resume is not None
    record = read_run(options.resume)
    _refuse_changes(options, given, record)
    data: Any = open_for_training(options.data or record.data, record.memory, record.reading)
    kept = read_held_out(options.resume)
    if kept is not None:
        data = training_part(data, kept)
    resume(options.resume, data, _watcher(options, options.resume), steps=options.steps)
    return [options.resume]


#: options that a resumed run may be given anew: they do not change what it computes, but for `steps`
_FREE = frozenset(
    {
        "resume",
        "data",
        "steps",
        "tensorboard",
        "wandb",
        "all_threads",
        "processes",
        "require_limits",
    }
)


def _refuse_changes(options: Options, given: frozenset[str], run: Run) -> None:
    """Refuse, by name, what a resumed run cannot change; the same value again is no change."""
    for name in sorted(given - _FREE):
        word = f"--{name.replace('_', '-')}"
        if name in ("out", "seeds", "sweep", "engine", "settings", "hold_out"):
            raise InputError(f"{word} is for new runs; a run that is resumed stays in {options.resume}.")
        before: Any
        now: Any
        if name == "limit":
            costs = [Limit.parse(text).cost or "" for text in run.limits]
            before, now = " ".join(run.limits), " ".join(map(str, resolve_limits(options.limit, costs)))
        elif name == "set":
            for setting, value in parse_pairs(options.set).items():
                if str(run.settings.get(setting)) != value:
                    old = run.settings.get(setting, "its default")
                    raise InputError(
                        f"--set {setting}={value} cannot change a run that is resumed, which has {old}; "
                        "train anew."
                    )
            continue
        elif name in ("columns", "drop_missing", "fill", "horizon"):
            before, now = _words(run.reading), _words(options.reading.record())
        else:
            before, now = getattr(run, name), getattr(options, name)
        if now != before:
            raise InputError(
                f"{word if name != 'algorithm' else 'the algorithm'} cannot change in a run that is "
                f"resumed: it has {before}, not {now}; train anew."
            )


def _words(reading: Mapping[str, Any]) -> str:
    """How the data are read, as one would write it."""
    columns = [f"{role}={','.join(names)}" for role, names in reading.get("columns", {}).items()]
    others = [f"{name}={value}" for name, value in reading.items() if name != "columns"]
    return " ".join([*columns, *others]) or "nothing of the kind"


def _watcher(options: Options, folder: Path) -> Any:
    """Who hears of the run: the terminal, and the loggers that were asked for."""
    from slater.deep.engine.loggers import Several
    from slater.deep.engine.progress import shown

    return Several([shown(), _loggers(options, folder)])


def _loggers(options: Options, folder: Path) -> Any:
    from slater.deep.engine.loggers import Several, TensorBoard, WeightsAndBiases

    watchers: list[Any] = []
    if options.tensorboard:
        watchers.append(TensorBoard(folder))
    if options.wandb is not None:
        watchers.append(WeightsAndBiases(options.wandb, folder))
    return Several(watchers)


def _sweep(options: Options) -> int:
    from slater.jobs.sweep import grid, refuse_other_plans

    assert options.out is not None
    named = options.seeds is None and any(text.partition("=")[0].strip() == "seed" for text in options.sweep)
    seeds = None if named else range(options.seed, options.seed + (options.seeds or 1))
    jobs = [_job(options, point) for point in grid(options.sweep, seeds)]
    engine = options.engine
    if engine == "auto":
        import jax

        engine = "processes" if jax.default_backend() == "cpu" else "vmap"
    failures: dict[Path, str] = {}

    def work() -> Sequence[Path]:
        assert options.out is not None
        with locked(options.out):
            refuse_other_plans(jobs)
            failures.update((_as_one_program if engine == "vmap" else _in_processes)(options, jobs))
        return [job.folder for job in jobs]

    code = _guarded(work, options.require_limits)
    if code not in (0, LIMITS_NOT_KEPT):
        return code
    print(run_table([run_row(job.folder) for job in jobs]))
    for folder, words in failures.items():
        print(f"slater: {folder.name} failed: {words}", file=sys.stderr)
    for job in jobs:
        for text in _warnings(job.folder):
            print(f"slater: {job.folder.name}: warning: {text}", file=sys.stderr)
    if options.hold_out is not None:
        _print_sweep_verdicts([job for job in jobs if job.folder not in failures], options)
    return 1 if failures else code


def _job(options: Options, point: Mapping[str, str]) -> TrainJob:
    """The run of one point of a sweep, in a folder named after it."""
    assert options.data is not None
    assert options.out is not None
    limits, settings, seed = _point(options, point)
    name = "-".join(f"{name}={value.replace('/', ':')}" for name, value in point.items())
    return TrainJob(
        folder=options.out / name, algorithm=options.algorithm, data=options.data, limits=tuple(limits),
        settings=settings, preset=options.preset, seed=seed, options=_run_options(options),
        tensorboard=options.tensorboard, wandb=options.wandb, hold_out=options.hold_out,
    )  # fmt: skip


def _in_processes(options: Options, jobs: Sequence[TrainJob]) -> dict[Path, str]:
    """Every run of a sweep as a process of its own; what went wrong, by folder."""
    from slater.deep.engine.training import Interrupted
    from slater.jobs.engines import run_jobs
    from slater.jobs.sweep import last_row

    workers = options.processes or os.cpu_count() or 1
    waiting = [job for job in jobs if read_result(job.folder) is None]
    console = Console(stderr=True)
    console.print(f"{len(jobs)} runs, {min(workers, len(jobs))} at a time, in {options.out}")
    failures: dict[Path, str] = {}
    try:
        with (
            PlainLive(console=console, refresh_per_second=2) as live,
            closing(run_jobs(TrainJob.run, waiting, workers=workers)) as ended,
        ):
            for answer in ended:
                live.update(_sweep_table({job.folder: last_row(job.folder) for job in jobs}))
                if answer is not None and "failed" in answer[1]:
                    failures[answer[0].folder] = answer[1]["failed"]
    except KeyboardInterrupt:
        raise Interrupted("stopped; every run has saved what it has, and the same command goes on.") from None
    return failures


def _as_one_program(options: Options, jobs: Sequence[TrainJob]) -> dict[Path, str]:
    """The runs of a sweep as one program, or as few as their settings allow; what went wrong, by folder."""
    if not options.all_threads:
        use_one_thread()
    from slater.deep.engine.loggers import Several
    from slater.deep.engine.progress import LastRows
    from slater.deep.engine.sources import open_for_training
    from slater.deep.engine.stacked import Planned, train_together
    from slater.jobs.sweep import last_row

    assert options.data is not None
    whole = open_for_training(options.data, options.memory, options.reading.record())
    data, kept = without_held_out(whole, options.hold_out)
    console = Console(stderr=True)
    console.print(f"{len(jobs)} runs as one program where they differ in seed and limit, in {options.out}")
    with PlainLive(console=console, refresh_per_second=2) as live:
        rows: dict[Path, Mapping[str, Any]] = {job.folder: last_row(job.folder) for job in jobs}
        plans = []
        for job in jobs:
            shown = LastRows(rows, job.folder, lambda: live.update(_sweep_table(rows)))
            watcher = Several([shown, _loggers(options, job.folder)])
            keep(kept, job.folder)
            plans.append(Planned(job.plan(whole), job.folder, watcher))
        return train_together(plans, data)


def _warnings(folder: Path) -> list[str]:
    """What a finished run warns of."""
    result = read_result(folder)
    return [] if result is None else list(result.warnings)


def _print_settings(name: str) -> int:
    import dataclasses

    from slater.deep import find

    algorithm = find(name)
    texts = field_texts(algorithm.Config)
    for setting in dataclasses.fields(algorithm.Config):
        print(f"{setting.name} = {setting.default!r}\n    {texts.get(setting.name, '')}")
    for preset, changes in algorithm.presets.items():
        print(f"\npreset {preset}: " + ", ".join(f"{key}={value}" for key, value in changes.items()))
    for preset, variant in algorithm.variants.items():
        print(f"\npreset {preset}, with settings of its own:")
        changes, own = variant.presets[preset], field_texts(variant.Config)
        for setting in dataclasses.fields(variant.Config):
            value = changes.get(setting.name, setting.default)
            print(f"{setting.name} = {value!r}\n    {own.get(setting.name, '')}")
    return 0


def _sweep_table(rows: Mapping[Path, Mapping[str, Any]]) -> Table:
    from slater.deep.engine.progress import figures

    table = Table("run", "step", "steps/s", "now", box=None)
    for folder, row in rows.items():
        if row.get("done"):
            table.add_row(folder.name, str(row["steps"]), "", "done")
        elif row:
            rate = float(row["steps_per_second"])
            table.add_row(folder.name, str(row["step"]), f"{rate:.1f}", figures(row))
        else:
            table.add_row(folder.name, "", "", "waiting")
    return table
