"""The end of a run: weights over its members, the policies on disk, and what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.engine.folder import Run, RunFolder
from slater.deep.task import Task
from slater.disk import write_atomic
from slater.limits import Quantity
from slater.policy import Mixture
from slater.policy import save as save_policy

__all__ = ["finish"]


def finish(
    run: Run, algorithm: Algorithm[Any, Any], task: Task, data: Any, state: Any, folder: RunFolder,
    key: Array, tick: Callable[[str, int, int], None], dataset: Dataset | StoredDataset,
) -> dict[str, Any]:  # fmt: skip
    """Choose the mixture, write policies and `result.json`, and return the result."""
    last, steps = algorithm.policy(state), algorithm.config.steps
    if not folder.members:  # a run shorter than the interval: its last policy is all there is
        folder.keep(last, Member(steps, algorithm.estimates(task, state)))
        folder.save(state, steps)
    policies = folder.policies(last)
    examined, warnings = algorithm.examine(task, state, dataset)
    weights, members = algorithm.choose(task, state, data, folder.members, policies, key, tick, examined)
    chosen = [k for k in range(len(members)) if weights[k] > 0]
    mixture = Mixture(tuple(policies[k].export(task) for k in chosen), weights[chosen])
    save_policy(mixture, folder.path / "mixture.safetensors")
    save_policy(last.export(task), folder.path / "policy.safetensors")
    summary = _summary(task, members, weights)
    warnings = [*warnings, *_excesses(task, summary)]
    result = {
        "algorithm": run.algorithm,
        "seed": run.seed,
        "steps": steps,
        "limits": task.describe()["limits"],
        **summary,
        **algorithm.report(task, state, members, weights),
        **examined,
        **({"warnings": warnings} if warnings else {}),
    }
    write_atomic(folder.path / "result.json", json.dumps(result, indent=1).encode())
    return result


def _summary(task: Task, members: Sequence[Member], weights: NDArray[np.float64]) -> dict[str, Any]:
    """Members with weights and estimates in raw discounted units, and those of the mixture.

    mixture_per_episode: the latter as sums over an episode, where a horizon is known.
    """
    names = ("reward", *task.cost_names)
    rows: list[dict[str, Any]] = []
    for member, weight in zip(members, weights, strict=True):
        row: dict[str, Any] = {"step": member.step, "weight": float(weight), "careful": member.careful}
        if member.estimates is not None:
            values = task.unscaled(np.array(member.estimates))
            row["estimates"] = dict(zip(names, values.tolist(), strict=True))
        rows.append(row)
    summary: dict[str, Any] = {"members": rows}
    if all(member.estimates is not None for member in members):
        values = task.unscaled(weights @ np.array([member.estimates for member in members]))
        summary["mixture_estimates"] = dict(zip(names, values.tolist(), strict=True))
        if task.units.horizon is not None:
            summary["mixture_per_episode"] = {
                name: task.units.rescale(value, "discounted", "episode")
                for name, value in summary["mixture_estimates"].items()
            }
    return summary


def _excesses(task: Task, summary: dict[str, Any]) -> list[str]:
    """A sentence for every cost whose limit the mixture does not keep by its own estimate."""
    unit: Quantity = "episode" if "mixture_per_episode" in summary else "discounted"
    found = summary.get("mixture_per_episode" if unit == "episode" else "mixture_estimates")
    if found is None:
        return []
    limits = task.units.thresholds(task.limits, unit)
    what = "per episode" if unit == "episode" else "as a discounted sum"
    return [
        f"by its own estimate the mixture does not keep the limit on {name}: {found[name]:.3g} {what}, limit "
        f"{limit:.3g}. Raise the limit, train longer, or add data that keep it."
        for name, limit in zip(task.cost_names, limits, strict=True)
        if found[name] > limit * (1 + 1e-6) + 1e-9
    ]
