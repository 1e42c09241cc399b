"""A picture of one run of PDCA: the players round by round, and the policies in the reward-cost plane."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from slater.report.curves import LIMIT, MARKERS, PALETTE
from slater.tabular import CMDP, Result, Solution
from slater.tabular._check import Float


def draw_game(
    path: Path, cmdp: CMDP, best: Solution, result: Result, policies: dict[str, tuple[float, Float]]
) -> None:
    """Reward, cost and multiplier of the first cost against rounds; `policies` as points (J_R, J_C)."""
    values = [cmdp.returns(member) for member in result.policy.members]
    reward = np.array([v[0] for v in values])
    cost = np.array([v[1][0] for v in values])
    rounds = np.arange(1, len(reward) + 1)
    figure, axes = plt.subplots(2, 2, figsize=(12, 7))
    top, low, lam, plane = axes[0][0], axes[1][0], axes[1][1], axes[0][1]
    for axis, series, target, what in (
        (top, reward, best.J_R, "reward"),
        (low, cost, cmdp.limits[0], "cost"),
    ):
        axis.plot(rounds, series, color=PALETTE[0], alpha=0.35, linewidth=0.8, label="each policy")
        running = np.cumsum(series) / rounds
        axis.plot(rounds, running, color=PALETTE[0], linewidth=2, label="uniform mixture so far")
        label = "optimum" if what == "reward" else "limit"
        axis.axhline(target, color=LIMIT, linestyle="--", linewidth=1, label=label)
        axis.set(xlabel="round", ylabel=f"{what} (discounted sum)")
        axis.legend(fontsize=8, frameon=False)
        axis.grid(alpha=0.25)
    trace = result.trace["multipliers"][:, 0]
    lam.plot(rounds, trace, color=PALETTE[1], alpha=0.35, linewidth=0.8, label="greedy multiplier")
    lam.plot(rounds, np.cumsum(trace) / rounds, color=PALETTE[1], linewidth=2, label="its mean so far")
    lam.axhline(best.multipliers[0], color=LIMIT, linestyle="--", linewidth=1, label="optimal multiplier")
    lam.set(xlabel="round", ylabel="multiplier")
    lam.legend(fontsize=8, frameon=False)
    lam.grid(alpha=0.25)
    plane.axvline(cmdp.limits[0], color=LIMIT, linestyle="--", linewidth=1, label="limit")
    for index, (name, (J_R, J_C)) in enumerate(policies.items()):
        color, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        plane.scatter(J_C[0], J_R, color=color, marker=marker, s=45, label=name, zorder=3)
    plane.scatter(best.J_C[0], best.J_R, color="black", marker="*", s=110, label="exact optimum", zorder=2)
    plane.set(xlabel="cost (discounted sum)", ylabel="reward (discounted sum)")
    plane.legend(fontsize=8, frameon=False)
    plane.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
