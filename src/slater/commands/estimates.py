"""`slater reproduce estimates`: what is estimated from logs, beside the simulator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slater.commands.parse import Positional, parse

__all__ = ["EstimatesArgs", "run"]


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


def run(args: list[str]) -> int:
    """Parse, measure, print the table."""
    from slater.experiments.estimates import CellPlan, measure, summary
    from slater.jobs.cells import prepare

    options = parse(EstimatesArgs, args, "reproduce estimates")
    out = prepare(options.out)
    plan = CellPlan(
        options.episodes, options.chosen_episodes, options.env, options.preset,
        () if options.steps is None else (("steps", options.steps),), options.model_seed, options.bare,
    )  # fmt: skip
    told = Console(stderr=True)
    cells = [
        measure(data, limit, seed, out, plan, lambda text: told.print(text, highlight=False))
        for data in options.data
        for seed in options.seeds
        for limit in options.limits
    ]
    table = summary(cells)
    (out / "estimates.md").write_text(table)
    if options.json:
        print(json.dumps(cells))
        return 0
    Console().print(table, highlight=False, soft_wrap=True)
    return 0
