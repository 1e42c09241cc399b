"""A picture of one run with neural networks: what it learned from and came to, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from slater.report.curves import LIMIT, MARKERS, PALETTE
from slater.runs import LimitRecord

__all__ = ["Level", "draw_training"]


class Level(NamedTuple):
    """Mean return and cost of a finished policy, per episode."""

    reward: float
    cost: float


def draw_training(
    path: Path, rows: Sequence[Mapping[str, Any]], limit: LimitRecord, levels: Mapping[str, Level],
    best: float | None, logged: NDArray[np.floating],
) -> None:  # fmt: skip
    """Left: the logged episodes and the finished policies. Right: rollouts along the way, and estimates.

    rows: metrics of the run. limit: its record in all units. best: return of the best episode in the data
    that keeps the limit, if there is one. logged: (episodes, 2), return and cost of each logged episode.
    """
    measured = [row for row in rows if "eval/return" in row]
    steps = [row["step"] for row in measured]
    name, per_episode, discounted = limit.cost, limit.episode, limit.discounted
    figure, axes = plt.subplot_mosaic(
        [["plane", "top"], ["plane", "middle"], ["plane", "low"]], figsize=(13, 7),
        width_ratios=(1.15, 1), height_ratios=(3, 3, 1.6),
    )  # fmt: skip
    plane, top, middle, low = (axes[part] for part in ("plane", "top", "middle", "low"))
    top.sharex(low)
    middle.sharex(low)
    _draw_plane(plane, logged, per_episode, levels)
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
    top.set(ylabel="return per episode", ylim=(0, None), title="How it got there: policies during training")
    middle.set(ylabel="cost per episode", ylim=(0, None))
    low.set(ylabel="multiplier", xlabel="iterations")
    for axis in (plane, top, middle, low):
        axis.grid(alpha=0.25)
    for axis in (top, middle):
        axis.tick_params(labelbottom=False)
    for axis in (top, middle):
        axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_plane(
    axis: Axes, logged: NDArray[np.floating], limit: float | None, levels: Mapping[str, Level]
) -> None:
    """Return against cost: what the log has, what is allowed, and where the finished policies are."""
    axis.scatter(
        logged[:, 1], logged[:, 0], s=14, color="0.6", alpha=0.6, linewidths=0, label="a logged episode"
    )
    if limit is not None:
        axis.axvline(limit, color=LIMIT, linestyle="--", label=f"limit: {limit:g} per episode")
        right = max(float(logged[:, 1].max()), limit) * 1.05
        axis.axvspan(limit, right, color=LIMIT, alpha=0.06, linewidth=0)
        axis.set_xlim(-0.02 * right, right)
    for index, (label, level) in enumerate(levels.items()):
        axis.scatter(
            level.cost, level.reward, s=150, color=PALETTE[1 + index], marker=MARKERS[1 + index], zorder=3,
            edgecolors="white", label=f"learned {label}: {level.reward:.0f} at cost {level.cost:.1f}",
        )  # fmt: skip
    axis.set(
        xlabel="cost per episode (less is better)", ylabel="return per episode (more is better)",
        title="What it learned from, and what came out (measured)",
    )  # fmt: skip
    axis.legend(fontsize=9, loc="lower right")
