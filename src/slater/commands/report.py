"""`slater report`: a run, or several beside each other, as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slater.commands.parse import Positional, parse
from slater.disk import write_atomic
from slater.errors import InputError
from slater.runs import open_run

__all__ = ["run"]


@dataclass(frozen=True)
class Options:
    """One self-contained HTML page: limits in all units, estimates, policies, curves, settings.

    Examples:
        slater report runs/first
        slater report runs/first runs/second --out comparison.html

    """

    runs: Positional[tuple[Path, ...]]
    """folders of runs"""
    out: Path | None = None
    """where to write; report.html in the run's folder, for several runs in the current one"""


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
    write_atomic(out, report_html(runs).encode())
    print(f"written: {out}")
    return 0
