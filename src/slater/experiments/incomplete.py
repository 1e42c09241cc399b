"""The experiment that the paper argues for and does not run: values realised, Bellman completeness absent.

Problems. Of S states only m are decision states; in the others every action does the same. Then the
values of *every* policy are determined by its values at the decision states:

    Q_U^pi(s, a) = b_U(s, a) + sum_j tau_j(s, a) V_U^pi(j)

where b_U is the discounted utility collected before the next decision state, and tau_j the discount until
decision state j, if that is the one reached. So F = span{b_R, b_C, tau_1..tau_m}, of dimension m + 2, holds
Q_R and Q_C of all policies: the paper's realisability holds exactly. F is not closed under the Bellman
operator, so the regressions of MBCL (FQI, FQE) have no guarantee: they are right if the projected Bellman
operator contracts and can run off if it does not (its spectral radius is reported for each problem).

Two families. `random` draws transitions freely; the projected operator then contracts for nearly every
policy, and theory and practice part ways. `hard` redraws, with behaviour far from uniform, until the
operator of at least one deterministic policy has a spectral radius above 1.05: FQE of that policy diverges
(and ends at the edge of the box that values are clipped to).

Both algorithms get the same F and the same B. PDCA's OPE oracle is the minimax loss over F and W, so
nothing in it uses more than F either. The plug-in LP, which knows the table, is drawn as a reference.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slater import tabular as tab
from slater.jobs.cells import run_cells, write_settings
from slater.jobs.engines import Cell, Row
from slater.report.curves import Curve, draw_against_size, summarise, write_csv
from slater.tabular._check import Float

SIZES = (200, 1000, 5000, 20_000)
QUICK_SIZES = (500, 5000)

LABELS = {
    "pdca": "PDCA, class F",
    "mbcl": "MBCL, class F",
    "plugin": "plug-in LP (knows the table)",
}

#: what makes a problem of the hard family: the operator of some policy expands by this factor
EXPANSION = 1.05


@dataclass(frozen=True)
class IncompleteProblem:
    """A problem whose class F realises every policy's values without being Bellman complete.

    Attributes:
        cmdp: the problem.
        features: F, shape `(S, A, m + 2)`.
        behaviour: the policy that logs, `(S, A)`.
        radius: the largest spectral radius, over deterministic policies, of the projected Bellman operator
            under the data distribution; above 1 fitted Q evaluation of such a policy diverges.

    """

    cmdp: tab.CMDP
    features: Float
    behaviour: Float
    radius: float


def draw_problem(rng: np.random.Generator, family: str) -> IncompleteProblem:
    """A random problem of a family; its limit binds at the optimum."""
    states, actions, decisions = 10, 4, 2
    hard = family == "hard"
    discount, spread, skew = (0.95, 0.05, 0.3) if hard else (0.9, 0.3, 1.0)
    while True:
        P = rng.dirichlet(np.full(states, spread), size=(states, actions))
        R, C = rng.random((states, actions)), rng.beta(0.2, 0.2, size=(states, actions))
        for array in (P, R, C):
            array[decisions:] = array[decisions:, :1]
        behaviour = 0.9 * rng.dirichlet(np.full(actions, skew), size=states) + 0.1 / actions
        free = tab.CMDP(P, R, C[None], [1.0 / (1.0 - discount)], discount)
        features = _features(free, decisions)
        radius = _largest_radius(free, features, behaviour, decisions)
        if hard and radius < EXPANSION:
            continue
        smallest, greedy = free.with_limits([0.0]).closest()[0], float(free.solve().J_C[0])
        if greedy - smallest < 0.5:
            continue
        # halfway between the least cost and the cost of ignoring it: the limit binds
        cmdp = free.with_limits([0.5 * (smallest + greedy)])
        if cmdp.solve().multipliers[0] > 0.02:
            return IncompleteProblem(cmdp, features, behaviour, radius)


def _features(cmdp: tab.CMDP, decisions: int) -> Float:
    """b_R, b_C and tau_1..tau_m on all pairs, each scaled to a largest entry of one."""
    S, A = cmdp.num_states, cmdp.num_actions
    between = cmdp.transition.copy()
    between[:, :, :decisions] = 0.0
    passive = between[:, 0]
    inverse = np.linalg.inv(np.eye(S) - cmdp.discount * passive)
    columns = [u + cmdp.discount * between @ (inverse @ u[:, 0]) for u in (cmdp.reward, cmdp.costs[0])]
    for j in range(decisions):
        hit = cmdp.discount * cmdp.transition[:, :, j]
        columns.append(hit + cmdp.discount * between @ (inverse @ hit[:, 0]))
    stacked = np.stack(columns, axis=2)
    return stacked / np.abs(stacked).reshape(S * A, -1).max(axis=0)


def _largest_radius(cmdp: tab.CMDP, features: Float, behaviour: Float, decisions: int) -> float:
    """The spectral radius of `f -> projection of discount P^pi f`, largest over deterministic policies."""
    S, A = cmdp.num_states, cmdp.num_actions
    Phi = features.reshape(S * A, -1)
    weighted = Phi * cmdp.occupancy(behaviour).ravel()[:, None]
    project = np.linalg.pinv(weighted.T @ Phi) @ weighted.T
    choices = np.array(list(itertools.product(range(A), repeat=decisions)))
    V = np.broadcast_to(features[:, 0], (len(choices), S, Phi.shape[1])).copy()
    for j in range(decisions):
        V[:, j] = features[j, choices[:, j]]
    maps = project @ (cmdp.discount * cmdp.transition.reshape(S * A, S) @ V)
    return float(np.abs(np.linalg.eigvals(maps)).max())


def cell(settings: Cell) -> Row:
    """All algorithms at all sizes on one problem: `J_R / J_R*` and `J_C / tau`, exact."""
    rng = np.random.default_rng(settings["seed"])
    problem = draw_problem(rng, settings["family"])
    cmdp = problem.cmdp
    best = cmdp.solve()
    F = tab.Linear(problem.features)
    B = 1.0 + 2.0 * float(best.multipliers.sum())
    algorithms: dict[str, tab.Algorithm] = {
        "pdca": tab.PDCA(
            multiplier_bound=B,
            values=F,
            weights=tab.Box(10.0),
            estimator="minimax",
            rounds=settings["rounds"],
        ),
        "mbcl": tab.MBCL(multiplier_bound=B, values=F),
        "plugin": tab.PlugIn(),
    }
    outcomes = []
    for n in settings["sizes"]:
        data = tab.Counts.sample(cmdp, problem.behaviour, n, rng)
        for name, algorithm in algorithms.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                J_R, J_C = algorithm.run(data).policy.returns(cmdp)
            cost = float((J_C / cmdp.limits).max())
            outcomes.append({"algorithm": name, "n": n, "reward": J_R / best.J_R, "cost": cost})
    return {"radius": problem.radius, "outcomes": outcomes}


def run(out: Path, *, quick: bool, repeats: int | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the cells, and write incomplete.png, .svg, .csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    count = repeats if repeats is not None else 2 if quick else 20
    rounds = 300 if quick else 600
    cells = [
        {"family": family, "seed": seed, "sizes": list(sizes), "rounds": rounds}
        for family in ("random", "hard")
        for seed in range(count)
    ]
    problems = run_cells(cell, cells, out, workers=workers)
    rows = [
        {"family": problem["family"], "seed": problem["seed"], "radius": problem["radius"], **outcome}
        for problem in problems
        for outcome in problem["outcomes"]
    ]
    summary = summarise(rows, by=("family", "algorithm", "n"), values=("reward", "cost", "radius"))
    write_csv(out / "incomplete.csv", summary)
    write_csv(out / "incomplete-problems.csv", rows)
    for row in summary:
        row["curve"] = f"{row['family']} {row['algorithm']}"
    groups = [
        (f"{family} problems", [Curve(f"{family} {name}", label, name) for name, label in LABELS.items()])
        for family in ("random", "hard")
    ]
    drawn = [row | {"algorithm": row["curve"]} for row in summary]
    title = f"Values realised, Bellman completeness absent: {count} problems each"
    draw_against_size(out / "incomplete", drawn, groups, title=title)
    settings = {"sizes": list(sizes), "repeats": count, "rounds": rounds, "quick": quick}
    write_settings(out, "figure1 --class incomplete", settings)
    return {"out": str(out), "summary": [{k: v for k, v in row.items() if k != "curve"} for row in summary]}
