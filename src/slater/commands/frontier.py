"""`slater frontier`: what another limit would cost, from what runs have kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from slater.commands.parse import Positional, parse
from slater.errors import InputError
from slater.pairs import parse_lists


@dataclass(frozen=True)
class Options:
    """Draw the best estimated reward against the limit (two limits: a map), without training again.

    The linear program of a run's output is solved for other limits over the policies that the runs kept, by
    their estimates from the log. The price of a limit is the reward that one more unit of it would buy.
    frontier.png, frontier.html (hover for prices and mixtures) and frontier.json go to a folder.

    Examples:
        slater frontier runs/first
        slater frontier runs/a runs/b --limits 5 10 20 40 --out runs/frontier

    """

    runs: Positional[tuple[Path, ...]]
    """folders of finished runs over the same costs"""
    limits: tuple[str, ...] = ()
    """limits per episode to solve for, as 5 10 20, or NAME=5,10 for each of two costs; by default a range"""
    margin: float = 0.0
    """share of every limit held back"""
    data: str | None = None
    """the log, whose episodes are drawn beside; by default that of the first run, if it is there"""
    out: Path | None = None
    """folder for the pictures; by default that of the first run"""
    json: bool = False
    """print JSON instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater frontier`."""
    options = parse(Options, args, "frontier")
    from slater.certify.frontier import Pool, trace
    from slater.certify.pools import episode_limits, pool_of_runs, with_log
    from slater.disk import make_folder, write_atomic
    from slater.report.frontier import draw_frontier, frontier_html
    from slater.runs import open_run
    from slater.runs.log import load_log

    if not options.runs:
        raise InputError("give at least one folder of a finished run.")
    saved = [open_run(folder) for folder in options.runs]
    pool = Pool.union(pool_of_runs(saved))
    # a sweep over limits is one pool, and each of them is marked
    marked = tuple(dict.fromkeys(tuple(episode_limits(one)) for one in saved))
    grids = _grids(options.limits, pool.cost_names)
    frontier = trace(pool, grids, margin=options.margin, marked=marked)
    source = options.data or saved[0].run.data
    if Path(source).exists():
        frontier = with_log(frontier, load_log(saved[0].run, source))
    elif options.data:
        raise InputError(f"there is no file {source}.")
    out = make_folder(options.out or options.runs[0])
    record = frontier.as_dict()
    write_atomic(out / "frontier.json", (json.dumps(record, indent=1) + "\n").encode())
    write_atomic(out / "frontier.html", frontier_html(frontier).encode())
    draw_frontier(out / "frontier.png", frontier)
    if options.json:
        print(json.dumps(record, indent=1))
        return 0
    print(f"sums per episode, estimated from the log, {len(pool.candidates)} policies")
    # as many rows as limits that somebody asked for
    print(frontier.table(max(10, len(frontier.points) if options.limits else 0)))
    print(f"frontier.png, frontier.html and frontier.json are in {out}")
    return 0


def _grids(texts: tuple[str, ...], names: tuple[str, ...]) -> list[list[float]] | None:
    """The limits to solve for, one list per cost."""
    if not texts:
        return None
    try:
        if len(names) == 1 and not any("=" in text for text in texts):
            return [[float(part) for text in texts for part in text.split(",")]]
        given = parse_lists(texts, "limits", "cost=5,10,20")
        if set(given) != set(names):
            raise InputError(
                f"--limits names {', '.join(given)}, but the costs are {', '.join(names)}; write "
                + " ".join(f"{name}=5,10,20" for name in names)
                + "."
            )
        return [[float(part) for part in given[name]] for name in names]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--limits {' '.join(texts)} holds something that is no number.") from None
