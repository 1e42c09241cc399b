"""A run on the terminal: its limits in all units, then one live line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slater.deep import Watcher
from slater.deep.engine.folder import algorithm_of
from slater.deep.task import Task
from slater.limits import limit_table
from slater.runs import Result, Run

__all__ = ["Rows", "Terminal", "figures"]


def figures(row: Mapping[str, Any]) -> str:
    """What to watch, in one line: multipliers, OPE cost, losses of the policy and critics, rollouts."""
    shown = ("lambda/", "ope/", "eval/", "loss/f", "loss/pi")
    return "  ".join(f"{name} {value:.3g}" for name, value in row.items() if name.startswith(shown))


class Rows(Watcher):
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
        """Keep the result."""
        self.rows[self.folder] = {"done": True, "steps": result.steps}
        self.changed()


class Terminal(Watcher):
    """Shows a run on the terminal: its limits in all units, then one live line."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"),
            console=self.console,
        )  # fmt: skip
        self.task: Any = None

    def started(self, run: Run, task: Task, step: int) -> None:
        """Print the limits in all units; start the line."""
        self.console.print(limit_table(task.limits, task.units), highlight=False)
        if step:
            self.console.print(f"resumed at step {step}")
        total = algorithm_of(run).config.steps
        self.progress.start()
        self.task = self.progress.add_task(run.algorithm, total=total, completed=step, rate="", figures="")

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Move the line."""
        rate = f"{row['steps_per_second']:.1f}/s"
        self.progress.update(
            self.task, completed=row["step"], rate=rate, figures=figures(row), description=row["phase"]
        )

    def selecting(self, what: str, done: int, total: int) -> None:
        """Show the estimates after training on the same line."""
        self.progress.update(
            self.task, description="choosing", completed=done, total=total, rate="", figures=what
        )

    def finished(self, result: Result) -> None:
        """End the line; print what came out."""
        self.progress.stop()
        weighted = [member for member in result.members if member.weight > 0]
        steps = [member.step for member in weighted]
        self.console.print(f"mixture of {len(weighted)} policies, of steps {steps}")
        if (cloned := result.weights.get("fallback", 0.0)) > 0:
            self.console.print(
                f"weight {cloned:.2f} is on a clone of the data's rows that stayed within the limits"
            )
        for sums, what in ((result.per_episode, "per episode"), (result.estimates, "discounted sums")):
            if sums is not None:
                text = ", ".join(f"{name} {value:.3g}" for name, value in sums.items())
                self.console.print(f"estimated for the mixture, {what}: {text}")
        for text in result.warnings:
            self.console.print(f"warning: {text}", highlight=False)

    def noticed(self, text: str) -> None:
        """Print the sentence."""
        self.console.print(f"slater: {text}", highlight=False)
