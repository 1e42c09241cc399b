"""Equal processor time: how many iterations an algorithm reaches in a budget, and what a run really took.

Seconds are of one core: of the process, its threads and its children, so that a busy machine changes nothing
but the clock on the wall. Loading and compiling count, the model of the log and the choice at the end too;
rollouts do not. Short trial runs, each four times as long as the one before, give seconds as a + b n of n
iterations; the run then has as many as the budget holds, at most its authors' number, and all counts of
iterations in its settings (warm-up, phases, members kept) are scaled with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from slater.deep.engine.training import Watcher
from slater.disk import locked, write_atomic

#: iterations of the first trial that counts, and by how much the next is longer
FIRST, LONGER = 32, 4
#: the difference of two trials that is enough to tell a speed, as a share of the budget
ENOUGH = 0.08
#: seconds to wait for another process that measures the same speed
PATIENCE = 3_600.0


def processor_seconds() -> float:
    """Of this process with all its threads, and of children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@dataclass(frozen=True)
class Speed:
    """Processor seconds of a run; `measured` is the most iterations that were tried."""

    fixed: float
    per_iteration: float
    measured: int

    def iterations(self, seconds: float, most: int) -> int:
        """As many as fit into `seconds`; at least as many as were tried, at most `most`."""
        reached = (seconds - self.fixed) / max(self.per_iteration, 1e-9)
        return int(min(max(reached, self.measured), most))


def measure_speed(trial: Callable[[int], float], seconds: float, most: int) -> Speed:
    """The speed, from `trial(n)`: processor seconds of a run of n iterations, n up to `most`."""
    steps = min(FIRST, most // 2)
    # What a process does once would count as the first trial's own. Not as many iterations as that trial:
    # each number of them has a schedule of its own, compiled anew, as the run itself will be.
    trial(max(steps // 2, 1))
    spent = trial(steps)
    while True:
        longer = min(LONGER * steps, most)
        took = trial(longer)
        rate = max((took - spent) / (longer - steps), 0.0)
        if longer == most or took - spent > ENOUGH * seconds or took > seconds / 2:
            return Speed(max(took - rate * longer, 0.0), rate, longer)
        steps, spent = longer, took


def known_speed(path: Path, measure: Callable[[], Speed]) -> Speed:
    """The speed in the file `path`, or measured and written there; others that want it wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, beside=True, wait=PATIENCE):
        if not path.exists():
            write_atomic(path, json.dumps(asdict(measure())).encode())
        return Speed(**json.loads(path.read_text()))


def authors_steps(algorithm: str, preset: str | None) -> int:
    """Iterations that the authors give: of the preset, else of the form they released, else the default."""
    from slater.deep import find, make_config

    kind = find(algorithm, preset)
    released = "released" if preset is None and "released" in kind.presets else preset
    return int(make_config(kind, {}, released).steps)


def scaled(algorithm: str, preset: str | None, steps: int, given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a run of `steps` iterations: counts of iterations in proportion to the configured number.

    given: settings that stay as they are.
    """
    from slater.deep import find, make_config

    config = make_config(find(algorithm, preset), dict(given), preset)
    share = min(steps / config.steps, 1.0)
    settings = {"steps": str(steps)}
    for field in fields(config):
        value = getattr(config, field.name)
        counts = field.name.endswith("_steps") or field.name in ("keep_every", "warmup")
        if counts and isinstance(value, int) and value > 0 and share < 1.0:
            settings[field.name] = str(max(round(share * value), 1))
    return {**settings, **given}


class Stopwatch(Watcher):
    """Keeps the processor seconds of a run in its folder, in spent.json, over stops and kills."""

    EVERY = 5.0

    def __init__(self, folder: Path) -> None:
        self.path = folder / "spent.json"
        self.before = json.loads(self.path.read_text())["seconds"] if self.path.exists() else 0.0
        self.begun, self._said = processor_seconds(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Of the run so far, of earlier processes too."""
        return self.before + processor_seconds() - self.begun

    def write(self) -> None:
        """Keep what was spent so far."""
        self._said = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps({"seconds": round(self.seconds, 2)}).encode())

    def progressed(self, row: Mapping[str, Any]) -> None:
        """A row of metrics was written."""
        if time.monotonic() - self._said > self.EVERY:
            self.write()


def trial_of(train: Callable[[Path, int], None]) -> Callable[[int], float]:
    """A trial for `measure_speed` of `train(folder, steps)`, in folders that do not stay."""

    def trial(steps: int) -> float:
        with tempfile.TemporaryDirectory(prefix="slater-trial-") as folder:
            begun = processor_seconds()
            train(Path(folder) / "run", steps)
            return processor_seconds() - begun

    return trial


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Models of logs are kept in `folder` meanwhile: those of other runs would be had for nothing."""
    before = os.environ.get("SLATER_CACHE")
    os.environ["SLATER_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SLATER_CACHE"]
        else:
            os.environ["SLATER_CACHE"] = before
