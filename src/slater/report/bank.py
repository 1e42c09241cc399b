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


def _weights(line: Mapping[str, Any]) -> list[float]:
    """Of the two estimators, at the middle one of the limits."""
    checks = line["checks"]
    return list(checks[len(checks) // 2]["weights"])


def draw_bank(path: Path, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draw `path`.png: estimates against the truth by task, and the rates of wrong bounds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.6), layout="constrained")
    tasks = sorted({line["task"] for line in lines})
    gated = {task: set(summary["gated"].get(task, ())) for task in tasks}
    colours = plt.get_cmap("tab10")
    for number, task in enumerate(tasks):
        for met in (True, False):
            part = [line for line in lines if line["task"] == task and (line["policy"] in gated[task]) == met]
            if not part:
                continue
            # as a share of the steps, so that tasks of 100 and of 1000 steps share a picture
            truth = np.array([np.mean(line["costs"]) / line["horizon"] for line in part])
            said = np.array([np.dot(_weights(line), line["means"]) / line["horizon"] for line in part])
            colour = colours(number % 10)
            left.scatter(
                truth, said, s=24, edgecolors=[colour], facecolors=[colour] if met else "none", lw=0.9,
                label=task.partition("?")[0] if met or not gated[task] else None,
            )  # fmt: skip
    left.plot([0, 1], [0, 1], color="black", lw=0.8, ls="--")
    left.set_xlabel("cost in the simulator, share of steps")
    left.set_ylabel("cost by the log (hollow: a gate was not met)")
    left.legend(fontsize=7)
    by_kind = {kind: list(rows) for kind, rows in summary["rates"].items()}
    rows = next((rows for rows in by_kind.values() if rows), [])
    for shift, kind, key, colour, label in (
        (-0.2, "imitation", "too_low", "#b03a2e", "imitating: upper bound below the truth"),
        (-0.07, "imitation", "too_high", "#1b4f72", "imitating: lower bound above it"),
        (0.07, "other", "too_low", "#e59866", "others: upper bound below the truth"),
        (0.2, "other", "too_high", "#7fb3d5", "others: lower bound above it"),
    ):
        tried = [(place, row) for place, row in enumerate(by_kind[kind]) if row["tried"]]
        for place, row in tried:
            rate, ends = row[key], row[f"{key}_interval"]
            right.errorbar(
                place + shift, rate, yerr=[[rate - ends[0]], [ends[1] - rate]], fmt="o", color=colour,
                label=label if place == tried[0][0] else None,
            )  # fmt: skip
    nominal = [1.0 - row["confidence"] for row in rows]
    right.plot(range(len(rows)), nominal, color="black", ls="--", marker="_", lw=0.8, label="nominal rate")
    right.set_xticks(range(len(rows)), [f"{row['confidence']:.1%}" for row in rows])
    right.set_ylabel("share of policies that met the gates")
    right.set_xlabel("confidence; each task under the factor of the others")
    if rows:
        right.legend(fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=130)
    plt.close(figure)
