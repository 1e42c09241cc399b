"""PDCA on bare logs of small worlds whose truth is known (`slater.experiments.small_worlds`).

A cell is a world, a number of episodes and a seed, of log and run: what the run says of its mixture, what is
true, what bc-safe does, the log's best mixture of behaviours, what the choice is worth without the game, and
the processor time of one core, all in. A run is *wrong* if it says "within" and is more than 5% over a limit.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset
from slater.disk import append_json_line, known_line
from slater.errors import InputError
from slater.experiments.small_worlds import WORLDS, World
from slater.experiments.task_family import task_of
from slater.policy import parts_of
from slater.report.curves import markdown_table

F64 = NDArray[np.float64]
Rng = np.random.Generator
#: by how much a limit may be exceeded before a run that said "within" was wrong
WRONG = 1.05


def played(
    world: World, act: Callable[[NDArray[np.float32], Rng], NDArray[Any]], n: int, rng: Rng
) -> list[NDArray[Any]]:
    """Observations, actions, rewards, costs, next ones of n episodes of `act(obs, rng)`, (n, T, ...)."""
    s, found = world.start(n, rng), []
    for _ in range(world.horizon):
        o = world.observe(s).astype(np.float32)
        a = act(o, rng)
        reward, costs = world.step(s, a, rng)
        found.append((o, a, reward, costs, world.observe(s).astype(np.float32)))
    return [np.stack(column, 1) for column in zip(*found, strict=True)]


def recorded(world: World, episodes: int, seed: int) -> Dataset:
    """A bare log."""
    rng = np.random.default_rng(seed)
    operators = world.operators(episodes, rng)
    log = played(world, lambda o, g: world.behave(o, operators, g), episodes, rng)
    o, a, r, c, o_next = (x.reshape(episodes * world.horizon, *x.shape[2:]) for x in log)
    timeouts = np.zeros((episodes, world.horizon), bool)
    timeouts[:, -1] = True
    return Dataset.from_arrays(
        observations=o, next_observations=o_next, rewards=r.astype(np.float32), costs=c.astype(np.float32),
        actions=a.astype(np.int64 if world.actions else np.float32), terminals=np.zeros(len(o), bool),
        timeouts=timeouts.ravel(),
    )  # fmt: skip


def true_value(world: World, policy: Any, episodes: int = 3000, seed: int = 1234) -> F64:
    """Mean return and costs per episode of a policy or mixture, (1+I,), by its members."""
    total = np.zeros(1 + len(world.limits))
    for weight, member in parts_of(policy):
        rng = np.random.default_rng(seed)
        batch = member.begin(rng=rng).batch  # its draws are its own
        _, _, r, c, _ = played(world, lambda o, _: np.asarray(batch(o)), episodes, rng)  # noqa: B023
        total += weight * np.append(r.sum(axis=1).mean(), c.sum(axis=1).mean(axis=0))
    return total


def world_of(name: str) -> World:
    """A world by its name; `task-17` is task 17 of the family (`slater.experiments.task_family`)."""
    kind, _, number = name.partition("-")
    if kind == "task" and number.isdecimal():
        return task_of(int(number))
    if name not in WORLDS:
        raise InputError(
            f"there is no world {name!r}; there are {', '.join(WORLDS)}, and task-0, task-1, ..."
        )
    return WORLDS[name]()


def measure(
    name: str, episodes: int, seed: int, out: Path, settings: dict[str, Any] | None = None,
    clone_steps: int = 5_000,
) -> dict[str, Any]:  # fmt: skip
    """A cell, as JSON, which is added to `out`/cells.jsonl; one that is there already is read.

    settings: of PDCA; clone_steps: iterations of bc-safe
    """
    from slater import deep
    from slater.certify.estimates import asked
    from slater.deep.log_model.log_model import cache_folder
    from slater.runs.result import from_log

    cell = {"world": name, "episodes": episodes, "seed": seed, "settings": settings or {}}
    cell = json.loads(json.dumps(cell))  # as it is read again: tuples are lists there
    done = out / "cells.jsonl"
    if (known := known_line(done, lambda row: row["cell"] == cell)) is not None:
        return known
    world = world_of(name)
    dataset, limits = recorded(world, episodes, seed), [str(limit) for limit in world.limits]
    folder = out / "runs" / f"{name}-{episodes}-{seed}"
    began = time.process_time()
    result = deep.train("pdca", dataset, limits, out=_fresh(folder), seed=seed, **(settings or {}))
    seconds = time.process_time() - began
    assert result.per_episode is not None
    true = true_value(world, result.policy)
    game = sum(member.weight for member in result.members if not from_log(member.kind))
    wrong = bool(result.status == "within" and np.any(true[1:] > WRONG * np.array(world.limits)))
    answer: dict[str, Any] = {
        "cell": cell, "limits": list(world.limits), "status": str(result.status),
        "said": list(result.per_episode.values()), "true": true.tolist(), "seconds": seconds, "game": game,
        "reference": result.details.get("reference"), "posterior": result.details.get("posterior"),
        "wrong": wrong, "members": _members(world, result),
    }  # fmt: skip
    try:
        safe = deep.train("bc-safe", dataset, limits, out=_fresh(folder.with_name(folder.name + "-bc")),
                          seed=seed, options={"estimate": False}, steps=clone_steps)  # fmt: skip
        answer["bc_safe"] = true_value(world, safe.policy).tolist()
        if not settings:  # what the same log says of it
            options: dict[str, Any] = {"cache": cache_folder(), "kinds": ["clone"]}
            said = asked(dataset, [safe.policy], list(world.limits), 0.99, **options)
            answer["bc_safe_said"] = [said.mean[0].tolist(), said.deviation[0].tolist()]
    except InputError:  # no episode of the log keeps the limits
        answer["bc_safe"] = None
    append_json_line(done, answer)
    return answer


def _fresh(folder: Path) -> Path:
    """The folder, without what a stopped cell left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _members(world: World, result: Any) -> list[list[Any]]:
    """Of every kept policy: what it is, its weight; means and deviations of what is said of it; the truth."""
    assert result.folder is not None
    from slater.runs import open_run

    saved, rows = open_run(result.folder), []
    names = ("reward", *(limit.cost for limit in result.limits))
    for member in result.members:
        sums = (saved.task.per_episode(given) for given in (member.estimates, member.spread))
        said, wide = ([own[name] for name in names] for own in sums)
        true = true_value(world, saved.kept_policy(member), 1000).tolist()
        rows.append([member.kind, member.weight, said, wide, true])
    return rows


def coverage(cells: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Share of policies whose truth is in the 80% and in the 95% interval: of returns and of costs."""
    found: dict[str, list[float]] = {"return": [], "cost": []}
    for row in cells:
        for _, _, mean, deviation, true in row["members"]:
            z = (np.array(true) - mean) / np.maximum(deviation, 1e-12)
            found["return"].append(z[0])
            found["cost"] += z[1:].tolist()
    return {
        name: (float(np.mean(np.abs(z) < 1.282)), float(np.mean(np.abs(z) < 1.96)))
        for name, z in found.items() if z
    }  # fmt: skip


def summary(cells: Sequence[dict[str, Any]]) -> str:
    """Tables in Markdown: one line per cell, then by world, then coverage."""

    def sums(values: Sequence[float] | None) -> str:
        if values is None:
            return "none"
        return f"{values[0]:.4g} at " + ", ".join(f"{x:.3g}" for x in values[1:])

    each: list[tuple[object, ...]] = []
    worlds: dict[str, list[dict[str, Any]]] = {}
    for row in cells:
        name, episodes, seed = (row["cell"][what] for what in ("world", "episodes", "seed"))
        best = row["reference"]
        known = None if best is None else [x for n, x in best.items() if n not in ("within_limits", "length")]
        word = row["status"] + (" (**wrong**)" if row["wrong"] else "")
        limits = ", ".join(f"{x:g}" for x in row["limits"])
        told = map(sums, (row["said"], row["true"], row["bc_safe"], known))
        each.append((name, episodes, seed, limits, word, *told, f"{row['seconds']:.0f}"))
        worlds.setdefault(name, []).append(row)
    together: list[tuple[object, ...]] = []
    for name, own in worlds.items():
        words, wrong = [row["status"] for row in own], sum(row["wrong"] for row in own)
        kept = words.count("within") - wrong
        together.append((name, len(own), kept, wrong, words.count("not known"), words.count("above")))
    header = ("world", "episodes", "seed", "limits", "said", "estimate", "true", "bc-safe", "the log's best",
              "seconds")  # fmt: skip
    lines = [
        f"Of all kept policies, the {name} is in its 80% interval in {eighty:.0%}, in its 95% interval in "
        f"{most:.0%}."
        for name, (eighty, most) in coverage(cells).items()
    ]
    counts = ("world", "runs", "within and kept", "wrong", "not known", "above")
    tables = [markdown_table(header, each), markdown_table(counts, together), "\n".join(lines)]
    return "\n\n".join(tables) + "\n"
