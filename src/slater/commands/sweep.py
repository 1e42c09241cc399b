"""`slater train --seeds` and `--sweep`: many runs, as processes or as one program, and what they come to."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slater.commands.runs import run_row, run_table
from slater.commands.train_options import (
    LIMITS_NOT_KEPT,
    Options,
    exit_code,
    run_of_point,
    run_options,
)
from slater.commands.verdicts import print_verdicts
from slater.disk import locked
from slater.errors import InputError
from slater.jobs.sweep import TrainJob
from slater.progress import PlainLive
from slater.runs import read_result
from slater.runs.held_out import without_held_out
from slater.threads import use_one_thread


def sweep(options: Options) -> int:
    """Train every run of the grid in its folder below `options.out`; the exit code of the command."""
    from slater.jobs.sweep import grid, refuse_other_plans

    assert options.out is not None
    seeds = None if options.seeds is None else range(options.seed, options.seed + options.seeds)
    jobs = [_job(options, point) for point in grid(options.sweep, seeds, options.seed)]
    engine = options.engine
    if engine == "auto":
        import jax

        engine = "processes" if jax.default_backend() == "cpu" else "vmap"
    if engine == "processes" and options.all_threads:
        raise InputError("--all-threads is for one run, or --engine vmap: each process of a sweep has one.")
    if engine == "vmap" and options.processes is not None:
        raise InputError("--processes is for a sweep of processes; this one runs as one program (--engine).")
    failures: dict[Path, str] = {}

    def work() -> Sequence[Path]:
        assert options.out is not None
        with locked(options.out):
            refuse_other_plans(jobs)
            if engine == "processes":  # the runs read the data in processes that say nothing
                _say_what_the_data_give(options)
            failures.update((_as_one_program if engine == "vmap" else _in_processes)(options, jobs))
        return [job.folder for job in jobs]

    code = exit_code(work, options.require_limits)
    if code not in (0, LIMITS_NOT_KEPT):
        return code
    print(run_table([run_row(job.folder) for job in jobs]))
    for folder, words in failures.items():
        print(f"slater: {folder.name} failed: {words}", file=sys.stderr)
    for job in jobs:
        result = read_result(job.folder)
        for text in () if result is None else result.warnings:
            print(f"slater: {job.folder.name}: warning: {text}", file=sys.stderr)
    if options.hold_out is not None:
        from slater.deep.engine.sources import open_for_training

        assert options.data is not None
        whole = open_for_training(options.data, options.memory, options.reading.record())
        done = [job.folder for job in jobs if job.folder not in failures]
        print_verdicts(done, whole, fit=not options.no_estimate)
    return 1 if failures else code


def _say_what_the_data_give(options: Options) -> None:
    """Warnings of the reading, once for all runs of a sweep; a store had them when it was written."""
    from slater.data.download import locate
    from slater.data.files import inspect, told_warnings
    from slater.data.formats.store import is_store

    assert options.data is not None
    path = locate(options.data)
    if is_store(Path(path)):
        return
    for text in told_warnings(path, inspect(path, options.reading.options())):
        print(f"slater: warning: {text}", file=sys.stderr)


def _job(options: Options, point: Mapping[str, str]) -> TrainJob:
    """The run of one point of a sweep, in a folder named after it."""
    assert options.data is not None
    assert options.out is not None
    limits, settings, seed = run_of_point(options, point)
    name = "-".join(f"{name}={value.replace('/', ':')}" for name, value in point.items())
    return TrainJob(
        folder=options.out / name, algorithm=options.algorithm, data=options.data, limits=tuple(limits),
        settings=settings, preset=options.preset, seed=seed, options=run_options(options),
        tensorboard=options.tensorboard, wandb=options.wandb, trackio=options.trackio,
        hold_out=options.hold_out,
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
                live.update(_table({job.folder: last_row(job.folder) for job in jobs}))
                if answer is not None and "failed" in answer[1]:
                    failures[answer[0].folder] = answer[1]["failed"]
    except KeyboardInterrupt:
        raise Interrupted("stopped; every run has saved what it has, and the same command goes on.") from None
    return failures


def _as_one_program(options: Options, jobs: Sequence[TrainJob]) -> dict[Path, str]:
    """The runs of a sweep as one program, or as few as their settings allow; what went wrong, by folder."""
    if not options.all_threads:
        use_one_thread()
    from slater.deep.engine.loggers import Several, loggers
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
            shown = LastRows(rows, job.folder, lambda: live.update(_table(rows)))
            watcher = Several(
                [shown, loggers(job.folder, options.tensorboard, options.wandb, options.trackio)]
            )
            plans.append(Planned(job.plan(data), job.folder, watcher))
        return train_together(plans, data, kept)


def _table(rows: Mapping[Path, Mapping[str, Any]]) -> Table:
    table = Table("run", "step", "steps/s", "now", box=None)
    for folder, row in rows.items():
        if row.get("done"):
            table.add_row(folder.name, str(row["steps"]), "", "done")
        elif row:
            rate = float(row["steps_per_second"])
            table.add_row(folder.name, str(row["step"]), f"{rate:.1f}", row.get("now", ""))
        else:
            table.add_row(folder.name, "", "", "waiting")
    return table
