"""`slater report`: a run, or several beside each other, as one HTML page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slater.commands.parse import Positional, parse
from slater.disk import write_atomic
from slater.errors import InputError
from slater.runs import SavedRun, open_run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slater.report.run_plots import Beside


@dataclass(frozen=True)
class Options:
    """One self-contained HTML page: what came out, beside its limits and the log; curves; settings.

    What was measured (`slater evaluate`) and certified (`slater certify`) is shown beside what is estimated.

    Examples:
        slater report runs/first
        slater report runs/first runs/second --out comparison.html

    """

    runs: Positional[tuple[Path, ...]]
    """folders of runs"""
    out: Path | None = None
    """where to write; report.html in the run's folder, for several runs in the current one"""
    data: str | None = None
    """the log, whose episodes are drawn beside; by default that of each run, if it is there"""


def run(args: list[str]) -> int:
    """Entry point of `slater report`."""
    from slater.report.run_page import report_html

    options = parse(Options, args, "report")
    if not options.runs:
        raise InputError("no run is named; give the folders of one or more runs.")
    runs = [open_run(folder) for folder in options.runs]
    default = runs[0].folder / "report.html" if len(runs) == 1 else Path("report.html")
    out = options.out or default
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to.")
    write_atomic(out, report_html(runs, [_beside(run, options.data) for run in runs]).encode())
    print(f"written: {out}")
    return 0


def _beside(run: SavedRun, data: str | None) -> Beside:
    """The episodes of the run's log, where it is there, and its frontier, where it has one cost."""
    from slater.certify.frontier import trace
    from slater.certify.pools import pool_of_run
    from slater.report.run_plots import Beside

    estimated = [m for m in run.result.members if m.estimates] if run.finished else []
    several = len(run.task.costs) == 1 and run.task.horizon is not None and len(estimated) > 1
    points = trace(pool_of_run(run), None).points if several else ()
    frontier = [(p.limits[0], p.reward, p.prices[0]) for p in points if p.within]
    returns, costs = _episodes(run, data)
    return Beside(returns, costs, frontier)


def _episodes(
    run: SavedRun, data: str | None
) -> tuple[NDArray[np.floating], NDArray[np.floating]] | tuple[None, None]:
    """Returns (E,) and costs (E, I) of the logged episodes that can be judged; None where there is no log."""
    from slater.runs.log import judged_sums, load_log

    source = Path(data or run.run.data)
    if not source.exists():
        if data:
            raise InputError(f"there is no file {data}.")
        return None, None
    try:
        log = load_log(run.run, source)
    except InputError as error:
        if data:
            raise
        print(f"note: the log is not shown: {error}", file=sys.stderr)
        return None, None
    if missing := [name for name in run.task.costs if name not in log.cost_names]:
        raise InputError(f"{source} has no cost {', '.join(missing)}, which {run.folder} has.")
    return judged_sums(log, run.task.costs)
