"""`slater mix`: the best mixture of the policies of several runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from slater.commands.parse import Positional, Repeated, parse
from slater.errors import InputError


@dataclass(frozen=True)
class Options:
    """Pool policies, and choose the best mixture within limits by bounds.

    Runs bring the policies that they kept with their estimates; they may differ in algorithm, seed and limit.
    With --data every policy is judged anew by that log, so that policy files and runs without estimates can
    be mixed too. A bound is the estimate and its spread, where that is known. mixture.safetensors and
    mix.json go to the folder OUT; certify the mixture before it is deployed.

    Examples:
        slater mix runs/a runs/b runs/c --limit 15 --out runs/mixed
        slater mix runs/sweep/* --limit energy=10 --limit wear=3 --out runs/mixed --margin 0.2
        slater mix mine.safetensors runs/bc runs/a --data log.hdf5 --limit 15 --out runs/mixed

    """

    runs: Positional[tuple[Path, ...]]
    """folders of finished runs; with --data policy files too"""
    out: Path = Path("mixed")
    """folder for the mixture"""
    limit: Repeated = ()
    """limit on a cost, as in `slater train`; by default those of the first run"""
    margin: float = 0.1
    """share of every limit held back, because the best of many estimates errs in its own favour"""
    data: str | None = None
    """a log that judges every policy anew; episodes that trained none of them are best"""
    json: bool = False
    """print JSON instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater mix`."""
    options = parse(Options, args, "mix")
    from slater.certify.pools import mix_policies, mix_runs

    if not options.runs:
        raise InputError("give at least one folder of a finished run.")
    if options.data is None:
        files = [str(place) for place in options.runs if place.is_file()]
        if files:
            raise InputError(
                f"{files[0]} has no estimates of its own; name a log to judge it by, with --data."
            )
        point = mix_runs(options.runs, options.limit, options.out, margin=options.margin)
    else:
        from slater.deep.log_model.log_model import cache_folder

        point = mix_policies(
            options.runs, options.limit, options.out, data=options.data, margin=options.margin,
            cache=cache_folder(),
        )  # fmt: skip
    if options.json:
        print(json.dumps(point.as_dict(), indent=1))
        return 0
    costs = ", ".join(f"{x:.4g} of {y:.4g}" for x, y in zip(point.costs, point.limits, strict=True))
    print(f"estimated per episode: reward {point.reward:.4g}, cost {costs}")
    if any(high > cost for high, cost in zip(point.costs_high, point.costs, strict=True)):
        highs = ", ".join(f"{x:.4g}" for x in point.costs_high)
        print(f"by bounds: reward {point.reward_low:.4g}, cost {highs}")
    for name, weight in sorted(point.weights.items(), key=lambda pair: -pair[1]):
        print(f"  {weight:>6.1%}  {name}")
    if point.within:
        print("one more unit of the limit is worth " + ", ".join(f"{x:.3g}" for x in point.prices))
    else:
        print("no mixture keeps the limits by these estimates; this one exceeds them least")
    print(f"mixture.safetensors and mix.json are in {options.out}")
    return 0
