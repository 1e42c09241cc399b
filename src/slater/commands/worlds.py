"""`slater reproduce worlds`: PDCA on bare logs of small worlds, beside the truth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slater.commands.parse import Positional, parse

__all__ = ["WorldsArgs", "run"]


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


def run(args: list[str]) -> int:
    """Parse, measure, print the table."""
    from slater.experiments.small_worlds import WORLDS
    from slater.experiments.task_family import Task
    from slater.experiments.worlds import measure, summary, world_of
    from slater.jobs.cells import prepare
    from slater.threads import use_one_thread

    options = parse(WorldsArgs, args, "reproduce worlds")
    use_one_thread()
    out, told, cells = prepare(options.out), Console(stderr=True), []
    for seed in options.seeds:
        for name in options.worlds or WORLDS:
            world = world_of(name)
            own = (world.episodes,) if isinstance(world, Task) else (100, 300)
            for episodes in options.episodes or own:
                told.print(f"{name}, {episodes} episodes, seed {seed}", highlight=False)
                cells.append(measure(name, episodes, seed, out))
    table = summary(cells)
    (out / "worlds.md").write_text(table)
    if options.json:
        print(json.dumps(cells))
        return 0
    Console().print(table, highlight=False, soft_wrap=True)
    return 0
