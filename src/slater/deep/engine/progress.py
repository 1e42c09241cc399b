"""A run as a person follows it: a live line on a terminal, a plain line now and then where there is none."""

from __future__ import annotations

import abc
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from slater.deep.engine.folder import algorithm_of
from slater.deep.engine.training import Watcher
from slater.deep.task import Task
from slater.limits import limit_records, limit_table
from slater.progress import EVERY
from slater.runs import Result, Run


class TimeLeft:
    """How long work will still take, by what its parts have taken so far; the latest steps count most.

    phase: step -> the part that iteration belongs to, and the iteration at which that part ends; parts take
    different times for a step, so each has a pace of its own.
    """

    def __init__(self, phase: Callable[[int], tuple[str, int]], steps: int, step: int = 0) -> None:
        self.phase, self.steps = phase, steps
        self._seen, self._at = step, 0.0
        self._took: dict[str, tuple[float, float]] = {}

    def _parts(self, start: int, stop: int) -> dict[str, int]:
        """Steps of each part from `start` to `stop`."""
        found: dict[str, int] = {}
        while start < stop:
            name, end = self.phase(start)
            end = max(min(end, stop), start + 1)
            found[name] = found.get(name, 0) + end - start
            start = end
        return found

    def saw(self, step: int, now: float) -> None:
        """The first `step` steps are done, `now` seconds after the work began."""
        for name, count in self._parts(self._seen, step).items():
            seconds, steps = self._took.get(name, (0.0, 0.0))
            share = (now - self._at) * count / (step - self._seen)
            self._took[name] = (0.5 * seconds + share, 0.5 * steps + count)
        self._seen, self._at = step, now

    def words(self) -> str:
        """For a person; "at least" where a part is still to come of which nothing was seen."""
        left = self._parts(self._seen, self.steps)
        if not left or not any(name in self._took for name in left):
            return ""
        pace = {name: seconds / steps for name, (seconds, steps) in self._took.items()}
        seconds = sum(count * pace.get(name, 0.0) for name, count in left.items())
        known = "about" if left.keys() <= pace.keys() else "at least"
        return f"{known} {seconds / 60:.0f} min left" if seconds >= 45 else f"{known} {seconds:.0f} s left"


def figures(row: Mapping[str, Any], task: Task) -> str:
    """What the policy in training is worth, in the data's units: estimated from the log, and measured.

    Sums per episode where a horizon is known, else discounted. The rest of a row is for `metrics.jsonl`.
    """
    episodes = task.units.horizon is not None
    unit = "episode" if episodes else "discounted"
    limits = {record["cost"]: record[unit] for record in limit_records(task.limits, task.units)}
    estimated = {name: float(row[f"ope/{name}"]) for name in ("reward", *limits) if f"ope/{name}" in row}
    if episodes:
        estimated = {k: task.units.rescale(x, "discounted", "episode") for k, x in estimated.items()}
    measured = {name: float(row[f"eval/{name}"]) for name in ("return", *limits) if f"eval/{name}" in row}
    said = []
    # before the first estimate all of them are 0
    for found, what in ((estimated if any(estimated.values()) else {}, "estimated"), (measured, "measured")):
        sums = (
            f"{name} {value:.3g}" + (f" of {limits[name]:.3g}" if limits.get(name) is not None else "")
            for name, value in found.items()
        )
        said += [f"{what}: {', '.join(sums)}"] if found else []
    return "; ".join(said)


def shown(result: bool = True) -> Watcher:
    """What suits where the process speaks: a live line on a terminal, plain lines in a pipe or a notebook.

    result: whether the result is printed at the end; not where the caller is given it to print.
    """
    live = Console(stderr=True).is_terminal and not _in_notebook()
    return Terminal(result) if live else Lines(result=result)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Followed(Watcher):
    """A run as it is said: its limits in all units, how far it is, and the result if it is wanted."""

    def __init__(self, result: bool = True) -> None:
        self.result, self.steps = result, 0
        self.of: tuple[Run, Task]
        self._left = TimeLeft(lambda step: ("", 0), 0)
        self._part = ("", 0.0, TimeLeft(lambda step: ("", 0), 0))

    def _worked(self, label: str, what: str, done: int, total: int) -> None:
        """Show work that is no training, and how long it takes from when it was first heard of."""
        now = time.monotonic()
        if self._part[0] != what:
            self._part = (what, now, TimeLeft(lambda step: (what, total), total, done))
        _, began, left = self._part
        if now > began:
            left.saw(done, now - began)
        self.show(label, done, total, left.words(), what)

    def preparing(self, what: str, done: int, total: int) -> None:
        """What is being learned before the first iteration."""
        self._worked("preparing", what, done, total)

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Where it is, how fast it goes, and how long it will take."""
        self._left.saw(int(row["step"]), row["seconds"])
        run, task = self.of
        self.show(run.algorithm, row["step"], self.steps, self._left.words(), figures(row, task))

    def selecting(self, what: str, done: int, total: int) -> None:
        """What is being estimated after training."""
        self._worked("choosing", what, done, total)

    @abc.abstractmethod
    def show(self, label: str, done: int, total: int, left: str, what: str) -> None:
        """How far the work called `label` is, how long it will take, and what else there is to say of it."""

    @abc.abstractmethod
    def say(self, text: str) -> None:
        """Print a text as it is."""

    def started(self, run: Run, task: Task, step: int) -> None:
        """The limits in all units."""
        algorithm = algorithm_of(run)
        self.steps, self.of = algorithm.config.steps, (run, task)
        self._left = TimeLeft(algorithm.phase, self.steps, step)
        self.say(limit_table(task.limits, task.units))

    def finished(self, result: Result) -> None:
        """What came out."""
        if self.result:
            self.say(str(result))

    def noticed(self, text: str) -> None:
        """The sentence."""
        self.say(f"slater: {text}")


class Lines(_Followed):
    """A plain line at the start, about every `every` seconds, and the result at the end if it is wanted."""

    def __init__(self, every: float = EVERY, result: bool = True) -> None:
        super().__init__(result)
        self.every, self._last = every, -float("inf")

    def say(self, text: str) -> None:
        """Print to where messages go, at once: a notebook shows it under the cell."""
        print(text, file=sys.stdout if _in_notebook() else sys.stderr, flush=True)

    def started(self, run: Run, task: Task, step: int) -> None:
        """The limits in all units."""
        super().started(run, task, step)
        done = f", of which {step:,} are done" if step else ""
        self.say(f"{run.algorithm}: {self.steps:,} steps of training{done}")

    def show(self, label: str, done: int, total: int, left: str, what: str) -> None:
        """A line, if one is due."""
        now = time.monotonic()
        if now - self._last < self.every:
            return
        self._last = now
        if label == self.of[0].algorithm:
            self.say("; ".join(filter(None, (f"step {done:,} of {total:,}", left, what))))
        else:
            self.say("; ".join(filter(None, (f"{label}: {what}, {done:,} of {total:,}", left))))


class LastRows(Watcher):
    """Keeps the last row of a run of a sweep in `rows`, under its folder, and says that it is there."""

    def __init__(
        self, rows: MutableMapping[Path, Mapping[str, Any]], folder: Path, changed: Callable[[], None]
    ) -> None:
        self.rows, self.folder, self.changed = rows, folder, changed

    def started(self, run: Run, task: Task, step: int) -> None:
        """Keep what the rows are about."""
        self._task = task

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Keep the row, and what it says to a person as `now`."""
        self.rows[self.folder] = {**row, "now": figures(row, self._task)}
        self.changed()

    def finished(self, result: Result) -> None:
        """Say that it is done."""
        self.rows[self.folder] = {"done": True, "steps": result.steps}
        self.changed()


class Terminal(_Followed):
    """Shows a run on the terminal: its limits in all units, one live line, and the result if it is wanted."""

    def __init__(self, result: bool = True) -> None:
        super().__init__(result)
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"), TextColumn("{task.fields[figures]}"),
            console=self.console,
        )  # fmt: skip
        self.task: Any = None

    def say(self, text: str) -> None:
        """Print it above the line."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, run: Run, task: Task, step: int) -> None:
        """Print the limits; start the line."""
        super().started(run, task, step)
        if step:
            self.say(f"{step:,} of {self.steps:,} steps are done already")
        self.progress.start()
        self.task = self.progress.add_task(
            run.algorithm, total=self.steps, completed=step, left="", figures=""
        )

    def show(self, label: str, done: int, total: int, left: str, what: str) -> None:
        """Move the line."""
        self.progress.update(
            self.task, description=label, completed=done, total=total, left=left, figures=what
        )

    def finished(self, result: Result) -> None:
        """End the line; print what came out."""
        self.progress.stop()
        super().finished(result)
