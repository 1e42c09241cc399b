"""Pictures of a frontier: reward against the limit, or over two limits; PNG and a page with hover texts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.frontier import Frontier, Point
from slater.report.svg import COLOURS, Plot, page

__all__ = ["draw_frontier", "frontier_html"]


def draw_frontier(path: Path, frontier: Frontier) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if len(frontier.cost_names) == 1:
        figure, (axis, below) = plt.subplots(
            2, 1, figsize=(7.4, 6.0), layout="constrained", sharex=True, height_ratios=(3, 1)
        )
        _draw_line(axis, frontier)
        _draw_prices(below, frontier)
    else:
        figure, axis = plt.subplots(figsize=(7.8, 5.4), layout="constrained")
        _draw_map(figure, axis, frontier)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_line(axis: Any, frontier: Frontier) -> None:
    """Reward against the limit; policies, episodes and cohorts at their own cost."""
    within = [p for p in frontier.points if p.within]
    x = [p.limits[0] for p in within]
    columns = np.array(list(frontier.columns.values()))
    top = max([*x, *columns[:, 1].tolist()], default=1.0)
    if frontier.episodes is not None:
        rows = np.array(frontier.episodes)
        rows = rows[rows[:, 1] <= 1.05 * top]  # those beyond the picture would stretch its height
        axis.scatter(rows[:, 1], rows[:, 0], s=6, color="#bbbbbb", label="episodes of the log")
    axis.plot(x, [p.reward for p in within], color="#1b4f72", lw=2, label="best mixture, estimated")
    if any(p.reward_low < p.reward for p in within):
        low = [p.reward_low for p in within]
        axis.fill_between(
            x, low, [p.reward for p in within], color="#1b4f72", alpha=0.15, label="down to its bound"
        )
    axis.scatter(columns[:, 1], columns[:, 0], s=22, color="#d68910", zorder=3, label="policies of the runs")
    for name, (reward, cost, *_) in frontier.spreads.items():
        at = frontier.columns[name]
        axis.errorbar(at[1], at[0], xerr=cost, yerr=reward, color="#d68910", lw=0.8, fmt="none")
    shown = {k: v for k, v in (frontier.cohorts or {}).items() if v[1] <= 1.05 * top}
    for number, (name, values) in enumerate(shown.items()):
        label = None if number else "cohorts of the log"
        axis.scatter([values[1]], [values[0]], marker="D", s=36, color="#7d3c98", zorder=3, label=label)
        axis.annotate(name, (values[1], values[0]), fontsize=7, xytext=(4, 4), textcoords="offset points")
    for number, (limit, *_) in enumerate(frontier.marked):
        label = None if number else "limits of the runs" if len(frontier.marked) > 1 else "limit of the run"
        axis.axvline(limit, color="#b03a2e", ls="--", lw=1, label=label)
    axis.set_xlim(min(0.0, min(x, default=0.0)), 1.05 * top)
    axis.set_ylabel("reward per episode")
    axis.legend(fontsize=8)


def _draw_prices(axis: Any, frontier: Frontier) -> None:
    """The reward that one more unit of the limit would buy."""
    within = [p for p in frontier.points if p.within]
    x = [p.limits[0] for p in within]
    axis.step(x, [p.prices[0] for p in within], where="post", color="#1b4f72")
    axis.set_ylim(bottom=0.0)
    axis.set_ylabel("price: reward for\none more unit")
    axis.set_xlabel(f"limit on {frontier.cost_names[0]} (policies and episodes: their cost), per episode")


def _draw_map(figure: Any, axis: Any, frontier: Frontier) -> None:
    """Reward over two limits; policies, episodes and cohorts at their own costs."""
    first, second, grid = _grid(frontier)
    edges = _edges(first), _edges(second)
    shown = axis.pcolormesh(*edges, grid.T, cmap="viridis")
    figure.colorbar(shown, label="best estimated reward per episode (white: out of reach)")
    (left, right), (low, high) = ((edge[0], edge[-1]) for edge in edges)
    if frontier.episodes is not None:
        rows = np.array(frontier.episodes)
        axis.scatter(rows[:, 1], rows[:, 2], s=6, color="#bbbbbb", label="episodes of the log")
    columns = np.array(list(frontier.columns.values()))
    axis.scatter(columns[:, 1], columns[:, 2], s=22, color="#d68910", label="policies of the runs")
    for number, (name, values) in enumerate((frontier.cohorts or {}).items()):
        label = None if number else "cohorts of the log"
        axis.scatter([values[1]], [values[2]], marker="D", s=36, color="#7d3c98", label=label)
        if left <= values[1] <= right and low <= values[2] <= high:
            axis.annotate(name, (values[1], values[2]), fontsize=7, xytext=(4, 4), textcoords="offset points")
    for number, limits in enumerate(frontier.marked):
        label = None if number else "limits of the runs" if len(frontier.marked) > 1 else "limits of the run"
        axis.plot(*limits, marker="*", color="#b03a2e", ms=12, ls="none", label=label)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    axis.set_xlabel(f"limit on {frontier.cost_names[0]} (policies: their cost), per episode")
    axis.set_ylabel(f"limit on {frontier.cost_names[1]} (policies: their cost), per episode")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=4)


def _grid(frontier: Frontier) -> tuple[list[float], list[float], Any]:
    first, second = (sorted({p.limits[i] for p in frontier.points}) for i in (0, 1))
    grid = np.full((len(first), len(second)), np.nan)
    for p in frontier.points:
        if p.within:
            grid[first.index(p.limits[0]), second.index(p.limits[1])] = p.reward
    return first, second, grid


def _edges(values: list[float]) -> NDArray[np.float64]:
    """The borders of cells around sorted values, half way between neighbours, (n + 1,)."""
    at = np.array(values)
    if len(at) == 1:
        half = max(0.05 * abs(at[0]), 0.5)
        return np.array([at[0] - half, at[0] + half])
    middle = (at[1:] + at[:-1]) / 2.0
    return np.concatenate([[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]])


def _says(p: Point, names: tuple[str, ...]) -> str:
    limits = ", ".join(f"{n} <= {x:.4g}" for n, x in zip(names, p.limits, strict=True))
    if not p.within:
        return f"{limits}: out of reach by the estimates"
    price = ", ".join(f"{x:.3g}" for x in p.prices)
    shares = "; ".join(f"{weight:.0%} {name}" for name, weight in p.weights.items())
    return f"{limits}: reward {p.reward:.4g}; one more unit is worth {price}; {shares}"


def _at(values: Sequence[float]) -> str:
    return ", ".join(f"{x:.4g}" for x in values)


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
        for at, *_ in frontier.marked:
            plot.segment(
                (at, min(ys)), (at, max(ys)), COLOURS["fail"], f"limit of the run: {at:g}", dashed=True
            )
    else:
        first, second, _ = _grid(frontier)
        low, high = min(rewards), max(rewards)
        across, upwards = _edges(first), _edges(second)
        plot = Plot(
            (across[0], across[-1]), (upwards[0], upwards[-1]), width=820, height=520,
            labels=(f"limit on {names[0]} (dots: their cost)", f"limit on {names[1]} (dots: their cost)"),
        )  # fmt: skip

        def inside(values: Sequence[float]) -> bool:
            return across[0] <= values[1] <= across[-1] and upwards[0] <= values[2] <= upwards[-1]

        for p in frontier.points:
            share = (p.reward - low) / max(high - low, 1e-12)
            colour = f"hsl({260 - 200 * share:.0f} 60% {30 + 30 * share:.0f}%)" if p.within else "#eeeeee"
            i, k = first.index(p.limits[0]), second.index(p.limits[1])
            plot.box((across[i], across[i + 1]), (upwards[k], upwards[k + 1]), colour, _says(p, names))
        several = frontier.episodes or ()
        for values in filter(inside, several[:: len(several) // 400 + 1]):
            plot.dot(values[1], values[2], "#bbbbbb", f"an episode of the log: {_at(values)}", radius=2)
        cohorts = frontier.cohorts or {}
        for group, colour, radius in ((frontier.columns, "#d68910", 3), (cohorts, "#7d3c98", 6)):
            for name, values in group.items():
                if inside(values):
                    plot.dot(values[1], values[2], colour, f"{name}: {_at(values)}", radius=radius)
        for at, above in frontier.marked:
            if inside((0.0, at, above)):
                plot.dot(at, above, COLOURS["fail"], f"limits of a run: {_at((at, above))}", radius=7)
    rows = "".join(f"<tr><td>{escape(_says(p, names))}</td></tr>" for p in frontier.points[:60])
    body = (
        "<h1>What a limit costs</h1><p>Estimates of the runs from their logs, per episode. Hover for the "
        f"price of a limit and the mixture.</p>{plot.svg()}<table>{rows}</table>"
    )
    return page("Frontier", body)
