"""`slater tune`: settings for `slater train`, chosen from the data alone."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from slater.commands.parse import Positional, Repeated, at_least_one, parse
from slater.commands.reading import Reading
from slater.commands.runs import run_table
from slater.disk import write_atomic, write_json
from slater.errors import InputError
from slater.pairs import parse_pairs


@dataclass(frozen=True)
class Options:
    """Choose an algorithm's settings without the environment, by estimates on held-out episodes.

    Each candidate is trained on one part of the episodes; a model fitted to the other part estimates its
    reward and costs. Chosen is the best reward among candidates whose costs, one standard deviation worse
    than estimated, are within their limits, else the least excess. Writes tune.csv, tune.md, best.json with
    the settings and the command to use. A stopped search goes on when the same command is given again.

    Examples:
        slater tune pdca ball.hdf5 --limit 20
        slater tune pdca ball.hdf5 --limit 20 --search anchor_weight=0.03,0.1 --out runs/tuned
        slater tune pdca log.csv --columns observations=x,v actions=u rewards=r costs=c episode=e --limit 5

    """

    algorithm: Positional[str]
    """algorithm, for example pdca"""
    data: Positional[str]
    """dataset: a file that `slater data info` can read, or the name of a published task"""
    limit: Repeated = ()
    """limit on a cost, repeated for several: 20 (per episode), 5/discounted, 0.05/step, NAME=20"""
    search: Repeated = ()
    """NAME=V1,V2,...: values of a setting to try, repeated for a grid; pdca and most of the
    rivals have a default space"""
    samples: int | None = None
    """try so many points of the grid, drawn at random; all of them unless given"""
    set: Repeated = ()
    """NAME=VALUE: a setting that all candidates share"""
    preset: str | None = None
    """named settings that all candidates start from, for example paper"""
    steps: int | None = None
    """gradient iterations per candidate; the algorithm's own number unless given"""
    seed: int = 0
    """seed of training, of the split and of the draw of samples"""
    held_out: float = 0.2
    """share of the episodes to judge by, in (0, 1)"""
    estimate_steps: int = 15_000
    """iterations of the model's fit at most"""
    estimate_members: int = 5
    """policies of a mixture that are estimated at most; evenly spaced ones stand for more"""
    engine: Literal["local", "ray"] = "local"
    """local: single-threaded processes here; ray: tasks on a Ray cluster (RAY_ADDRESS, else a local one)"""
    workers: int | None = None
    """candidates at a time; one per core unless given"""
    out: Path | None = None
    """output folder; unless given, runs/tune- and the algorithm"""
    json: bool = False
    """print one JSON object instead of a table"""
    reading: Reading = field(default_factory=Reading)


def run(args: list[str]) -> int:
    """Entry point of `slater tune`."""
    options = parse(Options, args, "tune")
    at_least_one(options, "samples", "workers", "steps")
    from slater.data import load
    from slater.data.download import locate
    from slater.deep import make_algorithm
    from slater.jobs.cells import run_cells
    from slater.limits import resolve_limits
    from slater.tuning.cells import CandidateWork
    from slater.tuning.search import Judge, best, candidates, parse_search, refuse_unjudged, split_episodes

    fixed = parse_pairs(options.set) | ({} if options.steps is None else {"steps": str(options.steps)})
    space = parse_search(options.algorithm, options.search, options.preset)
    for name in space:
        if name in fixed:
            raise InputError(f"{name} is both fixed and searched; give it once.")
    points = candidates(options.algorithm, options.preset, fixed, space, options.samples, options.seed)
    judge = Judge(options.estimate_steps, options.estimate_members)
    dataset = load(locate(options.data), options.reading.options())
    split_episodes(dataset, options.held_out, options.seed)
    refuse_unjudged(options.algorithm, {**fixed, **points[0]}, options.preset, dataset)
    limits = list(map(str, resolve_limits(options.limit, dataset.cost_names, dataset.metadata.step)))
    out = options.out or Path("runs") / f"tune-{options.algorithm}"
    cells = [
        {
            "algorithm": options.algorithm, "preset": options.preset, "settings": {**fixed, **point},
            "searched": list(point), "limits": limits, "seed": options.seed,
            "data": dataset.fingerprint, "held_out": options.held_out, "split_seed": options.seed,
            "judge": vars(judge),
            "steps": make_algorithm(options.algorithm, {**fixed, **point}, options.preset).config.steps,
        }
        for point in points
    ]  # fmt: skip
    # whole paths: a worker on a cluster may stand in another folder
    path = Path(options.data).resolve() if Path(options.data).exists() else options.data
    work = CandidateWork(str(path), str(out.resolve()), options.reading.record())
    engine: Literal["fresh", "ray"] = "fresh" if options.engine == "local" else "ray"
    rows = run_cells(work, cells, out, workers=options.workers, engine=engine, progress_of=work.progress)
    for row in rows:
        if "failed" in row:
            point = ", ".join(f"{name}={row['settings'][name]}" for name in row["searched"])
            Console(stderr=True).print(f"{point} failed: {row['failed']}", highlight=False)
    judged = [row for row in rows if "failed" not in row]
    if not judged:
        raise InputError(f"every candidate failed; the first one: {rows[0]['failed']}")
    chosen = judged[best([row["estimate"] for row in judged])]
    _report(options, out, judged, chosen, limits, dataset.horizon)
    return 0


def _report(
    options: Options, out: Path, rows: list[dict[str, Any]], chosen: dict[str, Any], limits: list[str],
    horizon: int | None,
) -> None:  # fmt: skip
    """The table on the terminal and on disk, and the command to use."""
    from slater.deep import make_algorithm
    from slater.limits import Limit, Units
    from slater.report.curves import markdown_table, write_csv
    from slater.tuning.search import in_units_of_limits

    parsed = [Limit.parse(text) for text in limits]
    lines: list[dict[str, Any]] = []
    for row in rows:
        estimate = row["estimate"]
        gamma = make_algorithm(row["algorithm"], row["settings"], row["preset"]).config.gamma
        units = Units(gamma=gamma, horizon=horizon, bootstrap_timeouts=True)
        lines.append(
            {
                **{name: row["settings"][name] for name in row["searched"]},
                **in_units_of_limits(estimate, parsed, units),
                "within": "yes" if estimate["excess"] <= 0 else f"{estimate['excess']:+.0%}",
                "chosen": "*" if row is chosen else "",
            }
        )
    write_csv(out / "tune.csv", lines)
    texts = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in line.values()] for line in lines]
    write_atomic(out / "tune.md", f"{markdown_table(list(lines[0]), texts)}\n".encode())
    words = ["slater", "train", options.algorithm, options.data, *options.reading.words()]
    for limit in limits:
        words += ["--limit", limit]
    if options.preset:
        words += ["--preset", options.preset]
    for name, value in chosen["settings"].items():
        words += ["--set", f"{name}={value}"]
    command = shlex.join([*words, "--seed", str(options.seed), "--out", "runs/tuned"])
    safe = chosen["estimate"]["excess"] <= 0
    record = {
        "algorithm": options.algorithm, "preset": options.preset, "settings": chosen["settings"],
        "limits": limits, "within": safe, "estimate": chosen["estimate"], "data": options.data,
        "reading": options.reading.record(),
        "fingerprint": chosen["data"], "held_out": options.held_out, "seed": options.seed,
        "command": command,
    }  # fmt: skip
    write_json(out / "best.json", record)
    if options.json:
        print(json.dumps({**record, "candidates": lines}))
        return
    print(run_table(lines))
    print("(estimated on held-out episodes; each cost in the unit of its limit)")
    if not safe:
        print("no candidate is estimated to keep every limit; the one with the least excess is chosen.")
    print(f"\nuse: {command}\ntable and settings are in {out}")
