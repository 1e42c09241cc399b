"""A picture of one run with neural networks: return, cost and multipliers against iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from slater.report.curves import LIMIT, MARKERS, PALETTE
from slater.runs import LimitRecord

__all__ = ["Level", "draw_training"]


class Level(NamedTuple):
    """Mean return and cost of a finished policy, per episode."""

    reward: float
    cost: float


def draw_training(
    path: Path, rows: Sequence[Mapping[str, Any]], limit: LimitRecord, levels: Mapping[str, Level],
    best: float | None,
) -> None:  # fmt: skip
    """Rollouts along the way, estimates beside them, the limit and the finished policies.

    rows: metrics of the run. limit: its record in all units. best: return of the best episode in the data
    that keeps the limit, if there is one.
    """
    measured = [row for row in rows if "eval/return" in row]
    steps = [row["step"] for row in measured]
    name, per_episode, discounted = limit.cost, limit.episode, limit.discounted
    figure, (top, middle, low) = plt.subplots(
        3, 1, figsize=(8.5, 8), sharex=True, gridspec_kw={"height_ratios": (3, 3, 1.6)}
    )
    top.plot(
        steps, [row["eval/return"] for row in measured], color=PALETTE[0], marker="o", label="each policy"
    )
    middle.plot(
        steps, [row["eval/cost"] for row in measured], color=PALETTE[0], marker="o", label="each policy"
    )
    estimated = [row for row in measured if f"ope/{name}" in row]
    # a discounted estimate as a cost per episode, by the ratio of the limit's own two readings
    ratio = per_episode / discounted if per_episode is not None and discounted else 0.0
    middle.plot(
        [row["step"] for row in estimated], [row[f"ope/{name}"] * ratio for row in estimated],
        color=PALETTE[4], linestyle=":", label="its estimate, from the log",
    )  # fmt: skip
    if per_episode is not None:
        middle.axhline(per_episode, color=LIMIT, linestyle="--", label="limit")
    if best is not None:
        top.axhline(best, color=PALETTE[2], linestyle="--", label="best episode in the data within the limit")
    end = rows[-1]["step"] * 1.03
    for index, (label, level) in enumerate(levels.items()):
        style = {
            "color": PALETTE[1 + index], "marker": MARKERS[1 + index], "s": 70, "zorder": 3, "label": label
        }  # fmt: skip
        top.scatter(end, level.reward, **style)
        middle.scatter(end, level.cost, **style)
    played = [row for row in rows if f"lambda/{name}" in row]
    low.plot([row["step"] for row in played], [row[f"lambda/{name}"] for row in played], color=PALETTE[3])
    top.set(ylabel="return per episode", ylim=(0, None))
    middle.set(ylabel="cost per episode", ylim=(0, None))
    low.set(ylabel="multiplier", xlabel="iterations")
    for axis in (top, middle, low):
        axis.grid(alpha=0.25)
    for axis in (top, middle):
        axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
