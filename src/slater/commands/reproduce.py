"""`slater reproduce`: the paper's experiments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from slater.commands.parse import Named, Positional, at_least_one, parse, pick_name
from slater.errors import InputError

#: experiment -> a line of help
EXPERIMENTS = {
    "figure1": "finite problems: reward and cost against the size of the data (the paper's Figure 1)",
    "rates": "finite problems: error against the size of the data, and exact feasibility",
    "verdicts": "how often verdicts of every rigorous kind are wrong, on known worlds",
    "table2": "Bullet Safety Gym: tasks, algorithms, limits and seeds (the paper's Table 2)",
    "figure2": "Real-World RL: reward and cost against iterations (the paper's Figure 2)",
    "bank": "random small tasks of known truth, which calibrate verdicts from the log alone",
    "worlds": "bare logs of small worlds: what is said beside what is true",
    "estimates": "logs: estimates of their own policies and of mixtures, beside the simulator",
    "tables": "tables, figures and report anew from folders of table2 or figure2",
}
#: of those with options in common, experiment -> module of `slater.experiments`
MODULES = {"figure1": "figure1", "rates": "rates", "verdicts": "verdict_rates"}


@dataclass(frozen=True)
class ReproduceArgs:
    """Reproduce an experiment; figures (PNG, SVG), a CSV table and the settings go to a folder.

    A stopped run goes on where it was when the same command is given again. The benchmarks with simulators
    have options of their own: slater reproduce table2 --help (Bullet), figure2 --help (Real-World RL), and
    tables --help (tables and report anew from folders).

    Examples:
        slater reproduce figure1 --quick
        slater reproduce figure1 --class incomplete
        slater reproduce rates --repeats 20 --out runs/rates
        slater reproduce verdicts --quick
        slater reproduce table2 --budget small --data data

    """

    experiment: Positional[Literal["figure1", "rates", "verdicts"]]
    """figure1: reward and cost against dataset size. rates: error against n, and exact feasibility.
    verdicts: how often one is wrong by episodes, by propensities and on finite problems, on known worlds."""
    quick: bool = False
    """A small version that ends within two minutes on two cores."""
    value_class: Annotated[Literal["tabular", "incomplete"], Named("class")] = "tabular"
    """figure1 with all functions, or with a class F that is realisable but not Bellman complete."""
    cmdp: Literal["paper", "sparse"] = "paper"
    """figure1's random problems."""
    repeats: int | None = None
    """Problems per point; unless given, 10 for figure1, 20 for rates, 4 (hundreds of draws) for verdicts;
    fewer if quick."""
    out: Path | None = None
    """Output folder; unless given, runs/ and the experiment's name."""
    workers: int | None = None
    """Worker processes; one per core unless given."""
    json: bool = False
    """Print one JSON object with the results instead of a table."""


def run(args: list[str]) -> int:
    """Parse, run, print where the results are."""
    name, rest = pick_name(args, "reproduce", EXPERIMENTS)
    if name in ("table2", "figure2", "tables"):
        from slater.commands import benchmarks

        return benchmarks.run(name, rest)
    if name in ("bank", "worlds", "estimates"):
        from slater.commands import known_truth

        return known_truth.run(name, rest)
    options = parse(ReproduceArgs, args, "reproduce")
    at_least_one(options, "repeats", "workers")
    incomplete = options.value_class == "incomplete"
    if incomplete and options.experiment != "figure1":
        raise InputError("--class belongs to figure1.")
    name = options.experiment + ("-incomplete" if incomplete else "") + ("-quick" if options.quick else "")
    out = options.out or Path("runs") / name
    common: dict[str, Any] = {"quick": options.quick, "repeats": options.repeats, "workers": options.workers}
    if options.experiment == "figure1" and not incomplete:
        common["cmdp"] = options.cmdp
    module = "incomplete" if incomplete else MODULES[options.experiment]
    result = import_module(f"slater.experiments.{module}").run(out, **common)
    if options.json:
        print(json.dumps(result))
        return 0
    console = Console()
    _print_summary(console, result["summary"])
    if "slopes" in result:
        slopes = ", ".join(f"{name} {value:.2f}" for name, value in result["slopes"].items())
        console.print(f"fitted slopes of error against n (theory: -0.5): {slopes}")
    console.print(f"figures, table, settings and cells are in {out}")
    return 0


def _print_summary(console: Console, summary: list[dict[str, Any]]) -> None:
    table = Table()
    names = [name for name in summary[0] if not name.endswith("_se")]
    for name in names:
        table.add_column(name.removesuffix("_mean"), justify="right")
    for row in summary:
        cells = []
        for name in names:
            value = row[name]
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            if name.endswith("_mean"):
                text += f" ± {row[name.removesuffix('_mean') + '_se']:.3f}"
            cells.append(text)
        table.add_row(*cells)
    console.print(table)
