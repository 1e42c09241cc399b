"""How often a verdict in the exact world is wrong, on datasets from known problems.

Each cell draws a problem, a dataset of n transitions that certifies, and another one of the same size that
trains. Two policies are judged: one learned from the second dataset (PDCA, the plug-in program, MBCL and
COptiDICE in turn) and a random one. The truth is a linear solve.

A pass is wrong if the true cost is above the limit. How often depends on the limit, so the table counts the
worst case over all limits: a bound below the true cost, which a limit just below that cost turns into a false
pass (and a lower bound above it into a false fail). Verdicts at the problem's own limit and at twice the true
cost are beside it. The same policy judged by the data that trained it shows what held-out data are for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slater import tabular as tab
from slater.certify.bounds import Interval, share_lower, share_upper
from slater.certify.exact import cost_interval
from slater.certify.verdict import decide, error_of_each
from slater.errors import InputError
from slater.jobs.cells import Cell, Row, run_cells, write_settings
from slater.report.coverage import draw_coverage
from slater.report.curves import write_csv

__all__ = ["run"]

SIZES = (200, 1000, 5000, 20_000)
QUICK_SIZES = (200, 5000)
CONFIDENCES = (0.9, 0.95)
KINDS, COVERAGES = ("iid", "trajectories"), ("good", "poor")
LEARNERS = ("pdca", "plugin", "mbcl", "coptidice")

#: steps of an episode where the data are trajectories; 99.6% of the discounted weight at discount .8
LENGTH = 25

#: share of the optimal policy in the behaviour policy: the paper's, and one that hardly explores
GOOD, POOR = 0.5, 0.97


def _draw(cmdp: tab.CMDP, behaviour: Any, settings: Cell, rng: np.random.Generator) -> tab.Counts:
    """A dataset that holds the start of episodes: i.i.d. draws may miss it, and are then drawn again."""
    for _ in range(1000):
        try:
            if settings["kind"] == "trajectories":
                return tab.Counts.rollout(cmdp, behaviour, settings["n"] // LENGTH, LENGTH, rng)
            return tab.Counts.sample(cmdp, behaviour, settings["n"], rng)
        except InputError:
            continue
    raise InputError("no dataset of a thousand holds the start state.")


def cell(settings: Cell) -> Row:
    """One dataset: intervals of a learned and of a random policy at both confidences, beside the truth."""
    # every cell has a problem of its own
    place = (KINDS.index(settings["kind"]), COVERAGES.index(settings["coverage"]), settings["costs"])
    rng = np.random.default_rng([17, settings["seed"], settings["n"], *place])
    cmdp = tab.paper_cmdp(rng, costs=settings["costs"])
    best = cmdp.solve()
    share = GOOD if settings["coverage"] == "good" else POOR
    behaviour = tab.half_optimal_behaviour(cmdp, best, share)
    certifying, training = (_draw(cmdp, behaviour, settings, rng) for _ in range(2))
    learner = LEARNERS[settings["seed"] % len(LEARNERS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = tab.ALGORITHMS[learner]().run(training).policy
    random = tab.Mixture.single(rng.dirichlet(np.full(cmdp.num_actions, 0.5), size=cmdp.num_states))
    judged = []
    for name, policy, data in (
        (learner, learned, certifying), ("random", random, certifying), (learner, learned, training),
    ):  # fmt: skip
        truth = policy.returns(cmdp)[1]
        for confidence in CONFIDENCES:
            error = error_of_each(confidence, cmdp.num_costs)
            intervals = [cost_interval(data, policy, i, error=error) for i in range(cmdp.num_costs)]
            judged.append(
                {
                    "policy": name,
                    "reused": data is training,
                    "confidence": confidence,
                    "truth": truth.tolist(),
                    "limits": cmdp.limits.tolist(),
                    "estimate": [x.estimate for x in intervals],
                    "lower": [x.lower for x in intervals],
                    "upper": [x.upper for x in intervals],
                }
            )
    return {"judged": judged}


def _verdict(judgement: Row, limits: Sequence[float]) -> str:
    """The certificate's verdict at some limits."""
    columns = zip(judgement["estimate"], judgement["lower"], judgement["upper"], limits, strict=True)
    verdicts = {decide(Interval(e, low, high), limit)[0] for e, low, high, limit in columns}
    if "fail" in verdicts:
        return "fail"
    return "pass" if verdicts == {"pass"} else "abstain"


#: how far a bound must be beyond the truth to count as wrong: rounding of a linear solve
ROUNDING = 1e-9


def _line(rows: Sequence[Row], **key: Any) -> Row:
    """Counts over judgements, with exact (Clopper-Pearson) 95% intervals of the rates."""
    draws = len(rows)
    truths = [np.array(row["truth"]) for row in rows]
    columns = list(zip(rows, truths, strict=True))
    passes = sum(bool((np.array(r["upper"]) < t - ROUNDING).any()) for r, t in columns)
    fails = sum(bool((np.array(r["lower"]) > t + ROUNDING).any()) for r, t in columns)
    own = [_verdict(row, row["limits"]) for row in rows]
    safe = [bool((t <= np.array(r["limits"]) + ROUNDING).all()) for r, t in columns]
    width = [
        float(((np.array(r["upper"]) - np.array(r["lower"])) / np.array(r["limits"])).max()) for r in rows
    ]
    return {
        **key,
        "judged": draws,
        "false_pass": passes / draws,
        "false_pass_low": share_lower(passes, draws, 0.025),
        "false_pass_high": share_upper(passes, draws, 0.025),
        "false_fail": fails / draws,
        "false_fail_low": share_lower(fails, draws, 0.025),
        "false_fail_high": share_upper(fails, draws, 0.025),
        "own_limit_wrong": sum(
            (verdict == "pass" and not kept) or (verdict == "fail" and kept)
            for verdict, kept in zip(own, safe, strict=True)
        ) / draws,
        "own_limit_abstains": own.count("abstain") / draws,
        "pass_at_twice_the_cost": sum(_verdict(r, (2.0 * t).tolist()) == "pass" for r, t in columns) / draws,
        "median_width_over_limit": float(np.median(width)),
    }  # fmt: skip


def tabulate(rows: Sequence[Row]) -> list[Row]:
    """The table: all judgements of a confidence, then by size, kind of data, coverage, costs and policy."""
    judged = [
        {**{k: v for k, v in row.items() if k != "judged"}, **entry}
        for row in rows
        for entry in row["judged"]
    ]
    table = []
    for confidence in CONFIDENCES:
        fresh = [row for row in judged if row["confidence"] == confidence and not row["reused"]]
        groups: list[tuple[str, list[Row]]] = [("all", fresh)]
        for name in ("n", "kind", "coverage", "costs", "policy"):
            groups += [
                (f"{name} {value}", [row for row in fresh if row[name] == value])
                for value in dict.fromkeys(row[name] for row in fresh)
            ]
        for kind in COVERAGES:
            cut = [row for row in fresh if row["coverage"] == kind and row["n"] == 5000]
            groups += [
                (f"n 5000, coverage {kind}, learned", [r for r in cut if r["policy"] != "random"]),
                (f"n 5000, coverage {kind}, random", [r for r in cut if r["policy"] == "random"]),
            ]
        reused = [row for row in judged if row["confidence"] == confidence and row["reused"]]
        groups.append(("judged by the training data", reused))
        table += [_line(part, confidence=confidence, datasets=name) for name, part in groups if part]
    return table


def run(out: Path, *, quick: bool, repeats: int | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the cells, and write coverage.png, .svg, .csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    count = repeats if repeats is not None else 2 if quick else 16
    cells = [
        {"n": n, "kind": kind, "coverage": coverage, "costs": costs, "seed": seed}
        for seed in range(count)
        for n in sizes
        for kind in KINDS
        for coverage in COVERAGES
        for costs in (1, 2)
    ]
    rows = run_cells(cell, cells, out, workers=workers)
    table = tabulate(rows)
    write_csv(out / "coverage.csv", table)
    draw_coverage(out / "coverage", table)
    settings = {"sizes": list(sizes), "repeats": count, "datasets": len(cells), "quick": quick}
    write_settings(out, "coverage", settings)
    return {"out": str(out), "summary": table}
