"""`slater compare`: several runs side by side, estimates and measurements in columns of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from slater.commands.parse import Positional, parse_given
from slater.commands.runs import identity_of, run_table
from slater.disk import digest_of
from slater.errors import InputError
from slater.limit_status import LimitStatus
from slater.runs import SavedRun, find_runs, open_run
from slater.runs.evaluations import Evaluation, add_evaluation


@dataclass(frozen=True)
class Options:
    """Compare finished runs: what is estimated from the data beside what was measured in an environment.

    Estimates are sums per episode where a horizon is known, else discounted sums; measurements are sums per
    episode with the standard error over episodes. Runs that differ in the seed alone also get a line of
    means, with the standard error over seeds.

    Examples:
        slater compare runs/pdca-log runs/cpq-log
        slater compare runs/sweep --env mymodule:Env --episodes 50

    """

    runs: Positional[tuple[Path, ...]]
    """folders of runs, or folders with runs in them"""
    env: str | None = None
    """measure every run in this environment first, where it was not yet; results are kept with the runs"""
    episodes: int = 20
    """episodes per run to measure"""
    seed: int = 0
    """seed of the rollouts"""
    json: bool = False
    """print a JSON list instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater compare`."""
    options, given = parse_given(Options, args, "compare")
    if options.env is None and (idle := given & {"episodes", "seed"}):
        raise InputError(f"--{min(idle)} is of episodes that are measured; name the environment with --env.")
    saved = [open_run(folder) for place in options.runs for folder in _folders(place)]
    finished = [one for one in saved if one.finished]
    for one in saved:
        if not one.finished:
            print(f"slater: {one.folder} is not finished and is left out", file=sys.stderr)
    if not finished:
        raise InputError("none of these runs is finished.")
    if len({one.run.fingerprint for one in finished}) > 1:
        print("slater: these runs are of different data; their estimates are not comparable", file=sys.stderr)
    if options.env is not None:
        for one in finished:
            _measure(one, options.env, options)
    rows = [_row(one, options.env) for one in finished]
    rows += _means(finished, rows)
    print(json.dumps(rows, indent=1) if options.json else run_table(rows))
    return 0


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        raise InputError(f"there is no folder {place}.")
    found = list(find_runs(place))
    if not found:
        raise InputError(f"{place} holds no run.")
    return found


def _measure(saved: SavedRun, env: str, options: Options) -> None:
    """Roll the mixture out, unless that was done in the same way before."""
    from slater.envs import rollout

    file = saved.folder / "mixture.safetensors"
    wanted = ("mixture", env, options.episodes, options.seed, None, False, digest_of(file))
    for known in saved.evaluations:
        if wanted == (
            known.policy, known.env, known.episodes, known.seed, known.limits, known.deterministic,
            known.digest,
        ):  # fmt: skip
            return
    print(f"slater: {options.episodes} episodes of {saved.folder}", file=sys.stderr)
    ran = rollout(
        saved.result.policy, env, episodes=options.episodes, seed=options.seed, discount=saved.task.gamma
    )
    add_evaluation(saved.folder, Evaluation.of("mixture", file, ran, saved.task, None))


def _row(saved: SavedRun, env: str | None) -> dict[str, Any]:
    result = saved.result
    row: dict[str, Any] = {"run": str(saved.folder), **identity_of(saved)}
    unit = "discounted" if result.per_episode is None else "episode"
    sums = result.estimates if result.per_episode is None else result.per_episode
    row |= {f"estimate/{name}/{unit}": value for name, value in (sums or {}).items()}
    row["limits kept"] = str(result.status)
    measured = saved.measured(env)
    if measured is not None:
        row["env"], row["episodes"] = measured.env, measured.episodes
        for name, mean in measured.means.items():
            row[f"measured/{name}"] = mean
            row[f"measured/{name} ±"] = measured.errors[name]
        row["kept in episodes"] = str(LimitStatus.of(measured.status(limit.limit) for limit in result.limits))
    return row


def _means(finished: Sequence[SavedRun], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for every group of runs that differ in the seed alone."""
    groups: dict[tuple[str, Any], list[Mapping[str, Any]]] = {}
    for saved, row in zip(finished, rows, strict=True):
        run = saved.run
        alike = [run.algorithm, run.preset, run.limit_texts, saved.record.config, run.fingerprint]
        key = json.dumps(alike, sort_keys=True, default=str), row.get("env")
        groups.setdefault(key, []).append(row)
    lines = []
    for (_, env), group in groups.items():
        seeds = {row["seed"] for row in group}
        if len(seeds) < len(group) or len(group) < 2:  # the same run twice is no second seed
            continue
        line: dict[str, Any] = {"run": f"mean of {len(group)} seeds, as {group[0]['run']}"}
        line |= {name: group[0][name] for name in ("algorithm", "preset", "limits")}
        for name in dict.fromkeys(name for row in group for name in row):
            figure = name.startswith(("estimate/", "measured/")) and not name.endswith("±")
            values = [row[name] for row in group if isinstance(row.get(name), float)]
            if figure and len(values) == len(group):
                line[name] = fmean(values)
                line[f"{name} ±"] = stdev(values) / len(values) ** 0.5
        lines.append(line if env is None else line | {"env": env})
    return lines
