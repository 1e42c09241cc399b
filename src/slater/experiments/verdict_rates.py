"""How often verdicts are wrong, for every kind of evidence that is said to be rigorous, on known worlds.

A bound is wrong if the truth is on its other side: a limit just there turns it into a false pass (an upper
bound below the truth) or a false fail, so that the rate is the worst over all limits. The price of being
right is the share of certificates that pass where the limit is twice the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.bounds import share_lower, share_upper
from slater.certify.exact import cost_interval
from slater.certify.propensities import judge_propensities
from slater.certify.rollouts import judge_episodes
from slater.experiments.verdict_worlds import FINITE, LOGS, SUMS, finite
from slater.jobs.cells import run_cells, write_settings
from slater.jobs.engines import Cell, Row
from slater.report.curves import grouped, write_csv

SIZES, QUICK_SIZES = (30, 100, 300, 1000, 3000), (30, 300)
CONFIDENCES = (0.9, 0.95)
EVIDENCE: dict[str, Iterable[str]] = {
    "episodes": SUMS, "until decided": SUMS, "propensities": LOGS, "finite problem": FINITE,
}  # fmt: skip
#: looks of a certificate that runs until it is decided: after every tenth part of its episodes
LOOKS = 10


def _bounds(settings: Cell, rng: np.random.Generator, error: float) -> tuple[float, float, float]:
    """Lower bound, upper bound and truth of one draw of a world."""
    n = settings["n"]
    if settings["evidence"] == "propensities":
        logged = LOGS[settings["world"]]
        found = judge_propensities(
            logged.log(rng, n), logged.target, ["cost"], [2.0 * logged.mean], [logged.large], error
        )[0]
        return found.lower, found.upper, logged.mean
    if settings["evidence"] == "finite problem":
        counts, policy, truth = finite(settings["world"], rng, n)
        interval = cost_interval(counts, policy, error=error, largest_cost=1.0)
        return interval.lower, interval.upper, truth
    world = SUMS[settings["world"]]
    draws = world.draw(rng, n)[:, None]
    if settings["evidence"] == "episodes":
        only = judge_episodes(draws, ["cost"], [2.0 * world.mean], [world.most], error)[0]
        return only.lower, only.upper, world.mean
    # whoever stops when it suits takes the best of all looks
    looks = [
        judge_episodes(draws[:k], ["cost"], [world.mean], [world.most], error, stopping=True)[0]
        for k in np.linspace(n / LOOKS, n, LOOKS).astype(int)
    ]
    return max(x.lower for x in looks), min(x.upper for x in looks), world.mean


def cell(settings: Cell) -> Row:
    """Draws of one world and size: wrong bounds and passes at both confidences."""
    rows = []
    for confidence in CONFIDENCES:
        low = high = passed = 0
        width = []
        for seed in range(settings["draws"]):
            place = [ord(letter) for letter in settings["world"] + settings["evidence"]]
            rng = np.random.default_rng([settings["block"], seed, settings["n"], *place])
            lower, upper, truth = _bounds(settings, rng, 1.0 - confidence)
            low += upper < truth * (1 - 1e-9)
            high += lower > truth * (1 + 1e-9)
            passed += upper <= 2.0 * truth
            width.append(upper / truth)
        rows.append(
            {"confidence": confidence, "too_low": low, "too_high": high, "passed": passed,
             "upper_over_truth": float(np.median(width))}
        )  # fmt: skip
    return {"rates": rows}


def tabulate(rows: Sequence[Row]) -> list[Row]:
    """One line per evidence, world, size and confidence, with exact 95% intervals."""
    by, table = ("evidence", "world", "n", "confidence"), []
    for key, found in sorted(grouped([{**row, **one} for row in rows for one in row["rates"]], by).items()):
        draws, passed = (sum(one[name] for one in found) for name in ("draws", "passed"))
        line = dict(zip(by, key, strict=True)) | {"draws": draws}
        for name, counted in (("false_pass", "too_low"), ("false_fail", "too_high")):
            count = sum(one[counted] for one in found)
            line |= {name: count / draws, f"{name}_low": share_lower(count, draws, 0.025)}
            line[f"{name}_high"] = share_upper(count, draws, 0.025)
        line["pass_at_twice_the_cost"] = passed / draws
        line["upper_over_truth"] = float(np.median([one["upper_over_truth"] for one in found]))
        table.append(line)
    return table


def run(out: Path, *, quick: bool, repeats: int | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the cells, and write verdicts.csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    blocks = repeats if repeats is not None else 1 if quick else 4
    cells = [
        {"evidence": evidence, "world": world, "n": n, "draws": 10 if quick else 100, "block": block}
        for block in range(blocks)
        for evidence, worlds in EVIDENCE.items()
        for world in worlds
        for n in sizes
    ]
    table = tabulate(run_cells(cell, cells, out, workers=workers))
    write_csv(out / "verdicts.csv", table)
    write_settings(out, "verdicts", {"sizes": list(sizes), "blocks": blocks, "quick": quick})
    return {"out": str(out), "summary": _worst(table)}


def _worst(table: Sequence[Row]) -> list[Row]:
    """By evidence, size and confidence: the worst world's rates, and the mean share of passes."""
    by = ("evidence", "n", "confidence")
    return [
        dict(zip(by, key, strict=True))
        | {"worlds": len(rows)}
        | {name: max(row[name] for row in rows) for name in ("false_pass", "false_fail")}
        | {"pass_at_twice_the_cost": float(np.mean([row["pass_at_twice_the_cost"] for row in rows]))}
        for key, rows in grouped(table, by).items()
    ]
