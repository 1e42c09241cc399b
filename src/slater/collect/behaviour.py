"""Behaviours as files: the policies that a task's datasets are recorded from, in one safetensors file.

    metadata["slater"]                        JSON: format, environment, sources, recipe, learning curve
    NAME/layers.0.weight, NAME/layers.0.bias  float16, a policy's network, for each source NAME
    low, high                                 float32, bounds of the actions; none where they are numbers

A policy *is* its weights in float16: nothing is rounded when it is read, and densities are those of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from slater.disk import read_json_lines, write_atomic
from slater.envs import make
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy

FORMAT = 1
#: range of the logarithm of a policy's standard deviation, before the tanh
LOG_STD_RANGE = (-5.0, 1.0)


@dataclass(frozen=True)
class Trained:
    """One policy of a behaviour.

    steps, penalty: of its training when it was kept (a penalty for each cost, if several were given);
    training_return, training_cost: means per episode over the training episodes around it
    """

    name: str
    steps: int
    penalty: float | tuple[float, ...]
    training_return: float
    training_cost: float
    policy: GaussianPolicy | CategoricalPolicy = field(repr=False)


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


def policy_of(
    arrays: Mapping[str, NDArray[Any]], low: NDArray[Any] | None, high: NDArray[Any] | None
) -> GaussianPolicy | CategoricalPolicy:
    """The policy with weights `w0`, `w1` ... and biases `b0` ...; without bounds its actions are numbers."""
    layers = sum(name.startswith("w") for name in arrays)
    weights, biases = (tuple(arrays[f"{k}{n}"].astype(np.float32) for n in range(layers)) for k in "wb")
    scales = np.zeros(len(weights[0]), np.float32), np.ones(len(weights[0]), np.float32)
    if low is None or high is None:
        return CategoricalPolicy(weights, biases, *scales)
    return GaussianPolicy(weights, biases, *scales, low, high, LOG_STD_RANGE)


def save_behaviour(behaviour: Behaviour, path: str | Path) -> None:
    """Write `behaviour` to one file."""
    first = behaviour.sources[0].policy
    tensors = {"low": first.low, "high": first.high} if isinstance(first, GaussianPolicy) else {}
    for source in behaviour.sources:
        for index, (weight, bias) in enumerate(zip(source.policy.weights, source.policy.biases, strict=True)):
            tensors[f"{source.name}/layers.{index}.weight"] = np.ascontiguousarray(weight, np.float16)
            tensors[f"{source.name}/layers.{index}.bias"] = np.ascontiguousarray(bias, np.float16)
    record = {
        "format": FORMAT,
        "env_id": behaviour.env_id,
        "limits": list(behaviour.limits),
        "log_std_range": list(LOG_STD_RANGE),
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
        if record["format"] != FORMAT or tuple(record["log_std_range"]) != LOG_STD_RANGE:
            raise InputError(f"{path} has format {record['format']}; this version of Slater reads {FORMAT}.")
        sources = []
        for entry in record["sources"]:
            prefix = f"{entry['name']}/layers."
            layers = range(sum(name.startswith(prefix) for name in tensors) // 2)
            arrays = {f"w{k}": tensors[f"{prefix}{k}.weight"] for k in layers}
            arrays |= {f"b{k}": tensors[f"{prefix}{k}.bias"] for k in layers}
            policy = policy_of(arrays, tensors.get("low"), tensors.get("high"))
            sources.append(Trained(**{**entry, "penalty": _penalty(entry["penalty"])}, policy=policy))
        limits, curve = (tuple(record[name]) for name in ("limits", "curve"))
        return Behaviour(record["env_id"], limits, tuple(sources), record["recipe"], curve)
    except FileNotFoundError:
        raise InputError(f"there is no behaviour file {path}.") from None
    except (SafetensorError, KeyError, ValueError, IndexError, TypeError, OSError) as error:
        raise InputError(f"{path} is not a behaviour file: {' '.join(str(error).split())}.") from None


def _penalty(value: float | list[float]) -> float | tuple[float, ...]:
    """From JSON, one number or one per cost."""
    return tuple(value) if isinstance(value, list) else value


def kept_policies(folder: Path) -> Behaviour:
    """All policies that a finished training in `folder` kept, named by their steps.

    Returns and costs are those of the training episodes in the two segments around each.
    """
    try:
        recipe = json.loads((folder / "recipe.json").read_text())
    except OSError:
        raise InputError(f"{folder} has no trained policies.") from None
    # a segment that was run again after a stop is there twice
    curve = list({line["number"]: line for line in read_json_lines(folder / "curve.jsonl")}.values())
    paths = sorted((folder / "policies").glob("*.npz"))
    if not paths or not curve or curve[-1]["steps"] < recipe["steps"]:
        raise InputError(f"the training in {folder} is not finished; train it to its end first.")
    env = make(recipe["env_id"])
    space: Any = env.action_space
    discrete = hasattr(space, "n")
    low, high = (None, None) if discrete else (space.low.astype(np.float32), space.high.astype(np.float32))
    env.close()
    segment = recipe["horizon"] * recipe["rounds"] * recipe["environments"]
    penalties = {line["steps"]: line["penalty"] for line in curve}
    sources = []
    for path in paths:
        steps = int(path.stem)
        # the segment after a policy was kept is run by it, a little changed; so is the one before
        near = [line for line in curve if abs(line["steps"] - steps) <= segment and line["episodes"]]
        weights = [line["episodes"] for line in near]
        means = [
            float(np.average([line[k] for line in near], weights=weights)) if near else float("nan")
            for k in ("mean_return", "mean_cost")
        ]
        with np.load(path) as arrays:
            halves = {name: arrays[name].astype(np.float16) for name in arrays.files}
        policy = policy_of(halves, low, high)
        penalty = _penalty(penalties[steps])
        sources.append(Trained(f"{steps:,} steps", steps, penalty, means[0], means[1], policy))
    return Behaviour(recipe["env_id"], (), tuple(sources), recipe, tuple(curve))


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


def behaviour_of_training(folder: Path, limits: Sequence[float]) -> Behaviour:
    """The behaviour of a finished training: see `kept_policies`, and `chosen_policies` for which of them."""
    kept = kept_policies(folder)
    candidates = [(one.steps, one.training_return, one.training_cost) for one in kept.sources]
    sources = tuple(
        replace(kept.sources[number], name=role) for role, number in chosen_policies(candidates, limits)
    )
    return replace(kept, limits=tuple(limits), sources=sources)
