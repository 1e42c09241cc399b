"""`slater reproduce`: the paper's experiments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from slater.commands.parse import Named, Positional, parse, pick_name
from slater.errors import InputError

__all__ = ["EXPERIMENTS", "ReproduceArgs", "run"]

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
    """Compare what logs of random small tasks say with the truth, and calibrate verdicts by it.

    A task is a cell as in `slater reproduce worlds`, of the default. Cells go to OUT/cells.jsonl, the scores
    of every task to OUT/calibration.json, which is what the package ships as
    slater/certify/calibration.json; a stopped command goes on where it was, and two may make other tasks in
    one folder. With --judge the cells of `slater reproduce worlds` and `reproduce estimates` are judged under
    a calibration instead: how many verdicts pass, fail and are left open, and how many pass falsely.

    Examples:
        slater reproduce bank --tasks 0 80 --out runs/bank
        slater reproduce bank --judge runs/worlds runs/estimates
        slater reproduce bank --judge runs/worlds --calibration runs/bank/calibration.json

    """

    tasks: tuple[int, int] = (0, 80)
    """from this task of the family to before that one"""
    seed: int = 0
    """of logs and runs"""
    out: Path = Path("runs/bank")
    """output folder"""
    judge: tuple[Path, ...] = ()
    """folders of cells to judge"""
    calibration: Path | None = None
    """with --judge: a calibration.json; the package's unless given"""
    json: bool = False
    """print JSON"""


def _bank(options: BankArgs) -> int:
    from slater.experiments import bank
    from slater.threads import use_one_thread

    if options.judge:
        return _judge(options)
    if options.calibration is not None:
        raise InputError("--calibration is what cells are judged under; give their folders with --judge.")
    first, last = options.tasks
    if not 0 <= first <= last:
        raise InputError(
            f"--tasks is {first} {last}; give the first task, from 0, and the one to stop before."
        )
    use_one_thread()
    told = Console(stderr=True)
    record = bank.run(
        options.out, range(first, last), options.seed, lambda text: told.print(text, highlight=False)
    )
    text = bank.table(record)
    (options.out / "bank.md").write_text(text)
    print(json.dumps(record) if options.json else f"{record['said']}\n\n{text}")
    return 0


def _judge(options: BankArgs) -> int:
    from slater.disk import read_json, read_json_lines
    from slater.experiments import bank

    own = None
    if options.calibration is not None:
        own = bank.read_calibration(read_json(options.calibration, "a calibration"))
    rows = []
    for folder in options.judge:
        if not (folder / bank.CELLS).is_file():
            raise InputError(f"{folder} holds no cells; make some with slater reproduce worlds or estimates.")
        rows += read_json_lines(folder / bank.CELLS)
    found = bank.rates(rows, (0.9, 0.95), own)
    print(json.dumps(found) if options.json else bank.rates_table(found))
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
