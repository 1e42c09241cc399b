"""`slater report`: one run, or several beside each other, as a page for a person; no script, no network."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slater.disk import digest_of, read_json
from slater.errors import InputError
from slater.report.svg import COLOURS, Plot, page
from slater.runs import LimitRecord, Member, SavedRun

__all__ = ["report_html"]

#: at most so many points of a learning curve are drawn
POINTS = 300


def report_html(runs: Sequence[SavedRun]) -> str:
    """The page of the runs: a comparison where there are several, then every run by itself."""
    title = f"{runs[0].run.algorithm} in {runs[0].folder}" if len(runs) == 1 else f"{len(runs)} runs"
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(runs) > 1:
        parts.append(_comparison(runs))
    parts += [_run(run, heading=len(runs) > 1) for run in runs]
    return page(title, "".join(parts))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _comparison(runs: Sequence[SavedRun]) -> str:
    """A row per run: what it is, what it estimates, what was measured."""
    rows = []
    for run in runs:
        sums = (run.result.per_episode or run.result.estimates or {}) if run.finished else {}
        estimated = ", ".join(f"{name} {_number(value)}" for name, value in sums.items())
        measured = ", ".join(f"{name} {_number(value)}" for name, value in _measured(run).items())
        rows.append(
            (str(run.folder), run.run.algorithm, " ".join(run.run.limits), str(run.run.seed),
             "done" if run.finished else f"at step {run.metrics.step}", estimated, measured)
        )  # fmt: skip
    header = ("run", "algorithm", "limits", "seed", "state", "estimated from the log", "last rollouts")
    return _table(header, rows)


def _measured(run: SavedRun) -> dict[str, float]:
    """The last figures of rollouts while training."""
    return {name.removeprefix("eval/"): float(v) for name, v in run.metrics.last("eval/").items()}


def _run(run: SavedRun, *, heading: bool) -> str:
    parts = [f"<h2>{escape(str(run.folder))}</h2>"] if heading else []
    record, task = run.record, run.task
    parts.append(
        f"<p>{escape(run.run.algorithm)}{escape(f' ({run.run.preset})' if run.run.preset else '')}, seed "
        f"{run.run.seed}, {record.steps:,} steps, on {escape(run.run.data)} (fingerprint "
        f"<code>{escape(run.run.fingerprint[:12])}</code>): observations of size {task.obs_dim}, "
        f"{f'one of {task.action_dim} actions' if task.discrete else f'actions of size {task.action_dim}'}, "
        f"costs {escape(', '.join(task.costs))}"
        f"{f', episodes of {task.horizon} steps' if task.horizon else ''}.</p>"
    )
    if run.finished:
        parts.append(_outcome(run))
    else:
        parts.append(f"<p>The run is not finished: step {run.metrics.step:,} of {record.steps:,}.</p>")
    parts.append("<h3>Limits in all units</h3>" + _limits(task.limits))
    if run.finished:
        parts += [_plane(run, index) for index in range(len(task.costs))]
    parts.append(_curves(run))
    if (run.folder / "certificate.json").is_file():
        parts.append(_certificate(run.folder / "certificate.json", run.folder / "mixture.safetensors"))
    parts.append("<h3>Settings</h3>" + _table(("setting", "value"), _settings(record.config)))
    parts.append(f"<p>Written by Slater {escape(record.version)}.</p>")
    return "".join(parts)


def _outcome(run: SavedRun) -> str:
    """Estimates against limits, what the mixture means for an episode, warnings."""
    result = run.result
    per_episode = result.per_episode is not None
    sums = result.per_episode or result.estimates
    rows = [] if sums is None else [(*line[:3], line[3].lower()) for line in result.lines()]
    unit = "per episode" if per_episode else "discounted"
    parts = ["<h3>What came out</h3>"]
    parts.append(
        _table((unit, "estimated from the log", "limit", ""), rows)
        if rows
        else "<p>Nothing was estimated: the log alone has not judged this policy.</p>"
    )
    parts += [f"<p>{escape(text)}</p>" for text in (result.describe_mixture(), *result.single_episodes())]
    parts += [f"<p class='abstain'>Warning: {escape(text)}</p>" for text in result.warnings]
    return "".join(parts)


def _limits(limits: Sequence[LimitRecord]) -> str:
    rows = (
        (x.cost, x.given, *map(_number, (x.episode, x.discounted, x.step, x.normalised))) for x in limits
    )  # fmt: skip
    return _table(("cost", "as given", "per episode", "discounted", "per step", "normalised"), rows)


def _in_unit(run: SavedRun, member: Member, name: str) -> float:
    """A member's estimate, per episode where a horizon is known."""
    assert member.estimates is not None
    value = float(member.estimates[name])
    if run.task.horizon is None:
        return value
    return float(run.task.units.rescale(value, "discounted", "episode"))


def _plane(run: SavedRun, index: int) -> str:
    """Every kept policy by its estimates: cost to the right, reward upwards, the mixture's members filled."""
    members = [member for member in run.result.members if member.estimates is not None]
    if not members:
        return ""
    cost = run.task.costs[index]
    points = [(_in_unit(run, m, cost), _in_unit(run, m, "reward"), m) for m in members]
    limit = run.task.limits[index].discounted if run.task.horizon is None else run.task.limits[index].episode
    xs = [x for x, _, _ in points] + ([limit] if limit is not None else [])
    ys = [y for _, y, _ in points]
    wide, high = 0.06 * (max(xs) - min(xs) or 1.0), 0.08 * (max(ys) - min(ys) or 1.0)
    plot = Plot(
        (min(*xs, 0.0) - wide, max(xs) + wide), (min(ys) - high, max(ys) + high),
        labels=(f"estimated {cost}", "estimated reward"),
    )  # fmt: skip
    if limit is not None:
        plot.segment(
            (limit, min(ys) - high),
            (limit, max(ys) + high),
            COLOURS["fail"],
            f"limit {limit:.4g}",
            dashed=True,
        )
    for x, y, member in points:
        text = f"{member.name}: {cost} {x:.4g}, reward {y:.4g}, weight {member.weight:.2f}"
        colour = COLOURS["pass"] if member.weight > 0 else "#7f8c8d"
        plot.dot(
            x, y, colour, text, radius=4 + 6 * member.weight**0.5, alpha=0.9 if member.weight > 0 else 0.5
        )
    return (
        f"<h3>Policies by reward and {escape(cost)}</h3>{plot.svg()}<p>Each point is a kept policy, by "
        "estimates from the log; those with weight in the mixture are green, larger for more weight. The "
        "dashed line is the limit.</p>"
    )


def _curves(run: SavedRun) -> str:
    """Learning curves: rollouts, multipliers, losses; whatever the metrics have."""
    names = list(dict.fromkeys(name for row in run.metrics.rows for name in row))
    families = {
        "Rollouts while training": [n for n in names if n.startswith("eval/")],
        "Multipliers": [n for n in names if n.startswith("lambda")],
        "Losses": [n for n in names if n.startswith("loss/")],
    }
    parts = []
    for title, members in families.items():
        plots = [plot for name in members if (plot := _curve(run, name))]
        if plots:
            parts.append(f"<h3>{title}</h3>" + "".join(plots))
    return "".join(parts)


def _curve(run: SavedRun, name: str) -> str:
    rows = [row for row in run.metrics.having(name) if isinstance(row[name], (int, float))]
    if len(rows) < 2:
        return ""
    every = max(1, len(rows) // POINTS)
    points = [(float(row["step"]), float(row[name])) for row in (*rows[:-1:every], rows[-1])]
    xs, ys = zip(*points, strict=True)
    plot = Plot((min(xs), max(xs)), (min(ys), max(ys)), width=420, height=220, labels=("step", name))
    for start, stop in itertools.pairwise(points):
        plot.segment(start, stop, COLOURS["line"], f"step {stop[0]:.0f}: {stop[1]:.4g}", width=1.5)
    return plot.svg()


def _certificate(path: Path, mixture: Path) -> str:
    """The verdicts of a certificate that lies beside the run, and whether they are about its mixture."""
    record = read_json(path, "a certificate")
    try:
        rows = [
            (
                x["cost"],
                f"{_number(x['limit'])} {x['unit']}",
                _number(x["estimate"]),
                _number(x["upper"]),
                x["verdict"],
            )
            for x in record["limits"]
        ]
        sentence, digest = str(record["sentence"]), record.get("digest")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not readable as a certificate ({error}).") from error
    other = ""
    if digest != digest_of(mixture):
        other = (
            f"<p class='abstain'>Warning: it is of {escape(str(record.get('policy')))}, not of the mixture "
            "that the run has now; certify the run again.</p>"
        )
    return f"<h3>Certificate</h3>{other}<p>{escape(sentence)}</p>" + _table(
        ("cost", "limit", "estimate", "upper bound", "verdict"), rows
    )


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value)) for name, value in config.items()]
