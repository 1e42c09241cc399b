"""`slater demo --tabular`: PDCA on a small problem whose truth is known, ending with a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from slater import tabular as tab
from slater.jobs.cells import prepare
from slater.progress import PlainProgress
from slater.report.game import draw_game


def tabular_demo(seed: int, n: int, folder: Path) -> int:
    """Draw a problem from `seed`, log `n` transitions, learn, compare with the exact optimum, draw."""
    out = prepare(folder)
    console = Console()
    rng = np.random.default_rng(seed)
    cmdp = tab.paper_cmdp(rng)
    best = cmdp.solve()
    behaviour = tab.half_optimal_behaviour(cmdp, best)
    data = tab.Counts.sample(cmdp, behaviour, n, rng)
    console.print(
        f"A random problem with {cmdp.num_states} states and {cmdp.num_actions} actions; one cost with limit "
        f"{cmdp.limits[0]:g} (discounted sum), {n} transitions logged by a policy that breaks it.\n"
    )
    runs: dict[str, tab.Result] = {}
    live = Console(stderr=True)
    with PlainProgress(console=live, transient=True) as progress:
        task = progress.add_task("PDCA", total=400)
        runs["PDCA"] = tab.PDCA().run(data, progress=lambda k: progress.update(task, completed=k))
        progress.update(task, description="PDCA, exactly-feasible", completed=0, total=2000)
        runs["PDCA, exactly-feasible"] = tab.PDCA(mode="exactly-feasible").run(
            data, progress=lambda k: progress.update(task, completed=k)
        )
        progress.update(task, description="rivals", completed=0, total=None)
        runs["MBCL"] = tab.MBCL().run(data)
        runs["COptiDICE"] = tab.COptiDICE().run(data)
        runs["A-Crab (no limit)"] = tab.ACrab().run(data)

    table = Table(title=f"What each policy is really worth (limit on the cost: {cmdp.limits[0]:g})")
    for name in ("policy", "reward", "of best", "cost", "estimated", "limit"):
        table.add_column(name, justify="left" if name in ("policy", "limit") else "right", no_wrap=True)

    def add(name: str, reward: float, cost: float, estimate: str) -> None:
        verdict = "[green]met[/]" if cost <= cmdp.limits[0] + 1e-9 else "[red]exceeded[/]"
        share = f"{reward / best.J_R:.1%}"
        table.add_row(name, f"{reward:.3f}", share, f"{cost:.3f}", estimate, verdict)

    J_R, J_C = cmdp.returns(behaviour)
    add("behaviour", J_R, float(J_C[0]), "")
    for name, result in runs.items():
        J_R, J_C = result.policy.returns(cmdp)
        offline = tab.estimate_certificate(data, result.policy, result.multipliers, result.multiplier_bound)
        error = tab.standard_error(data, result.policy, data.costs[0])
        add(name, J_R, float(J_C[0]), f"{offline.J_C[0]:.3f} ± {error:.3f}")
    add("exact optimum", best.J_R, float(best.J_C[0]), "")
    console.print(table)

    path = out / "demo.png"
    draw_game(path, cmdp, best, runs["PDCA"], {name: r.policy.returns(cmdp) for name, r in runs.items()})
    console.print(
        f"\nThe game round by round, and the policies in the reward-cost plane: {path}", soft_wrap=True
    )
    console.print("Next: slater tabular --help, slater reproduce figure1 --quick, docs/tabular.md")
    return 0
