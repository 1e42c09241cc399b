"""A summary as text and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.summary import Summary, spread_of
from slater.errors import InputError

_WIDTH, _HEIGHT = 60, 14
_BARS = " ▁▂▃▄▅▆▇█"


def summary_text(summary: Summary) -> str:
    """What `slater data info` prints."""
    record = summary.to_json()
    actions = f"{summary.action_dim} discrete" if summary.discrete else f"{summary.action_dim} continuous"
    actions += f": {', '.join(summary.choices[:20])}" if summary.choices else ""
    stated = "stated" if summary.horizon_stated else "longest episode; none is stated"
    lines = [
        f"{summary.name}  ({summary.format}{f', {summary.env_id}' if summary.env_id else ''})",
        f"  rows          {summary.rows:,}" + _missing(summary),
        f"  episodes      {record['episodes']:,}" + _incomplete(record),
        f"  observations  {summary.observation_dim} numbers",
        f"  actions       {actions}",
        f"  costs         {', '.join(summary.cost_names)}",
        f"  horizon       {summary.horizon} steps ({stated})",
        f"  ends          {_ends(summary, record)}",
        *_cut_off(record),
        *(["  propensities  recorded for every action"] if summary.propensities else []),
        f"  fingerprint   {summary.fingerprint}",
        "",
        "per episode, undiscounted",
        f"  length  {spread_of(record['episode_length'])}",
        f"  return  {spread_of(record['episode_return'])}",
    ]
    lines += [f"  {name}  {spread_of(record['episode_cost'][name])}" for name in summary.cost_names]
    lines += _source_lines(summary)
    lines += [
        "",
        "episodes within limits (per episode" + (", on every cost)" if len(summary.cost_names) > 1 else ")"),
    ]
    for share in summary.shares:
        best = "no safe episode" if share.best_return is None else f"best return {share.best_return:.4g}"
        if share.best_costs is not None:
            best += " at cost " + ", ".join(f"{cost:g}" for cost in share.best_costs)
        per_episode = f" = {_bounds(share.bounds)}" if "/" in share.text else ""
        lines.append(f"  <= {share.text}{per_episode}: {share.safe:,} ({share.share:.1%}), {best}")
    for index, name in enumerate(summary.cost_names if len(summary.judged) else ()):
        lines += [
            "",
            f"return against {name} (9: the densest cells; *: best return so far)",
        ]
        lines += text_plot(summary, index)
    lines += ["", "actions", *_action_lines(summary)]
    return "\n".join(lines)


def _source_lines(summary: Summary) -> list[str]:
    sources = summary.sources
    if sources is None:
        return []
    width = max((len(source.name) for source in sources), default=0)
    lines = ["", "sources: episodes, mean return, mean cost"]
    for source in sources[:40]:
        costs = ", ".join(
            f"{name} {cost:.4g}" for name, cost in zip(summary.cost_names, source.mean_costs, strict=True)
        )
        lines.append(
            f"  {source.name:<{width}}  {source.episodes:>6,}  "
            f"{source.mean_return:.4g} ± {source.return_error:.2g}  {costs}"
        )
    if len(sources) > 40:
        lines.append(f"  and {len(sources) - 40:,} more")
    return lines


def _bounds(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:.4g}" for bound in dict.fromkeys(bounds))


def _missing(summary: Summary) -> str:
    unknown = summary.rows - summary.transitions
    return f", of which {unknown:,} are no transitions (next observation unknown)" if unknown else ""


def _incomplete(record: dict[str, Any]) -> str:
    count = record["incomplete_episodes"]
    return ", and one without an end, which is not counted below" if count else ""


def _cut_off(record: dict[str, Any]) -> list[str]:
    by_rate, left_out = record["cut_off_judged_by_rate"], record["cut_off_not_judged"]
    if not by_rate + left_out:
        return []
    return [
        f"  cut off       {by_rate + left_out:,} before the horizon: {by_rate:,} judged by their rate times "
        "the horizon" + (f", {left_out:,} that lived less than half of it left out below" if left_out else "")
    ]


def _ends(summary: Summary, record: dict[str, Any]) -> str:
    parts = []
    if record["ended_by_timeout"]:
        at = summary.timeouts_at
        where = f"at step {at[0]}" if len(at) == 1 else f"at steps {min(at)} .. {max(at)}"
        if len(at) == 10:
            where = "at many different steps"
        parts.append(f"{record['ended_by_timeout']:,} by timeouts, {where}")
    else:
        parts.append("no timeouts are marked")
    parts.append(
        f"{record['ended_by_terminal']:,} by terminals" if record["ended_by_terminal"] else "no terminals"
    )
    return "; ".join(parts)


def _names(summary: Summary) -> list[str]:
    """What each discrete action is called."""
    return list(summary.choices) or [str(index) for index in range(summary.actions.histogram.shape[1])]


def _action_lines(summary: Summary) -> list[str]:
    cover = summary.actions
    if summary.discrete:
        shares = ", ".join(
            f"{name}: {share:.1%}"
            for name, share in zip(_names(summary), cover.histogram[0][:20], strict=False)
        )
        return [f"  shares  {shares}", f"  {cover.joint:.0%} of the actions occur"]
    lines = []
    for index, shares in enumerate(cover.histogram):
        bars = "".join(_BARS[int(np.ceil(8 * share / shares.max()))] for share in shares)
        lines.append(
            f"  {index}  [{cover.low[index]:.4g} {bars} {cover.high[index]:.4g}]  "
            f"{cover.smallest[index]:.4g} .. {cover.largest[index]:.4g}, mean {cover.mean[index]:.3g}, "
            f"std {cover.std[index]:.3g}, {cover.at_bounds[index]:.1%} at a bound"
        )
    if cover.joint is not None:
        lines.append(f"  {cover.joint:.0%} of the cells of a 10-per-dimension grid hold an action")
    return lines


def text_plot(summary: Summary, cost: int = 0) -> list[str]:
    """Episodes as a density in characters, cost to the right, return upwards, with the frontier."""
    judged, table = summary.judged, summary.episodes
    costs, returns = table.costs_per_episode[judged, cost], table.returns_per_episode[judged]
    x_range, y_range = _range(costs), _range(returns)
    counts = np.zeros((_HEIGHT, _WIDTH), dtype=int)
    np.add.at(counts, (_cell(returns, y_range, _HEIGHT), _cell(costs, x_range, _WIDTH)), 1)
    digits = np.ceil(9 * counts / counts.max()).astype(int)
    canvas = [[str(d) if d else " " for d in row] for row in digits]
    steps = summary.frontier(cost)
    levels = np.linspace(*x_range, _WIDTH)
    best = np.searchsorted(steps[:, 0], levels + 1e-9 * (1 + abs(x_range[1])), side="right") - 1
    for column, index in enumerate(best):
        if index >= 0:
            canvas[int(_cell(steps[index : index + 1, 1], y_range, _HEIGHT)[0])][column] = "*"
    labels = [f"{y_range[1]:.4g}", *[""] * (_HEIGHT - 2), f"{y_range[0]:.4g}"]
    margin = max(map(len, labels))
    lines = [
        f"  {label:>{margin}} |{''.join(row).rstrip()}"
        for label, row in zip(labels, reversed(canvas), strict=True)
    ]
    lines.append(f"  {'':>{margin}} +{'-' * _WIDTH}")
    lines.append(f"  {'':>{margin}}  {f'{x_range[0]:.4g}':<{_WIDTH - 10}}{f'{x_range[1]:.4g}':>10}")
    return lines


def _range(values: NDArray[Any]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _cell(values: NDArray[Any], bounds: tuple[float, float], cells: int) -> NDArray[np.int64]:
    place = (values - bounds[0]) / (bounds[1] - bounds[0]) * (cells - 1)
    return np.clip(np.rint(place), 0, cells - 1).astype(np.int64)


def draw(summary: Summary, path: Path) -> None:
    """Write the cost-return frontier of each cost, and the coverage of actions, as one picture."""
    from matplotlib.figure import Figure  # slow to import; text output does not need it

    count = len(summary.cost_names)
    figure = Figure(figsize=(5.2 * count + 4.2, 4.2), layout="constrained")
    axes = figure.subplots(1, count + 1, squeeze=False)[0]
    judged = summary.judged
    if len(judged) == 0:
        raise InputError(
            "There is nothing to draw: every episode was cut off before half the horizon of "
            f"{summary.horizon} steps; state another horizon."
        )
    returns = summary.episodes.returns_per_episode[judged]
    for index, name in enumerate(summary.cost_names):
        panel = axes[index]
        costs = summary.episodes.costs_per_episode[judged, index]
        panel.scatter(costs, returns, s=8, alpha=0.35, color="#4477aa", linewidths=0, label="episodes")
        steps = summary.frontier(index)
        reach = np.append(steps[:, 0], max(costs.max(), steps[-1, 0]))
        panel.step(
            reach,
            np.append(steps[:, 1], steps[-1, 1]),
            where="post",
            color="#cc3311",
            label="best return up to this cost",
        )
        for share in summary.shares:
            bound = share.bounds[index]
            panel.axvline(bound, color="#666666", linestyle="--", linewidth=0.8)
            note = f" {bound:g}: {share.each[index]:.0%} within"
            panel.annotate(
                note,
                (bound, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=7,
                color="#444444",
            )
        panel.set_xlabel(f"{name} per episode (undiscounted)")
        panel.set_ylabel("return per episode (undiscounted)")
        panel.legend(loc="lower right", fontsize=8, frameon=False)
    _draw_actions(axes[-1], summary)
    figure.suptitle(
        f"{Path(summary.name).name}: {len(judged):,} episodes, {summary.rows:,} rows", fontsize=10
    )
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"The picture {path} cannot be written: {error}.") from None


def _draw_actions(panel: Any, summary: Summary) -> None:
    cover = summary.actions
    if summary.discrete:
        panel.bar(np.arange(len(cover.histogram[0])), cover.histogram[0], color="#228833")
        if summary.choices and len(summary.choices) <= 12:
            panel.set_xticks(range(len(summary.choices)), summary.choices, rotation=30, ha="right")
        panel.set_xlabel("action")
    else:
        for index, shares in enumerate(cover.histogram):
            edges = np.linspace(cover.low[index], cover.high[index], len(shares) + 1)
            panel.stairs(shares, edges, label=f"action {index}")
        panel.set_xlabel("action")
        if len(cover.histogram) <= 10:
            panel.legend(fontsize=8, frameon=False)
    panel.set_ylabel("share of rows")
