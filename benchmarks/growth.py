"""How the exact world grows: seconds an optimum and an iteration of PDCA take, from 10 states to 5,000.

`python -m benchmarks.growth` draws sparse random problems (10 actions, 10 successors a pair, discount .9, one
cost, 100 logged transitions a state) and measures, in processor time of one thread,
- the exact optimum of the true model;
- an iteration of PDCA on the log (reward critic, cost critic, OPE), over the policies that it visits.
Results go to benchmarks/results/growth.json and docs/figures/growth.png.
"""

from __future__ import annotations

import datetime
import json
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from slater import tabular as tab

RESULTS = Path(__file__).parent / "results"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "growth.png"
STATES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
ACTIONS, SUCCESSORS, DISCOUNT = 10, 10, 0.9
LIMIT = 1.5  # J-units; .15 a step, where the uniform policy has about .5


def problem(states: int, seed: int = 0) -> tab.CMDP:
    """A random problem whose pairs have at most ten successors."""
    rng = np.random.default_rng(seed)
    pairs = states * ACTIONS
    columns = rng.integers(states, size=pairs * SUCCESSORS)
    chances = rng.dirichlet(np.ones(SUCCESSORS), size=pairs).ravel()
    rows = sparse.csr_array(
        (chances, (np.repeat(np.arange(pairs), SUCCESSORS), columns)), shape=(pairs, states)
    )
    cost = rng.beta(0.2, 0.2, size=(1, states, ACTIONS))
    return tab.CMDP(rows, rng.random((states, ACTIONS)), cost, [LIMIT], DISCOUNT, np.full(states, 1 / states))


def measure(states: int) -> dict[str, Any]:
    """One size: seconds of the optimum, of an iteration, and the largest duality gap of a critic."""
    cmdp = problem(states)
    before = time.process_time()
    best = cmdp.solve()
    optimum = time.process_time() - before
    uniform = tab.uniform_policy(states, ACTIONS)
    data = tab.Counts.sample(cmdp, uniform, 100 * states, np.random.default_rng(1))
    rounds = 40 if states <= 500 else 10
    clock: list[float] = []
    result = tab.PDCA(rounds=rounds).run(data, progress=lambda _: clock.append(time.process_time()))
    gap = float(np.nanmax(result.trace["critic_gap"])) if not data.successors.small else None
    return {
        "states": states,
        "optimum_seconds": optimum,
        # without the first round, which has nothing to start from
        "iteration_seconds": (clock[-1] - clock[0]) / (rounds - 1),
        "multiplier": float(best.multipliers[0]),
        "critic_gap": gap,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Both curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    states = [row["states"] for row in rows]
    axis.plot(states, [row["optimum_seconds"] for row in rows], "o-", label="exact optimum")
    axis.plot(states, [row["iteration_seconds"] for row in rows], "s-", label="an iteration of PDCA")
    axis.set(
        xscale="log", yscale="log", xlabel="states (10 actions, 10 successors)", ylabel="processor seconds"
    )
    axis.grid(alpha=0.3)
    axis.legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure, print, write, draw; sizes may be named as arguments."""
    rows = []
    for states in [int(size) for size in sys.argv[1:]] or STATES:
        rows.append(measure(states))
        print(json.dumps(rows[-1]), flush=True)
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "growth.json").write_text(json.dumps(record, indent=2) + "\n")
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
