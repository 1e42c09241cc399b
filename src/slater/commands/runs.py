"""`slater runs`: a table of the runs below a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from slater.commands.parse import parse
from slater.errors import InputError

__all__ = ["run", "run_row", "run_table"]


@dataclass(frozen=True)
class Options:
    """A table of the runs below a folder.

    Example:
        slater runs runs/ --json

    """

    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """a folder with runs in it, at any depth"""
    json: bool = False
    """print a JSON list instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater runs`."""
    options = parse(Options, args, "runs")
    if not options.folder.is_dir():
        raise InputError(f"there is no folder {options.folder}; give one that holds runs.")
    rows = [run_row(path.parent) for path in sorted(options.folder.rglob("run.json"))]
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
    try:
        record = json.loads((folder / "run.json").read_text())
        row |= {
            "algorithm": record["run"]["algorithm"],
            "preset": record["run"]["preset"] or "",
            "limits": " ".join(record["run"]["limits"]),
            "seed": record["run"]["seed"],
            "steps": record["config"]["steps"],
            "state": "unfinished",
        }
        last = _last_line(folder / "metrics.jsonl")
        row["step"] = last.get("step", 0)
        for name in ("eval/return", "eval/cost"):
            if name in last:
                row[name] = last[name]
        if (folder / "result.json").is_file():
            result = json.loads((folder / "result.json").read_text())
            row["state"] = "done"
            for key, unit in (("mixture_per_episode", "episode"), ("mixture_estimates", "discounted")):
                for name, value in result.get(key, {}).items():
                    row[f"estimate/{name}/{unit}"] = value
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        row["state"] = f"unreadable ({error})"
    return row


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole row, with the last rollout's figures, which not every row has."""
    found: dict[str, Any] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                break
            found |= {k: v for k, v in row.items() if k == "step" or k.startswith("eval/")}
    return found


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
