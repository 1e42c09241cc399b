"""`slater data`: look at a dataset, check it, convert it, take names and propensities away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from slater.commands.parse import Positional, run_one_of
from slater.commands.reading import Reading
from slater.data.download import locate
from slater.data.files import convert, inspect, open_file
from slater.data.fingerprint import OPTIONAL_FIELDS
from slater.data.formats.known import open_reader
from slater.data.summary import summarise
from slater.data.summary_views import draw, summary_text
from slater.errors import InputError
from slater.limits import limit_list
from slater.progress import PlainProgress


@dataclass(frozen=True)
class Info:
    """Print sizes, returns and costs, share of episodes within limits, the frontier, action coverage."""

    file: Positional[str]
    """A dataset (.hdf5, .npz, .parquet, .csv, .store, minari:ID) or the name of a published DSRL task."""
    limit: tuple[str, ...] = ()
    """Cost limits [NAME=]VALUE[/UNIT], per episode unless /step or /discounted is added; if none is
    given, 10, 20 and 40. Limits without a name are alternatives, each for every cost; named ones
    together are one set."""
    gamma: float = 0.99
    """Discount that a /discounted limit refers to."""
    out: Path | None = None
    """Write the cost-return frontier and the action coverage as a picture (.png, .svg, .pdf)."""
    json: bool = False
    """Print JSON instead of text."""
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Check:
    """List every problem of a file, with rows: errors (it cannot be used), then warnings.

    A file without errors is asked whether its observations hide something: whether what came before in an
    episode says more of what follows than they do. Exit code 0 if there is no error, 1 if there is.
    """

    file: Positional[str]
    """A dataset (.hdf5, .npz, .parquet, .csv, .store, minari:ID) or the name of a published DSRL task."""
    json: bool = False
    """Print JSON instead of text."""
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Convert:
    """Write a dataset in another format, checking it on the way; files larger than memory are streamed."""

    source: Positional[str]
    """A dataset (.hdf5, .npz, .parquet, .csv, .store, minari:ID) or the name of a published DSRL task."""
    target: Positional[str]
    """The new file; its ending chooses the format: .hdf5 (DSRL), .npz, .parquet, .csv, .store (a folder that
    training reads a batch at a time, for data larger than memory), or minari:ID."""
    overwrite: bool = False
    """Replace the target if it exists."""
    json: bool = False
    """Print JSON instead of text."""
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Bare(Convert):
    """Write a dataset without the names of its sources and without propensities, as most logs are.

    What is learned from such a file is learned from what happened alone. Everything else stays as it is.
    """


def run(args: list[str]) -> int:
    """Parse `slater data ...` and do it; return the exit code."""
    about = "sizes, returns and costs, share of episodes within limits: slater data info FILE --limit 20"
    bare = "the same data without names of sources and propensities: slater data bare FILE NEW"
    return run_one_of(args, "data", {
        "info": (Info, _info, about),
        "check": (Check, _check, "every problem of a file, with rows: slater data check FILE"),
        "convert": (Convert, _convert, "the same data in another format: slater data convert FILE NEW"),
        "bare": (Bare, _convert, bare),
    })  # fmt: skip


def _info(command: Info) -> int:
    opened = open_file(_locate(command.file), command.reading.options())
    with opened.reader:
        limits = limit_list(command.limit or ("10", "20", "40"), opened.metadata.step)
        summary = summarise(opened, limits, command.gamma)
    if command.json:
        warnings = [problem.to_json() for problem in opened.report.warnings]
        print(json.dumps({**summary.record, "recognised": opened.reader.recognised, "warnings": warnings}))
    else:
        print(summary_text(summary))
        if opened.reader.recognised:
            print(f"read as: {opened.reader.recognised}")
        for problem in opened.report.warnings:
            print(f"warning: {problem}")
    if command.out is not None:
        draw(summary, command.out)
        if not command.json:
            print(f"picture: {command.out}")
    return 0


def _check(command: Check) -> int:
    report = inspect(_locate(command.file), command.reading.options())
    print(json.dumps(report.to_json()) if command.json else report)
    return 1 if report.errors else 0


def _convert(command: Convert) -> int:
    if not command.overwrite and not command.target.startswith("minari:") and Path(command.target).exists():
        raise InputError(f"{command.target} is already there; remove it or add --overwrite.")
    if command.reading.history:
        raise InputError("--history is for training: a converted file has its rows as they are.")
    source, bare = _locate(command.source), isinstance(command, Bare)
    taken: list[str] = []
    if bare:
        with open_reader(source, command.reading.options()) as reader:
            taken = [name for name in OPTIONAL_FIELDS if name in reader.columns]
    with _bar("rows") as progress:
        report, episodes = convert(
            source, command.target, command.reading.options(), overwrite=command.overwrite, bare=bare,
            progress=progress,
        )  # fmt: skip
    rows = int(episodes.lengths.sum())
    if command.json:
        record = {"target": command.target, "rows": rows, "episodes": len(episodes), **report.to_json()}
        print(json.dumps({**record, "taken_away": taken} if bare else record))
        return 0
    if report.recognised:
        print(f"read as: {report.recognised}")
    for problem in report.warnings:
        print(f"warning: {problem}")
    words = f" (taken away: {', '.join(taken) or 'nothing, it had neither names nor propensities'})"
    print(f"{command.target}: {rows:,} rows, {len(episodes):,} episodes{words if bare else ''}.")
    return 0


def _locate(name: str) -> str | Path:
    with _bar("bytes") as progress:
        return locate(name, progress)


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on the error stream, shown from the first report of progress on."""
    columns = (BarColumn(), TextColumn("{task.completed:,.0f} " + unit), TimeRemainingColumn())
    bar = PlainProgress(*columns, console=Console(stderr=True), transient=True)

    def report(done: int, total: int | None) -> None:
        if not bar.tasks:
            bar.start()
            bar.add_task(unit, total=total)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield report
    finally:
        if bar.tasks:
            bar.stop()
