"""The pictures of `slater report`, inline SVG: the plane of reward and cost, the frontier, curves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from slater.report.pages import key
from slater.report.svg import COLOURS, Plot, thinned
from slater.runs import SavedRun

#: at most so many points of a learning curve are drawn
POINTS = 300
#: how the names of metrics begin -> heading, and what they are
FAMILIES = {
    "eval/": (
        "Rollouts while training",
        "Sums over a few episodes of the policy in training, in the simulator. Learning does not see them.",
    ),
    "lambda": (
        "Prices of the costs",
        "What learning takes off the reward for a unit of a cost: it rises while that is above its limit.",
    ),
    "loss/": (
        "Losses",
        "What training makes small. The page of the algorithm in the docs says what each is.",
    ),
}
#: a policy of the run without weight in its mixture; an episode of the log
GREY, PALE = "#7f8c8d", "#aab7b8"


@dataclass(frozen=True)
class Beside:
    """What a page shows beside a run, where it can be had; sums over an episode, undiscounted.

    returns (E,), costs (E, I): of every logged episode that can be judged, costs in the order of the run's.
    frontier: limit, best estimated reward within it, and what one more unit of it would buy, (points, 3).
    """

    returns: NDArray[np.floating] | None = None
    costs: NDArray[np.floating] | None = None
    frontier: Sequence[tuple[float, float, float]] = ()


def frame(xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str]) -> Plot:
    """A plot with room around its points; costs begin at 0."""
    wide, high = 0.06 * (max(xs) - min(*xs, 0.0) or 1.0), 0.08 * (max(ys) - min(ys) or 1.0)
    return Plot((min(*xs, 0.0) - wide / 2, max(xs) + wide), (min(ys) - high, max(ys) + high), labels=labels)


def plane(run: SavedRun, index: int, beside: Beside) -> str:
    """Logged episodes, kept policies and the mixture: cost to the right, reward upwards.

    Per episode where a horizon is known, else discounted.
    """
    cost, result, task = run.task.costs[index], run.result, run.task
    whole = task.horizon is not None
    unit = "per episode" if whole else "discounted"
    limit = task.limits[index].episode if whole else task.limits[index].discounted
    sums = result.per_episode if whole else result.estimates
    measured = run.measured() if whole else None

    logged = np.empty((0, 2))
    if whole and beside.returns is not None and beside.costs is not None:
        shown = thinned(len(beside.returns))
        logged = np.stack([beside.costs[shown, index], beside.returns[shown]], axis=1)
    points = {}
    for member in result.members:
        # a lone policy is the mixture itself, which has a sign of its own
        if member.estimates is not None and sum(m.estimates is not None for m in result.members) > 1:
            own = task.per_episode(member.estimates) if whole else member.estimates
            points[member.step] = own[cost], own["reward"]
    chosen = []
    if sums is not None:
        chosen.append((sums[cost], sums["reward"], True, "what was learned, estimated from the log"))
    if measured is not None and cost in measured.means:
        chosen.append((measured.means[cost], measured.means["return"], False, "what was learned, measured"))
    if not points and not chosen:
        return ""
    best = result.log_best if whole else None
    beyond = [] if best is None or cost not in best else [(best[cost], best["reward"])]
    told = run.measured_kept() if whole and len(result.members) > 1 else {}
    truths = {step: (x.means[cost], x.means["return"]) for step, x in told.items() if cost in x.means}

    places = [*logged.tolist(), *points.values(), *(x[:2] for x in chosen), *truths.values(), *beyond]
    xs = [x for x, _ in places] + [x for x in [limit] if x is not None]
    plot = frame(xs, [y for _, y in places], (f"{cost}, {unit}", f"reward, {unit}"))

    def says(what: str, x: float, y: float) -> str:
        return f"{what}: {cost} {x:.4g}, reward {y:.4g}"

    for x, y in logged.tolist():
        plot.dot(x, y, PALE, says("a logged episode", x, y), radius=2.5, alpha=0.7)
    if limit is not None:
        plot.mark_limit(limit)
    for member in result.members:
        at = points.get(member.step)
        acts = at is not None and member.weight > 0
        colour = COLOURS["line"] if acts else GREY
        if (truth := truths.get(member.step)) is not None and (at or member.estimates is None):
            if at is not None:
                plot.segment(at, truth, colour, width=1)
            plot.diamond(*truth, colour, says(f"{member.name}, measured", *truth), radius=5)
        if at is not None:
            words = f"{says(member.name, *at)}, weight {member.weight:.2f}"
            plot.dot(*at, colour, words, radius=4 + 6 * member.weight**0.5, alpha=0.9 if acts else 0.6)
    for x, y in beyond:
        plot.diamond(x, y, COLOURS["abstain"], says("the log's best", x, y), hollow=True)
    for x, y, hollow, what in chosen:
        plot.diamond(x, y, COLOURS["pass"], says(what, x, y), hollow=hollow)
    signs = [
        (len(logged), "&#9679;", PALE, "an episode of the log"),
        (points, "&#9679;", GREY, "a policy that the run kept, by its estimate"),
        (points, "&#9679;", COLOURS["line"], "one that acts, larger for more episodes"),
        (truths, "&#9670;", GREY, "the same policy, measured (small, on a line from its estimate)"),
        (
            beyond,
            "&#9671;",
            COLOURS["abstain"],
            "the log's best mixture of its own policies within the limits",
        ),
        *((True, "&#9671;" if hollow else "&#9670;", COLOURS["pass"], what) for *_, hollow, what in chosen),
    ]
    return (
        f"<h3>Reward and {escape(cost)}</h3>{plot.svg()}{key(sign[1:] for sign in signs if sign[0])}"
        "<p>Better is further up, left of the limit.</p>"
    )


def frontier(run: SavedRun, beside: Beside) -> str:
    """The best estimated reward against the limit."""
    points = list(beside.frontier)
    if len(points) < 2:
        return ""
    (cost,), (limit,) = run.task.costs, run.task.limits
    ys = [y for _, y, _ in points]
    plot = frame([x for x, *_ in points], ys, (f"limit on {cost} per episode", "best estimated reward"))
    for a, b in itertools.pairwise(points):
        plot.segment(a[:2], b[:2], COLOURS["line"])
    for x, y, price in points:
        plot.dot(x, y, COLOURS["line"], f"limit {x:.4g}: reward {y:.4g}; one more unit is worth {price:.3g}")
    if limit.episode is not None:
        plot.mark_limit(limit.episode, "limit of the run")
    return (
        f"<h3>What another limit would cost</h3>{plot.svg()}<p>The best mixture of the policies that the run "
        "kept, by their estimates from the log, for other limits. Nothing is trained again. The run's own "
        "choice is more careful: it also counts what the log cannot tell. <code>slater "
        f"frontier {escape(str(run.folder))}</code> has the numbers.</p>"
    )


def curves(run: SavedRun, *families: str) -> str:
    """Learning curves: what the metrics have of these families, as `FAMILIES` names them."""
    parts = []
    for beginning in families:
        names = dict.fromkeys(name for row in run.metrics.rows for name in row if name.startswith(beginning))
        if plots := "".join(_curve(run, name) for name in names):
            title, words = FAMILIES[beginning]
            parts.append(f"<h3>{title}</h3><p>{words}</p><div class='small'>{plots}</div>")
    return "".join(parts)


def _curve(run: SavedRun, name: str) -> str:
    rows = [row for row in run.metrics.having(name) if isinstance(row[name], (int, float))]
    if len(rows) < 2:
        return ""
    rows = [*rows[: -1 : max(1, len(rows) // POINTS)], rows[-1]]
    points = [(float(row["step"]), float(row[name])) for row in rows]
    xs, ys = zip(*points, strict=True)
    labels = ("steps of training", name.replace("lambda/", "price of ").removeprefix("eval/"))
    plot = Plot((min(xs), max(xs)), (min(ys), max(ys)), width=420, height=220, labels=labels)
    for start, stop in itertools.pairwise(points):
        plot.segment(start, stop, COLOURS["line"], f"step {stop[0]:.0f}: {stop[1]:.4g}", width=1.5)
    return plot.svg()
