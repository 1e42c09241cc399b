"""Pictures of a frontier: reward against the limit, or a map over two; a PNG and a page with hover texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from slater.certify.frontier import WHY, Frontier, Point
from slater.report.pages import key, page, table
from slater.report.svg import COLOURS, Plot, thinned

LOG, POLICY, SOURCE = "#bbbbbb", "#d68910", "#7d3c98"
#: limits that no mixture keeps; darker than every reward, since bright is good
OUT_OF_REACH = "#101418"

Signs = list[tuple[str, str, str]]


def draw_frontier(path: Path, frontier: Frontier) -> None:
    """Write a PNG."""
    plot, signs, scale = _picture(frontier)
    title = f"best estimated reward, dark to bright: {scale[0]:.4g} to {scale[1]:.4g}" if scale else ""
    plot.save_png(path, signs, title)


def frontier_html(frontier: Frontier) -> str:
    """A self-contained page: hover over a point for its limits, prices and mixture."""
    plot, signs, scale = _picture(frontier)
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
        f"limit on {' and '.join(frontier.cost_names)}", "best reward", "at least", "cost",
        "one more unit is worth", "who acts",
    )  # fmt: skip
    reach = "" if all(p.within for p, _ in frontier.rows()) else f"<p>Out of reach: {WHY}.</p>"
    body = (
        "<h1>What a limit costs</h1><p>The best mixture of the policies that the runs kept, by their "
        "estimates from the log, per episode. Its cost stays below the limit by what the log is not sure of. "
        f"Hover for the price of a limit and the mixture.</p>{plot.svg()}{_scale(*scale) if scale else ''}"
        f"{key(signs)}{table(header, rows)}{reach}<p>Each row is a mixture of its own. "
        f"<code>frontier.json</code> has all {len(frontier.points)} limits.</p>"
    )
    return page("Frontier", body)


def _picture(frontier: Frontier) -> tuple[Plot, Signs, tuple[float, float] | None]:
    """The picture, what its signs mean, and the ends of its scale of rewards, where it has one."""
    return _curve_of_one(frontier) if len(frontier.cost_names) == 1 else _map_of_two(frontier)


def _curve_of_one(frontier: Frontier) -> tuple[Plot, Signs, None]:
    """Reward against the one limit; policies, episodes and sources at their own cost."""
    (cost,) = frontier.cost_names
    within = [p for p in frontier.points if p.within]
    candidates = np.array(list(frontier.candidates.values()))
    top = 1.05 * max([p.limits[0] for p in within] + candidates[:, 1].tolist())
    # those beyond the picture would stretch its height
    episodes = [row for row in _episodes(frontier) if row[1] <= top]
    ys = [p.reward for p in within] + candidates[:, 0].tolist() + [row[0] for row in episodes]
    room = 0.03 * (max(ys) - min(ys))
    plot = Plot(
        (0.0, top), (min(ys) - room, max(ys) + room), height=420,
        labels=(f"limit on {cost} (policies and episodes: their cost), per episode", "reward"),
    )  # fmt: skip
    for reward, at in episodes:
        plot.dot(at, reward, LOG, f"an episode of the log: {reward:.4g} at {at:.4g}", radius=2)
    careful = any(p.reward_low < p.reward for p in within)
    for a, b in pairwise(within):
        plot.segment((a.limits[0], a.reward), (b.limits[0], b.reward), COLOURS["line"])
        if careful:
            start, stop = ((p.limits[0], max(p.reward_low, min(ys))) for p in (a, b))
            plot.segment(start, stop, COLOURS["line"], "the same mixture by its bound", dashed=True)
    for p in within:
        plot.dot(p.limits[0], p.reward, COLOURS["line"], _says(p, frontier.cost_names))
    for name, values in frontier.candidates.items():
        words = f"{name}: {values[0]:.4g} at {values[1]:.4g}"
        if name in frontier.spreads:
            reward, spread, *_ = frontier.spreads[name]
            words += f", give or take {reward:.3g} and {spread:.3g}"
            least, most = max(values[1] - spread, 0.0), min(values[1] + spread, top)
            plot.segment((least, values[0]), (most, values[0]), POLICY, words)
        plot.dot(values[1], values[0], POLICY, words, radius=3)
    for name, values in (frontier.sources or {}).items():
        if values[1] <= top:
            plot.dot(values[1], values[0], SOURCE, f"{name}: {values[0]:.4g} at {values[1]:.4g}", radius=6)
    for at, *_ in frontier.marked:
        plot.mark_limit(at, "limit of the run" if len(frontier.marked) == 1 else "")
    signs = [("&#9644;", COLOURS["line"], "best mixture, estimated")]
    signs += [("&#9476;", COLOURS["line"], "its reward by the careful bound")] * careful
    return plot, [*signs, *_legend(frontier)], None


def _map_of_two(frontier: Frontier) -> tuple[Plot, Signs, tuple[float, float]]:
    """Reward over two limits, bright where it is high; policies, episodes and sources at their own costs."""
    names = frontier.cost_names
    first, second = (sorted({p.limits[i] for p in frontier.points}) for i in (0, 1))
    across, upwards = _edges(first), _edges(second)
    plot = Plot(
        (across[0], across[-1]), (upwards[0], upwards[-1]), height=480,
        labels=(f"limit on {names[0]} (dots: their cost), per episode", f"limit on {names[1]}"),
    )  # fmt: skip
    rewards = [p.reward for p in frontier.points if p.within]
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    for p in frontier.points:
        colour = _bright((p.reward - low) / max(high - low, 1e-12)) if p.within else OUT_OF_REACH
        i, k = first.index(p.limits[0]), second.index(p.limits[1])
        plot.box((across[i], across[i + 1]), (upwards[k], upwards[k + 1]), colour, _says(p, names))
    dots = [(values, LOG, f"an episode of the log: {_at(values)}", 2) for values in _episodes(frontier)]
    for group, colour, radius in ((frontier.candidates, POLICY, 3), (frontier.sources or {}, SOURCE, 6)):
        dots += [(values, colour, f"{name}: {_at(values)}", radius) for name, values in group.items()]
    dots += [((0.0, *at), COLOURS["fail"], f"limits of a run: {_at(at)}", 0) for at in frontier.marked]
    for (_, x, y), colour, words, radius in dots:
        if not (across[0] <= x <= across[-1] and upwards[0] <= y <= upwards[-1]):
            continue
        if radius:
            plot.dot(x, y, colour, words, radius=radius)
        else:
            plot.diamond(x, y, colour, words)
    return plot, [("&#9632;", OUT_OF_REACH, "out of reach"), *_legend(frontier)], (low, high)


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


def _bright(share: float) -> str:
    """A colour of the scale: 0 is its dark end, 1 its bright one."""
    return to_hex(colormaps["viridis"](share))


def _scale(low: float, high: float) -> str:
    """The scale of a map: which colour is which reward."""
    colours = ", ".join(_bright(k / 10) for k in range(11))
    gradient = f"<div class='colours' style='background:linear-gradient(to right, {colours})'></div>"
    numbers = "".join(f"<span>{low + k * (high - low) / 4:.4g}</span>" for k in range(5))
    return f"<div class='scale'><div>Best estimated reward per episode:</div>{gradient}{numbers}</div>"


def _legend(frontier: Frontier) -> Iterator[tuple[str, str, str]]:
    """Sign, colour and words of what is drawn beside the best mixtures."""
    costs, runs = len(frontier.cost_names), len(frontier.marked)
    yield (
        "&#9679;",
        POLICY,
        "a policy of the runs" + (", and how sure its cost is" if frontier.spreads and costs == 1 else ""),
    )
    if frontier.episodes is not None:
        yield "&#9679;", LOG, "an episode of the log"
    if frontier.sources:
        yield "&#9679;", SOURCE, f"the mean of a source of the log ({', '.join(frontier.sources)})"
    if frontier.marked:
        own = f"{'limit' if costs == 1 == runs else 'limits'} of the {'run' if runs == 1 else 'runs'}"
        yield ("&#9670;" if costs > 1 else "&#9475;"), COLOURS["fail"], own


def _episodes(frontier: Frontier) -> list[tuple[float, ...]]:
    several = frontier.episodes or ()
    return [several[k] for k in thinned(len(several))]
