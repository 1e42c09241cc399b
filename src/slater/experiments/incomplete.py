"""The experiment that the paper argues for and does not run: values realised, Bellman completeness absent.

Problems. Of S states only m are decision states; in the others every action does the same. Then the
values of *every* policy are determined by its values at the decision states:

    Q_U^pi(s, a) = b_U(s, a) + sum_j tau_j(s, a) V_U^pi(j)

where b_U is the discounted utility collected before the next decision state, and tau_j the discount until
decision state j, if that is the one reached. So F = span{b_R, b_C, tau_1..tau_m}, of dimension m + 2, holds
Q_R and Q_C of all policies: the paper's realisability holds exactly. F is not closed under the Bellman
operator, so the regressions of MBCL (FQI, FQE) have no guarantee: they are right if the projected Bellman
operator contracts and can run off if it does not (its spectral radius is reported for each problem).

Both algorithms get the same F and the same B. PDCA's OPE oracle is the minimax loss over F and W, so
nothing in it uses more than F either. The plug-in LP, which knows the table, is drawn as a reference.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slater import tabular as tab
from slater.experiments.cells import Cell, Row, run_cells, write_settings
from slater.report.curves import Curve, draw_against_size, summarise, write_csv
from slater.tabular._check import Float

__all__ = ["IncompleteProblem", "draw_problem", "run"]

SIZES = (200, 1000, 5000, 20_000)
QUICK_SIZES = (500, 5000)

LABELS = {
    "pdca": "PDCA, class F",
    "mbcl": "MBCL, class F",
    "plugin": "plug-in LP (knows the table)",
}


@dataclass(frozen=True)
class IncompleteProblem:
    """A problem whose class F realises every policy's values without being Bellman complete.

    Attributes:
        cmdp: the problem.
        features: F, shape `(S, A, m + 2)`.
        behaviour: the policy that logs, `(S, A)`.
        incompleteness: the largest distance, over F's unit functions, of `T^pi f` from F, relative to f.
        radius: the spectral radius of the projected Bellman operator of the optimal policy under the
            data distribution; above 1 fitted Q evaluation runs off.

    """

    cmdp: tab.CMDP
    features: Float
    behaviour: Float
    incompleteness: float
    radius: float


def draw_problem(
    rng: np.random.Generator, *, states: int = 10, actions: int = 5, decisions: int = 2, discount: float = 0.9
) -> IncompleteProblem:
    """A random problem of the family; its limit binds at the optimum."""
    while True:
        P = rng.dirichlet(np.full(states, 0.3), size=(states, actions))
        R, C = rng.random((states, actions)), rng.beta(0.2, 0.2, size=(states, actions))
        P[decisions:] = P[decisions:, :1]
        R[decisions:] = R[decisions:, :1]
        C[decisions:] = C[decisions:, :1]
        free = tab.CMDP(P, R, C[None], [1.0 / (1.0 - discount)], discount)
        smallest = free.with_limits([0.0]).closest()[0]
        greedy = free.solve().J_C[0]
        if greedy - smallest < 0.5:
            continue
        # halfway between the least cost and the cost of ignoring it: the limit binds
        cmdp = free.with_limits([0.5 * (smallest + greedy)])
        best = cmdp.solve()
        if best.multipliers[0] < 0.05:
            continue
        features = _features(cmdp, decisions)
        behaviour = tab.half_optimal_behaviour(cmdp, best, share=0.2)
        distance, radius = _diagnose(cmdp, features, behaviour, best.policy)
        return IncompleteProblem(cmdp, features, behaviour, distance, radius)


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


def _diagnose(cmdp: tab.CMDP, features: Float, behaviour: Float, policy: Float) -> tuple[float, float]:
    """How far `T^pi` leads out of F, and the spectral radius of the projected operator."""
    pairs = cmdp.num_states * cmdp.num_actions
    Phi = features.reshape(pairs, -1)
    D = cmdp.occupancy(behaviour).ravel()
    P_pi = np.einsum("sat,tb->satb", cmdp.transition, policy).reshape(pairs, pairs)
    image = cmdp.discount * P_pi @ Phi
    weighted = Phi * D[:, None]
    theta = np.linalg.solve(weighted.T @ Phi, weighted.T @ image)
    outside = image - Phi @ theta
    size = np.sqrt(D @ Phi**2)
    distance = float((np.sqrt(D @ outside**2) / size).max())
    return distance, float(np.abs(np.linalg.eigvals(theta)).max())


def cell(settings: Cell) -> Row:
    """One algorithm on one problem: `J_R / J_R*` and `J_C / tau`, exact, and the problem's diagnostics."""
    rng = np.random.default_rng(settings["seed"])
    problem = draw_problem(rng)
    cmdp = problem.cmdp
    best = cmdp.solve()
    data = tab.Counts.sample(cmdp, problem.behaviour, settings["n"], rng)
    F = tab.Linear(problem.features)
    B = 1.0 + 2.0 * float(best.multipliers.sum())
    algorithm: tab.Algorithm
    match settings["algo"]:
        case "pdca":
            weights = tab.Box(10.0)
            algorithm = tab.PDCA(bound=B, values=F, weights=weights, estimator="minimax", iterations=600)
        case "mbcl":
            algorithm = tab.MBCL(bound=B, values=F)
        case _:
            algorithm = tab.PlugIn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        J_R, J_C = algorithm.run(data).policy.returns(cmdp)
    return {
        "reward": J_R / best.J_R,
        "cost": float((J_C / cmdp.limits).max()),
        "radius": problem.radius,
        "incompleteness": problem.incompleteness,
    }


def run(out: Path, *, quick: bool, repeats: int | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the cells, and write incomplete.png, .svg, .csv and settings.json to `out`."""
    sizes = QUICK_SIZES if quick else SIZES
    count = repeats if repeats is not None else 6 if quick else 20
    cells = [{"algo": algo, "n": n, "seed": s} for algo in LABELS for n in sizes for s in range(count)]
    rows = run_cells(cell, cells, out, workers=workers)
    for row in rows:
        row["operator"] = "runs off" if row["radius"] > 1 else "contracts"
    summary = summarise(rows, by=("algo", "n"), values=("reward", "cost"))
    split = summarise(rows, by=("operator", "algo", "n"), values=("reward", "cost"))
    write_csv(out / "incomplete.csv", summary)
    write_csv(out / "incomplete-by-operator.csv", split)
    curves = [Curve(name, label) for name, label in LABELS.items()]
    share = np.mean([row["radius"] > 1 for row in rows])
    title = f"Realisable, not complete: {count} problems, FQE's operator runs off in {share:.0%}"
    draw_against_size(out / "incomplete", summary, [("restricted class F", curves)], title=title)
    write_settings(
        out, "figure1 --class incomplete", {"sizes": list(sizes), "repeats": count, "quick": quick}
    )
    return {"out": str(out), "summary": summary, "by_operator": split, "share_running_off": float(share)}
