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
from slater.runs import Member, SavedRun

#: at most so many points of a learning curve are drawn
POINTS = 300
#: heading, how the names of its metrics begin, and what they are
FAMILIES = (
    (
        "Rollouts while training", "eval/",
        "Sums over a few episodes of the policy in training, in the simulator. Learning does not see them.",
    ),
    (
        "Prices of the costs", "lambda",
        "What learning takes off the reward for a unit of a cost: it rises while that is above its limit.",
    ),
)  # fmt: skip
LOSSES = (
    "Losses", "loss/", "What training makes small. The page of the algorithm in the docs says what each is.",
)  # fmt: skip
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


def _in_unit(run: SavedRun, member: Member, name: str) -> float:
    """A member's estimate, per episode where a horizon is known."""
    assert member.estimates is not None
    known = run.task.horizon is not None
    return float((run.task.per_episode(member.estimates) if known else member.estimates)[name])


def _measured_words(member: Member, cost: str, truth: tuple[float, float]) -> str:
    """What is said of a kept policy's measured cost and return."""
    return f"{member.name}, measured: {cost} {truth[0]:.4g}, reward {truth[1]:.4g}"


def plane(run: SavedRun, index: int, beside: Beside) -> str:
    """Logged episodes, kept policies and the mixture: cost to the right, reward upwards."""
    cost, horizon = run.task.costs[index], run.task.horizon
    members = [member for member in run.result.members if member.estimates is not None]
    unknown = [member for member in run.result.members if member.estimates is None]
    # a lone policy is the mixture itself, which has a sign of its own
    points = [(_in_unit(run, m, cost), _in_unit(run, m, "reward"), m) for m in members if len(members) > 1]
    logged: list[tuple[float, float]] = []
    if horizon is not None and beside.returns is not None and beside.costs is not None:
        logged = [
            (float(beside.costs[k, index]), float(beside.returns[k])) for k in thinned(len(beside.returns))
        ]
    sums = run.result.per_episode if horizon is not None else run.result.estimates
    measured = run.measured() if horizon is not None else None
    chosen = []
    if sums is not None:
        chosen.append((sums[cost], sums["reward"], True, "what was learned, estimated from the log"))
    if measured is not None and cost in measured.means:
        chosen.append((measured.means[cost], measured.means["return"], False, "what was learned, measured"))
    if not points and not chosen:
        return ""
    best = run.result.log_best if horizon is not None else None
    beyond = [] if best is None or cost not in best else [(best[cost], best["reward"])]
    told = run.measured_kept() if horizon is not None and len(run.result.members) > 1 else {}
    truths = {step: (x.means[cost], x.means["return"]) for step, x in told.items() if cost in x.means}
    limit = run.task.limits[index].discounted if horizon is None else run.task.limits[index].episode
    places = [*logged, *((x, y) for x, y, _ in points), *((x, y) for x, y, *_ in chosen), *truths.values()]
    places += beyond
    xs, ys = [x for x, _ in places] + ([] if limit is None else [limit]), [y for _, y in places]
    unit = "discounted" if horizon is None else "per episode"
    plot = frame(xs, ys, (f"{cost}, {unit}", f"reward, {unit}"))
    for x, y in logged:
        plot.dot(x, y, PALE, f"a logged episode: {cost} {x:.4g}, reward {y:.4g}", radius=2.5, alpha=0.7)
    if limit is not None:
        plot.mark_limit(limit)
    for x, y, member in points:
        text = f"{member.name}: {cost} {x:.4g}, reward {y:.4g}, weight {member.weight:.2f}"
        colour, alpha = (COLOURS["line"], 0.9) if member.weight > 0 else (GREY, 0.6)
        if member.step in truths:
            truth = truths[member.step]
            plot.segment((x, y), truth, colour, width=1)
            plot.diamond(*truth, colour, _measured_words(member, cost, truth), radius=5)
        plot.dot(x, y, colour, text, radius=4 + 6 * member.weight**0.5, alpha=alpha)
    for member in unknown:
        if member.step in truths:
            truth = truths[member.step]
            plot.diamond(*truth, GREY, _measured_words(member, cost, truth), radius=5)
    for x, y in beyond:
        plot.diamond(x, y, COLOURS["abstain"], f"the log's best: {cost} {x:.4g}, reward {y:.4g}", hollow=True)
    for x, y, hollow, what in chosen:
        plot.diamond(x, y, COLOURS["pass"], f"{what}: {cost} {x:.4g}, reward {y:.4g}", hollow=hollow)
    signs = [("&#9679;", PALE, "an episode of the log")] if logged else []
    if points:
        signs.append(("&#9679;", GREY, "a policy that the run kept, by its estimate"))
        signs.append(("&#9679;", COLOURS["line"], "one that acts, larger for more episodes"))
    if truths:
        signs.append(("&#9670;", GREY, "the same policy, measured (small, on a line from its estimate)"))
    if beyond:
        what = "the log's best mixture of its own policies within the limits"
        signs.append(("&#9671;", COLOURS["abstain"], what))
    signs += [("&#9671;" if hollow else "&#9670;", COLOURS["pass"], what) for _, _, hollow, what in chosen]
    return (
        f"<h3>Reward and {escape(cost)}</h3>{plot.svg()}{key(signs)}"
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


def curves(run: SavedRun) -> str:
    """Learning curves: rollouts and multipliers, whatever the metrics have."""
    return "".join(_family(run, *family) for family in FAMILIES)


def losses(run: SavedRun) -> str:
    """Curves of the losses, for whoever wants to know how training went."""
    return _family(run, *LOSSES)


def _family(run: SavedRun, title: str, beginning: str, words: str) -> str:
    names = dict.fromkeys(name for row in run.metrics.rows for name in row if name.startswith(beginning))
    plots = [plot for name in names if (plot := _curve(run, name))]
    return f"<h3>{title}</h3><p>{words}</p><div class='small'>{''.join(plots)}</div>" if plots else ""


def _curve(run: SavedRun, name: str) -> str:
    rows = [row for row in run.metrics.having(name) if isinstance(row[name], (int, float))]
    if len(rows) < 2:
        return ""
    every = max(1, len(rows) // POINTS)
    points = [(float(row["step"]), float(row[name])) for row in (*rows[:-1:every], rows[-1])]
    xs, ys = zip(*points, strict=True)
    plain = name.replace("lambda/", "price of ").removeprefix("eval/")
    labels = ("steps of training", plain)
    plot = Plot((min(xs), max(xs)), (min(ys), max(ys)), width=420, height=220, labels=labels)
    for start, stop in itertools.pairwise(points):
        plot.segment(start, stop, COLOURS["line"], f"step {stop[0]:.0f}: {stop[1]:.4g}", width=1.5)
    return plot.svg()
