"""How the error falls with n, and what tightening the limits (Theorem 3) buys.

Errors are positive parts, in J-units: suboptimality `(J_R* - J_R)_+` and violation `(max_i J_Ci - tau_i)_+`,
averaged over problems. The theory bounds both by a constant times `n^(-1/2)`: a straight line of slope -1/2
on log-log axes. Since a mixture may trade one for the other, their sum with the optimal multiplier,
`(J_R* - J_R)_+ + |lambda*|_1 (J_C - tau)_+`, is reported as well.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from slater import tabular as tab
from slater.errors import InputError
from slater.jobs.cells import run_cells, write_settings
from slater.jobs.engines import Cell, Row
from slater.report.curves import draw_rates, fit_slope, summarise, write_csv

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
QUICK_SIZES = (200, 2000, 20_000)


def cell(settings: Cell) -> Row:
    """PDCA on one problem, without or with tightening; exact errors."""
    rng = np.random.default_rng(settings["seed"])
    cmdp = tab.paper_cmdp(rng)
    best = cmdp.solve()
    data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp, best), settings["n"], rng)
    tightened = settings["tightened"]
    algorithm = tab.PDCA(
        mode="exactly-feasible" if tightened else None, rounds=settings["rounds"], mixture="lp"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = algorithm.run(data)
        except InputError:
            # no Slater margin on the empirical model: Theorem 3 does not apply to this dataset
            return {"refused": 1}
    J_R, J_C = result.policy.returns(cmdp)
    loss = max(best.J_R - J_R, 0.0)
    violation = float(np.maximum(J_C - cmdp.limits, 0.0).max())
    return {
        "refused": 0,
        "suboptimality": loss,
        "violation": violation,
        "combined": loss + float(best.multipliers.sum()) * violation,
        "reward": J_R / best.J_R,
        "feasible": float(violation <= 1e-9),
    }


def run(out: Path, *, quick: bool, repeats: int | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the cells, and write rates.png, .svg, .csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    count = repeats if repeats is not None else 6 if quick else 20
    rounds = 400 if quick else 1000
    cells = [
        {"tightened": tight, "n": n, "seed": seed, "rounds": rounds}
        for tight in (False, True)
        for n in sizes
        for seed in range(count)
    ]
    rows = run_cells(cell, cells, out, workers=workers)
    kept = [row for row in rows if not row["refused"]]
    values = ("suboptimality", "violation", "combined", "reward", "feasible")
    summary = summarise(kept, by=("tightened", "n"), values=values)
    refused = summarise(rows, by=("tightened", "n"), values=("refused",))
    for row, other in zip(summary, refused, strict=False):
        row["refused"] = other["refused_mean"]
    plain = [row for row in summary if not row["tightened"]]
    slopes = {name: fit_slope(plain, f"{name}_mean") for name in ("suboptimality", "violation", "combined")}
    write_csv(out / "rates.csv", summary)
    draw_rates(out / "rates", summary, slopes)
    settings = {"sizes": list(sizes), "repeats": count, "rounds": rounds, "quick": quick}
    write_settings(out, "rates", settings | {"slopes": slopes})
    return {"out": str(out), "summary": summary, "slopes": slopes}
