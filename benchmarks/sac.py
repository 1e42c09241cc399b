"""SAC's return per processor minute: the loop of `slater collect` against that of `slater behaviours train`.

    python -m benchmarks.sac --seconds 600 --seeds 1 2 3

Both train on R alone, from nothing, for the same processor time; programs are compiled before the clock
starts. The loop of `slater collect` has networks of 2 x 128, batches of 128 and one update a step, as in
scripts/make_data_of_results.sh. Return: mean of the training episodes that ended in the last tenth of the
time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.collect.learning import learn
from slater.collect.recipes import recipe
from slater.collect.sac import SACConfig
from slater.collect.training import Recipe, Segment, train

RESULTS = Path(__file__).parent / "results" / "sac.json"
BEFORE = SACConfig(hidden=(128, 128), batch_size=128)


class _TimeIsUpError(Exception):
    pass


def _before(settings: Recipe, seed: int, steps: int, heard: Callable[[int, list[float]], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def watch(done: int, episode: Any, figures: Any) -> None:
            heard(done, [episode.total_return])

        learn(settings.env_id, np.zeros(1), steps, seed, BEFORE, Path(folder), watch)


def _after(settings: Recipe, seed: int, steps: int, heard: Callable[[int, list[float]], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def watch(segment: Segment) -> None:
            heard(segment.steps, [segment.mean_return] * segment.episodes)

        train(replace(settings, steps=steps, free=1.0, keep=1, seed=seed), Path(folder), watch)


def measure(loop: Callable[..., None], settings: Recipe, seed: int, seconds: float) -> dict[str, float]:
    """Steps and return of one loop after so many processor seconds."""
    loop(settings, seed, 3_000, lambda *_: None)  # compiles
    begun = time.process_time()
    seen: list[tuple[float, int, float]] = []

    def heard(steps: int, returns: list[float]) -> None:
        spent = time.process_time() - begun
        seen.extend((spent, steps, value) for value in returns)
        if spent > seconds:
            raise _TimeIsUpError

    with contextlib.suppress(_TimeIsUpError):
        loop(settings, seed, 10**9, heard)
    last = [value for spent, _, value in seen if spent > 0.9 * seconds] or [seen[-1][2]]
    return {"steps": seen[-1][1], "return": float(np.mean(last)), "episodes": len(last)}


def main() -> None:
    """Measure, print, and keep in benchmarks/results/sac.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["ballcircle", "antrun", "walker"])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for task in options.tasks:
        for seed in options.seeds:
            for name, loop in (("before", _before), ("after", _after)):
                row = {"task": task, "seed": seed, "seconds": options.seconds, "loop": name}
                rows = [old for old in rows if {key: old[key] for key in row} != row]
                row |= measure(loop, recipe(task), seed, options.seconds)
                rows.append(row)
                print(
                    f"{task:<11} seed {seed} {name:<6} {options.seconds:5.0f} processor s: "
                    f"{row['steps']:>8,} steps, return {row['return']:8.1f} ({row['episodes']} episodes)",
                    flush=True,
                )
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
