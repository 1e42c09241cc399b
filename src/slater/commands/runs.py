"""`slater runs`: a table of the runs below a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slater.commands.parse import Positional, parse
from slater.errors import InputError
from slater.runs import SavedRun, find_runs, is_run, open_run

#: figures of rollouts while training that the table shows
_SHOWN = ("eval/return", "eval/cost")


@dataclass(frozen=True)
class Options:
    """A table of the runs below a folder.

    Example:
        slater runs runs/ --json

    """

    folder: Positional[Path] = Path("runs")
    """a folder with runs in it, at any depth"""
    json: bool = False
    """print a JSON list instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater runs`."""
    options = parse(Options, args, "runs")
    if not options.folder.is_dir():
        raise InputError(f"there is no folder {options.folder}; give one that holds runs.")
    rows = [run_row(folder) for folder in find_runs(options.folder)]
    if options.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print(run_table(rows))
    else:
        print(f"no runs in {options.folder}")
    return 0


def run_row(folder: Path) -> dict[str, Any]:
    """What the table says about one run: settings, progress, and what came out."""
    row: dict[str, Any] = {"run": str(folder), "state": "not started"}
    if not is_run(folder):
        return row
    try:
        saved = open_run(folder)
        row |= identity_of(saved)
        row |= {"steps": saved.record.steps, "state": "unfinished", "step": saved.metrics.step}
        row |= {name: value for name, value in saved.metrics.last("eval/").items() if name in _SHOWN}
        if saved.finished:
            result = saved.result
            row["state"] = "done"
            for sums, unit in ((result.per_episode, "episode"), (result.estimates, "discounted")):
                row |= {f"estimate/{name}/{unit}": value for name, value in (sums or {}).items()}
            row["limits kept"] = str(result.status)
            if (measured := saved.measured()) is not None:
                how = ", likeliest actions" if measured.deterministic else ""
                row["measured in"] = f"{measured.env}, {measured.episodes} episodes{how}"
                row |= {f"measured/{name}": value for name, value in measured.means.items()}
    except InputError as error:
        row["state"] = f"unreadable ({error})"
    return row


def identity_of(saved: SavedRun) -> dict[str, Any]:
    """What a run is, for a row of a table."""
    run = saved.run
    limits = " ".join(run.limit_texts)
    return {"algorithm": run.algorithm, "preset": run.preset or "", "limits": limits, "seed": run.seed}


def run_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text, with every column that some row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
