"""A run as a person follows it: a live line on a terminal, a plain line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slater.deep.engine.folder import algorithm_of
from slater.deep.engine.training import Watcher
from slater.deep.task import Task
from slater.limits import limit_table
from slater.progress import EVERY
from slater.runs import Result, Run

__all__ = ["LastRows", "Lines", "Terminal", "figures", "shown"]


def figures(row: Mapping[str, Any]) -> str:
    """What to watch, in one line: multipliers, OPE cost, losses of the policy and critics, rollouts."""
    names = ("lambda/", "ope/", "eval/", "loss/f", "loss/pi")
    return "  ".join(f"{name} {value:.3g}" for name, value in row.items() if name.startswith(names))


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


class Lines(Watcher):
    """A plain line at the start, about every `every` seconds, and the result at the end if it is wanted."""

    def __init__(self, every: float = EVERY, result: bool = True) -> None:
        self.every, self.result = every, result
        self.steps = 0
        self._last = -float("inf")

    def say(self, text: str) -> None:
        """Print to where messages go, at once: a notebook shows it under the cell."""
        print(text, file=sys.stdout if _in_notebook() else sys.stderr, flush=True)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.every:
            return False
        self._last = now
        return True

    def started(self, run: Run, task: Task, step: int) -> None:
        """The limits in all units."""
        self.steps = algorithm_of(run).config.steps
        self.say(limit_table(task.limits, task.units))
        self.say(f"{run.algorithm}: {self.steps} steps" + (f", resumed at step {step}" if step else ""))

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Where it is, how fast it goes, and how long it will take."""
        if self._due():
            rate = float(row["steps_per_second"])
            left = (self.steps - row["step"]) / rate / 60 if rate > 0 else float("nan")
            self.say(
                f"step {row['step']} of {self.steps} ({row['phase']}), {rate:.1f}/s, "
                f"about {left:.0f} min left  {figures(row)}".rstrip()
            )

    def preparing(self, what: str, done: int, total: int) -> None:
        """What is being learned before the first iteration."""
        if self._due():
            self.say(f"preparing: {what}, {done} of {total}")

    def selecting(self, what: str, done: int, total: int) -> None:
        """What is being estimated after training."""
        if self._due():
            self.say(f"choosing: {what}, {done} of {total}")

    def finished(self, result: Result) -> None:
        """What came out."""
        if self.result:
            self.say(str(result))

    def noticed(self, text: str) -> None:
        """The sentence."""
        self.say(f"slater: {text}")


class LastRows(Watcher):
    """Keeps the last row of a run of a sweep in `rows`, under its folder, and says that it is there."""

    def __init__(
        self, rows: MutableMapping[Path, Mapping[str, Any]], folder: Path, changed: Callable[[], None]
    ) -> None:
        self.rows, self.folder, self.changed = rows, folder, changed

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Keep the row."""
        self.rows[self.folder] = row
        self.changed()

    def finished(self, result: Result) -> None:
        """Say that it is done."""
        self.rows[self.folder] = {"done": True, "steps": result.steps}
        self.changed()


class Terminal(Watcher):
    """Shows a run on the terminal: its limits in all units, one live line, and the result if it is wanted."""

    def __init__(self, result: bool = True) -> None:
        self.result = result
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"),
            console=self.console,
        )  # fmt: skip
        self.task: Any = None
        self.steps = 0

    def started(self, run: Run, task: Task, step: int) -> None:
        """Print the limits in all units; start the line."""
        self.console.print(limit_table(task.limits, task.units), highlight=False)
        if step:
            self.console.print(f"resumed at step {step}")
        self.steps = algorithm_of(run).config.steps
        self.progress.start()
        self.task = self.progress.add_task(
            run.algorithm, total=self.steps, completed=step, rate="", figures=""
        )

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show what is learned before the first iteration on the same line."""
        self.progress.update(
            self.task, description="preparing", completed=done, total=total, rate="", figures=what
        )

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Move the line."""
        rate = f"{row['steps_per_second']:.1f}/s"
        self.progress.update(
            self.task, completed=row["step"], total=self.steps, rate=rate, figures=figures(row),
            description=row["phase"],
        )  # fmt: skip

    def selecting(self, what: str, done: int, total: int) -> None:
        """Show the estimates after training on the same line."""
        self.progress.update(
            self.task, description="choosing", completed=done, total=total, rate="", figures=what
        )

    def finished(self, result: Result) -> None:
        """End the line; print what came out."""
        self.progress.stop()
        if self.result:
            self.console.print(str(result), highlight=False, soft_wrap=True, markup=False)

    def noticed(self, text: str) -> None:
        """Print the sentence."""
        self.console.print(f"slater: {text}", highlight=False, markup=False)
