"""A picture of one run with neural networks: what it learned from and came to, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from slater.report.curves import LIMIT, PALETTE
from slater.runs import LimitRecord


class Level(NamedTuple):
    """Mean return and cost per episode."""

    reward: float
    cost: float


def draw_training(
    path: Path, rows: Sequence[Mapping[str, Any]], limit: LimitRecord, learned: Level,
    estimated: Level | None, best: float | None, logged: NDArray[np.floating],
) -> None:  # fmt: skip
    """Left: the logged episodes and what was learned. Right: policies along the way, and their estimates.

    rows: metrics of the run. limit: its record in all units. learned: measured; estimated: from the log.
    best: return of the best episode in the data that keeps the limit, if there is one. logged: (episodes, 2),
    return and cost of each logged episode.
    """
    measured = [row for row in rows if "eval/return" in row]
    steps = [row["step"] for row in measured]
    name, per_episode, discounted = limit.cost, limit.episode, limit.discounted
    figure, axes = plt.subplot_mosaic(
        [["plane", "top"], ["plane", "middle"], ["plane", "low"]], figsize=(11, 6.4),
        width_ratios=(1.2, 1), height_ratios=(3, 3, 1.6),
    )  # fmt: skip
    plane, top, middle, low = (axes[part] for part in ("plane", "top", "middle", "low"))
    top.sharex(low)
    middle.sharex(low)
    _draw_plane(plane, logged, per_episode, learned, estimated)
    for axis, what in ((top, "eval/return"), (middle, "eval/cost")):
        axis.plot(
            steps, [row[what] for row in measured], color=PALETTE[0], marker="o", label="policy, measured"
        )
    told = [row for row in measured if f"ope/{name}" in row]
    # a discounted estimate as a cost per episode, by the ratio of the limit's own two readings
    ratio = per_episode / discounted if per_episode is not None and discounted else 0.0
    middle.plot(
        [row["step"] for row in told], [row[f"ope/{name}"] * ratio for row in told],
        color=PALETTE[4], linestyle=":", label="policy, estimated from the log",
    )  # fmt: skip
    if per_episode is not None:
        middle.axhline(per_episode, color=LIMIT, linestyle="--", label="limit")
    if best is not None:
        top.axhline(best, color=PALETTE[2], linestyle="--", label="best logged episode within the limit")
    end = rows[-1]["step"] * 1.03
    for axis, level in ((top, learned.reward), (middle, learned.cost)):
        axis.scatter(end, level, color=PALETTE[1], marker="s", s=70, zorder=3, label="what was learned")
    played = [row for row in rows if f"lambda/{name}" in row]
    low.plot([row["step"] for row in played], [row[f"lambda/{name}"] for row in played], color=PALETTE[3])
    for axis in (top, middle):
        bottom, most = min(0.0, axis.get_ylim()[0]), axis.get_ylim()[1]
        axis.set_ylim(bottom, most + 0.06 * (most - bottom))  # signs stay whole
    top.set(ylabel="return per episode", title="How it got there")
    middle.set(ylabel="cost per episode")
    low.set(ylabel="price of cost", xlabel="iterations of training")
    for axis in (plane, top, middle, low):
        axis.grid(alpha=0.25)
    for axis in (top, middle):
        axis.tick_params(labelbottom=False)
        axis.legend(fontsize=9, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _draw_plane(
    axis: Axes, logged: NDArray[np.floating], limit: float | None, learned: Level, estimated: Level | None
) -> None:
    """Return against cost: what the log has, what is allowed, and where the learned policy is."""
    axis.scatter(
        logged[:, 1], logged[:, 0], s=14, color="0.6", alpha=0.6, linewidths=0, label="a logged episode"
    )
    mean = Level(*logged.mean(axis=0).tolist())
    axis.scatter(
        mean.cost, mean.reward, s=90, color="0.25", marker="X", zorder=3, edgecolors="white",
        label=f"the log on average: {mean.reward:.0f} at cost {mean.cost:.1f}",
    )  # fmt: skip
    if limit is not None:
        right = max(float(logged[:, 1].max()), limit) * 1.05
        axis.axvline(limit, color=LIMIT, linestyle="--")
        axis.axvspan(limit, right, color=LIMIT, alpha=0.06, linewidth=0)
        axis.text(
            limit + 0.01 * right, 0.985, f"above the limit of {limit:g}", color=LIMIT, va="top",
            transform=axis.get_xaxis_transform(),
        )  # fmt: skip
        axis.set_xlim(-0.02 * right, right)
    if estimated is not None:
        axis.scatter(
            estimated.cost, estimated.reward, s=130, facecolors="none", edgecolors=PALETTE[1], marker="s",
            linewidths=2, zorder=3,
            label=f"what was learned, estimated from the log: {estimated.reward:.0f} at {estimated.cost:.1f}",
        )  # fmt: skip
    axis.scatter(
        learned.cost, learned.reward, s=150, color=PALETTE[1], marker="s", zorder=4, edgecolors="white",
        label=f"what was learned, measured: {learned.reward:.0f} at {learned.cost:.1f}",
    )  # fmt: skip
    # room below the lowest episode, so that the words cover none
    low, high = min(float(logged[:, 0].min()), learned.reward), max(float(logged[:, 0].max()), learned.reward)
    axis.set_ylim(low - 0.34 * (high - low), high + 0.09 * (high - low))
    axis.set(
        xlabel="cost per episode (less is better)", ylabel="return per episode (more is better)",
        title="What it learned from, and what came out",
    )  # fmt: skip
    axis.legend(fontsize=9.5, loc="lower right", framealpha=1)
