"""`certificate.html`: a verdict with its evidence, for a person; no script, no network."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np

from slater.report.svg import COLOURS, Plot, page

__all__ = ["certificate_html"]

WORDS = {
    "pass": "Pass", "fail": "Fail", "abstain": "No verdict",
    "rollouts": "episodes of the policy itself", "propensities": "logged propensities",
    "estimates": "estimates from the log alone", "exact": "counted transitions of a finite problem",
}  # fmt: skip


def certificate_html(record: dict[str, Any]) -> str:
    """The page of a certificate, from its JSON (`Certificate.as_dict`)."""
    verdict = record["verdict"]
    parts = [
        f"<h1 class='{verdict}'>{WORDS[verdict]}</h1><p><strong>{escape(record['sentence'])}</strong></p>",
        f"<p>{escape(record['policy'])}; confidence {record['confidence']:.0%}"
        + (f", shared by {record['candidates']} candidates" if record["candidates"] > 1 else "")
        + f". Evidence: {escape(record['evidence_from'])}</p>",
    ]
    rows = "".join(
        f"<tr><td>{escape(x['cost'])}</td><td>{_figure(x['limit'])} {escape(x['unit'])}</td>"
        f"<td>{_figure(x['estimate'])}</td><td>{_figure(x['lower'])}</td><td>{_figure(x['upper'])}</td>"
        f"<td class='{x['verdict']}'>{x['verdict']}</td><td>{WORDS[x['tier']]}</td></tr>"
        for x in record["limits"]
    )
    parts.append(
        "<table><tr><th>cost</th><th>limit</th><th>estimate</th><th>lower bound</th><th>upper bound</th>"
        f"<th>verdict</th><th>by</th></tr>{rows}</table>"
    )
    for index, limit in enumerate(record["limits"]):
        parts.append(
            f"<h2>{escape(limit['cost'])}</h2><p class='said'>{escape(limit['reason'])}</p>{_evidence(limit)}"
            "<p>A dot is an estimate of the expected cost. Its bar is from the lower to the upper bound.</p>"
        )
        if limit["share_over"] is not None:
            parts.append(
                f"<p>At most {limit['share_over']:.1%} of episodes cost more than {_figure(limit['limit'])} "
                "(Clopper and Pearson).</p>"
            )
        costs = record["details"].get("episode_costs")
        if costs:
            parts.append(_histogram([row[index] for row in costs], float(limit["limit"])))
            over = sum(row[index] > limit["limit"] for row in costs)
            parts.append(
                f"<p>Of these {len(costs)} episodes {over} cost more than {_figure(limit['limit'])} by "
                "themselves. The limit is about the mean.</p>"
            )
        if limit["gates"]:
            items = "".join(
                f"<li>{'met' if g['passed'] else '<strong>not met</strong>'}: {escape(g['name'])}: "
                f"{escape(g['reason'])}</li>"
                for g in limit["gates"]
            )
            parts.append(f"<h3>Conditions</h3><ul>{items}</ul>")
    parts.append(_coverage(record["details"].get("coverage")))
    parts.append(_cohorts(record["details"].get("cohorts")))
    assumed = "".join(f"<li>{escape(line)}</li>" for line in record["assumptions"])
    parts.append(f"<h2>Taken for granted</h2><ul>{assumed}</ul>" if assumed else "")
    return page(f"Certificate: {record['policy']}", "".join(parts))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _figure(value: Any) -> str:
    number = _number(value)
    return "not known" if math.isnan(number) else f"{number:.4g}"


def _evidence(limit: dict[str, Any]) -> str:
    """Every estimator's interval against the limit, the deciding bounds last."""
    rows = [*limit["evidence"], {**limit, "estimator": "the verdict"}]
    values = [_number(row[k]) for row in rows for k in ("estimate", "lower", "upper")] + [limit["limit"]]
    finite = [x for x in values if math.isfinite(x)]
    high = max(finite) * 1.08 or 1.0
    names = [row["estimator"] for row in rows][::-1]
    plot = Plot(
        (min(0.0, *finite), high), (-0.6, len(rows) - 0.4), height=70 + 34 * len(rows), width=760,
        labels=(f"expected {limit['cost']}, {limit['unit']}", ""), y_names=names,
    )  # fmt: skip
    for index, row in enumerate(rows[::-1]):
        low, middle, top = (_number(row[k]) for k in ("lower", "estimate", "upper"))
        colour = COLOURS[limit["verdict"]] if index == 0 else COLOURS["line"]
        text = f"{row['estimator']}: {_figure(middle)} ({_figure(low)} to {_figure(top)})"
        if not math.isnan(low) and not math.isnan(top):
            plot.segment((low, index), (min(top, 10 * high), index), colour, text, width=4)
        if not math.isnan(middle):
            plot.dot(middle, index, colour, text, radius=6)
    plot.mark_limit(float(limit["limit"]))
    return plot.svg()


def _histogram(costs: list[float], limit: float) -> str:
    counts, edges = np.histogram(costs, bins=min(30, max(5, len(costs) // 4)))
    plot = Plot(
        (min(0.0, float(edges[0])), max(float(edges[-1]), limit) * 1.05), (0, float(counts.max())),
        height=240, width=760, labels=("cost of an episode", "episodes"),
    )  # fmt: skip
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        plot.box(
            (low, high), (0, float(count)), COLOURS["line"], f"{count} episodes: {low:.4g} to {high:.4g}", 0.7
        )
    plot.mark_limit(limit)
    return plot.svg()


def _coverage(record: dict[str, Any] | None) -> str:
    """States of the log and of the policy's rollouts in the plane of the log's two main directions."""
    if not record:
        return ""
    logged, visited = np.array(record["logged"]), np.array(record["visited"])
    both = np.concatenate([logged, visited])
    (left, below), (right, above) = both.min(axis=0).tolist(), both.max(axis=0).tolist()
    plot = Plot(
        (left, right), (below, above),
        labels=("first main direction of the log's states", "second"),
    )  # fmt: skip
    for x, y in logged:
        plot.dot(x, y, "#999999", radius=2, alpha=0.5)
    for x, y in visited:
        plot.dot(x, y, COLOURS["line"], radius=2, alpha=0.6)
    return (
        "<h2>Where the policy goes</h2><p>Grey: states of the log. Blue: states of the policy's rollouts in "
        f"the learned model.</p>{plot.svg()}"
    )


def _cohorts(rows: list[dict[str, Any]] | None) -> str:
    """What the estimator says of each cohort's clone, against what the cohort did."""
    if not rows:
        return ""
    keys = [key for key in rows[0] if key != "cohort"]
    head = "".join(f"<th>{escape(key.replace('_', ' '))}</th>" for key in ("cohort", *keys))
    cells = "".join(
        "<tr><td>" + escape(str(row["cohort"])) + "</td>"
        + "".join(f"<td>{_figure(row[key])}</td>" for key in keys) + "</tr>"
        for row in rows
    )  # fmt: skip
    return f"<h2>Check on what the log knows</h2><table><tr>{head}</tr>{cells}</table>"
