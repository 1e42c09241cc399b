"""What is estimated from a log against what happens in the simulator, for runs of PDCA on it.

A cell is one log, one limit and one seed: a run is trained, and every policy that it kept is rolled out.

    reference   the best mixture within the limit of the sources that the log names, or, where it names none,
                of the behaviours found in it, by their logged means
    mixture     what the run chose, by its own estimate and by rollouts of its members
    alone       what the same choice makes of the log's own policies, without those of the game
    errors      of the estimated costs over all kept policies and over the chosen ones (the winner's curse)
    covered     whether the truth of every kept policy is in the intervals that the run gave it

A policy that the log itself gave is the same for all limits and seeds of runs, and is rolled out once.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.disk import append_json_line, known_line
from slater.errors import InputError
from slater.jobs.sweep import TrainJob
from slater.report.curves import markdown_table

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class CellPlan:
    """How cells are measured.

    episodes: rollouts of every kept policy; chosen_episodes: of those with weight in the mixture
    preset, settings: of PDCA; model_seed: of the log model, which all runs on it share
    bare: whether names of sources and propensities are taken away before
    """

    episodes: int = 10
    chosen_episodes: int = 50
    env: str | None = None
    preset: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    model_seed: int = 10
    bare: bool = False


def measure(
    data: Path, limit: str, seed: int, out: Path, plan: CellPlan, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """A cell, as JSON, which is added to `out`/cells.jsonl; one that is there already is read.

    limit: on the only cost of the data. Runs go to `out`/runs, rollouts to `out`/rollouts.jsonl: what was
    stopped goes on.
    """
    from slater.data import load
    from slater.deep.engine.finish import log_best
    from slater.runs import open_run

    named = load(data)
    dataset = replace(named, source=None, propensity=None) if plan.bare else named
    if len(dataset.cost_names) != 1:
        raise InputError(f"{data} has {len(dataset.cost_names)} costs; this experiment takes data with one.")
    env = plan.env or dataset.metadata.env_id
    if env is None:
        raise InputError(f"{data} does not name its environment; name it.")
    cell = {
        "data": data.stem, "fingerprint": dataset.fingerprint[:12], "limit": limit, "seed": seed,
        "preset": plan.preset, "settings": {name: str(value) for name, value in plan.settings},
        "model_seed": plan.model_seed, "bare": plan.bare, "episodes": plan.episodes,
        "chosen_episodes": plan.chosen_episodes,
    }  # fmt: skip
    done = out / "cells.jsonl"
    if (known := known_line(done, lambda row: row["cell"] == cell)) is not None:
        return known
    tell(f"{data.stem}, limit {limit}, seed {seed}")
    folder = out / "runs" / "-".join([data.stem, limit, str(seed), plan.preset or "default"])
    answer = {"cell": cell, "env": env} | _cell(dataset, env, limit, seed, folder, out, plan)
    answer["reference"] = log_best(named, open_run(folder).result.limits) or answer["reference"]
    append_json_line(done, answer)
    return answer


def _cell(
    dataset: Any, env: str, limit: str, seed: int, folder: Path, out: Path, plan: CellPlan
) -> dict[str, Any]:
    from slater.envs.scores import dsrl_scores
    from slater.runs import open_run
    from slater.runs.result import from_log

    settings = dict(plan.settings) | ({} if plan.preset else {"model_seed": plan.model_seed})
    began = time.process_time()
    result = TrainJob(folder, "pdca", "", (limit,), settings, plan.preset, seed).into_folder(dataset)
    seconds = time.process_time() - began
    policies = map(open_run(folder).kept_policy, result.members)
    most = result.limits[0].episode
    assert most is not None
    assert result.per_episode is not None
    assert result.estimates is not None
    scale = result.per_episode["reward"] / result.estimates["reward"]
    true, said, wide, weights = [], [], [], np.array([member.weight for member in result.members])
    # weights of the choice among the log's own policies alone, (members,); None: the run asked no log
    alone = result.details.get("without_game")
    without = None if alone is None else np.array([alone.get(m.kind, 0.0) for m in result.members])
    for number, (member, policy) in enumerate(zip(result.members, policies, strict=True)):
        who = [dataset.fingerprint[:12], plan.model_seed, member.kind] if from_log(member.kind) else None
        name = who or [folder.name, member.step]
        chosen = weights[number] > 0 or (without is not None and without[number] > 0)
        episodes = max(plan.chosen_episodes if chosen else 0, plan.episodes)
        true.append(_measured(out / "rollouts.jsonl", name, policy, env, episodes))
        assert member.estimates is not None
        assert member.spread is not None
        said.append([scale * x for x in member.estimates.values()])
        wide.append([scale * x for x in member.spread.values()])
    measured, estimates = np.array(true), np.array(said)
    mixture = weights @ measured[:, :3]
    answer: dict[str, Any] = {
        "limit_per_episode": most, "steps": result.steps, "seconds": round(seconds, 1),
        "posterior": result.details.get("posterior"),
        "estimated": [float(x) for x in result.per_episode.values()], "measured": mixture.tolist(),
        "reference": result.details.get("reference"), "status": str(result.status),
        "weights": {m.kind if from_log(m.kind) else f"step {m.step}": m.weight
                    for m in result.members if m.weight > 0},
        "errors": _errors(estimates[:, 1], measured[:, 1], weights, most),
        "members": [[m.kind, m.step, *e, *t[:3], *w, *t[3:]] for m, e, t, w in
                    zip(result.members, estimates.tolist(), measured.tolist(), wide, strict=True)],
    }  # fmt: skip
    scores = dsrl_scores(env, float(mixture[0]), float(mixture[1]), most)
    answer["normalised"] = None if scores is None else [scores.reward, scores.cost]
    if without is not None:
        answer["without_game"] = (without @ measured[:, :3]).tolist()
    return answer


def _measured(path: Path, name: list[Any], policy: Any, env: str, episodes: int) -> list[float]:
    """Means of return, cost and length over at least `episodes` rollouts, and errors of the first two."""
    from slater.envs import rollout

    if known := known_line(path, lambda row: row["policy"] == name and row["episodes"] >= episodes):
        return list(known["measured"])
    # a seed of its own for every policy, the same whenever it is asked for, in every process
    own = zlib.crc32(repr(list(name)).encode()) % 100_000
    ran = rollout(policy, env, episodes=episodes, seed=100_000 + own)
    found = [float(x) for x in (ran.returns.mean(), ran.cost.mean(), ran.lengths.mean())]
    found += [float(np.std(x) / np.sqrt(episodes)) for x in (ran.returns, ran.cost)]
    append_json_line(path, {"policy": name, "episodes": episodes, "measured": found})
    return found


def _errors(said: F64, true: F64, weights: F64, limit: float) -> dict[str, float]:
    """Errors of costs as they enter a mixture: relative to max(limit, cost), times the limit."""
    counted = (said - true) * limit / np.maximum(limit, true)
    return {
        "rms": float(np.sqrt(np.mean(counted**2))), "bias": float(counted.mean()),
        "chosen_rms": float(np.sqrt(weights @ counted**2)), "chosen_bias": float(weights @ (said - true)),
    }  # fmt: skip


def summary(cells: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown: one line per dataset, limit and seed."""

    def both(sums: Sequence[float] | None) -> str:
        return "" if sums is None else f"{sums[0]:.0f} / {sums[1]:.1f}"

    header = (
        "data", "limit", "seed", "said", "the log's best mixture", "estimated", "measured",
        "of the log's best", "without the game", "error of all (bias)", "of the chosen (bias)",
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for row in cells:
        cell, errors, reference, best, share = row["cell"], row["errors"], row["reference"], None, ""
        if reference is not None:
            cost = next(x for n, x in reference.items() if n not in ("within_limits", "reward", "length"))
            best, share = (reference["reward"], cost), f"{row['measured'][0] / reference['reward']:.2f}"
        rows.append(
            (cell["data"], cell["limit"], cell["seed"], row["status"], both(best), both(row["estimated"]),
             both(row["measured"]), share, both(row.get("without_game")),
             f"{errors['rms']:.1f} ({errors['bias']:+.1f})",
             f"{errors['chosen_rms']:.1f} ({errors['chosen_bias']:+.1f})")
        )  # fmt: skip
    return "\n".join([markdown_table(header, rows), "", *_coverage(cells)]) + "\n"


def _coverage(cells: Sequence[dict[str, Any]]) -> list[str]:
    """How often the truth of a kept policy was in its intervals; the rollouts' own error counts in."""
    from slater.runs.result import from_log

    members = {}
    for row in cells:
        cell = row["cell"]
        for kind, step, *numbers in row.get("members", []):
            game = () if from_log(kind) else (cell["limit"], cell["seed"], step)
            members[(cell["data"], kind, *game)] = numbers
    known = np.array([numbers for numbers in members.values() if len(numbers) > 7])
    said = []
    for column, name in enumerate(("returns", "costs") if len(known) else ()):
        wide = np.hypot(known[:, 5 + column], known[:, 7 + column])
        z = np.abs(known[:, 2 + column] - known[:, column]) / np.maximum(wide, 1e-9)
        said.append(
            f"Of {len(z)} kept policies the 80% intervals cover {np.mean(z < 1.2816):.0%} of the {name}, "
            f"the 95% intervals {np.mean(z < 1.96):.0%}."
        )
    return said
