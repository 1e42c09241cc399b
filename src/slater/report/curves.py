"""Curves of reward and cost against the size of the data, with their tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Row = dict[str, Any]
F64 = NDArray[np.float64]

REWARD, COST, LIMIT = "reward", "cost", "#b03a2e"
PALETTE = ("#1b4f72", "#d68910", "#117a65", "#7d3c98", "#909497")
MARKERS = ("o", "s", "^", "D", "v")


#: an algorithm has one colour and marker in every figure
STYLE = {
    name: {"color": color, "marker": marker}
    for name, color, marker in zip(("pdca", "mbcl", "coptidice", "plugin"), PALETTE, MARKERS, strict=False)
}


@dataclass(frozen=True)
class Curve:
    """One curve of a figure: its name in the rows, its label in the legend, and the algorithm it shows.

    A `variant` is drawn dotted beside the algorithm's own curve.
    """

    name: str
    label: str
    algorithm: str
    variant: bool = False


def grouped(rows: Iterable[Row], by: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows that agree in `by`, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return groups


def summarise(rows: Sequence[Row], *, by: tuple[str, ...], values: tuple[str, ...]) -> list[Row]:
    """Mean and standard error of `values` over the rows that agree in `by`, in order of appearance."""
    summary = []
    for key, members in grouped(rows, by).items():
        line: Row = dict(zip(by, key, strict=True)) | {"repeats": len(members)}
        for name in values:
            sample = np.array([row[name] for row in members], dtype=float)
            line[f"{name}_mean"] = float(sample.mean())
            error = sample.std(ddof=1) / np.sqrt(len(sample)) if len(sample) > 1 else 0.0
            line[f"{name}_se"] = float(error)
        summary.append(line)
    return summary


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The rows as a CSV file with one column per field."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines: list[Sequence[object]] = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def bullets(texts: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {text}" for text in texts)


def draw_against_size(
    stem: Path, summary: Sequence[Row], groups: Sequence[tuple[str, Sequence[Curve]]], *, title: str
) -> None:
    """Two rows of panels, reward above cost, one column per group; `stem`.png and `stem`.svg."""
    figure, axes = plt.subplots(
        2, len(groups), figsize=(6.2 * len(groups), 6.4), sharex=True, sharey="row", squeeze=False
    )
    for column, (name, curves) in enumerate(groups):
        for row, value in enumerate((REWARD, COST)):
            axis = axes[row][column]
            for curve in curves:
                points = [line for line in summary if line["algorithm"] == curve.name]
                x, mean, error = with_errors(points, "n", value)
                style = STYLE[curve.algorithm] | {"linestyle": ":" if curve.variant else "-", "markersize": 4}
                axis.errorbar(x, mean, error if len(x) == 1 else None, label=curve.label, **style)
                low, high = mean - error, mean + error
                axis.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
            what = "optimum" if value == REWARD else "limit"
            axis.axhline(1.0, color=LIMIT, linestyle="--", linewidth=1, label=what)
            axis.set_xscale("log")
            axis.grid(alpha=0.25)
            axis.set_ylabel("reward / optimum" if value == REWARD else "cost / limit")
            if value == COST:
                axis.set_xlabel("transitions in the dataset")
        axes[0][column].set_title(name, fontsize=10)
        axes[0][column].legend(fontsize=8, framealpha=0.85, edgecolor="none", loc="upper right")
    for axis in axes[1]:
        # one hopeless curve must not flatten the others
        means = [line["cost_mean"] for line in summary]
        bottom, top = float(min(means)) - 0.15, float(np.quantile(means, 0.97)) * 1.1
        axis.set_ylim(max(0.0, min(bottom, 0.8)), max(1.5, min(top, 4.0)))
    figure.suptitle(title)
    figure.tight_layout()
    save_figure(figure, stem)


def draw_rates(stem: Path, summary: Sequence[Row], slopes: dict[str, float]) -> None:
    """Errors against n on log-log axes with fitted slopes, and the effect of tightening."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    plain = [row for row in summary if not row["tightened"]]
    n = np.array([row["n"] for row in plain], dtype=float)
    for index, name in enumerate(slopes):
        _, mean, error = with_errors(plain, "n", name)
        label = f"{name}, slope {slopes[name]:.2f}"
        left.errorbar(n, mean, error, color=PALETTE[index], marker=MARKERS[index], markersize=4, label=label)
    anchor = plain[0]["combined_mean"] if plain else 1.0
    left.plot(n, anchor * (n / n[0]) ** -0.5, color="black", linestyle=":", label="slope -1/2")
    left.set(xscale="log", yscale="log", xlabel="transitions in the dataset", ylabel="mean error (J-units)")
    left.legend(fontsize=8, frameon=False)
    left.grid(alpha=0.25)
    for index, (tight, label) in enumerate(((False, "limits as given"), (True, "tightened (Theorem 3)"))):
        rows = [row for row in summary if row["tightened"] == tight]
        x = [row["n"] for row in rows]
        for value, what, style in (
            ("feasible", "share exactly feasible", {"marker": "o"}),
            ("reward", "reward / optimum", {"linestyle": "--"}),
        ):
            y = [row[f"{value}_mean"] for row in rows]
            right.plot(x, y, color=PALETTE[index], label=f"{what}, {label}", **style)
    right.set(xscale="log", xlabel="transitions in the dataset", ylim=(0, 1.1))
    right.legend(fontsize=8, frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.72))
    right.grid(alpha=0.25)
    figure.tight_layout()
    save_figure(figure, stem)


def with_errors(rows: Sequence[Mapping[str, Any]], x: str, value: str) -> tuple[F64, F64, F64]:
    """Of rows of `summarise`: x, and means and standard errors of a value, (n,) each."""
    columns = ([row[name] for row in rows] for name in (x, f"{value}_mean", f"{value}_se"))
    places, means, errors = (np.array(column, dtype=np.float64) for column in columns)
    return places, means, errors


def fit_slope(rows: Sequence[Row], value: str) -> float:
    """The least-squares slope of log(value) against log(n); NaN where fewer than two values are positive."""
    points = [(row["n"], row[value]) for row in rows if row[value] > 0]
    if len(points) < 2:
        return float("nan")
    x, y = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])


def save_figure(figure: Any, stem: Path) -> Path:
    """Write `stem`.png and `stem`.svg; returns the latter."""
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix), dpi=130)
    plt.close(figure)
    return stem.with_suffix(".svg")
