"""A certificate in a folder, with those before it, and as a page for a person; no script, no network."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.verdict import Certificate, Evidence, LimitVerdict
from slater.disk import append_json_line, make_folder, read_json_lines, write_atomic
from slater.report.pages import page, table
from slater.report.svg import COLOURS, Plot

#: the file that keeps every certificate made in a folder, a line each, oldest first
HISTORY = "certificates.jsonl"

WORDS = {
    "pass": "Pass", "fail": "Fail", "abstain": "No verdict",
    "rollouts": "episodes of the policy itself", "propensities": "logged propensities",
    "estimates": "estimates from the log alone", "exact": "counted transitions of a finite problem",
}  # fmt: skip


def save_certificate(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json and certificate.html, and keep the record beside those of before."""
    certificate.save(make_folder(folder) / "certificate.json")
    write_atomic(folder / "certificate.html", certificate_html(certificate).encode())
    # what pictures need stays in the newest alone
    kept = {name: value for name, value in certificate.as_dict().items() if name != "details"}
    made = datetime.now(UTC).isoformat(timespec="seconds")
    append_json_line(folder / HISTORY, {"made": made, **kept})


def earlier(folder: Path) -> list[dict[str, Any]]:
    """The certificates that were made in a folder before its newest, the latest first."""
    return read_json_lines(folder / HISTORY)[-2::-1]


def certificate_html(certificate: Certificate) -> str:
    """The page of a certificate."""
    one = certificate
    parts = [
        f"<h1 class='{one.verdict}'>{WORDS[one.verdict]}</h1><p><strong>{escape(one.sentence)}</strong></p>",
        f"<p>{escape(one.policy)}; confidence {one.percent}"
        + (f", shared by {one.candidates} candidates" if one.candidates > 1 else "")
        + f". Evidence: {escape(one.evidence_from)}</p>",
    ]
    parts += [f"<p>To do: {escape(plan['sentence'])}</p>" for plan in one.details.get("plan", ())]
    header = ("cost", "verdict", "limit", "estimate", "between", "by")
    parts.append(table(header, [(*row_of(x), WORDS[x.tier]) for x in one.limits]))
    for index, limit in enumerate(one.limits):
        parts.append(
            f"<h2>{escape(limit.cost)}</h2><p class='said'>{escape(limit.reason)}</p>{_evidence(limit)}"
            "<p>A dot is an estimate of the expected cost. Its bar is from the lower to the upper bound.</p>"
        )
        if limit.share_over is not None:
            parts.append(
                f"<p>At most {limit.share_over:.1%} of episodes cost more than {_figure(limit.limit)} "
                "(Clopper and Pearson).</p>"
            )
        if rows := one.details.get("episode_costs"):
            costs = [row[index] for row in rows]
            over = sum(cost > limit.limit for cost in costs)
            parts.append(
                f"{_histogram(costs, limit.limit)}<p>Of these {len(costs)} episodes {over} cost more than "
                f"{_figure(limit.limit)} by themselves. The limit is about the mean.</p>"
            )
        if limit.gates:
            words = {True: "met", False: "<strong>not met</strong>"}
            lines = (f"{words[g.passed]}: {escape(g.name)}: {escape(g.reason)}" for g in limit.gates)
            items = "".join(f"<li>{line}</li>" for line in lines)
            parts.append(f"<h3>Conditions</h3><ul>{items}</ul>")
    assumed = "".join(f"<li>{escape(line)}</li>" for line in one.assumptions)
    parts.append(f"<h2>Taken for granted</h2><ul>{assumed}</ul>" if assumed else "")
    return page(f"Certificate: {one.policy}", "".join(parts))


def _figure(number: float) -> str:
    return "not known" if math.isnan(number) else f"{number:.4g}"


def row_of(limit: LimitVerdict) -> tuple[str, str, str, str, str]:
    """For a table: cost, verdict, limit, estimate, and the bounds as one text."""
    unknown = math.isnan(limit.lower) and math.isnan(limit.upper)
    between = "not known" if unknown else f"{_figure(limit.lower)} to {_figure(limit.upper)}"
    return limit.cost, limit.verdict, f"{_figure(limit.limit)} {limit.unit}", _figure(limit.estimate), between


def _evidence(limit: LimitVerdict) -> str:
    """Every estimator's interval against the limit, the deciding bounds last."""
    rows = [*limit.evidence, Evidence("the verdict", limit.estimate, limit.lower, limit.upper)]
    values = [limit.limit, *(x for row in rows for x in (row.estimate, row.lower, row.upper))]
    finite = [x for x in values if math.isfinite(x)]
    high = max(finite) * 1.08 or 1.0
    plot = Plot(
        (min(0.0, *finite), high), (-0.6, len(rows) - 0.4), height=70 + 34 * len(rows),
        labels=(f"expected {limit.cost}, {limit.unit}", ""), y_names=[row.estimator for row in rows][::-1],
    )  # fmt: skip
    for index, row in enumerate(rows[::-1]):
        colour = COLOURS[limit.verdict] if index == 0 else COLOURS["line"]
        text = f"{row.estimator}: {_figure(row.estimate)} ({_figure(row.lower)} to {_figure(row.upper)})"
        if not math.isnan(row.lower) and not math.isnan(row.upper):
            plot.segment((row.lower, index), (min(row.upper, 10 * high), index), colour, text, width=4)
        if not math.isnan(row.estimate):
            plot.dot(row.estimate, index, colour, text, radius=6)
    plot.mark_limit(limit.limit)
    return plot.svg()


#: whole numbers get a bin each while there are no more than these
MOST_BINS = 60


def bins_of(costs: list[float]) -> NDArray[np.float64]:
    """Edges of the bins of a histogram: counts have bins of 1 around them, or of more whole numbers."""
    values = np.asarray(costs, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    if (values == np.round(values)).all():
        width = math.ceil((high - low + 1) / MOST_BINS)
        return np.arange(low, high + width + 0.5, width) - 0.5
    return np.histogram_bin_edges(values, bins=min(30, max(5, len(values) // 4)))


def _histogram(costs: list[float], limit: float) -> str:
    edges = bins_of(costs)
    counts, _ = np.histogram(costs, bins=edges)
    plot = Plot(
        (min(0.0, float(edges[0])), max(float(edges[-1]), limit) * 1.05), (0, float(counts.max())),
        height=240, labels=("cost of an episode", "episodes"),
    )  # fmt: skip
    whole = float(edges[0]) % 1 == 0.5 and float(edges[1] - edges[0]) % 1 == 0
    for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        ends = (low + 0.5, high - 0.5) if whole else (low, high)
        at = f"{ends[0]:.4g}" if ends[0] == ends[1] else f"{ends[0]:.4g} to {ends[1]:.4g}"
        plot.box((low, high), (0, float(count)), COLOURS["line"], f"{count} episodes: {at}", 0.7)
    plot.mark_limit(limit)
    return plot.svg()
