"""`slater train`: a file of logged experience goes in, a policy that respects its limits comes out."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from slater.commands.parse import field_texts, parse_given
from slater.commands.resume import refuse_changes
from slater.commands.sweep import sweep
from slater.commands.train_options import Options, exit_code, run_of_point, run_options
from slater.commands.verdicts import print_verdicts
from slater.errors import InputError
from slater.runs.folder import folder_for, new_run_folder
from slater.runs.held_out import read_held_out
from slater.runs.record import read_record
from slater.threads import use_one_thread


def run(args: list[str]) -> int:
    """Entry point of `slater train`."""
    options, given = parse_given(Options, args, "train")
    if options.settings:
        if more := sorted(given - {"settings", "algorithm"}):
            raise InputError(f"--settings lists settings and trains nothing; leave --{more[0]} out.")
        return _print_settings(options.algorithm)
    if options.resume is not None:
        return exit_code(lambda: _resume(options, given), options.require_limits)
    if options.data is None:
        options = replace(options, data=_sample())
    swept = options.seeds is not None or bool(options.sweep)
    if "seed" in given and any(text.partition("=")[0].strip() == "seed" for text in options.sweep):
        raise InputError("seed is given twice, by --seed and by --sweep; keep one of them.")
    for name in sorted(given & {"engine", "processes"}) if not swept else ():
        raise InputError(f"--{name} is for sweeps; add --seeds N or --sweep NAME=V1,V2,...")
    for name in sorted(given & {"eval_every", "eval_episodes"}) if options.env is None else ():
        raise InputError(f"--{name.replace('_', '-')} is of rollouts while training; name --env too.")
    if swept:
        folder = options.out or _announced(new_run_folder(_name(options, "sweep")), None)
        return sweep(replace(options, out=folder))
    return exit_code(lambda: _train(options), options.require_limits)


def _name(options: Options, *words: str) -> str:
    """What a new folder is called: after the algorithm and the data."""
    return "-".join([options.algorithm, Path(str(options.data)).stem, *words])


def _announced(folder: Path, out: Path | None) -> Path:
    """The folder; where it is of our choice, said."""
    if out is None:
        print(f"slater: results go to {folder}", file=sys.stderr)
    return folder


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

    assert options.data is not None
    find(options.algorithm)  # a wrong name is said before the data are read
    data = open_for_training(options.data, options.memory, options.reading.record())
    limits, settings, seed = run_of_point(options, {})
    with folder_for(options.out, _name(options)) as folder:
        train(
            options.algorithm, data, limits, _announced(folder, options.out), seed=seed,
            preset=options.preset, hold_out=options.hold_out, watcher=_watcher(options, folder),
            options=run_options(options), **settings,
        )  # fmt: skip
    if options.hold_out is not None:
        print_verdicts([folder], data, fit=not options.no_estimate)
    return [folder]


def _resume(options: Options, given: frozenset[str]) -> list[Path]:
    if not options.all_threads:
        use_one_thread()
    from slater.deep import resume
    from slater.deep.engine.sources import open_for_training

    assert options.resume is not None
    record = read_record(options.resume)
    refuse_changes(options, given, record)
    run = record.run
    data = open_for_training(options.data or run.data, run.memory, run.reading)
    resume(options.resume, data, _watcher(options, options.resume), steps=options.steps)
    if read_held_out(options.resume) is not None:
        print_verdicts([options.resume], data, fit=run.estimate)
    return [options.resume]


def _watcher(options: Options, folder: Path) -> Any:
    """Who hears of the run: the terminal, and the loggers that were asked for."""
    from slater.deep.engine.loggers import Several, loggers
    from slater.deep.engine.progress import shown

    return Several([shown(), loggers(folder, options.tensorboard, options.wandb, options.trackio)])


def _print_settings(name: str) -> int:
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
