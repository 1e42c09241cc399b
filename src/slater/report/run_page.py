"""`slater report`: one run, or several beside each other, as a page for a person; no script, no network."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape

import numpy as np

from slater.certify.verdict import Certificate
from slater.disk import digest_of
from slater.report.certificate import earlier, row_of
from slater.report.pages import VERDICTS, key, page, table
from slater.report.run_plots import Beside, curves, frame, frontier, plane
from slater.report.svg import SERIES
from slater.runs import SavedRun


def report_html(runs: Sequence[SavedRun], beside: Sequence[Beside] | None = None) -> str:
    """The page of the runs: a comparison where there are several, then every run by itself."""
    title = f"{runs[0].run.algorithm} in {runs[0].folder}" if len(runs) == 1 else f"{len(runs)} runs"
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(runs) > 1:
        parts.append(_comparison(runs))
    for run, more in zip(runs, beside or [Beside()] * len(runs), strict=True):
        parts.append(_run(run, more, heading=len(runs) > 1))
    return page(title, "".join(parts))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _comparison(runs: Sequence[SavedRun]) -> str:
    """A row per run: what it is, what it estimates, what was measured; and all of them in one picture."""
    rows = []
    for run in runs:
        sums = (run.result.per_episode or run.result.estimates or {}) if run.finished else {}
        estimated, measured = (
            ", ".join(f"{name} {_number(value)}" for name, value in x.items()) for x in (sums, _measured(run))
        )
        beside = _beside(run)
        verdict = beside[0].verdict if beside is not None and beside[1] else ""
        state = "done" if run.finished else f"after {run.metrics.step:,} steps"
        one = run.run
        limits = " ".join(one.limit_texts)
        rows.append(
            (str(run.folder), verdict, one.algorithm, limits, str(one.seed), state, estimated, measured)
        )
    header = (
        "run", "certificate", "algorithm", "limits", "seed", "state", "estimated from the log", "measured"
    )  # fmt: skip
    costs = dict.fromkeys(cost for run in runs for cost in run.task.costs)
    return table(header, rows) + "".join(_together(runs, cost) for cost in costs)


def _together(runs: Sequence[SavedRun], cost: str) -> str:
    """Every run by reward and one cost per episode: filled where measured, hollow where only estimated."""
    points = []
    for index, run in enumerate(runs):
        measured = _measured(run)
        sums = (run.result.per_episode or {}) if run.finished else {}
        if cost in measured and "return" in measured:
            points.append((index, measured[cost], measured["return"], False))
        elif cost in sums:
            points.append((index, sums[cost], sums["reward"], True))
    if len(points) < 2:
        return ""
    limits = {x.episode for run in runs for x in run.task.limits if x.cost == cost and x.episode is not None}
    xs, ys = [x for _, x, _, _ in points] + sorted(limits), [y for _, _, y, _ in points]
    plot = frame(xs, ys, (f"{cost} per episode", "reward per episode"))
    for limit in sorted(limits):
        plot.mark_limit(limit)
    for index, x, y, hollow in points:
        run = runs[index]
        words = f"{run.folder}: {'estimated' if hollow else 'measured'} reward {y:.4g}, {cost} {x:.4g}"
        plot.diamond(x, y, SERIES[index % len(SERIES)], words, hollow=hollow)
    names = key(
        ("&#9670;", SERIES[index % len(SERIES)], f"{runs[index].folder} ({runs[index].run.algorithm})")
        for index, *_ in points
    )
    return (
        f"<h3>Reward and {escape(cost)} of every run</h3>{plot.svg()}{names}<p>Filled: "
        "measured in a simulator. Hollow: estimated from the log. Better is further up, left of the "
        "limit.</p>"
    )


def _measured(run: SavedRun) -> dict[str, float]:
    """Means per episode in a simulator: the last evaluation of the mixture, else of rollouts in training."""
    if (found := run.measured()) is not None:
        return dict(found.means)
    last = {name.removeprefix("eval/"): float(v) for name, v in run.metrics.last("eval/").items()}
    return {name: value for name, value in last.items() if name in ("return", *run.task.costs)}


def _run(run: SavedRun, beside: Beside, *, heading: bool) -> str:
    parts = [f"<h2>{escape(str(run.folder))}</h2>"] if heading else []
    record, task = run.record, run.task
    if (judged := _beside(run)) is not None and judged[1]:
        parts.append(f"<p class='{judged[0].verdict}'><strong>{escape(judged[0].sentence)}</strong></p>")
    decided = judged is not None and judged[1] and judged[0].verdict != "abstain"
    if run.finished and run.task.limits and not decided:
        word = VERDICTS[str(run.result.status)]
        parts.append(f"<p class='{word}'><strong>{escape(run.result.headline())}</strong></p>")
    parts.append(
        f"<p>{escape(run.run.algorithm)}{escape(f' ({run.run.preset})' if run.run.preset else '')}, seed "
        f"{run.run.seed}, {record.steps:,} steps.</p>"
    )
    if run.finished:
        parts += [_data(run, beside), _outcome(run)]
        parts += [plane(run, index, beside) for index in range(len(task.costs))]
        parts.append(frontier(run, beside))
    else:
        steps = f"{run.metrics.step:,} of {record.steps:,}"
        parts += [f"<p>The run is not finished: {steps} steps are done.</p>", _data(run, beside)]
    if judged is not None:
        parts.append(_certificate(run, *judged))
    parts.append(curves(run, "eval/", "lambda"))
    limits = ((x.cost, x.given, *map(_number, (x.episode, x.step, x.discounted))) for x in task.limits)
    units = table(("cost", "as given", "per episode", "per step", "discounted sum"), limits)
    parts.append(f"<h3>Limits in all units</h3>{units}")
    settings = table(("setting", "value"), ((name, json.dumps(x)) for name, x in record.config.items()))
    parts.append(f"<h3>Settings</h3><details><summary>All {len(record.config)}</summary>{settings}</details>")
    others = "".join(f", {escape(name)} {escape(version)}" for name, version in record.versions.items())
    parts.append(f"<h3>Versions</h3><p>Trained with Slater {escape(record.version)}{others}.</p>")
    parts.append(curves(run, "loss/"))
    return "".join(parts)


def _outcome(run: SavedRun) -> str:
    """Estimates and measurements against limits, what the mixture means for an episode, warnings."""
    result = run.result
    per_episode = result.per_episode is not None
    sums = result.per_episode or result.estimates
    found = run.measured()
    given = {limit.cost: limit.limit for limit in result.limits}
    rows, best = [], result.log_best
    for name, value, limit, verdict in result.lines() if sums is not None or found is not None else ():
        row = [name, limit, f"{value}, {verdict.lower()}" if verdict else value]
        if found is not None:
            key = "return" if name == "reward" else name
            mean = found.means.get(key)
            kept = f", {found.status(given[name])}" if name in given else ""
            row.append(_with_error(mean, found.errors.get(key)) + kept)
        if best is not None:
            row.append(_number(best.get(name)))
        rows.append(row)
    unit = "per episode" if per_episode or sums is None else "discounted"
    header = [unit, "limit", "estimated from the log"]
    header += ["measured per episode"] * (found is not None) + ["the log's best"] * (best is not None)
    nothing = "<p>Nothing was estimated: the log alone has not judged this policy.</p>"
    parts = ["<h3>What came out</h3>", table(header, rows) if rows else nothing]
    if found is not None:
        parts.append(
            f"<p>Measured: {found.episodes} episodes in {escape(found.env)}, seed {found.seed}, ± one "
            "standard error. Learning saw the log alone.</p>"
        )
    for text in (result.describe_mixture(), *result.describe_judgement(), *result.single_episodes()):
        stop = "" if text.endswith(".") else "."
        parts.append(f"<p>{escape(text[:1].upper() + text[1:] + stop)}</p>")
    parts += [f"<p class='abstain'>Warning: {escape(text)}</p>" for text in result.warnings]
    return "".join(parts)


def _with_error(mean: float | None, error: float | None) -> str:
    """A mean with the digits that its standard error leaves it."""
    if mean is None or not error:
        return _number(mean)
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _data(run: SavedRun, beside: Beside) -> str:
    """What the run learned from."""
    task = run.task
    kind = f"actions of {_counted(task.action_dim)}"
    actions = f"one of {task.action_dim} actions" if task.discrete else kind
    text = (
        f"<h3>The log</h3><p>{escape(run.run.data)} (fingerprint <code>"
        f"{escape(run.run.fingerprint[:12])}</code>): observations of {_counted(task.obs_dim)}, {actions}"
        f"{f', episodes of {task.horizon} steps' if task.horizon else ''}.</p>"
    )
    if beside.returns is None or beside.costs is None:
        return text
    rows = []
    for name, x in (("return", beside.returns), *zip(task.costs, beside.costs.T, strict=True)):
        rows.append((name, *map(_number, (x.min(), float(np.median(x)), x.mean(), x.max()))))
    limits = [limit.episode for limit in task.limits]
    within = ""
    if all(limit is not None for limit in limits):
        share = float((beside.costs <= np.array(limits, dtype=float)).all(axis=1).mean())
        within = f" {share:.0%} of them are within every limit."
    return (
        f"{text}<p>{len(beside.returns):,} episodes.{within}</p>"
        + table(("per episode", "least", "median", "mean", "most"), rows)
    )  # fmt: skip


def _counted(size: int) -> str:
    return f"{size} number{'s' * (size != 1)}"


def _beside(run: SavedRun) -> tuple[Certificate, bool] | None:
    """The certificate that lies beside a run, and whether it is about the mixture that the run has now."""
    path = run.folder / "certificate.json"
    if not path.is_file():
        return None
    found = Certificate.load(path)
    return found, found.digest == digest_of(run.folder / "mixture.safetensors")


def _certificate(run: SavedRun, found: Certificate, current: bool) -> str:
    """The verdicts of a certificate, whether they are about the run's mixture, and those of before it."""
    before = [
        (
            str(row.get("made", ""))[:16].replace("T", " ") + " UTC",
            *(str(row.get(name, "")) for name in ("verdict", "policy", "sentence")),
        )
        for row in earlier(run.folder)
    ]
    page_of_it = run.folder / "certificate.html"
    more = f" All of it: <code>{escape(str(page_of_it))}</code>." if page_of_it.is_file() else ""
    other = (
        f"<p class='abstain'>Warning: it is of {escape(found.policy)}, not of the mixture that the run "
        "has now; certify the run again.</p>"
    )
    return (
        f"<h3>Certificate</h3>{'' if current else other}<p>{escape(found.sentence)} By "
        f"{escape(found.evidence_from)}{more}</p>"
        + table(("cost", "verdict", "limit", "estimate", "between"), map(row_of, found.limits))
        + f"<h4>Earlier certificates</h4>{table(('made', 'verdict', 'of', 'it said'), before)}" * bool(before)
    )
