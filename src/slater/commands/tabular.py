"""`slater tabular`: one algorithm on one finite problem."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from slater import tabular as tab
from slater.commands.parse import Positional, Repeated, parse
from slater.errors import InputError
from slater.limits import Limit, resolve_limits
from slater.progress import PlainProgress
from slater.tabular.files import load_problem
from slater.tabular.output import MixtureRule
from slater.tabular.report import run_record
from slater.tabular.theory import Mode

Preset = Literal["default", "paper", "released"]


@dataclass(frozen=True)
class TabularArgs:
    """Learn a policy on a finite constrained MDP from sampled data, and compare it with the exact optimum.

    Values and limits are discounted sums (J-units).

    Examples:
        slater tabular pdca --cmdp paper --seed 3 --n 1000 --json
        slater tabular --costs 2 --n 5000 --mode exactly-feasible
        slater tabular mbcl --file problem.npz --limit 2/discounted

    """

    algorithm: Positional[str] = "pdca"
    """algorithm: pdca, pdocrl, wsac, mbcl, coptidice or plugin; acrab, mabo and prorl ignore the limits"""
    limit: Repeated = ()
    """Limit on a cost instead of the problem's own, repeated for several, as 2/discounted."""
    cmdp: Literal["paper", "sparse", "coptidice"] = "paper"
    """Random problem: the paper's (10 states, 5 actions), the sparse variant, or COptiDICE's 50 states."""
    file: Path | None = None
    """Your own problem instead: a .npz file with a model or a log (docs/tabular.md has the fields)."""
    seed: int = 0
    """Seed of the problem and of the data drawn from it."""
    n: int = 1000
    """Number of logged transitions to draw (ignored for a file that holds a log)."""
    costs: int = 1
    """Number of costs of the random problem (1, 2 or 3)."""
    mode: Mode | None = None
    """The theorem that sets B and the tightening of PDCA's limits."""
    preset: Preset = "default"
    """Settings: our defaults, the paper's, or those of released code with its mistakes (mbcl, pdocrl)."""
    rounds: int | None = None
    """Rounds of PDCA, PDOCRL, WSAC, A-Crab or MBCL."""
    multiplier_bound: float | None = None
    """B, the most that the multipliers may sum to; chosen from the data unless given."""
    weight_bound: float = 5.0
    """C_infinity, the largest importance weight that the critics of PDCA, WSAC and A-Crab guard against."""
    step: float | None = None
    """Step size of the policy player (PDCA, PDOCRL, WSAC, A-Crab) or of the multipliers (MBCL)."""
    mixture: MixtureRule | None = None
    """How PDCA weighs its members: the paper's uniform mixture, its tail, or a linear program."""
    epsilon: float | None = None
    """Tolerance of the mode's theorem, J-units."""
    delta: float = 0.01
    """Probability of failure of the mode's theorem."""
    phi: float | None = None
    """Slater margin, normalised units; estimated from the data unless given."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(args: list[str]) -> int:
    """Parse, run, print."""
    options = parse(TabularArgs, args, "tabular")
    if options.algorithm not in tab.ALGORITHMS:
        names = ", ".join(tab.ALGORITHMS)
        raise InputError(f"there is no algorithm {options.algorithm!r}; choose one of {names}.")
    algorithm = _algorithm(options)
    cmdp, best, data = _problem(options)
    start = time.perf_counter()
    with warnings.catch_warnings():
        # the same sentence is among the notes that are printed below
        warnings.simplefilter("ignore")
        result = _learn(algorithm, data, quiet=options.json)
    seconds = time.perf_counter() - start
    record = run_record(data, result, cmdp, best)
    if (plan := result.plan) is not None:
        kept = ("mode", "epsilon", "delta", "multiplier_bound", "required_rounds")
        record["plan"] = {name: getattr(plan, name) for name in kept} | {
            "phi": plan.phi if plan.phi == plan.phi else None, "tightening": plan.tightening.tolist(),
            "required_n": plan.required_size,
        }  # fmt: skip
    first = {"algorithm": record.pop("algorithm"), "seed": None if cmdp is None else options.seed}
    record = first | record | {"seconds": round(seconds, 4)}
    if options.json:
        print(json.dumps(record))
    else:
        _print(record, data)
    return 0


def _problem(options: TabularArgs) -> tuple[tab.CMDP | None, tab.Solution | None, tab.Counts]:
    """The problem and its optimum, where the truth is known, and the log."""
    if options.seed < 0:
        raise InputError(f"seed is {options.seed}, but it must not be negative.")
    rng = np.random.default_rng(options.seed)
    behaviour = None
    if options.file is not None:
        loaded = load_problem(options.file)
        if isinstance(loaded, tab.Counts):
            return None, None, loaded.with_limits(_limits(options, loaded.num_costs))
        cmdp, behaviour = loaded
    elif options.cmdp == "coptidice":
        if options.costs != 1:
            raise InputError("the coptidice problem has one cost; use --cmdp paper or sparse for several.")
        cmdp = tab.coptidice_cmdp(rng)
        behaviour = tab.coptidice_behaviour(cmdp)
    else:
        cmdp = tab.GENERATORS[options.cmdp](rng, costs=options.costs)
    if (limits := _limits(options, cmdp.num_costs)) is not None:
        cmdp = cmdp.with_limits(limits)
    best = cmdp.solve()
    if behaviour is None:
        behaviour = tab.half_optimal_behaviour(cmdp, best)
    return cmdp, best, tab.Counts.sample(cmdp, behaviour, options.n, rng)


def _limits(options: TabularArgs, costs: int) -> list[float] | None:
    """The limits given, J-units; None: none are. Costs of a finite problem have numbers for names."""
    if not options.limit:
        return None
    limits = resolve_limits(options.limit, [str(cost) for cost in range(costs)])
    other = next((limit for limit in limits if limit.unit != "discounted"), None)
    if other is not None:
        text = str(Limit.discounted(other.value))
        raise InputError(f"limits of a finite problem are discounted sums; write for example --limit {text}.")
    return [limit.value for limit in limits]


def _given(**settings: Any) -> dict[str, Any]:
    """Only what the user gave; everything else keeps the algorithm's default."""
    return {name: value for name, value in settings.items() if value is not None}


def _algorithm(o: TabularArgs) -> tab.Algorithm:
    if o.mode is not None and o.algorithm != "pdca":
        raise InputError(f"--mode belongs to pdca; {o.algorithm} has no such theorem.")
    if o.preset == "released" and o.algorithm not in ("mbcl", "pdocrl"):
        raise InputError("the preset released exists for mbcl and pdocrl only; use paper or default.")
    box = tab.Box(o.weight_bound)
    given = _given(step=o.step, multiplier_bound=o.multiplier_bound, rounds=o.rounds)
    match o.algorithm:
        case "pdca" if o.preset == "paper":
            return tab.PDCA.preset("paper", weights=tab.PerSampleBox(o.weight_bound), **given)
        case "pdca":
            theorem: dict[str, Any] = {"mode": o.mode, "epsilon": o.epsilon, "delta": o.delta, "phi": o.phi}
            return tab.PDCA(weights=box, mixture=o.mixture, **theorem, **given)
        case "mbcl":
            return tab.MBCL.preset("released", **given) if o.preset == "released" else tab.MBCL(**given)
        case "pdocrl":
            return tab.PDOCRL.preset("released", **given) if o.preset == "released" else tab.PDOCRL(**given)
        case "wsac":
            return tab.WSAC(
                weights=box, **_given(rounds=o.rounds, multiplier=o.multiplier_bound, step=o.step)
            )
        case "coptidice":
            return tab.COptiDICE.preset("paper") if o.preset == "paper" else tab.COptiDICE()
        case "acrab":
            return tab.ACrab(weights=box, **_given(rounds=o.rounds, step=o.step))
    return tab.ALGORITHMS[o.algorithm]()


def _learn(algorithm: tab.Algorithm, data: tab.Counts, *, quiet: bool) -> tab.Result:
    if quiet or not isinstance(algorithm, tab.PDCA):
        return algorithm.run(data)
    console = Console(stderr=True)
    with PlainProgress(transient=True, console=console) as progress:
        task = progress.add_task("PDCA", total=None)
        return algorithm.run(
            data, progress=lambda k: progress.update(task, completed=k, description=f"PDCA round {k}")
        )


def _print(record: dict[str, Any], data: tab.Counts) -> None:
    console = Console()
    known = record["J_R"] is not None
    table = Table(title=f"{record['algorithm']} on {record['n']} transitions (discounted sums)")
    for column in ("", "policy", "estimated from data", "optimum", "limit", "multiplier", "optimal"):
        table.add_column(column, justify="left" if not column else "right")
    estimate = record["estimate"]

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    table.add_row(
        "reward", number(record["J_R"]), number(estimate["J_R"]), number(record["J_R_star"]), "", "", ""
    )
    for i, limit in enumerate(record["limits"]):
        cost = record["J_C"][i] if known else None
        met = "" if cost is None else " [green]met[/]" if cost <= limit + 1e-9 else " [red]exceeded[/]"
        table.add_row(
            f"cost {i}" if len(record["limits"]) > 1 else "cost",
            number(cost) + met,
            f"{estimate['J_C'][i]:.4f} ± {estimate['J_C_standard_error'][i]:.4f}",
            "",
            number(limit),
            number(record["lambda_mean"][i]),
            number(record["lambda_star"][i] if known else None),
        )
    console.print(table)
    unseen = len(data.coverage.unseen_pairs)
    console.print(
        f"duality gap {number(record['gap'])} (estimated {number(estimate['gap'])}), "
        f"Slater margin phi {number(record['phi'])}, B {record['multiplier_bound']:.3g}, "
        f"{record['rounds']} rounds, {record['seconds']:.2f} s; {unseen} of {data.seen.size} pairs never seen"
    )
    if "plan" in record:
        plan = record["plan"]
        console.print(
            f"{plan['mode']}: epsilon {plan['epsilon']:.3g}, limits tightened by "
            f"{[round(t, 4) for t in plan['tightening']]}; the theorem asks for K = "
            f"{plan['required_rounds']:.2g} and n = {plan['required_n']:.2g}, up to constants"
        )
    for note in record["notes"]:
        console.print(f"note: {note}")
