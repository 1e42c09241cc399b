"""Behaviours as files: the policies that a task's datasets are recorded from, in one safetensors file.

    metadata["slater"]                        JSON: format, environment, sources, recipe, learning curve
    NAME/layers.0.weight, NAME/layers.0.bias  float16, a policy's network, for each source NAME
    low, high                                 float32, bounds of the actions

A policy *is* its weights in float16: nothing is rounded when it is read, and densities are those of the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from slater.disk import write_atomic
from slater.errors import InputError
from slater.policy import GaussianPolicy

__all__ = [
    "Behaviour",
    "Trained",
    "behaviour_of_training",
    "chosen_policies",
    "load_behaviour",
    "read_training",
    "save_behaviour",
]

FORMAT = 1


@dataclass(frozen=True)
class Trained:
    """One policy of a behaviour.

    steps, penalty: of its training when it was kept; training_return, training_cost: means per episode over
    the training episodes just before
    """

    name: str
    steps: int
    penalty: float
    training_return: float
    training_cost: float
    policy: GaussianPolicy = field(repr=False)


@dataclass(frozen=True)
class Behaviour:
    """The policies of a task, with how they were trained.

    limits: cost per episode at which the task's data are read; recipe: the settings of the training as JSON;
    curve: one mapping per segment of the training (see `slater.collect.training.Segment`)
    """

    env_id: str
    limits: tuple[float, ...]
    sources: tuple[Trained, ...]
    recipe: dict[str, Any] = field(default_factory=dict, repr=False)
    curve: tuple[dict[str, Any], ...] = field(default=(), repr=False)


def save_behaviour(behaviour: Behaviour, path: str | Path) -> None:
    """Write `behaviour` to one file."""
    first = behaviour.sources[0].policy
    tensors = {"low": first.low, "high": first.high}
    for source in behaviour.sources:
        for index, (weight, bias) in enumerate(zip(source.policy.weights, source.policy.biases, strict=True)):
            tensors[f"{source.name}/layers.{index}.weight"] = np.ascontiguousarray(weight, np.float16)
            tensors[f"{source.name}/layers.{index}.bias"] = np.ascontiguousarray(bias, np.float16)
    record = {
        "format": FORMAT,
        "env_id": behaviour.env_id,
        "limits": list(behaviour.limits),
        "log_std_range": list(first.log_std_range),
        "sources": [
            {
                "name": source.name, "steps": source.steps, "penalty": source.penalty,
                "training_return": source.training_return, "training_cost": source.training_cost,
            }
            for source in behaviour.sources
        ],
        "recipe": behaviour.recipe,
        "curve": list(behaviour.curve),
    }  # fmt: skip
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, save(tensors, {"slater": json.dumps(record)}))


def load_behaviour(path: str | Path) -> Behaviour:
    """What `save_behaviour` wrote."""
    try:
        with safe_open(str(path), "np") as file:
            record = json.loads((file.metadata() or {})["slater"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no iterator
        if record["format"] != FORMAT:
            raise InputError(f"{path} has format {record['format']}; this version of Slater reads {FORMAT}.")
        sources = []
        for entry in record["sources"]:
            prefix = f"{entry['name']}/layers."
            layers = sum(name.startswith(prefix) for name in tensors) // 2
            weights = tuple(tensors[f"{prefix}{k}.weight"].astype(np.float32) for k in range(layers))
            biases = tuple(tensors[f"{prefix}{k}.bias"].astype(np.float32) for k in range(layers))
            width = len(weights[0])
            low_log, high_log = record["log_std_range"]
            policy = GaussianPolicy(
                weights, biases, np.zeros(width, np.float32), np.ones(width, np.float32), tensors["low"],
                tensors["high"], (float(low_log), float(high_log)),
            )  # fmt: skip
            sources.append(Trained(policy=policy, **entry))
        return Behaviour(
            record["env_id"],
            tuple(record["limits"]),
            tuple(sources),
            record["recipe"],
            tuple(record["curve"]),
        )
    except FileNotFoundError:
        raise InputError(f"there is no behaviour file {path}.") from None
    except (SafetensorError, KeyError, ValueError, IndexError, TypeError, OSError) as error:
        raise InputError(f"{path} is not a behaviour file: {' '.join(str(error).split())}.") from None


def read_training(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, Path]]:
    """Recipe, curve (one entry per segment) and kept policies (by steps) of a training folder."""
    try:
        recipe = json.loads((folder / "recipe.json").read_text())
        lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    except OSError:
        raise InputError(f"{folder} has no trained behaviours.") from None
    # a segment that was run again after a stop is there twice
    curve = list({line["number"]: line for line in lines}.values())
    return recipe, curve, {int(path.stem): path for path in sorted((folder / "policies").glob("*.npz"))}


def chosen_policies(
    candidates: Sequence[tuple[int, float, float]], limits: Sequence[float]
) -> list[tuple[str, int]]:
    """The policies that enter a file, from (steps, return, cost) of all that were kept: (role, number).

    The first policy; those whose returns are nearest to one and two thirds of the way from it to the best
    one, on the way up; the best one; for each limit the best that keeps it and, among those from the best
    one on, the one whose cost is nearest to it; and the cheapest with a return above the first's. A policy
    that has several roles stands once, under its first.
    """
    returns, costs = (np.array([row[k] for row in candidates]) for k in (1, 2))
    roles = [("first", 0)]
    best = int(np.argmax(returns))
    for name, share in (("third", 1 / 3), ("two-thirds", 2 / 3)):
        level = returns[0] + share * (returns[best] - returns[0])
        roles.append((name, int(np.argmin(np.abs(returns[: best + 1] - level)))))
    roles.append(("best", best))
    for limit in sorted(limits, reverse=True):
        within = np.flatnonzero(costs <= limit)
        # an idle policy keeps every limit; the best within it need not be better than the first
        if len(within):
            roles.append((f"within-{limit:g}", int(within[np.argmax(returns[within])])))
        near = best + int(np.argmin(np.abs(costs[best:] - limit)))
        roles.append((f"near-{limit:g}", near))
    order = np.lexsort((-returns, costs))
    roles.append(("cheapest", int(next((k for k in order if returns[k] > returns[0]), order[0]))))
    first_role: dict[int, str] = {}
    for role, number in roles:
        first_role.setdefault(number, role)
    return [(role, number) for number, role in first_role.items()]


def behaviour_of_training(
    folder: Path, limits: Sequence[float], low: np.ndarray, high: np.ndarray, *, so_far: bool = False
) -> Behaviour:
    """The behaviour of a finished training; returns and costs are those of the training episodes.

    A kept policy is judged by the episodes of the two segments around it. so_far: take what an unfinished
    training has; the file's curve says how far it came.
    """
    recipe, curve, kept = read_training(folder)
    if not kept or not curve or (curve[-1]["steps"] < recipe["steps"] and not so_far):
        raise InputError(f"the training in {folder} is not finished; train it to its end first.")
    candidates = []
    for steps in kept:
        near = [line for line in curve if abs(line["steps"] - steps) <= _segment(recipe) and line["episodes"]]
        # the segment after a policy was kept is run by it, a little changed; so is the one before
        weights = np.array([line["episodes"] for line in near], dtype=np.float64)
        means = [
            np.average([line[k] for line in near], weights=weights) for k in ("mean_return", "mean_cost")
        ]
        candidates.append((steps, float(means[0]), float(means[1])))
    penalties = {line["steps"]: line["penalty"] for line in curve}
    sources = []
    for role, number in chosen_policies(candidates, limits):
        steps, mean_return, mean_cost = candidates[number]
        with np.load(kept[steps]) as arrays:
            layers = len(arrays.files) // 2
            weights16 = tuple(arrays[f"w{k}"].astype(np.float16).astype(np.float32) for k in range(layers))
            biases16 = tuple(arrays[f"b{k}"].astype(np.float16).astype(np.float32) for k in range(layers))
        width = len(weights16[0])
        policy = GaussianPolicy(
            weights16,
            biases16,
            np.zeros(width, np.float32),
            np.ones(width, np.float32),
            low,
            high,
            (-5.0, 1.0),
        )
        sources.append(Trained(role, steps, penalties[steps], mean_return, mean_cost, policy))
    return Behaviour(recipe["env_id"], tuple(limits), tuple(sources), recipe, tuple(curve))


def _segment(recipe: dict[str, Any]) -> int:
    return int(recipe["horizon"] * recipe["rounds"] * recipe["environments"])
