"""Interactive figures by Plotly: the reward-cost plane and curves, with a menu of tasks and limits.

A click on a name in the legend hides or shows that algorithm; the menu chooses what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slater.errors import InputError
from slater.report.benchmarks import looks
from slater.report.curves import LIMIT

Row = Mapping[str, Any]
DASHES = ("solid", "dot", "dash", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
ALL = "all limits"
ALL_TASKS = "all tasks"


def plotly() -> Any:
    """Plotly's `graph_objects`, or the line that installs it."""
    try:
        import plotly.graph_objects
    except ModuleNotFoundError:
        raise InputError(
            "the HTML report needs Plotly; install it with: pip install 'slater-rl[report]'"
        ) from None
    return plotly.graph_objects


def plane_figure(flat: Sequence[Row]) -> Any:
    """Every cell as a point: cost / limit across, normalised reward up; one marker per limit.

    flat: rows of `slater.experiments.tables.labelled`.
    """
    go = plotly()
    figure = go.Figure()
    chosen = looks(flat)
    limits = list(dict.fromkeys(row["limit"] for row in flat))
    owners: list[tuple[str, str, str]] = []
    for place in dict.fromkeys(row["place"] for row in flat):
        for label, look in chosen.items():
            for limit in limits:
                rows = [
                    row for row in flat if (row["place"], row["label"], row["limit"]) == (place, label, limit)
                ]
                if not rows:
                    continue
                filled = SYMBOLS[limits.index(limit) % len(SYMBOLS)]
                symbol = filled + ("-open" if look.variant else "")
                figure.add_scatter(
                    x=[row["normalised_cost"] for row in rows],
                    y=[row["normalised_reward"] for row in rows],
                    mode="markers", name=label, legendgroup=label, hoverinfo="text",
                    hovertext=[_hover(row) for row in rows],
                    marker={
                        "color": look.color, "symbol": symbol, "size": 11,
                        "line": {"width": 2, "color": look.color},
                    },
                )  # fmt: skip
                owners.append((f"{place}, {ALL}", f"{place}, limit {limit}", label))
    figure.add_vline(x=1.0, line={"color": LIMIT, "dash": "dash"}, annotation_text="limit")
    figure.update_layout(
        xaxis_title="cost / limit (at most 1 is safe)", yaxis_title="normalised reward", height=560
    )
    figure.update_xaxes(rangemode="tozero")
    _add_menu(figure, owners)
    return figure


def curves_figure(curves: Sequence[Row], *, cost: str) -> Any:
    """Reward and cost of rollouts while training; curves: rows of `curve_means`; cost: its unit."""
    plotly()
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    chosen = looks(curves)
    owners: list[tuple[str, str, str]] = []
    for place, limit in dict.fromkeys((row["place"], row["limit"]) for row in curves):
        here = [row for row in curves if (row["place"], row["limit"]) == (place, limit)]
        choice = f"{place}, limit {limit}"
        for label, look in chosen.items():
            points = [row for row in here if row["label"] == label]
            for line, value in enumerate(("return", "cost"), start=1):
                if points:
                    figure.add_scatter(
                        x=[row["step"] for row in points],
                        y=[row[f"{value}_mean"] for row in points],
                        error_y={"array": [row[f"{value}_se"] for row in points], "thickness": 1, "width": 2},
                        mode="lines+markers", name=label, legendgroup=label, row=line, col=1,
                        marker={"size": 4},
                        line={"color": look.color, "dash": DASHES[look.variant]},
                        hovertemplate=f"{label}<br>%{{x:,}} iterations: {value} %{{y:.4g}}<extra></extra>",
                    )  # fmt: skip
                    owners.append((choice, choice, label))
        steps = [row["step"] for row in here]
        figure.add_scatter(
            x=[min(steps), max(steps)], y=[here[0]["bound"]] * 2, mode="lines", name="limit",
            legendgroup="limit", line={"color": LIMIT, "dash": "dash"}, hoverinfo="y", row=2, col=1,
        )  # fmt: skip
        owners.append((choice, choice, "limit"))
    figure.update_layout(height=680)
    figure.update_yaxes(title_text="reward per episode", row=1, col=1)
    figure.update_yaxes(title_text=f"cost {cost}", row=2, col=1)
    figure.update_xaxes(title_text="iterations", row=2, col=1)
    _add_menu(figure, owners)
    return figure


def estimates_figure(flat: Sequence[Row]) -> Any:
    """Estimated against measured cost per episode, a point per cell; on the line they agree."""
    figure = plotly().Figure()
    chosen = looks(flat)
    owners: list[tuple[str, str, str]] = []
    for place in dict.fromkeys(row["place"] for row in flat):
        for label, look in chosen.items():
            rows = [row for row in flat if (row["place"], row["label"]) == (place, label)]
            if rows:
                figure.add_scatter(
                    x=[row["cost"] for row in rows], y=[row["estimated_cost"] for row in rows],
                    mode="markers", name=label, hoverinfo="text", hovertext=[_hover(row) for row in rows],
                    marker={"color": look.color, "symbol": "circle-open" if look.variant else "circle",
                            "size": 10, "line": {"width": 2, "color": look.color}},
                )  # fmt: skip
                owners.append((ALL_TASKS, place, label))
    largest = max(max(row["cost"], row["estimated_cost"]) for row in flat)
    figure.add_scatter(
        x=[0, largest], y=[0, largest], mode="lines", name="agreement", hoverinfo="skip",
        line={"color": LIMIT, "dash": "dash"},
    )  # fmt: skip
    owners.append((ALL_TASKS, "", "agreement"))
    figure.update_layout(
        xaxis_title="measured cost per episode", yaxis_title="estimated cost per episode", height=560
    )
    _add_menu(figure, owners, always=("agreement",))
    return figure


def _hover(row: Row) -> str:
    lines = [
        f"<b>{row['label']}</b>, {row['place']}, limit {row['limit']}, seed {row['seed']}",
        f"reward {row['return']:.1f} ± {row['return_se']:.1f} per episode",
        f"cost {row['cost']:.2f} ± {row['cost_se']:.2f} per episode",
    ]
    if row["estimated_cost"] is not None:
        lines.append(f"estimated from the data: cost {row['estimated_cost']:.2f} per episode")
    return "<br>".join(lines)


def _add_menu(figure: Any, owners: Sequence[tuple[str, str, str]], always: tuple[str, ...] = ()) -> None:
    """A menu over the traces; owners: for each trace, the two choices that show it, and its legend entry.

    always: legend entries that every choice shows.
    """
    choices = list(dict.fromkeys(choice for owner in owners for choice in owner[:2] if choice))
    buttons: list[dict[str, Any]] = []
    for choice in choices:
        visible = [choice in owner[:2] or owner[2] in always for owner in owners]
        named: set[str] = set()
        legend = []
        for shown, (_, _, label) in zip(visible, owners, strict=True):
            legend.append(shown and label not in named)
            if shown:
                named.add(label)
        buttons.append(
            {"label": choice, "method": "restyle", "args": [{"visible": visible, "showlegend": legend}]}
        )
    first = buttons[0]["args"][0]
    for trace, shown, legend_entry in zip(figure.data, first["visible"], first["showlegend"], strict=True):
        trace.visible, trace.showlegend = shown, legend_entry
    figure.update_layout(
        template="plotly_white",
        margin={"t": 70},
        updatemenus=[{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom",
                      "pad": {"b": 12}}],
    )  # fmt: skip
