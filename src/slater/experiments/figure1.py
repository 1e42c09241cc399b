"""Figure 1 of the paper: reward and cost against the size of the dataset, on random CMDPs.

Each repeat draws its own problem and data (seed = repeat), the same for every algorithm. Two kinds of
curves: fixed settings, the same for every problem (the algorithms' defaults; some of them were compared on
these very seeds, see docs/results-tabular.md); and the best setting of a grid
for each problem *by its true value*, as the paper's unspecified tuning may have been. The latter cannot be
had in practice and is marked `oracle`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slater import tabular as tab
from slater.jobs.cells import run_cells, write_settings
from slater.jobs.engines import Cell, Row
from slater.report.curves import Curve, draw_against_size, summarise, write_csv

SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000)
QUICK_SIZES = (100, 500, 2000)

#: the per-sample programs of the paper's own form cost five times as much: one size for its grid
PAPER_FORM_SIZES = (1000,)

#: rounds of PDCA in the grid, where 36 settings are run for each problem
GRID_ROUNDS = 400

LABELS = {
    "pdca": "PDCA",
    "mbcl": "MBCL",
    "coptidice": "COptiDICE",
    "plugin": "plug-in LP",
    "pdca-paper-grid": "PDCA, paper's form and grid (oracle)",
    "pdca-grid": "PDCA, paper's grid (oracle)",
    "mbcl-grid": "MBCL, grid (oracle)",
    "coptidice-grid": "COptiDICE, grid (oracle)",
    "mbcl-released": "MBCL, released settings",
}


_GRID = tuple(itertools.product((1.0, 2.0, 5.0, 10.0), (2.0, 5.0, 10.0), (2.0, 5.0, 10.0)))
#: the settings of a curve; those with several are chosen among by their true value
SETTINGS: Mapping[str, Sequence[tab.Algorithm]] = {
    "pdca": [tab.PDCA()],
    "mbcl": [tab.MBCL()],
    "mbcl-released": [tab.MBCL.preset("released", rounds=100)],
    "coptidice": [tab.COptiDICE()],
    "plugin": [tab.PlugIn()],
    "pdca-grid": [
        tab.PDCA(rounds=GRID_ROUNDS, multiplier_bound=B, step=step, weights=tab.Box(C), mixture="uniform")
        for step, B, C in _GRID
    ],
    "pdca-paper-grid": [
        tab.PDCA.preset(
            "paper", step=step, multiplier_bound=B, weights=tab.PerSampleBox(C), rounds=GRID_ROUNDS
        )
        for step, B, C in _GRID
    ],
    "mbcl-grid": [
        tab.MBCL(multiplier_bound=B, step=step)
        for B, step in itertools.product((1.0, 2.0, 5.0, 10.0), (0.3, 1.0, 5.0))
    ],
    "coptidice-grid": [tab.COptiDICE(alpha=alpha) for alpha in (1.0, 0.1, 0.01, 0.001)],
}


def cell(settings: Cell) -> Row:
    """One algorithm on one problem: `J_R / J_R*` and `J_C / tau`, exact."""
    rng = np.random.default_rng(settings["seed"])
    cmdp = tab.GENERATORS[settings["cmdp"]](rng)
    best = cmdp.solve()
    data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp, best), settings["n"], rng)
    outcomes = []
    for algorithm in SETTINGS[settings["algorithm"]]:
        with warnings.catch_warnings():
            # grids hold bounds below the optimal multiplier on purpose
            warnings.simplefilter("ignore")
            result = algorithm.run(data)
        J_R, J_C = result.policy.returns(cmdp)
        outcomes.append((J_R / best.J_R, float((J_C / cmdp.limits).max())))
    reward, cost = _best_outcome(outcomes)
    return {"reward": reward, "cost": cost, "settings_tried": len(outcomes)}


def _best_outcome(outcomes: list[tuple[float, float]]) -> tuple[float, float]:
    """The largest true reward among outcomes under the limit; if none is, the smallest cost."""
    feasible = [o for o in outcomes if o[1] <= 1.0]
    return max(feasible) if feasible else min(outcomes, key=lambda o: o[1])


def run(
    out: Path, *, quick: bool, cmdp: str = "paper", repeats: int | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Run the cells, and write figure1.png, .svg, .csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    count = repeats if repeats is not None else 5 if quick else 10
    names = ["pdca", "mbcl", "coptidice", "plugin", "mbcl-released"]
    if not quick:
        names += ["coptidice-grid", "mbcl-grid", "pdca-grid", "pdca-paper-grid"]
    cells = [
        {"algorithm": name, "cmdp": cmdp, "n": n, "seed": seed}
        for name in names
        for n in (PAPER_FORM_SIZES if name == "pdca-paper-grid" else sizes)
        for seed in range(count)
    ]
    rows = run_cells(cell, cells, out, workers=workers)
    summary = summarise(rows, by=("algorithm", "n"), values=("reward", "cost"))
    write_csv(out / "figure1.csv", summary)
    variants = ("mbcl-released", "pdca-paper-grid")
    curves = {name: Curve(name, LABELS[name], name.split("-")[0], name in variants) for name in names}
    fixed = [curve for name, curve in curves.items() if "grid" not in name]
    oracle = [curve for name, curve in curves.items() if "grid" in name]
    groups = [("fixed settings", fixed)] + ([("chosen by the true value (oracle)", oracle)] if oracle else [])
    draw_against_size(out / "figure1", summary, groups, title=f"Tabular CMDP ({cmdp}), {count} repeats")
    settings = {"cmdp": cmdp, "sizes": list(sizes), "repeats": count, "algorithms": names, "quick": quick}
    write_settings(out, "figure1", settings | {"grid_rounds": GRID_ROUNDS})
    return {"out": str(out), "summary": summary}
