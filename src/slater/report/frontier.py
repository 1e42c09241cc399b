"""Pictures of a frontier: reward against the limit, or a map over two; PNG and a page with hover texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.frontier import WHY, Frontier, Point
from slater.report.pages import key, page, table
from slater.report.svg import COLOURS, Plot

#: at most so many logged episodes are drawn on the page
EPISODES = 400
LOG, POLICY, SOURCE = "#bbbbbb", "#d68910", "#7d3c98"
#: limits that no mixture keeps; darker than every reward, since bright is good
OUT_OF_REACH = "#101418"
#: the ends and the middle of the scale of rewards, dark to bright
SCALE = ((68, 1, 84), (33, 145, 140), (253, 231, 37))


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
    """Reward against the limit; policies, episodes and sources at their own cost."""
    within = [p for p in frontier.points if p.within]
    x = [p.limits[0] for p in within]
    candidates = np.array(list(frontier.candidates.values()))
    top = max([*x, *candidates[:, 1].tolist()], default=1.0)
    if frontier.episodes is not None:
        rows = np.array(frontier.episodes)
        rows = rows[rows[:, 1] <= 1.05 * top]  # those beyond the picture would stretch its height
        axis.scatter(rows[:, 1], rows[:, 0], s=6, color=LOG, label="episodes of the log")
    axis.plot(x, [p.reward for p in within], color=COLOURS["line"], lw=2, label="best mixture, estimated")
    if any(p.reward_low < p.reward for p in within):
        low = [p.reward_low for p in within]
        axis.fill_between(
            x, low, [p.reward for p in within], color=COLOURS["line"], alpha=0.15, label="down to its bound"
        )
    axis.scatter(
        candidates[:, 1], candidates[:, 0], s=22, color=POLICY, zorder=3, label="policies of the runs"
    )
    for name, (reward, cost, *_) in frontier.spreads.items():
        at = frontier.candidates[name]
        axis.errorbar(at[1], at[0], xerr=cost, yerr=reward, color=POLICY, lw=0.8, fmt="none")
    shown = {k: v for k, v in (frontier.sources or {}).items() if v[1] <= 1.05 * top}
    for number, (name, values) in enumerate(shown.items()):
        label = None if number else "sources of the log, their means"
        axis.scatter([values[1]], [values[0]], marker="D", s=36, color=SOURCE, zorder=3, label=label)
        axis.annotate(name, (values[1], values[0]), fontsize=7, xytext=(4, 4), textcoords="offset points")
    for number, (limit, *_) in enumerate(frontier.marked):
        label = None if number else _own(frontier)
        axis.axvline(limit, color=COLOURS["fail"], ls="--", lw=1, label=label)
    axis.set_xlim(min(0.0, min(x, default=0.0)), 1.05 * top)
    axis.set_ylabel("reward per episode")
    axis.legend(fontsize=8)


def _draw_prices(axis: Any, frontier: Frontier) -> None:
    """The reward that one more unit of the limit would buy."""
    within = [p for p in frontier.points if p.within]
    x = [p.limits[0] for p in within]
    axis.step(x, [p.prices[0] for p in within], where="post", color=COLOURS["line"])
    axis.set_ylim(bottom=0.0)
    axis.set_ylabel("price: reward for\none more unit")
    axis.set_xlabel(f"limit on {frontier.cost_names[0]} (policies and episodes: their cost), per episode")


def _draw_map(figure: Any, axis: Any, frontier: Frontier) -> None:
    """Reward over two limits; policies, episodes and sources at their own costs."""
    first, second = _axes(frontier)
    grid = np.full((len(first), len(second)), np.nan)
    for p in frontier.points:
        if p.within:
            grid[first.index(p.limits[0]), second.index(p.limits[1])] = p.reward
    edges = _edges(first), _edges(second)
    axis.set_facecolor(OUT_OF_REACH)
    shown = axis.pcolormesh(*edges, grid.T, cmap="viridis")
    figure.colorbar(shown, label="best estimated reward per episode (black: out of reach)")
    (left, right), (low, high) = ((edge[0], edge[-1]) for edge in edges)
    if frontier.episodes is not None:
        rows = np.array(frontier.episodes)
        axis.scatter(rows[:, 1], rows[:, 2], s=6, color=LOG, label="episodes of the log")
    candidates = np.array(list(frontier.candidates.values()))
    axis.scatter(candidates[:, 1], candidates[:, 2], s=22, color=POLICY, label="policies of the runs")
    for number, (name, values) in enumerate((frontier.sources or {}).items()):
        label = None if number else "sources of the log, their means"
        axis.scatter([values[1]], [values[2]], marker="D", s=36, color=SOURCE, label=label)
        if left <= values[1] <= right and low <= values[2] <= high:
            axis.annotate(name, (values[1], values[2]), fontsize=7, xytext=(4, 4), textcoords="offset points")
    for number, limits in enumerate(frontier.marked):
        label = None if number else _own(frontier)
        axis.plot(*limits, marker="*", color=COLOURS["fail"], ms=12, ls="none", label=label)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    axis.set_xlabel(f"limit on {frontier.cost_names[0]} (policies: their cost), per episode")
    axis.set_ylabel(f"limit on {frontier.cost_names[1]} (policies: their cost), per episode")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=4)


def _own(frontier: Frontier) -> str:
    """What the marked limits are."""
    costs, runs = len(frontier.cost_names), len(frontier.marked)
    return f"{'limit' if costs == 1 == runs else 'limits'} of the {'run' if runs == 1 else 'runs'}"


def _axes(frontier: Frontier) -> tuple[list[float], list[float]]:
    """The limits of the two axes, sorted."""
    first, second = (sorted({p.limits[i] for p in frontier.points}) for i in (0, 1))
    return first, second


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
    return f"{limits}: reward {p.reward:.4g}; one more unit is worth {_at(p.prices, 3)}; {_mixture(p)}"


def _mixture(p: Point) -> str:
    """Who acts, in which share of episodes."""
    return "; ".join(f"{weight:.0%} {name}" for name, weight in p.weights.items())


def _at(values: Sequence[float], digits: int = 4) -> str:
    return ", ".join(f"{x:.{digits}g}" for x in values)


def frontier_html(frontier: Frontier) -> str:
    """A self-contained page: hover over a point for its limits, prices and mixture."""
    names = frontier.cost_names
    picture = _curve_of_one(frontier) if len(names) == 1 else _map_of_two(frontier)
    rows = [
        (
            f"{_at(p.limits)} and more" if last else _at(p.limits),
            f"{p.reward:.4g}" if p.within else "out of reach",
            f"{p.reward_low:.4g}" if p.within else "",
            _at(p.costs),
            _at(p.prices, 3) if p.within else "",
            _mixture(p),
        )
        for p, last in frontier.rows()
    ]
    header = (
        f"limit on {' and '.join(names)}", "best reward", "at least", "cost", "one more unit is worth",
        "who acts",
    )  # fmt: skip
    reach = "" if all(p.within for p, _ in frontier.rows()) else f"<p>Out of reach: {WHY}.</p>"
    body = (
        "<h1>What a limit costs</h1><p>The best mixture of the policies that the runs kept, by their "
        "estimates from the log, per episode. Its cost stays below the limit by what the log is not sure of. "
        f"Hover for the price of a limit and the mixture.</p>{picture}"
        f"{table(header, rows)}{reach}<p>Each row is a mixture of its own. <code>frontier.json</code> has "
        f"all {len(frontier.points)} limits.</p>"
    )
    return page("Frontier", body)


def _curve_of_one(frontier: Frontier) -> str:
    """Reward against the one limit."""
    (cost,) = frontier.cost_names
    within = [p for p in frontier.points if p.within]
    candidates = np.array(list(frontier.candidates.values()))
    xs = [p.limits[0] for p in within] + candidates[:, 1].tolist()
    top = 1.05 * max(xs)
    episodes = [row for row in _thinned(frontier) if row[1] <= top]
    ys = [p.reward for p in within] + candidates[:, 0].tolist() + [row[0] for row in episodes]
    room = 0.03 * (max(ys) - min(ys))
    plot = Plot(
        (0.0, top), (min(ys) - room, max(ys) + room), height=420,
        labels=(f"limit on {cost} (policies and episodes: their cost), per episode", "reward"),
    )  # fmt: skip
    for reward, at in episodes:
        plot.dot(at, reward, LOG, f"an episode of the log: {reward:.4g} at {at:.4g}", radius=2)
    for a, b in pairwise(within):
        plot.segment((a.limits[0], a.reward), (b.limits[0], b.reward), COLOURS["line"])
        if a.reward_low < a.reward or b.reward_low < b.reward:
            ends = ((a.limits[0], max(a.reward_low, min(ys))), (b.limits[0], max(b.reward_low, min(ys))))
            plot.segment(*ends, COLOURS["line"], "the same mixture by its bound", dashed=True)
    for p in within:
        plot.dot(p.limits[0], p.reward, COLOURS["line"], _says(p, frontier.cost_names))
    for name, values in frontier.candidates.items():
        words = f"{name}: {values[0]:.4g} at {values[1]:.4g}"
        if name in frontier.spreads:
            reward, spread, *_ = frontier.spreads[name]
            words += f", give or take {reward:.3g} and {spread:.3g}"
            x = (max(values[1] - spread, 0.0), min(values[1] + spread, top))
            plot.segment((x[0], values[0]), (x[1], values[0]), POLICY, words)
        plot.dot(values[1], values[0], POLICY, words, radius=3)
    for name, values in (frontier.sources or {}).items():
        if values[1] <= top:
            plot.dot(values[1], values[0], SOURCE, f"{name}: {values[0]:.4g} at {values[1]:.4g}", radius=6)
    for at, *_ in frontier.marked:
        plot.mark_limit(at, "limit of the run" if len(frontier.marked) == 1 else "")
    signs = [("&#9644;", COLOURS["line"], "best mixture, estimated")]
    if any(p.reward_low < p.reward for p in within):
        signs.append(("&#9476;", COLOURS["line"], "its reward by the careful bound"))
    return plot.svg() + key([*signs, *_legend(frontier)])


def _map_of_two(frontier: Frontier) -> str:
    """Reward over two limits, bright where it is high, with its scale."""
    names = frontier.cost_names
    first, second = _axes(frontier)
    across, upwards = _edges(first), _edges(second)
    plot = Plot(
        (across[0], across[-1]), (upwards[0], upwards[-1]), height=480,
        labels=(f"limit on {names[0]} (dots: their cost), per episode", f"limit on {names[1]}"),
    )  # fmt: skip
    within = [p.reward for p in frontier.points if p.within]
    low, high = min(within, default=0.0), max(within, default=1.0)

    def inside(values: Sequence[float]) -> bool:
        return bool(across[0] <= values[1] <= across[-1] and upwards[0] <= values[2] <= upwards[-1])

    for p in frontier.points:
        colour = _bright((p.reward - low) / max(high - low, 1e-12)) if p.within else OUT_OF_REACH
        i, k = first.index(p.limits[0]), second.index(p.limits[1])
        plot.box((across[i], across[i + 1]), (upwards[k], upwards[k + 1]), colour, _says(p, names))
    for values in filter(inside, _thinned(frontier)):
        plot.dot(values[1], values[2], LOG, f"an episode of the log: {_at(values)}", radius=2)
    parts = frontier.sources or {}
    for group, colour, radius in ((frontier.candidates, POLICY, 3), (parts, SOURCE, 6)):
        for name, values in group.items():
            if inside(values):
                plot.dot(values[1], values[2], colour, f"{name}: {_at(values)}", radius=radius)
    for at, above in frontier.marked:
        if inside((0.0, at, above)):
            plot.diamond(at, above, COLOURS["fail"], f"limits of a run: {_at((at, above))}")
    return plot.svg() + _scale(low, high) + key(
        [("&#9632;", OUT_OF_REACH, "out of reach"), *_legend(frontier)]
    )  # fmt: skip


def _bright(share: float) -> str:
    """A colour of the scale: 0 is its dark end, 1 its bright one."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    k = min(int(at), len(SCALE) - 2)
    mixed = (round(a + (at - k) * (b - a)) for a, b in zip(SCALE[k], SCALE[k + 1], strict=True))
    return "#" + "".join(f"{x:02x}" for x in mixed)


def _scale(low: float, high: float) -> str:
    """The scale of a map: which colour is which reward."""
    colours = ", ".join(_bright(k / 10) for k in range(11))
    gradient = f"<div class='colours' style='background:linear-gradient(to right, {colours})'></div>"
    numbers = "".join(f"<span>{low + k * (high - low) / 4:.4g}</span>" for k in range(5))
    return f"<div class='scale'><div>Best estimated reward per episode:</div>{gradient}{numbers}</div>"


def _legend(frontier: Frontier) -> Iterator[tuple[str, str, str]]:
    """Sign, colour and words of what is drawn beside the best mixtures."""
    sure = ", and how sure its cost is" if frontier.spreads and len(frontier.cost_names) == 1 else ""
    yield "&#9679;", POLICY, f"a policy of the runs{sure}"
    if frontier.episodes is not None:
        yield "&#9679;", LOG, "an episode of the log"
    if frontier.sources:
        yield "&#9679;", SOURCE, f"the mean of a source of the log ({', '.join(frontier.sources)})"
    if frontier.marked:
        yield ("&#9670;" if len(frontier.cost_names) > 1 else "&#9475;"), COLOURS["fail"], _own(frontier)


def _thinned(frontier: Frontier) -> Sequence[tuple[float, ...]]:
    several = frontier.episodes or ()
    return several[:: len(several) // EPISODES + 1]
