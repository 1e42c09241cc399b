"""`slater reproduce worlds`, `bank` and `estimates`: what is said of policies whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from slater.commands.parse import Positional, parse
from slater.errors import InputError
from slater.threads import use_one_thread


@dataclass(frozen=True)
class WorldsArgs:
    """Train PDCA on bare logs of small worlds, and compare what it says with the truth.

    No log names its sources or records propensities. Cells go to OUT/cells.jsonl, the table to OUT/worlds.md;
    a stopped command goes on where it was.

    Examples:
        slater reproduce worlds --seeds 10 11 12 13 14
        slater reproduce worlds rare queue --episodes 300 --seeds 10
        slater reproduce worlds task-0 task-1 --seeds 0

    """

    worlds: Positional[tuple[str, ...]] = ()
    """Worlds by name, `task-17` for number 17 of the family of random tasks; all nine that are reported
    unless given."""
    episodes: tuple[int, ...] = ()
    """Episodes of each log; 100 and 300, of a random task its own number, unless given."""
    seeds: tuple[int, ...] = (10,)
    """Seeds of logs and runs."""
    out: Path = Path("runs/worlds")
    """Output folder."""
    json: bool = False
    """Print the cells as JSON instead of the table."""


@dataclass(frozen=True)
class EstimatesArgs:
    """Train PDCA on logs under limits, and measure everything that each run kept in the simulator.

    Errors of the estimates over all kept policies and over the chosen ones, the run's mixture beside the best
    mixture of the log's behaviours, and what the choice is worth without the game. Cells go to
    OUT/cells.jsonl, the table to OUT/estimates.md; a stopped command goes on where it was.

    Examples:
        slater reproduce estimates data/ballcircle.hdf5 --limits 10 20 40 --seeds 10 11 --out runs/estimates

    """

    data: Positional[tuple[Path, ...]]
    """Datasets with one cost, which name their environment."""
    limits: tuple[str, ...] = ("10", "20", "40")
    """Limits on the cost."""
    seeds: tuple[int, ...] = (10,)
    """Seeds of the runs."""
    model_seed: int = 10
    """Seed of each log model, which all runs on that log share."""
    bare: bool = False
    """Take names of sources and propensities away first: logs as people have them."""
    steps: int | None = None
    """Iterations of each run; the preset's own unless given."""
    preset: str | None = None
    """Preset of PDCA."""
    episodes: int = 10
    """Rollouts per kept policy."""
    chosen_episodes: int = 50
    """Rollouts per policy with weight in the mixture."""
    env: str | None = None
    """Environment, where the data name none."""
    out: Path = Path("runs/estimates")
    """Output folder."""
    json: bool = False
    """Print the cells as JSON instead of the table."""


@dataclass(frozen=True)
class BankArgs:
    """Compare what logs of random small tasks say with the truth, and calibrate verdicts by it.

    A task is a cell as in `slater reproduce worlds`, of the default. Cells go to OUT/cells.jsonl, the scores
    of every task to OUT/calibration.json, which is what the package ships as
    slater/certify/calibration.json; a stopped command goes on where it was, and two may make other tasks in
    one folder. With --judge the cells of `slater reproduce worlds` and `reproduce estimates` are judged under
    a calibration instead: how many verdicts pass, fail and are left open, and how many pass falsely.

    Examples:
        slater reproduce bank --tasks 0 80 --out runs/bank
        slater reproduce bank --judge runs/worlds runs/estimates
        slater reproduce bank --judge runs/worlds --calibration runs/bank/calibration.json

    """

    tasks: tuple[int, int] = (0, 80)
    """from this task of the family to before that one"""
    seed: int = 0
    """of logs and runs"""
    out: Path = Path("runs/bank")
    """output folder"""
    judge: tuple[Path, ...] = ()
    """folders of cells to judge"""
    calibration: Path | None = None
    """with --judge: a calibration.json; the package's unless given"""
    picture: Path | None = None
    """with --judge: a PNG (and an SVG beside it) of how often intervals of every width hold the truth"""
    json: bool = False
    """print JSON"""


def run(experiment: str, args: list[str]) -> int:
    """Entry point of `slater reproduce EXPERIMENT` for these."""
    if experiment == "worlds":
        return _worlds(parse(WorldsArgs, args, "reproduce worlds"))
    if experiment == "bank":
        return _bank(parse(BankArgs, args, "reproduce bank"))
    return _estimates(parse(EstimatesArgs, args, "reproduce estimates"))


def _tell(text: str) -> None:
    Console(stderr=True).print(text, highlight=False)


def _told(file: Path, table: str, cells: Sequence[Any], as_json: bool) -> int:
    """Write the table; print it, or the cells."""
    file.write_text(table)
    if as_json:
        print(json.dumps(cells))
    else:
        Console().print(table, highlight=False, soft_wrap=True)
    return 0


def _worlds(options: WorldsArgs) -> int:
    from slater.experiments.small_worlds import WORLDS
    from slater.experiments.task_family import RandomTask
    from slater.experiments.worlds import measure, summary, world_of
    from slater.jobs.cells import prepare

    use_one_thread()
    out, cells = prepare(options.out), []
    for seed in options.seeds:
        for name in options.worlds or WORLDS:
            world = world_of(name)
            own = (world.episodes,) if isinstance(world, RandomTask) else (100, 300)
            for episodes in options.episodes or own:
                _tell(f"{name}, {episodes} episodes, seed {seed}")
                cells.append(measure(name, episodes, seed, out))
    return _told(out / "worlds.md", summary(cells), cells, options.json)


def _estimates(options: EstimatesArgs) -> int:
    from slater.experiments.estimates import CellPlan, measure, summary
    from slater.jobs.cells import prepare

    out = prepare(options.out)
    plan = CellPlan(
        options.episodes, options.chosen_episodes, options.env, options.preset,
        () if options.steps is None else (("steps", options.steps),), options.model_seed, options.bare,
    )  # fmt: skip
    cells = [
        measure(data, limit, seed, out, plan, _tell)
        for data in options.data
        for seed in options.seeds
        for limit in options.limits
    ]
    return _told(out / "estimates.md", summary(cells), cells, options.json)


def _bank(options: BankArgs) -> int:
    """Make tasks, or judge cells."""
    from slater.experiments import bank

    if options.judge:
        return _judge(options)
    if options.calibration is not None or options.picture is not None:
        raise InputError("--calibration and --picture are of cells that are judged; name them with --judge.")
    first, last = options.tasks
    if not 0 <= first <= last:
        raise InputError(
            f"--tasks is {first} {last}; give the first task, from 0, and the one to stop before."
        )
    use_one_thread()
    record = bank.run(options.out, range(first, last), options.seed, _tell)
    text = bank.table(record)
    (options.out / "bank.md").write_text(text)
    print(json.dumps(record) if options.json else f"{record['said']}\n\n{text}")
    return 0


def _judge(options: BankArgs) -> int:
    from slater.disk import read_json, read_json_lines
    from slater.experiments import bank

    own = None
    if options.calibration is not None:
        own = bank.read_calibration(read_json(options.calibration, "a calibration"))
    rows = []
    for folder in options.judge:
        if not (folder / bank.CELLS).is_file():
            raise InputError(f"{folder} holds no cells; make some with slater reproduce worlds or estimates.")
        rows += read_json_lines(folder / bank.CELLS)
    if options.picture is not None:
        from slater.report.calibration import draw_calibration

        draw_calibration(bank.standard_errors(rows), options.picture.with_suffix(""))
    found = bank.rates(rows, (0.9, 0.95), own)
    print(json.dumps(found) if options.json else bank.rates_table(found))
    return 0
