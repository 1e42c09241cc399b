"""Runs as columns: the policies that they kept, with the estimates that they made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.frontier import Column, Frontier, Point, Pool, mix
from slater.certify.held_out import read_held_out, training_part
from slater.data import Dataset
from slater.disk import write_atomic
from slater.errors import InputError
from slater.limits import Limit, resolve_limits
from slater.policy import Mixture, save
from slater.runs import SavedRun, open_run

__all__ = ["best_of_runs", "episode_limits", "mix_runs", "pool_of_run", "with_log"]


def pool_of_run(saved: SavedRun, label: str = "") -> Pool:
    """The members of a finished run that have estimates, as sums per episode; `label` goes before names."""
    task, units = saved.task, saved.task.units
    columns = []
    for member in saved.result.members:
        if member.estimates is None:
            continue
        sums = {
            name: units.rescale(float(value), "discounted", "episode")
            for name, value in member.estimates.items()
        }
        costs = tuple(sums[name] for name in task.costs)
        name = "fallback" if member.kind == "fallback" else f"step {member.step}"
        reward = next(value for key, value in sums.items() if key not in task.costs)
        columns.append(Column(f"{label}{name}", reward, costs))
    if not columns:
        raise InputError(
            f"{saved.folder} kept no policy with an estimate ({saved.run.algorithm} makes none), so there is "
            "nothing to mix by."
        )
    return Pool(tuple(task.costs), tuple(columns))


def episode_limits(saved: SavedRun, limits: Sequence[Limit | str | float] = ()) -> list[float]:
    """Limits per episode in the order of the run's costs; its own where none are given."""
    chosen = resolve_limits(list(limits) or list(saved.run.limits), saved.task.costs)
    return [float(saved.task.units.episode(limit)) for limit in chosen]


def with_log(frontier: Frontier, data: Dataset, marked: Sequence[float] | None) -> Frontier:
    """The frontier with the episodes of the log, the means of its sources, and the limits of the run."""
    table = data.episodes
    whole = np.flatnonzero(table.complete)
    order = [data.cost_names.index(name) for name in frontier.cost_names]
    rows = np.concatenate([table.returns[:, None], table.costs[:, order]], axis=1)
    cohorts: dict[str, tuple[float, ...]] = {}
    if data.source is not None:
        for name in dict.fromkeys(str(x) for x in data.source[whole]):
            part = rows[whole][data.source[whole] == name]
            cohorts[name] = tuple(part.mean(axis=0).tolist())
    return replace(
        frontier, episodes=tuple(tuple(row) for row in rows[whole].tolist()), cohorts=cohorts,
        marked=None if marked is None else tuple(marked),
    )  # fmt: skip


def mix_runs(
    folders: Sequence[str | Path],
    limits: Sequence[Limit | str | float],
    out: str | Path,
    *,
    data: str | Path | None = None,
    margin: float = 0.1,
) -> Point:
    """Pool the policies of several runs, choose the best mixture within `limits`, and write it to `out`.

    Writes `mixture.safetensors` and `mix.json` (limits, estimates, prices, and the share of every policy).
    data: the data of the runs, if they are no longer where they were. margin: share of every limit held back,
    because a program that picks among many estimates picks those that err in its favour.
    """
    mixture, point = best_of_runs([open_run(folder) for folder in folders], limits, data=data, margin=margin)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    save(mixture, folder / "mixture.safetensors")
    record = {"runs": [str(f) for f in folders], "margin": margin, "unit": "per episode", **asdict(point)}
    if not point.within:
        record["prices"] = None
    write_atomic(folder / "mix.json", (json.dumps(record, indent=1) + "\n").encode())
    return point


def best_of_runs(
    runs: Sequence[SavedRun],
    limits: Sequence[Limit | str | float],
    *,
    data: str | Path | None = None,
    margin: float = 0.1,
) -> tuple[Mixture, Point]:
    """The best mixture of what the runs kept within `limits`, ready to act, and what is estimated of it."""
    from slater.data import load as load_data
    from slater.deep.engine.folder import member_policies

    places = [saved.folder.resolve() for saved in runs]
    for saved, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"the run {saved.folder} is given twice; give each run once.")
    labels = [f"{saved.folder}: " if len(runs) > 1 else "" for saved in runs]
    pools = [pool_of_run(saved, label) for saved, label in zip(runs, labels, strict=True)]
    point = mix(Pool.union(pools), episode_limits(runs[0], limits), margin=margin)
    members: list[Any] = []
    weights: list[float] = []
    for saved, pool in zip(runs, pools, strict=True):
        if not any(column.name in point.weights for column in pool.columns):
            continue
        source = data or saved.run.data
        if not Path(source).exists():
            raise InputError(f"the data of {saved.folder} ({source}) are not there; say where they are.")
        log = training_part(load_data(source), read_held_out(saved.folder))
        policies = member_policies(saved.folder, log)
        estimated = [k for k, member in enumerate(saved.result.members) if member.estimates is not None]
        for column, index in zip(pool.columns, estimated, strict=True):
            if column.name in point.weights:
                members.append(policies[index])
                weights.append(point.weights[column.name])
    shares = np.array(weights)
    return Mixture(tuple(members), shares / shares.sum()), point
