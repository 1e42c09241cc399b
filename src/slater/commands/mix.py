"""`slater mix`: the best mixture of the policies of several runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from slater.commands.parse import Positional, Repeated, parse
from slater.errors import InputError

__all__ = ["run"]


@dataclass(frozen=True)
class Options:
    """Pool the policies that several runs kept, and choose the best mixture within limits by their estimates.

    Runs may differ in algorithm, seed and limit; they need the same costs and estimates of their policies.
    mixture.safetensors and mix.json go to the folder OUT; certify the mixture before it is deployed.

    Examples:
        slater mix runs/a runs/b runs/c --limit 15 --out runs/mixed
        slater mix runs/sweep/* --limit energy=10 --limit wear=3 --out runs/mixed --margin 0.2

    """

    runs: Positional[tuple[Path, ...]]
    """folders of finished runs"""
    out: Path = Path("mixed")
    """folder for the mixture"""
    limit: Repeated = ()
    """limit on a cost, as in `slater train`; by default those of the first run"""
    margin: float = 0.1
    """share of every limit held back, because the best of many estimates errs in its own favour"""
    data: str | None = None
    """the data of the runs, if they are no longer where they were"""
    json: bool = False
    """print JSON instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater mix`."""
    options = parse(Options, args, "mix")
    from slater.certify.pools import mix_runs

    if not options.runs:
        raise InputError("give at least one folder of a finished run.")
    point = mix_runs(options.runs, options.limit, options.out, data=options.data, margin=options.margin)
    if options.json:
        print(json.dumps(asdict(point) | ({} if point.within else {"prices": None}), indent=1))
        return 0
    costs = ", ".join(f"{x:.4g} of {y:.4g}" for x, y in zip(point.costs, point.limits, strict=True))
    print(f"estimated per episode: reward {point.reward:.4g}, cost {costs}")
    for name, weight in sorted(point.weights.items(), key=lambda pair: -pair[1]):
        print(f"  {weight:>6.1%}  {name}")
    if point.within:
        print("one more unit of the limit is worth " + ", ".join(f"{x:.3g}" for x in point.prices))
    else:
        print("no mixture keeps the limits by these estimates; this one exceeds them least")
    print(f"mixture.safetensors and mix.json are in {options.out}")
    return 0
