"""`slater reproduce`: the paper's experiments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from slater.commands.parse import Named, Positional, Repeated, parse, pick_name
from slater.errors import InputError

__all__ = ["EXPERIMENTS", "ReproduceArgs", "run"]

#: experiment -> a line of help
EXPERIMENTS = {
    "figure1": "finite problems: reward and cost against the size of the data (the paper's Figure 1)",
    "rates": "finite problems: error against the size of the data, and exact feasibility",
    "verdicts": "how often verdicts of every rigorous kind are wrong, on known worlds",
    "table2": "Bullet Safety Gym: tasks, algorithms, limits and seeds (the paper's Table 2)",
    "figure2": "Real-World RL: reward and cost against iterations (the paper's Figure 2)",
    "bank": "policies of known truth, which calibrate verdicts from the log alone",
    "worlds": "bare logs of small worlds: what is said beside what is true",
    "estimates": "logs: estimates of their own policies and of mixtures, beside the simulator",
    "tables": "tables, figures and report anew from folders of table2 or figure2",
}


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


@dataclass(frozen=True)
class BankArgs:
    """Make policies of known truth, judge them by estimates from the log, and calibrate those estimates.

    Of every task part of the log's episodes train policies of several kinds, the rest judges them, and
    the simulator tells the truth. bank.jsonl (a line per policy), calibration.json and a picture go to the
    folder OUT; a bank that was stopped goes on, and without BEHAVIOURS and DATA it is summed up as it is. A
    calibration decides verdicts only if it rests on 120 policies of 6 tasks.

    Examples:
        slater reproduce bank --behaviours behaviours --data data --out runs/bank
        slater reproduce bank --behaviours behaviours --data data --task ballrun --task carrun
        slater reproduce bank --out runs/bank

    """

    behaviours: Path | None = None
    """folder of behaviour files, NAME.safetensors"""
    data: Path | None = None
    """folder of their datasets, NAME.hdf5"""
    task: Repeated = ()
    """NAME of a behaviour, repeated for several; all whose data are there unless given"""
    out: Path = Path("runs/bank")
    """output folder"""
    episodes: int = 50
    """episodes that tell a policy's truth"""
    json: bool = False
    """print JSON"""


def _bank(options: BankArgs) -> int:
    from slater.experiments import bank
    from slater.report.bank import draw_bank

    if options.episodes < 2:
        raise InputError(f"--episodes is {options.episodes}; the truth needs at least 2, better 50.")
    console = Console(stderr=True)
    result = bank.run(
        options.out, behaviours=options.behaviours, data=options.data, tasks=options.task,
        episodes=options.episodes, tick=console.print,
    )  # fmt: skip
    draw_bank(options.out / "bank", bank.read_lines(options.out), result)
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"{result['policies']} policies of {result['tasks']} tasks")
    for kind, row in ((kind, row) for kind, rows in result["rates"].items() for row in rows):
        wrong, gated = row["too_low_counts"]
        passed, over = row["false_pass_counts"]
        low, high = row["too_low_interval"]
        print(
            f"{kind} {row['confidence']:.1%}: upper bound too low for {wrong} of {gated} that met every gate "
            f"({low:.1%} to {high:.1%}); {passed} of {over} over a limit passed; of {row['pairs']} verdicts "
            f"{row['passes']} pass and {row['fails']} fail"
        )
    print(f"bank.jsonl, calibration.json and bank.png are in {options.out}")
    return 0


def run(args: list[str]) -> int:
    """Parse, run, print where the results are."""
    name, rest = pick_name(args, "reproduce", EXPERIMENTS)
    if name in ("table2", "figure2", "tables"):
        from slater.commands import benchmarks

        return benchmarks.run(name, rest)
    if name == "bank":
        return _bank(parse(BankArgs, rest, "reproduce bank"))
    if name == "worlds":
        from slater.commands import worlds

        return worlds.run(rest)
    if name == "estimates":
        from slater.commands import estimates

        return estimates.run(rest)
    options = parse(ReproduceArgs, args, "reproduce")
    if options.repeats is not None and options.repeats < 1:
        raise InputError(f"repeats is {options.repeats}, but at least one is needed.")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"workers is {options.workers}, but at least one is needed.")
    incomplete = options.value_class == "incomplete"
    if incomplete and options.experiment != "figure1":
        raise InputError("--class belongs to figure1.")
    name = options.experiment + ("-incomplete" if incomplete else "") + ("-quick" if options.quick else "")
    out = options.out or Path("runs") / name
    common: dict[str, Any] = {"quick": options.quick, "repeats": options.repeats, "workers": options.workers}
    if options.experiment == "rates":
        from slater.experiments import rates

        result = rates.run(out, **common)
    elif options.experiment == "verdicts":
        from slater.experiments import verdict_rates

        result = verdict_rates.run(out, **common)
    elif incomplete:
        from slater.experiments import incomplete as experiment

        result = experiment.run(out, **common)
    else:
        from slater.experiments import figure1

        result = figure1.run(out, cmdp=options.cmdp, **common)
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
