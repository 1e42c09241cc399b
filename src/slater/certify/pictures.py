"""Pictures of a frontier: reward against the limit, or over two limits; PNG and a page with hover texts."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.frontier import Frontier, Point
from slater.report.svg import COLOURS, Plot, page

__all__ = ["draw_frontier", "frontier_html"]


def draw_frontier(path: Path, frontier: Frontier) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.4, 4.6), layout="constrained")
    within = [p for p in frontier.points if p.within]
    if len(frontier.cost_names) == 1:
        x = [p.limits[0] for p in within]
        _episodes(axis, frontier)
        axis.plot(x, [p.reward for p in within], color="#1b4f72", lw=2, label="best mixture, estimated")
        if any(p.reward_low < p.reward for p in within):
            low = [p.reward_low for p in within]
            axis.fill_between(
                x, low, [p.reward for p in within], color="#1b4f72", alpha=0.15, label="down to its bound"
            )
        columns = np.array(list(frontier.columns.values()))
        axis.scatter(
            columns[:, 1], columns[:, 0], s=22, color="#d68910", zorder=3, label="policies of the runs"
        )
        for name, (reward, cost, *_) in frontier.spreads.items():
            at = frontier.columns[name]
            axis.errorbar(at[1], at[0], xerr=cost, yerr=reward, color="#d68910", lw=0.8, fmt="none")
        for name, values in (frontier.cohorts or {}).items():
            axis.scatter([values[1]], [values[0]], marker="D", s=36, color="#7d3c98", zorder=3)
            axis.annotate(name, (values[1], values[0]), fontsize=7, xytext=(4, 4), textcoords="offset points")
        if frontier.marked is not None:
            axis.axvline(frontier.marked[0], color="#b03a2e", ls="--", lw=1, label="limit of the run")
        top = max([*x, *columns[:, 1].tolist()], default=1.0)
        axis.set_xlim(min(0.0, min(x, default=0.0)), 1.05 * top)
        axis.set_xlabel(f"limit on {frontier.cost_names[0]} (policies: their cost), per episode")
        axis.set_ylabel("reward per episode")
        axis.legend(fontsize=8)
    else:
        first, second, grid = _grid(frontier)
        shown = axis.pcolormesh(first, second, grid.T, shading="nearest", cmap="viridis")
        figure.colorbar(shown, label="best estimated reward per episode")
        if frontier.marked is not None:
            axis.plot(*frontier.marked, marker="*", color="#b03a2e", ms=12)
        axis.set_xlabel(f"limit on {frontier.cost_names[0]}, per episode")
        axis.set_ylabel(f"limit on {frontier.cost_names[1]}, per episode")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _episodes(axis: Any, frontier: Frontier) -> None:
    if frontier.episodes is not None:
        rows = np.array(frontier.episodes)
        axis.scatter(rows[:, 1], rows[:, 0], s=6, color="#bbbbbb", label="episodes of the log")


def _grid(frontier: Frontier) -> tuple[list[float], list[float], Any]:
    first, second = (sorted({p.limits[i] for p in frontier.points}) for i in (0, 1))
    grid = np.full((len(first), len(second)), np.nan)
    for p in frontier.points:
        if p.within:
            grid[first.index(p.limits[0]), second.index(p.limits[1])] = p.reward
    return first, second, grid


def _says(p: Point, names: tuple[str, ...]) -> str:
    limits = ", ".join(f"{n} <= {x:.4g}" for n, x in zip(names, p.limits, strict=True))
    if not p.within:
        return f"{limits}: out of reach by the estimates"
    price = ", ".join(f"{x:.3g}" for x in p.prices)
    shares = "; ".join(f"{weight:.0%} {name}" for name, weight in p.weights.items())
    return f"{limits}: reward {p.reward:.4g}; one more unit is worth {price}; {shares}"


def frontier_html(frontier: Frontier) -> str:
    """A self-contained page: hover over a point for its limits, prices and mixture."""
    within = [p for p in frontier.points if p.within]
    names = frontier.cost_names
    columns = np.array(list(frontier.columns.values()))
    rewards = [p.reward for p in within] + columns[:, 0].tolist()
    if len(names) == 1:
        episodes = np.array(frontier.episodes or np.zeros((0, 2)))
        if len(episodes) > 400:
            episodes = episodes[:: len(episodes) // 400 + 1]
        xs = [p.limits[0] for p in within] + columns[:, 1].tolist()
        ys = rewards + [float(y) for y in episodes[:, 0]]
        plot = Plot(
            (0.0, 1.05 * max(xs)), (min(ys), max(ys) * 1.02), width=820, height=460,
            labels=(f"limit on {names[0]} (policies and episodes: their cost), per episode", "reward"),
        )  # fmt: skip
        for reward, cost in episodes:
            if cost <= 1.05 * max(xs):
                plot.dot(
                    cost, reward, "#bbbbbb", f"an episode of the log: {reward:.4g} at {cost:.4g}", radius=2
                )
        for a, b in pairwise(within):
            plot.segment((a.limits[0], a.reward), (b.limits[0], b.reward), COLOURS["line"])
        for p in within:
            plot.dot(p.limits[0], p.reward, COLOURS["line"], _says(p, names))
        top = 1.05 * max(xs)
        for a, b in pairwise(within):
            if a.reward_low < a.reward or b.reward_low < b.reward:
                ends = ((a.limits[0], max(a.reward_low, min(ys))), (b.limits[0], max(b.reward_low, min(ys))))
                plot.segment(*ends, COLOURS["line"], "the same mixture by its bound", dashed=True)
        for name, values in frontier.columns.items():
            words = f"{name}: {values[0]:.4g} at {values[1]:.4g}"
            if name in frontier.spreads:
                reward, cost, *_ = frontier.spreads[name]
                words += f", give or take {reward:.3g} and {cost:.3g}"
                x = (max(values[1] - cost, 0.0), min(values[1] + cost, top))
                plot.segment((x[0], values[0]), (x[1], values[0]), "#d68910", words)
            plot.dot(values[1], values[0], "#d68910", words, radius=3)
        for name, values in (frontier.cohorts or {}).items():
            plot.dot(values[1], values[0], "#7d3c98", f"{name}: {values[0]:.4g} at {values[1]:.4g}", radius=6)
        if frontier.marked is not None:
            at = frontier.marked[0]
            plot.segment(
                (at, min(ys)), (at, max(ys)), COLOURS["fail"], f"limit of the run: {at:g}", dashed=True
            )
    else:
        first, second, _ = _grid(frontier)
        low, high = min(rewards), max(rewards)
        steps = [(b - a) / 2 for axis in (first, second) for a, b in [(axis[0], axis[1])]]
        plot = Plot(
            (first[0] - steps[0], first[-1] + steps[0]), (second[0] - steps[1], second[-1] + steps[1]),
            width=820, height=520, labels=(f"limit on {names[0]}", f"limit on {names[1]}"),
        )  # fmt: skip
        for p in frontier.points:
            share = (p.reward - low) / max(high - low, 1e-12)
            colour = f"hsl({260 - 200 * share:.0f} 60% {30 + 30 * share:.0f}%)" if p.within else "#eeeeee"
            x, y = ((at - half, at + half) for at, half in zip(p.limits, steps, strict=True))
            plot.box(x, y, colour, _says(p, names))
    rows = "".join(f"<tr><td>{escape(_says(p, names))}</td></tr>" for p in frontier.points[:60])
    body = (
        "<h1>What a limit costs</h1><p>Estimates of the runs from their logs, per episode. Hover for the "
        f"price of a limit and the mixture.</p>{plot.svg()}<table>{rows}</table>"
    )
    return page("Frontier", body)
