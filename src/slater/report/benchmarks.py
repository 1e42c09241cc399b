"""Figures of the benchmarks: the reward-cost plane of every task, and reward and cost against iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from slater.report.curves import LIMIT, STYLE, save_figure, with_errors

Row = Mapping[str, Any]

#: colours of algorithms that only the deep experiments have; the others keep theirs from every figure
COLORS: Mapping[str, str] = {
    **{name: str(style["color"]) for name, style in STYLE.items()},
    "bc": "#5d6d7e", "bc-safe": "#2e86c1", "cpq": "#7d3c98", "cdt": "#ca6f1e", "bcq-lag": "#229954",
    "bear-lag": "#c2185b",
}  # fmt: skip
OTHERS = ("#616a6b", "#7e5109", "#0e6655", "#4a235a")
#: how variants of one algorithm differ: line, marker
VARIANTS = (("-", "o"), (":", "s"), ("--", "^"), ("-.", "D"))


@dataclass(frozen=True)
class Look:
    """Colour by algorithm, line and marker by variant (matplotlib's names)."""

    color: str
    line: str
    marker: str
    variant: int


def looks(rows: Sequence[Row]) -> dict[str, Look]:
    """A look for every label; rows need `label` and `algorithm`."""
    algorithms = {row["label"]: row["algorithm"].partition(":")[0] for row in rows}
    unknown = [name for name in dict.fromkeys(algorithms.values()) if name not in COLORS]
    seen: dict[str, int] = {}
    chosen = {}
    for label, name in algorithms.items():
        variant = seen.get(name, 0)
        seen[name] = variant + 1
        color = COLORS.get(name) or OTHERS[unknown.index(name) % len(OTHERS)]
        chosen[label] = Look(color, *VARIANTS[variant % len(VARIANTS)], variant % len(VARIANTS))
    return chosen


def draw_plane(stem: Path, means: Sequence[Row], *, title: str) -> None:
    """One panel per place: normalised cost across, normalised reward up; left of 1 is safe."""
    places = list(dict.fromkeys(row["place"] for row in means))
    columns = min(math.ceil(math.sqrt(len(places))), 3)
    lines = -(-len(places) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 3.8 * lines), squeeze=False, layout="constrained"
    )
    chosen = looks(means)
    for axis, place in zip(axes.flat, places, strict=False):
        for row in (row for row in means if row["place"] == place):
            look = chosen[row["label"]]
            axis.errorbar(
                row["normalised_cost_mean"], row["normalised_reward_mean"], row["normalised_reward_se"],
                row["normalised_cost_se"], color=look.color, marker=look.marker, markersize=7, capsize=2,
                markerfacecolor=look.color if look.variant == 0 else "white",
            )  # fmt: skip
        axis.axvline(1.0, color=LIMIT, linestyle="--", linewidth=1)
        right = axis.get_xlim()[1]
        axis.axvspan(1.0, max(right, 1.2), color=LIMIT, alpha=0.06, linewidth=0)
        axis.set_xlim(left=min(-0.05, axis.get_xlim()[0]), right=max(right, 1.2))
        axis.set(title=place, xlabel="cost / limit", ylabel="normalised reward")
        axis.grid(alpha=0.25)
    for axis in list(axes.flat)[len(places) :]:
        axis.axis("off")
    handles = [
        plt.Line2D(
            [], [], color=look.color, marker=look.marker, linestyle="none", label=label,
            markerfacecolor=look.color if look.variant == 0 else "white",
        )
        for label, look in chosen.items()
    ]  # fmt: skip
    handles.append(plt.Line2D([], [], color=LIMIT, linestyle="--", label="limit"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5), fontsize=8)
    figure.suptitle(title)
    save_figure(figure, stem)


def draw_curves(stem: Path, curves: Sequence[Row], *, title: str, cost: str) -> Path:
    """Reward above cost, one column per place, against iterations; bands are standard errors over seeds.
    The SVG's path is returned.

    curves: rows of one limit per place, see `slater.experiments.tables.curve_means`; cost: its unit.
    """
    places = list(dict.fromkeys(row["place"] for row in curves))
    figure, axes = plt.subplots(
        2, len(places), figsize=(4.6 * len(places), 6), squeeze=False, sharex="col", layout="constrained"
    )
    chosen = looks(curves)
    for column, place in enumerate(places):
        here = [row for row in curves if row["place"] == place]
        for line, value in enumerate(("return", "cost")):
            axis = axes[line][column]
            for label, look in chosen.items():
                points = [row for row in here if row["label"] == label]
                x, mean, error = with_errors(points, "step", value)
                axis.plot(x, mean, color=look.color, linestyle=look.line, label=label)
                axis.fill_between(x, mean - error, mean + error, color=look.color, alpha=0.15, linewidth=0)
            axis.grid(alpha=0.25)
        axes[1][column].axhline(here[0]["bound"], color="black", linestyle=":", label="limit")
        axes[0][column].set_title(place)
        axes[1][column].set_xlabel("iterations")
    axes[0][0].set_ylabel("reward per episode")
    axes[1][0].set_ylabel(f"cost {cost}")
    axes[1][0].legend(fontsize=8, frameon=False)
    figure.suptitle(title)
    return save_figure(figure, stem)
