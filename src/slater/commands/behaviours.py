"""`slater behaviours`: train the policies that datasets are recorded from, record them, check them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from slater.commands.parse import Positional, run_one_of
from slater.errors import InputError
from slater.progress import PlainProgress

#: how far a density that is recomputed from the file may be from the recorded one, relative to it
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Train:
    """Train the behaviours of a task and write them as one file; a stopped training goes on.

    Example:
        slater behaviours train ballcircle

    """

    names: Positional[tuple[str, ...]]
    """tasks, for example ballcircle walker"""
    out: Path = Path("behaviours")
    """folder for NAME.safetensors"""
    work: Path = Path("behaviours.work")
    """folder for work in progress: replay memory, checkpoints, kept policies"""
    workers: int = 1
    """tasks trained side by side, in processes of one thread each"""


@dataclass(frozen=True)
class Data:
    """Record the project's datasets from the behaviours in git; those that are there already are kept.

    Examples:
        slater behaviours data ballrun ballcircle --workers 2
        slater behaviours data cartpole walker --preset paper --folder data/paper

    """

    names: Positional[tuple[str, ...]] = ()
    """datasets (default: all of the twelve whose behaviours are trained; the others are named)"""
    folder: Path = Path("data")
    """where they go, as NAME.hdf5"""
    behaviours: Path | None = None
    """folder of the behaviour files (default: SLATER_BEHAVIOURS, or the repository's)"""
    preset: Literal["paper"] | None = None
    """paper: recorded in the paper's way, a draw of the policy plus noise of 0.15 on the action, clipped; in
    a folder of their own"""
    workers: int = 1
    """processes that run episodes; the data do not depend on it"""
    fingerprints: Path | None = None
    """file of expected fingerprints, lines of NAME FINGERPRINT; differences are named, and written with
    --update"""
    update: bool = False
    """write the fingerprints found into that file"""


@dataclass(frozen=True)
class Check:
    """Recompute every density of datasets from their states, their actions and the behaviour files.

    Example:
        slater behaviours check ballrun ballcircle

    """

    names: Positional[tuple[str, ...]] = ()
    """datasets (default: those of the twelve that are in the folder)"""
    folder: Path = Path("data")
    """where the datasets are"""
    behaviours: Path | None = None
    """folder of the behaviour files (default: SLATER_BEHAVIOURS, or the repository's)"""


def run(args: list[str]) -> int:
    """Parse `slater behaviours ...` and do it; return the exit code."""
    train = "train a task's policies and write them as a file: slater behaviours train ballcircle"
    data = "record the project's datasets: slater behaviours data ballrun ballcircle --workers 2"
    check = "recompute every density of a dataset from its behaviours: slater behaviours check ballrun"
    choices = {"train": (Train, _train, train), "data": (Data, _data, data), "check": (Check, _check, check)}
    return run_one_of(args, "behaviours", choices)


def _train(command: Train) -> int:
    from slater.collect.behaviour import behaviour_of_training, save_behaviour
    from slater.collect.benchmark import BENCHMARKS
    from slater.collect.recipes import recipe
    from slater.collect.training import train_all

    def ended(name: str) -> None:
        limits = BENCHMARKS[name].limits
        behaviour = behaviour_of_training(command.work / name, limits)
        save_behaviour(behaviour, command.out / f"{name}.safetensors")
        print(f"{name}: {command.out / name}.safetensors, {behaviour.curve[-1]['steps']:,} steps")
        for source in behaviour.sources:
            print(
                f"  {source.name:<12} {source.steps:>8,} steps, penalty {source.penalty:6.2f}: return "
                f"{source.training_return:8.1f}, cost {source.training_cost:6.1f} in training",
                flush=True,
            )

    recipes = {name: recipe(name) for name in command.names}  # an unknown name is refused before any work
    with training_bars({name: recipe.steps for name, recipe in recipes.items()}, command.work) as (watch, _):
        train_all(recipes, command.work, workers=command.workers, watch=watch, ended=ended)
    return 0


def _data(command: Data) -> int:
    from slater.collect.behaviour import load_behaviour
    from slater.collect.benchmark import BENCHMARKS, behaviour_path, benchmark

    known: dict[str, str] = {}
    if command.fingerprints is not None and command.fingerprints.exists():
        known = dict(line.split() for line in command.fingerprints.read_text().splitlines() if line.strip())
    paper = command.preset == "paper"
    for name in command.names or BENCHMARKS:
        if (command.folder / f"{name}.hdf5").exists():
            data = benchmark(name, command.folder, paper=paper)
        else:
            try:
                path = behaviour_path(name, command.behaviours)
            except InputError:
                if command.names:
                    raise
                print(
                    f"{name}: left out, its behaviours are not trained; run: slater behaviours train {name}"
                )
                continue
            sources = len(load_behaviour(path).sources)
            with episode_bar(name, sources * BENCHMARKS[name].episodes) as progress:
                data = benchmark(
                    name, command.folder, behaviours=command.behaviours, paper=paper,
                    workers=command.workers, progress=progress,
                )  # fmt: skip
        print(
            f"{name}: {len(data.episodes)} episodes, {data.size} rows, fingerprint {data.fingerprint}",
            flush=True,
        )
        if BENCHMARKS[name].weakness:
            print(f"{name}: {BENCHMARKS[name].weakness}")
        if command.update:
            known[name] = data.fingerprint
        elif command.fingerprints is not None and known.get(name) != data.fingerprint:
            print(
                f"{name}: {command.fingerprints} has {known.get(name, 'none')}: another processor or other "
                "versions; results will differ"
            )
    if command.update and command.fingerprints is not None:
        command.fingerprints.write_text(
            "".join(f"{name} {known[name]}\n" for name in BENCHMARKS if name in known)
        )
    return 0


def _check(command: Check) -> int:
    from slater.collect.benchmark import BENCHMARKS, behaviour_path
    from slater.collect.recording import check_densities
    from slater.data import load

    wrong = False
    for name in command.names or [n for n in BENCHMARKS if (command.folder / f"{n}.hdf5").exists()]:
        data = load(command.folder / f"{name}.hdf5")
        found = check_densities(data, behaviour_path(name, command.behaviours))
        wrong |= found.worst > TOLERANCE
        print(
            f"{name}: {found.rows} densities of {found.sources} sources, largest relative difference "
            f"{found.worst:.1e}\n"
            f"  mean weights of a source under itself: {found.weights[0]:.6f} to {found.weights[1]:.6f}\n"
            f"  and with half the noise: {found.narrower[0]:.4f} to {found.narrower[1]:.4f}, at most "
            f"{found.errors:.1f} standard errors from 1",
            flush=True,
        )
    return 1 if wrong else 0


def _bar() -> PlainProgress:
    """Lines on the error stream: done of total, and some figures."""
    return PlainProgress(
        TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[figures]}"), console=Console(stderr=True),
        transient=True,
    )  # fmt: skip


@contextmanager
def training_bars(
    steps: Mapping[str, int], work: Path, episodes: int = 0
) -> Iterator[tuple[Callable[[str, Mapping[str, Any]], None], Callable[[str, int], None]]]:
    """Bars for trainings below `work` and for recording; yields who hears of segments, and of episodes."""
    try:
        with _bar() as bar:
            tasks = {name: bar.add_task(name, total=total, figures="") for name, total in steps.items()}
            recording = bar.add_task("recording", total=episodes, figures="", visible=episodes > 0)

            def watch(name: str, segment: Mapping[str, Any]) -> None:
                figures = f"return {segment['mean_return']:.1f}, cost {segment['mean_cost']:.1f}"
                if isinstance(segment["penalty"], float):
                    figures += f", penalty {segment['penalty']:.2f}"
                bar.update(tasks[name], completed=min(segment["steps"], steps[name]), figures=figures)

            yield watch, lambda source, _: bar.update(recording, advance=1, figures=source)
    except KeyboardInterrupt:
        Console(stderr=True).print(f"What is done is in {work}; give the same command to go on.")
        raise


@contextmanager
def episode_bar(name: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar for `record_behaviour`: episodes so far, and the source that is running."""
    with _bar() as bar:
        task = bar.add_task(name, total=total, figures="")
        yield lambda source, _: bar.update(task, advance=1, figures=source)
