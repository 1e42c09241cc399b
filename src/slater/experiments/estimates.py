"""What is estimated from a log against what happens in the simulator, for the log's own policies.

A cell is one dataset and one seed: the log is studied (`slater.deep.ope.study`), and every policy that the
study gives (clones of cohorts, in-sample policies), or that finished runs on the same data kept, is rolled
out. One set of rollouts serves every limit, since a mixture is worth the weighted sum of its members:

    reference   the best mixture of the log's cohorts within the limit, by their logged means
    chosen      the mixture that the choice on bounds makes of the same policies, and what it is worth
    errors      of the estimates over all policies and over the chosen ones (the winner's curse)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.disk import append_json_line, read_json_lines
from slater.errors import InputError

__all__ = ["measure", "summary"]

F64 = NDArray[np.float64]
#: what the mean of a few rollouts may be off, as a share of max(limit, cost)
ROLLOUT_LUCK = 0.05


def measure(
    data: Path, env: str | None, limits: Sequence[str], seed: int, episodes: int, out: Path,
    runs: Sequence[Path] = (),
) -> dict[str, Any]:  # fmt: skip
    """A cell, as JSON, which is added to `out`/cells.jsonl.

    What was estimated and measured of each policy is kept in `out`/policies.jsonl and not done again.
    limits: on the only cost of the data. seed: of every network of the study; rollouts have seeds of their
    own. episodes: per policy. runs: finished runs on the same data whose kept policies are judged too.
    """
    import jax

    from slater.data import load
    from slater.deep.ope.choice import choose, verdict
    from slater.deep.ope.closed_loop import Judged, in_data_units
    from slater.deep.ope.study import StudySettings, cache_folder, study
    from slater.deep.task import state_task
    from slater.envs import rollout
    from slater.limits import resolve_limits

    dataset = load(data)
    if len(dataset.cost_names) != 1:
        raise InputError(f"{data} has {len(dataset.cost_names)} costs; this experiment takes data with one.")
    env = env or dataset.metadata.env_id
    if env is None:
        raise InputError(f"{data} does not name its environment; name it.")
    settings = StudySettings()
    settings = replace(
        settings, ensemble=replace(settings.ensemble, seed=seed), clones=replace(settings.clones, seed=seed),
        in_sample=replace(settings.in_sample, seed=seed),
    )  # fmt: skip
    task = state_task(dataset, resolve_limits([limits[0]], dataset.cost_names), 0.99)
    found = study(dataset, task, settings, cache_folder())
    names = [f"clone of {name}" for name in found.cohorts.names]
    names += [f"in-sample, multiplier {x:g}" for x in settings.in_sample.multipliers]
    more = [policy for folder in runs for policy in _kept(folder, dataset)]
    names += [f"run {k}" for k in range(len(more))]
    cell = {
        "data": data.name, "fingerprint": dataset.fingerprint[:12], "seed": seed, "episodes": episodes,
        "runs": [path.name for path in runs], "study": found.name,
    }  # fmt: skip
    members = _members(out / "policies.jsonl", cell)
    if members is None:
        policies = [*(found.policy(k) for k in range(found.count)), *more]
        said = found.estimates(policies, jax.random.key(seed))
        members = []
        for number, (name, policy) in enumerate(zip(names, policies, strict=True)):
            ran = rollout(policy.export(task), env, episodes=episodes, seed=1000 * (seed + 1) + 17 * number)
            members.append(
                {
                    "policy": name,
                    "estimated": in_data_units(task, said.mean[number]),
                    "measured": [float(x) for x in (ran.returns.mean(), ran.cost.mean(), ran.lengths.mean())],
                    "said": [part[number].tolist() for part in (said.mean, said.spread, said.error)],
                }
            )
        append_json_line(out / "policies.jsonl", {"cell": cell, "policies": members})
    true = np.array([member["measured"] for member in members])
    said = Judged(*(np.array([member["said"][part] for member in members]) for part in range(3)))
    replayed, rows = found.replays(dataset), []
    for limit in limits:
        task = state_task(dataset, resolve_limits([limit], dataset.cost_names), 0.99)
        own = replace(found, task=task)
        judged = verdict(task, own, said.first(found.count), replayed)
        choice = choose(task, judged, said.after(found.count))
        mean = np.array([in_data_units(task, row) for row in choice.estimates.mean])
        bounds = np.array([in_data_units(task, np.append(row, 0.0)) for row in choice.bounds])
        per_episode = float(task.units.thresholds(task.limits, "episode")[0])
        about = judged.describe(task)
        rows.append(_row(limit, per_episode, mean, bounds, true, choice.weights) | about)
        rows[-1]["of_reference"] = rows[-1]["measured"][0] / about["reference"]["reward"]
    answer = {"cell": cell, "limits": rows, "policies": members}
    append_json_line(out / "cells.jsonl", answer)
    return answer


def _members(path: Path, cell: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What was said and measured of a cell's policies, if it was already."""
    rows = read_json_lines(path) if path.exists() else []
    found = [row["policies"] for row in rows if row["cell"] == cell]
    return list(found[-1]) if found else None


def _kept(folder: Path, dataset: Any) -> list[Any]:
    """The networks of the policies that the game of a run kept."""
    from slater.deep.engine.folder import member_networks

    return member_networks(folder, dataset)


def _row(limit: str, per_episode: float, said: F64, bounds: F64, true: F64, weights: F64) -> dict[str, Any]:
    """Errors of the cost's estimates, over policies that a mixture could use in earnest and over the chosen.

    An error is counted as it would enter a mixture: relative to max(limit, measured cost), times the limit.
    `covered`: policies whose measured cost is at most its bound, give or take `ROLLOUT_LUCK` of the limit.
    """
    error = said[:, 1] - true[:, 1]
    counted = error * per_episode / np.maximum(per_episode, true[:, 1])
    used = weights > 0
    over = (true[:, 1] - bounds[:, 1]) / np.maximum(per_episode, true[:, 1])
    return {
        "covered": int((over <= ROLLOUT_LUCK).sum()), "policies": len(over),
        "limit": limit, "limit_per_episode": per_episode,
        "estimated": (weights[used] @ said[used]).tolist(), "measured": (weights @ true).tolist(),
        "rms_error": float(np.sqrt(np.mean(counted**2))), "bias": float(counted.mean()),
        "chosen_rms_error": float(np.sqrt(weights @ counted**2)), "chosen_bias": float(weights @ error),
        "weights": {str(k): float(weights[k]) for k in np.flatnonzero(used)},
    }  # fmt: skip


def summary(cells: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown: one line per dataset, seed and limit."""
    lines = [
        "| data | seed | limit | judged by | reference | estimated | measured | of the reference "
        "| error of all (bias) | of the chosen (bias) | costs covered |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        for row in cell["limits"]:
            reference = row["reference"]
            cost = next(
                x for name, x in reference.items() if name not in ("within_limits", "reward", "length")
            )
            lines.append(
                f"| {cell['cell']['data']} | {cell['cell']['seed']} | {row['limit']} "
                f"| {row['judged_by'] or 'none'} | {reference['reward']:.0f} / {cost:.1f} "
                f"| {row['estimated'][0]:.0f} / {row['estimated'][1]:.1f} "
                f"| {row['measured'][0]:.0f} / {row['measured'][1]:.1f} "
                f"| {row['of_reference']:.2f} | {row['rms_error']:.1f} ({row['bias']:+.1f}) "
                f"| {row['chosen_rms_error']:.1f} ({row['chosen_bias']:+.1f}) "
                f"| {row['covered']} of {row['policies']} |"
            )
    return "\n".join(lines) + "\n"
