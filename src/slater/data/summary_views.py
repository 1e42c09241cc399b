"""A summary as text and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.summary import Summary
from slater.errors import InputError

_WIDTH, _HEIGHT = 60, 14
_BARS = " ▁▂▃▄▅▆▇█"


def summary_text(summary: Summary) -> str:
    """What `slater data info` prints."""
    found, names = summary.record, summary.record["cost_names"]
    unknown = found["rows"] - found["transitions"]
    actions = f"{found['action_dim']} {'discrete' if found['discrete_actions'] else 'continuous'}"
    by_rate, left_out = found["cut_off_judged_by_rate"], found["cut_off_not_judged"]
    lines = [
        f"{found['file']}  ({', '.join(filter(None, (found['format'], found['env_id'])))})",
        f"  rows          {found['rows']:,}"
        + (f", of which {unknown:,} are no transitions (next observation unknown)" if unknown else ""),
        f"  episodes      {found['episodes']:,}"
        + (", and one without an end, which is not counted below" if found["incomplete_episodes"] else ""),
        f"  observations  {found['observation_dim']} numbers",
        f"  actions       {actions}" + (f": {', '.join(summary.choices[:20])}" if summary.choices else ""),
        f"  costs         {', '.join(names)}",
        f"  horizon       {found['horizon']} steps "
        f"({'stated' if found['horizon_stated'] else 'longest episode; none is stated'})",
        f"  ends          {_ends(found)}",
    ]
    if by_rate + left_out:
        short = f", {left_out:,} that lived less than half of it left out below" if left_out else ""
        lines.append(
            f"  cut off       {by_rate + left_out:,} before the horizon: {by_rate:,} judged by their rate "
            f"times the horizon{short}"
        )
    lines += ["  propensities  recorded for every action"] if found["propensities"] else []
    lines += [f"  fingerprint   {found['fingerprint']}", "", "per episode, undiscounted"]
    lines += [f"  {what}  {_spread(found[f'episode_{what}'])}" for what in ("length", "return")]
    lines += [f"  {name}  {_spread(found['episode_cost'][name])}" for name in names]
    if found["sources"] is not None:
        lines += ["", "sources: episodes, mean return, mean cost", *_source_lines(found["sources"])]
    every = ", on every cost" if len(names) > 1 else ""
    lines += ["", f"episodes within limits (per episode{every})"]
    for share in found["limits"]:
        best = "no safe episode"
        if share["best_return"] is not None:
            costs = ", ".join(f"{cost:g}" for cost in share["best_costs"])
            best = f"best return {share['best_return']:.4g} at cost {costs}"
        bounds = ", ".join(f"{bound:.4g}" for bound in dict.fromkeys(share["per_episode"]))
        text = share["limit"] + (f" = {bounds}" if "/" in share["limit"] else "")
        lines.append(f"  <= {text}: {share['safe_episodes']:,} ({share['share']:.1%}), {best}")
    for index, name in enumerate(names if summary.episodes.judged.any() else ()):
        lines += ["", f"return against {name} (9: the densest cells; *: best return so far)"]
        lines += text_plot(summary, index)
    return "\n".join([*lines, "", "actions", *_action_lines(summary)])


def _spread(record: dict[str, Any]) -> str:
    """One line for a distribution: min, quartiles, max."""
    if record["min"] is None:
        return "no episode is judged"
    return (
        "{min:.4g} .. {max:.4g}  (median {median:.4g}, quartiles {lower_quartile:.4g} and "
        "{upper_quartile:.4g}, mean {mean:.4g})".format(**record)
    )


def _source_lines(sources: list[dict[str, Any]]) -> list[str]:
    width = max((len(source["source"]) for source in sources), default=0)
    lines = []
    for source in sources[:40]:
        costs = ", ".join(f"{name} {cost:.4g}" for name, cost in source["mean_costs"].items())
        means = f"{source['mean_return']:.4g} ± {source['return_error']:.2g}  {costs}"
        lines.append(f"  {source['source']:<{width}}  {source['episodes']:>6,}  {means}")
    return lines + ([f"  and {len(sources) - 40:,} more"] if len(sources) > 40 else [])


def _ends(found: Any) -> str:
    cut, terminal, at = found["ended_by_timeout"], found["ended_by_terminal"], found["timeouts_at_steps"]
    where = f"at step {at[0]}" if len(at) == 1 else f"at steps {min(at)} .. {max(at)}" if at else ""
    where = "at many different steps" if len(at) == 10 else where
    timeouts = f"{cut:,} by timeouts, {where}" if cut else "no timeouts are marked"
    return f"{timeouts}; {f'{terminal:,} by terminals' if terminal else 'no terminals'}"


def _action_lines(summary: Summary) -> list[str]:
    cover = summary.record["actions"]
    if summary.record["discrete_actions"]:
        shares = enumerate(cover["histogram"][0][:20])
        named = (f"{summary.choices[i] if summary.choices else i}: {share:.1%}" for i, share in shares)
        return [f"  shares  {', '.join(named)}", f"  {cover['joint']:.0%} of the actions occur"]
    lines = []
    for index, shares in enumerate(cover["histogram"]):
        bars = "".join(_BARS[int(np.ceil(8 * share / max(shares)))] for share in shares)
        own = {name: values[index] for name, values in cover.items() if name != "joint"}
        lines.append(
            "  {index}  [{low:.4g} {bars} {high:.4g}]  {smallest:.4g} .. {largest:.4g}, mean {mean:.3g}, "
            "std {std:.3g}, {at_bounds:.1%} at a bound".format(index=index, bars=bars, **own)
        )
    if cover["joint"] is not None:
        lines.append(f"  {cover['joint']:.0%} of the cells of a 10-per-dimension grid hold an action")
    return lines


def text_plot(summary: Summary, cost: int = 0) -> list[str]:
    """Episodes as a density in characters, cost to the right, return upwards, with the frontier."""
    returns, table = summary.episodes.judged_sums
    x_range, y_range = _range(table[:, cost]), _range(returns)
    counts = np.zeros((_HEIGHT, _WIDTH), dtype=int)
    np.add.at(counts, (_cell(returns, y_range, _HEIGHT), _cell(table[:, cost], x_range, _WIDTH)), 1)
    digits = np.ceil(9 * counts / counts.max()).astype(int)
    canvas = [[str(d) if d else " " for d in row] for row in digits]
    steps = _frontier(summary, cost)
    levels = np.linspace(*x_range, _WIDTH)
    best = np.searchsorted(steps[:, 0], levels + 1e-9 * (1 + abs(x_range[1])), side="right") - 1
    for column in np.flatnonzero(best >= 0):
        canvas[_cell(steps[best[column], 1], y_range, _HEIGHT)][column] = "*"
    labels = [f"{y_range[1]:.4g}", *[""] * (_HEIGHT - 2), f"{y_range[0]:.4g}"]
    margin = max(map(len, labels))
    rows = zip(labels, reversed(canvas), strict=True)
    return [
        *(f"  {label:>{margin}} |{''.join(row).rstrip()}" for label, row in rows),
        f"  {'':>{margin}} +{'-' * _WIDTH}",
        f"  {'':>{margin}}  {f'{x_range[0]:.4g}':<{_WIDTH - 10}}{f'{x_range[1]:.4g}':>10}",
    ]


def _frontier(summary: Summary, cost: int) -> NDArray[np.float64]:
    return np.array(summary.record["frontier"][summary.record["cost_names"][cost]])


def _range(values: NDArray[Any]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _cell(values: Any, bounds: tuple[float, float], cells: int) -> Any:
    place = (values - bounds[0]) / (bounds[1] - bounds[0]) * (cells - 1)
    return np.clip(np.rint(place), 0, cells - 1).astype(np.int64)


def draw(summary: Summary, path: Path) -> None:
    """Write the cost-return frontier of each cost, and the coverage of actions, as one picture."""
    from matplotlib.figure import Figure  # slow to import; text output does not need it

    found = summary.record
    names = found["cost_names"]
    figure = Figure(figsize=(5.2 * len(names) + 4.2, 4.2), layout="constrained")
    axes = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    returns, table = summary.episodes.judged_sums
    if len(returns) == 0:
        raise InputError(
            "There is nothing to draw: every episode was cut off before half the horizon of "
            f"{found['horizon']} steps; state another horizon."
        )
    for index, name in enumerate(names):
        panel, costs, steps = axes[index], table[:, index], _frontier(summary, index)
        panel.scatter(costs, returns, s=8, alpha=0.35, color="#4477aa", linewidths=0, label="episodes")
        reach = np.append(steps[:, 0], max(costs.max(), steps[-1, 0]))
        best = np.append(steps[:, 1], steps[-1, 1])
        panel.step(reach, best, where="post", color="#cc3311", label="best return up to this cost")
        for share in found["limits"]:
            bound, within = share["per_episode"][index], share["share_of_each_cost"][index]
            panel.axvline(bound, color="#666666", linestyle="--", linewidth=0.8)
            place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "fontsize": 7, "color": "#444444"}
            panel.annotate(f" {bound:g}: {within:.0%} within", (bound, 0.02), **place)
        panel.set_xlabel(f"{name} per episode (undiscounted)")
        panel.set_ylabel("return per episode (undiscounted)")
        panel.legend(loc="lower right", fontsize=8, frameon=False)
    _draw_actions(axes[-1], summary)
    size = f"{len(returns):,} episodes, {found['rows']:,} rows"
    figure.suptitle(f"{Path(found['file']).name}: {size}", fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"The picture {path} cannot be written: {error}.") from None


def _draw_actions(panel: Any, summary: Summary) -> None:
    cover = summary.record["actions"]
    if summary.record["discrete_actions"]:
        panel.bar(np.arange(len(cover["histogram"][0])), cover["histogram"][0], color="#228833")
        if 0 < len(summary.choices) <= 12:
            panel.set_xticks(range(len(summary.choices)), summary.choices, rotation=30, ha="right")
    else:
        for index, shares in enumerate(cover["histogram"]):
            edges = np.linspace(cover["low"][index], cover["high"][index], len(shares) + 1)
            panel.stairs(shares, edges, label=f"action {index}")
        if len(cover["histogram"]) <= 10:
            panel.legend(fontsize=8, frameon=False)
    panel.set_xlabel("action")
    panel.set_ylabel("share of rows")
