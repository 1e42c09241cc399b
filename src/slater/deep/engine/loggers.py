"""Metrics to TensorBoard, Weights & Biases and Trackio, beside the file that is always written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from slater.deep.engine.training import Watcher
from slater.deep.task import Task
from slater.disk import write_atomic
from slater.errors import InputError, optional
from slater.runs import Result, Run
from slater.runs.record import read_record


class Several(Watcher):
    """Tells every one of its watchers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        def telling(event: str) -> Callable[..., None]:
            def tell(*what: Any) -> None:
                for watcher in watchers:
                    getattr(watcher, event)(*what)

            return tell

        for event in (name for name in vars(Watcher) if not name.startswith("_")):
            setattr(self, event, telling(event))


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a row of metrics, without its step and the name of its phase."""
    for name, value in row.items():
        if name != "step" and isinstance(value, (int, float)):
            yield name, float(value)


def _settings(run: Run, folder: Path) -> dict[str, Any]:
    return {**read_record(folder).config, "seed": run.seed, "limits": " ".join(run.limit_texts)}


def _results(result: Result) -> dict[str, float]:
    return {f"mixture/{name}": float(value) for name, value in (result.estimates or {}).items()}


class TensorBoard(Watcher):
    """Writes every row of metrics below FOLDER/tensorboard; look with `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path) -> None:
        package = optional("tensorboardX", "TensorBoard files need tensorboardX", "tensorboard")
        self._make = package.SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self._last = 0

    def started(self, run: Run, task: Task, step: int) -> None:
        """Open; what an interrupted run wrote past its checkpoint is taken back."""
        self._writer = self._make(str(self._folder), purge_step=step or None)

    def progressed(self, row: Mapping[str, Any]) -> None:
        """One scalar per figure."""
        self._last = row["step"]
        for name, value in _numbers(row):
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()

    def finished(self, result: Result) -> None:
        """The mixture's estimates, and close."""
        for name, value in _results(result).items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.close()


class _Project(Watcher):
    """Rows of metrics as those of a run in a project of another package."""

    package: ClassVar[str]
    needed: ClassVar[str]

    def __init__(self, project: str, folder: Path) -> None:
        self._package = optional(self.package, self.needed, self.package)
        self._project, self._folder = project, folder
        self._run: Any = None

    def progressed(self, row: Mapping[str, Any]) -> None:
        """One row at its step."""
        self._run.log(dict(_numbers(row)), step=row["step"])


class WeightsAndBiases(_Project):
    """Sends every row of metrics to a project; with WANDB_MODE=offline it stays below FOLDER/wandb."""

    package = "wandb"
    needed = "Weights & Biases needs the package wandb"

    def started(self, run: Run, task: Task, step: int) -> None:
        """Open a run; a resumed one continues under its old id."""
        name = self._folder / "wandb-id"
        if not name.exists():
            write_atomic(name, os.urandom(8).hex().encode())
        try:
            self._run = self._package.init(
                project=self._project, dir=str(self._folder), id=name.read_text(), resume="allow",
                name=self._folder.name, config=_settings(run, self._folder),
                settings=self._package.Settings(silent=True, console="off"),
            )  # fmt: skip
        except self._package.errors.Error as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"Weights & Biases cannot be used ({said}); log in with wandb login, or set "
                "WANDB_MODE=offline."
            ) from error

    def finished(self, result: Result) -> None:
        """The mixture's estimates as the run's summary, and close."""
        self._run.summary.update(_results(result))
        self._run.finish()


class Trackio(_Project):
    """Keeps every row of metrics in a project of Trackio on this machine; look with `trackio show`."""

    package = "trackio"
    needed = "Trackio is not installed"

    def started(self, run: Run, task: Task, step: int) -> None:
        """Open a run; a resumed one goes on under its name."""
        self._run = self._package.init(
            project=self._project, name=self._folder.name, config=_settings(run, self._folder),
            resume="allow", embed=False,
        )  # fmt: skip

    def finished(self, result: Result) -> None:
        """The mixture's estimates, and close."""
        self._run.log(_results(result), step=result.steps)
        self._run.finish()


def loggers(
    folder: Path, tensorboard: bool = False, wandb: str | None = None, trackio: str | None = None
) -> Several:
    """Those that are asked for, Weights & Biases and Trackio by their project."""
    found: list[Watcher] = [TensorBoard(folder)] if tensorboard else []
    found += [] if wandb is None else [WeightsAndBiases(wandb, folder)]
    return Several([*found, *([] if trackio is None else [Trackio(trackio, folder)])])
