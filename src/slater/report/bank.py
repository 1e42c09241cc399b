"""The picture of `slater reproduce bank`: what the log said of policies against what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

__all__ = ["draw_bank"]


def draw_bank(path: Path, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draw `path`.png and .svg: estimates against the truth by task, and the rates of wrong bounds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.6), layout="constrained")
    tasks = sorted({line["task"] for line in lines})
    colours = plt.get_cmap("tab10")
    for number, task in enumerate(tasks):
        part = [line for line in lines if line["task"] == task]
        # as a share of the steps, so that tasks of 100 and of 1000 steps share a picture
        truth = np.array([np.mean(line["costs"]) / line["horizon"] for line in part])
        said = np.array([np.mean(line["means"]) / line["horizon"] for line in part])
        half = np.array([0.5 * abs(line["means"][0] - line["means"][1]) / line["horizon"] for line in part])
        left.errorbar(
            truth, said, yerr=half, fmt="o", ms=4, lw=0.8, color=colours(number % 10),
            label=task.partition("?")[0],
        )  # fmt: skip
    left.plot([0, 1], [0, 1], color="black", lw=0.8, ls="--")
    left.set_xlabel("cost in the simulator, share of steps")
    left.set_ylabel("cost by the log (bars: the two estimators)")
    left.legend(fontsize=7)
    rows = list(summary["rates"])
    for shift, key, colour, label in (
        (-0.12, "too_low", "#b03a2e", "upper bound below the truth"),
        (0.12, "too_high", "#1b4f72", "lower bound above it"),
    ):
        for place, row in enumerate(rows):
            rate, ends = row[key], row[f"{key}_interval"]
            right.errorbar(
                place + shift, rate, yerr=[[rate - ends[0]], [ends[1] - rate]], fmt="o", color=colour,
                label=label if place == 0 else None,
            )  # fmt: skip
    nominal = [1.0 - row["confidence"] for row in rows]
    right.plot(range(len(rows)), nominal, color="black", ls="--", marker="_", lw=0.8, label="nominal rate")
    right.set_xticks(range(len(rows)), [f"{row['confidence']:.1%}" for row in rows])
    right.set_ylabel("share of policies that met the gates")
    right.set_xlabel("confidence; each task under the factor of the others")
    if rows:
        right.legend(fontsize=8)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=130)
    plt.close(figure)
