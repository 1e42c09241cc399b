"""Progress of long work: live on a terminal, a plain line now and then in a file or a pipe."""

from __future__ import annotations

import time
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.progress import Progress, ProgressColumn, TaskID

#: seconds between plain lines
EVERY = 20.0


class PlainProgress(Progress):
    """Rich's progress display, which says nothing without a terminal; this one prints lines there.

    every: seconds between lines, of all tasks together
    """

    def __init__(self, *columns: str | ProgressColumn, every: float = EVERY, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.every = every
        self._began = self._said = time.monotonic()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """As in Rich; and a line if one is due."""
        super().update(task_id, **fields)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """As in Rich; and a line if one is due."""
        super().advance(task_id, advance)
        self._say(task_id)

    def stop(self) -> None:
        """As in Rich; but where nothing was drawn, no empty line is left either."""
        if self.console.is_terminal or self.console.is_jupyter or not self.live.transient:
            super().stop()
        else:
            self.live.stop()

    def _say(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if self.console.is_terminal or now - self._said < self.every:
            return
        self._said = now
        task = self._tasks[task_id]
        share = "" if not task.total else f" of {task.total:,g} ({task.completed / task.total:.0%})"
        words = " ".join(str(value) for value in task.fields.values() if value)
        minutes = (now - self._began) / 60
        line = f"{task.description}: {task.completed:,.6g}{share}, {minutes:.1f} min {words}".rstrip()
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class PlainLive(Live):
    """Rich's live display; without a terminal it is printed anew now and then."""

    def __init__(self, *parts: Any, every: float = EVERY, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.every = every
        self._said = time.monotonic()

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """As in Rich; and print it if that is due."""
        super().update(renderable, refresh=refresh)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= self.every:
            self._said = now
            self.console.print(renderable)
