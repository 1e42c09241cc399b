"""Bounds on means beside those of confseq (Waudby-Smith) and OBP's bootstrap, on the same samples.

    PYTHONPATH=src:CONFSEQ/src python -m benchmarks.bounds --draws 50

needs the Python module of confseq (its source; the compiled part is not needed) and `pip install obp
scikit-learn multiprocess matplotlib`, in an environment of their own. What is not there is left out. All are
at an error of 5% a side: confseq's interval is two-sided at 10%.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.bounds import betting_upper
from slater.experiments.verdict_worlds import LOGS, SUMS, LogWorld, SumWorld

ERROR = 0.05


def _confseq() -> Callable[[float, Any], float] | None:
    vars(np).setdefault("float_", np.float64)  # a name of before NumPy 2, which confseq uses
    try:
        betting = importlib.import_module("confseq.betting")
    except ModuleNotFoundError:
        return None
    return lambda most, x: most * betting.betting_ci(np.asarray(x) / most, alpha=2 * ERROR)[1]


def _own(most: float, x: Any) -> float:
    return betting_upper(x, 0.0, most, ERROR)


def _bootstrap() -> Callable[[Any], float] | None:
    sys.modules.setdefault("torch", types.ModuleType("torch"))
    sys.modules["torch"].Tensor = object  # type: ignore[attr-defined]  # only named in annotations
    try:
        utils = importlib.import_module("obp.utils")
    except (ModuleNotFoundError, AttributeError):
        return None

    def upper(x: Any) -> float:
        found = utils.estimate_confidence_interval_by_bootstrap(
            np.asarray(x), alpha=2 * ERROR, n_bootstrap_samples=1000, random_state=0
        )
        return float(next(value for name, value in found.items() if "upper" in name))

    return upper


def _measure(bound: Callable[[Any], float], samples: list[Any], truth: float) -> dict[str, float]:
    begin = time.perf_counter()
    uppers = np.array([bound(x) for x in samples])
    seconds = (time.perf_counter() - begin) / len(samples)
    return {
        "below_truth": float((uppers < truth).mean()),
        "median_over_truth": float(np.median(uppers) / truth),
        "seconds": seconds,
    }


def _weighted(world: LogWorld, rng: np.random.Generator, n: int) -> Any:
    data = world.log(rng, n)
    ratio = np.exp(world.target.log_probability(data.observations, data.actions)) / data.propensity
    return ratio * data.costs[:, 0]


def main() -> None:
    """Print a line per world and size, and write it as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bounds.jsonl"))
    options = parser.parse_args()
    confseq, bootstrap = _confseq(), _bootstrap()
    lines = []
    # of logs, those of one step whose largest weight is known: the sum itself is bet on
    bandits = {name: world for name, world in LOGS.items() if world.steps == 1}
    worlds: dict[str, SumWorld | LogWorld] = {**SUMS, **bandits}
    for name, world in worlds.items():
        for n in options.sizes:
            rngs = [np.random.default_rng([5, seed, n]) for seed in range(options.draws)]
            if isinstance(world, LogWorld):
                samples: list[Any] = [_weighted(world, rng, n) for rng in rngs]
                heaviest = float(len(world.chance)) if "clicks" in name else 2.5
                most = world.large * max(heaviest, *(float(x.max() / world.large) for x in samples))
            else:
                samples, most = [world.draw(rng, n) for rng in rngs], world.most
            row: dict[str, Any] = {"world": name, "n": n, "draws": options.draws, "range": most}
            row["slater"] = _measure(partial(_own, most), samples, world.mean)
            if confseq is not None:
                row["confseq"] = _measure(partial(confseq, most), samples, world.mean)
            if bootstrap is not None:
                row["obp bootstrap"] = _measure(bootstrap, samples, world.mean)
            lines.append(row)
            parts = "; ".join(
                f"{who} {row[who]['median_over_truth']:.2f} ({row[who]['below_truth']:.0%} below, "
                f"{1e3 * row[who]['seconds']:.1f} ms)"
                for who in ("slater", "confseq", "obp bootstrap")
                if who in row
            )
            print(f"{name}, n {n}: {parts}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
