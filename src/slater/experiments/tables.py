"""From finished cells to tables: labels, means, and Markdown that states what it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from slater.experiments.benchmark import results
from slater.experiments.task_data import KINDS
from slater.jobs.engines import Row
from slater.report.curves import summarise


def algorithm_of(row: Row) -> str:
    """As on the command line: `pdca` or `pdca:paper`."""
    return row["algorithm"] + (f":{row['preset']}" if row["preset"] else "")


def labelled(rows: Sequence[Row]) -> list[Row]:
    """One flat row per cell and limit, with `label` of its algorithm and settings and `place` of its data.

    The same algorithm with other settings gets another label, and the same task with other data another
    place, so that nothing different is ever averaged.
    """
    flat = sorted(results(rows), key=_order)
    data: dict[str, set[str]] = {}
    variants: dict[str, list[dict[str, str]]] = {}
    for row in flat:
        data.setdefault(row["task"], set()).add(row["data"])
        variants.setdefault(algorithm_of(row), []).append(_distinguishing(row))
    for row in flat:
        alone = len(data[row["task"]]) == 1
        row["place"] = row["task"] if alone else f"{row['task']} [{row['data'][:8]}]"
        row["label"] = _label(row, variants[algorithm_of(row)])
    return flat


def _order(row: Row) -> tuple[Any, ...]:
    """Tasks by name, algorithms as `algorithms` lists them, presets after defaults, limits by size, seeds."""
    from slater.deep import algorithms

    names = algorithms()
    place = names.index(row["algorithm"]) if row["algorithm"] in names else len(names)
    return row["task"], place, row["algorithm"], row["preset"] or "", row["limit_per_episode"], row["seed"]


def _distinguishing(row: Row) -> dict[str, str]:
    how = {"episodes": str(row["episodes"]), "deterministic": str(row["deterministic"])}
    if "budget_seconds" in row:
        how["minutes"] = f"{row['budget_seconds'] / 60:g}"
    return {**row["settings"], **how, "slater": row["versions"]["slater"]}


def _label(row: Row, variants: Sequence[dict[str, str]]) -> str:
    """Rows may be of an algorithm that is no longer installed."""
    from slater.deep import algorithms, find

    name: str = row["algorithm"]
    if name in algorithms():
        name = find(name).label
    own, notes = _distinguishing(row), [row["preset"]] if row["preset"] else []
    notes += [
        f"{key}={own.get(key, 'default')}"
        for key in dict.fromkeys(key for variant in variants for key in variant)
        if len({variant.get(key) for variant in variants}) > 1
    ]
    return f"{name} ({', '.join(notes)})" if notes else name


def curve_means(flat: Sequence[Row], *, per_step: bool) -> list[Row]:
    """Rollouts while training, averaged over seeds: a row per place, label, limit and iteration.

    `return` per episode; `cost` and `bound`, the limit, per episode or per step.
    """
    what, points = ("place", "label", "algorithm", "limit"), []
    for row in flat:
        unit = row["horizon"] if per_step else 1
        here = {name: row[name] for name in what} | {"bound": row["limit_per_episode"] / unit}
        for step, reward, cost in row["curve"]:
            points.append({**here, "step": step, "return": reward, "cost": cost / unit})
    return summarise(points, by=(*what, "bound", "step"), values=("return", "cost"))


def means(flat: Sequence[Row], *by: str) -> list[Row]:
    """Means and standard errors over the cells that agree in `by`, with the limits and seeds they cover."""
    values = ("return", "cost", "normalised_cost", "cost_per_step")
    for row in flat:
        row["cost_per_step"] = row["cost"] / row["horizon"]
    scored = all(row["normalised_reward"] is not None for row in flat)
    summary = summarise(flat, by=by, values=(("normalised_reward", *values) if scored else values))
    for line in summary:
        members = [row for row in flat if all(row[name] == line[name] for name in by)]
        line["algorithm"] = algorithm_of(members[0])
        line["limits"] = "/".join(dict.fromkeys(row["limit"] for row in members))
        line["seeds"] = len({row["seed"] for row in members})
    return summary


def with_error(value: str, error: float, runs: int, digits: int) -> str:
    """`value` with its standard error over runs, where there are several."""
    return f"{value} ± {error:.{digits}f}" if runs > 1 else value


def facts(flat: Sequence[Row], left_out: Sequence[str]) -> list[str]:
    """What every table states: steps, seeds, tasks, data, versions, machine, dates; one sentence each."""
    sentences = []
    for label in dict.fromkeys(row["label"] for row in flat):
        mine = [row for row in flat if row["label"] == label]
        text = f"{label}: {_length(mine)}, seeds {_seeds(mine)}"
        if settings := [f"{name}={x}" for name, x in mine[0]["settings"].items() if name != "steps"]:
            text += ", settings " + ", ".join(settings)
        states = sorted({str(row["versions"].get("code")) for row in mine})
        if len(states) > 1:
            text += f"; its cells were made by {len(states)} states of the code ({', '.join(states)})"
        sentences.append(text + ".")
    for place in dict.fromkeys(row["place"] for row in flat):
        row = next(row for row in flat if row["place"] == place)
        sentences.append(f"Data of {place}: {KINDS[row['source']]}, SHA-256 {row['data']}.")
    how = {
        f"{row['episodes']} episodes per policy, {'deterministic' if row['deterministic'] else 'stochastic'}"
        for row in flat
    }
    sentences.append(f"Measured in the simulator: {'; '.join(sorted(how))} actions.")
    for text in sorted({json.dumps(row["versions"]) for row in flat}):
        words = ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
        sentences.append(f"Versions: {words}.")
    machines = ", ".join(sorted({row["machine"] for row in flat}))
    dates = _range(row["date"] for row in flat)
    hours = sum({(row["run"], row["seconds"]): row["seconds"] for row in flat}.values()) / 3600
    sentences.append(f"Machine: {machines}; {dates}; {hours:.1f} hours of single-threaded processes.")
    return [*sentences, *left_out]


def _length(rows: Sequence[Row]) -> str:
    """Iterations of runs, or the time that they had and what they reached in it, by place."""
    if "budget_seconds" not in rows[0]:
        return f"{int(rows[0]['settings']['steps']):,} steps"
    reached = []
    for place in dict.fromkeys(row["place"] for row in rows):
        here = [row for row in rows if row["place"] == place]
        steps = sorted({int(row["fitted"]["steps"]) for row in here})
        seconds = [row["processor_seconds"] for row in here]
        reached.append(
            f"{place} {' or '.join(f'{n:,}' for n in steps)} steps in {min(seconds):.0f} to "
            f"{max(seconds):.0f} s"
        )
    return f"{rows[0]['budget_seconds'] / 60:g} minutes of one core ({'; '.join(reached)})"


def _range(values: Iterable[str]) -> str:
    """`first to last`, or the one value."""
    ordered = sorted(set(values))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _seeds(rows: Sequence[Row]) -> str:
    seeds = sorted({row["seed"] for row in rows})
    together = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if together else ", ".join(map(str, seeds))
