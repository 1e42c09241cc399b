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
    """Study logs, choose mixtures of their own policies within limits, and measure all in the simulator.

    Errors of the estimates over all policies and over the chosen ones, and the chosen mixture beside the best
    mixture of the log's cohorts. Cells go to OUT/cells.jsonl; a stopped command goes on where it was.

    Examples:
        slater reproduce estimates data/ballcircle.hdf5 --limits 10 20 40 --seeds 10 --out runs/estimates

    """

    data: Positional[tuple[Path, ...]]
    """Datasets with one cost, which name their environment."""
    limits: tuple[str, ...] = ("10", "20", "40")
    """Limits on the cost."""
    seeds: tuple[int, ...] = (10,)
    """Seeds of the study's networks."""
    episodes: int = 10
    """Rollouts per policy."""
    env: str | None = None
    """Environment, where the data name none."""
    runs: tuple[Path, ...] = ()
    """Finished runs on the data (then one file) whose kept policies are judged and mixed too."""
    out: Path = Path("runs/estimates")
    """Output folder."""
    json: bool = False
    """Print the cells as JSON instead of the table."""


def run(args: list[str]) -> int:
    """Parse, measure, print the table."""
    from slater.experiments.estimates import measure, summary
    from slater.jobs.cells import prepare

    options = parse(EstimatesArgs, args, "reproduce estimates")
    out = prepare(options.out)
    cells = [
        measure(data, options.env, options.limits, seed, options.episodes, out, options.runs)
        for data in options.data
        for seed in options.seeds
    ]
    table = summary(cells)
    (out / "estimates.md").write_text(table)
    if options.json:
        print(json.dumps(cells))
        return 0
    Console().print(table, highlight=False, soft_wrap=True)
    return 0
