"""What the benchmarks share: a plan becomes cells, cells become rows, rows and settings stay in a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from slater.data.remote import whole
from slater.errors import InputError
from slater.experiments.benchmark import Acting, CellWork, make_cells, parse_algorithms
from slater.experiments.tables import algorithm_of
from slater.experiments.task_data import bare_copy, find_task_data
from slater.jobs.cells import finished_rows, prepare, run_cells, write_settings
from slater.jobs.engines import Engine, Row
from slater.report.curves import write_csv


@dataclass(frozen=True)
class BenchmarkPlan:
    """What to run. tasks by name; limits by task, as texts; algorithms as `NAME[:PRESET]`.

    steps: gradient iterations; episodes: of the measurement, per policy
    seconds: processor time of a cell instead of steps (`slater.experiments.budget`), without rollouts while
    training
    curve_every, curve_episodes: iterations between rollouts while training, and their episodes
    sets: settings as `[ALGORITHM:]NAME=VALUE`; data: folder of the datasets, or "sample"
    bare: without names of sources and propensities, in a copy below the output folder
    acting: how policies act where they are measured (`slater.experiments.benchmark.ways_of_acting`)
    once: a model that serves all limits has the time of one cell, and no row with that of all
    skip_missing: leave out tasks without data instead of refusing; workers: processes, None for all cores
    """

    tasks: tuple[str, ...]
    limits: Mapping[str, tuple[str, ...]]
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    episodes: int
    curve_every: int
    curve_episodes: int
    data: str
    sets: tuple[str, ...] = ()
    seconds: float | None = None
    bare: bool = False
    acting: Acting = "draws"
    once: bool = False
    skip_missing: bool = False
    workers: int | None = None
    engine: Engine = "fresh"

    def __post_init__(self) -> None:
        for name in ("steps", "episodes", "curve_every", "curve_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.seconds is not None and not 0.0 < self.seconds < math.inf:
            raise InputError(f"a budget of {self.seconds / 60:g} minutes is none; it must be above 0.")
        if not self.seeds:
            raise InputError("the number of seeds is 0; it must be at least 1.")
        if min(self.seeds) < 0:
            raise InputError(f"the seed is {min(self.seeds)}; it must be at least 0.")


@dataclass(frozen=True)
class Folder:
    """A finished (part of an) experiment: its name, rows of whole cells, and sentences on what is missing.

    failed: cells that failed just now; the same command tries them again.
    """

    experiment: str
    rows: list[Row]
    left_out: list[str]
    failed: int = 0


def run_plan(experiment: str, plan: BenchmarkPlan, out: Path) -> Folder:
    """Run what is not in `out` yet; return everything that `out` then holds, of earlier plans too."""
    prepare(out)
    timed = plan.seconds is not None
    specs = parse_algorithms(plan.algorithms, plan.sets, None if timed else plan.steps)
    sources, left_out = find_task_data(plan.tasks, plan.data, skip_missing=plan.skip_missing)
    if plan.bare:
        sources = [bare_copy(source, out / "data") for source in sources]
    for sentence in left_out:
        Console(stderr=True).print(sentence, highlight=False)
    every = None if timed else plan.curve_every
    common: dict[str, Any] = {
        "episodes": plan.episodes,
        "curve_every": every,
        "curve_episodes": plan.curve_episodes,
    }
    common |= {"budget_seconds": plan.seconds} if timed else {}
    cells = make_cells(sources, specs, plan.limits, plan.seeds, common, plan.acting, once=plan.once)
    # whole paths: a worker on a cluster may stand in another folder
    at = tuple(replace(source, path=whole(source.path)) for source in sources)
    work = CellWork(experiment, str(out.resolve()), plan.data, at, plan.bare)
    rows = run_cells(work, cells, out, workers=plan.workers, engine=plan.engine, progress_of=work.progress)
    for row in rows:
        if "failed" in row:
            left_out.append(
                f"{row['task']}, {algorithm_of(row)}, limit {'/'.join(row['limits'])}, seed {row['seed']} "
                f"failed: {row['failed']}"
            )
            Console(stderr=True).print(left_out[-1], highlight=False)
    settings = {
        "tasks": [source.task for source in sources],
        "limits": {source.task: list(plan.limits[source.task]) for source in sources},
        "algorithms": {spec.text: dict(spec.settings) for spec in specs},
        "seeds": list(plan.seeds), "steps": None if timed else plan.steps, "acting": plan.acting, **common,
        "data": {source.task: vars(source) for source in sources}, "left_out": left_out,
    }  # fmt: skip
    write_settings(out, experiment, settings)
    failed = sum("failed" in row for row in rows)
    return Folder(experiment, list(finished_rows(out).values()), left_out, failed)


def read_folders(folders: Sequence[Path]) -> Folder:
    """The cells of several folders of one experiment, together; of one that was run again, the last."""
    found = [_read(folder) for folder in folders]
    names = list(dict.fromkeys(folder.experiment for folder in found))
    if len(names) != 1:
        raise InputError(f"the folders hold different experiments ({', '.join(names)}); give those of one.")
    rows = {key: row for folder in folders for key, row in finished_rows(folder).items()}
    if not rows:
        raise InputError(f"{folders[0]} holds no finished cell yet.")
    left_out = list(dict.fromkeys(text for folder in found for text in folder.left_out))
    return Folder(names[0], list(rows.values()), left_out)


def _read(folder: Path) -> Folder:
    try:
        record: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        return Folder(record["experiment"], [], record["settings"].get("left_out", []))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} is not a folder of slater reproduce ({error}).") from error


def write_cells_csv(path: Path, flat: Sequence[Row]) -> None:
    """One line per cell and limit, without curves; settings and versions as JSON."""
    lines = [{**row, **{name: json.dumps(row[name]) for name in ("settings", "versions")}} for row in flat]
    for line in lines:
        del line["curve"]
    write_csv(path, lines)
