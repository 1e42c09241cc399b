"""Speed of tabular PDCA, as ratios inside one run.

`make bench` (or `python -m benchmarks.tabular`) measures
- an iteration of PDCA (reward critic, cost critic, OPE; S = 10, A = 5, n = 1000) in its default form and in
  the per-sample form, against the paper's three programs written directly in cvxpy, vectorised over the
  samples, on the same data and the same policies;
- its cost as n grows, and as S grows to 200.
The rounds of the two programs alternate, so that the load of the machine falls on both alike. Results go to
benchmarks/results/tabular.json.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np

from slater import tabular as tab
from slater.tabular._check import Float
from slater.tabular.ope import MinimaxEstimator, ModelEstimator

RESULTS = Path(__file__).parent / "results"
C_INFINITY = 5.0


def policies(data: tab.Counts, rounds: int) -> Float:
    """The policies that PDCA itself visits: what a solver that keeps its basis will meet."""
    return tab.PDCA(rounds=rounds, mixture="uniform").run(data).policy.members


def task(seed: int, n: int, states: int = 10) -> tab.Counts:
    rng = np.random.default_rng(seed)
    if states == 10:
        cmdp = tab.paper_cmdp(rng)
        return tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp), n, rng)
    actions = 5
    transition = np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            follow = rng.choice(states, size=10, replace=False)
            transition[s, a, follow] = rng.dirichlet(np.ones(10))
    cost = rng.beta(0.2, 0.2, size=(1, states, actions))
    cmdp = tab.CMDP(transition, rng.random((states, actions)), cost, [1.5], 0.8)
    return tab.Counts.sample(cmdp, tab.uniform_policy(states, actions), n, rng)


def cvxpy_iteration(data: tab.Counts, policy: Float) -> None:
    """Lines 2 to 4 of Algorithm 1 as the paper writes them: three programs over f, all samples in vectors."""
    S, A = data.num_states, data.num_actions
    s, a, follow = np.nonzero(data.transitions)
    repeat = data.transitions[s, a, follow].astype(int)
    s, a, follow = np.repeat(s, repeat), np.repeat(a, repeat), np.repeat(follow, repeat)
    n, H = len(s), data.horizon
    for utility, sign, weight in ((data.reward, 1, 2), (data.costs[0], -1, 2), (data.costs[0], 0, 1)):
        f = cp.Variable((S, A))
        V = cp.sum(cp.multiply(policy, f), axis=1)
        delta = f[s, a] - utility[s, a] - data.discount * V[follow]
        error = C_INFINITY * cp.maximum(cp.sum(cp.pos(delta)) / n, cp.sum(cp.pos(-delta)) / n)
        gain = cp.sum(V[s] - f[s, a]) / n
        cp.Problem(cp.Minimize(weight * error + sign * gain), [f >= 0, f <= H]).solve(solver=cp.CLARABEL)


def ours(data: tab.Counts, per_sample: bool) -> Callable[[Float], None]:
    """The same three lines with the programs kept from round to round."""
    W = tab.PerSampleBox(C_INFINITY) if per_sample else tab.Box(C_INFINITY)
    reward = tab.Critic(data, data.reward, +1, W)
    costs = [tab.Critic(data, cost, -1, W) for cost in data.costs]
    estimator = MinimaxEstimator(data, W) if per_sample else ModelEstimator(data)

    def iteration(policy: Float) -> None:
        reward.solve(policy)
        for critic in costs:
            critic.solve(policy)
        estimator.costs(policy)

    return iteration


def timed(work: Callable[..., None], *args: Any) -> float:
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def mean_ms(data: tab.Counts, rounds: int) -> float:
    """Milliseconds an iteration of the default form takes, averaged over the policies of a run."""
    work = ours(data, per_sample=False)
    return 1e3 * float(np.mean([timed(work, policy) for policy in policies(data, rounds)]))


def against_cvxpy(rounds: int = 300, direct_rounds: int = 12) -> dict[str, float]:
    data = task(1, 1000)
    visited = policies(data, rounds)
    exact, sampled = ours(data, per_sample=False), ours(data, per_sample=True)
    direct, fast, slow = [], [], []
    for chunk in np.array_split(visited, direct_rounds):
        direct.append(timed(cvxpy_iteration, data, chunk[0]))
        fast += [timed(exact, policy) for policy in chunk]
        slow += [timed(sampled, policy) for policy in chunk]
    base = float(np.mean(direct))
    return {
        "cvxpy_ms": 1e3 * base,
        "exact_ms": 1e3 * float(np.mean(fast)),
        "per_sample_ms": 1e3 * float(np.mean(slow)),
        "exact_ratio": base / float(np.mean(fast)),
        "per_sample_ratio": base / float(np.mean(slow)),
    }


def growth(rounds: int = 100) -> dict[str, dict[str, float]]:
    sizes, states = (1000, 10_000, 100_000, 1_000_000), (10, 20, 50, 100, 200)
    return {
        "ms_by_n": {str(n): mean_ms(task(1, n), rounds) for n in sizes},
        "ms_by_states": {
            str(S): mean_ms(task(1, 200 * S, S), rounds if S < 100 else rounds // 4) for S in states
        },
    }


def main() -> None:
    """Measure, print, write."""
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "against_cvxpy": against_cvxpy(),
        **growth(),
    }
    compared = record["against_cvxpy"]
    print(f"one iteration, S = 10, A = 5, n = 1000: cvxpy {compared['cvxpy_ms']:.0f} ms")
    for name, label, goal in (("exact", "default form", 200), ("per_sample", "per-sample form", 40)):
        ms, ratio = compared[f"{name}_ms"], compared[f"{name}_ratio"]
        print(f"  {label:<16}{ms:.2f} ms, {ratio:.0f} times faster (goal {goal})")
    print("default form by n, ms:", {n: round(t, 2) for n, t in record["ms_by_n"].items()})
    print("default form by S, ms:", {s: round(t, 2) for s, t in record["ms_by_states"].items()})
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "tabular.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {RESULTS.name}/tabular.json")


if __name__ == "__main__":
    main()
