"""The picture of `slater reproduce coverage`: rates of wrong bounds, and what they cost in abstentions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["draw_coverage"]


def draw_coverage(path: Path, table: Sequence[dict[str, Any]]) -> None:
    """Draw `path`.png and .svg: wrong bounds by group with exact intervals against the nominal rate."""
    confidences = sorted({row["confidence"] for row in table})
    figure, axes = plt.subplots(
        1,
        len(confidences) + 1,
        figsize=(5.2 * len(confidences) + 4.4, 5.4),
        sharey=True,
        layout="constrained",
    )
    for axis, confidence in zip(axes, confidences, strict=False):
        rows = [row for row in table if row["confidence"] == confidence][::-1]
        for shift, name, colour, label in (
            (0.14, "false_pass", "#b03a2e", "upper bound below the true cost"),
            (-0.14, "false_fail", "#1b4f72", "lower bound above it"),
        ):
            rate = [row[name] for row in rows]
            below = [row[name] - row[f"{name}_low"] for row in rows]
            above = [row[f"{name}_high"] - row[name] for row in rows]
            height = [i + shift for i in range(len(rows))]
            axis.errorbar(rate, height, xerr=[below, above], fmt="o", color=colour, ms=4, lw=1.2, label=label)
        axis.axvline(1 - confidence, color="black", ls="--", lw=1, label="nominal rate")
        axis.set_yticks(range(len(rows)), [f"{row['datasets']} ({row['judged']})" for row in rows])
        axis.set_title(f"{confidence:.0%} confidence")
        axis.set_xlabel("share of judgements, worst case over limits")
    axes[0].legend(loc="upper right", fontsize=8)
    rows = [row for row in table if row["confidence"] == confidences[-1]][::-1]
    axes[-1].barh(
        range(len(rows)), [row["pass_at_twice_the_cost"] for row in rows], color="#117a65", height=0.6
    )
    axes[-1].set_title(f"passes where the cost is half the limit, {confidences[-1]:.0%}")
    axes[-1].set_xlabel("share of judgements")
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=130)
    plt.close(figure)
