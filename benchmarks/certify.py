"""`slater certify` from the log alone: one policy, and a hundred candidates, as a user would start it.

    python -m benchmarks.certify [--candidates 100]

The log is the sample that comes with the package (BallCircle), the policies are networks of the default's
size with random weights: what they cost does not matter here. Every command is its own process, with a cache
of its own that is empty at the start: the first fits the estimators, the second finds them there. Processor
time beside wall time, because machines are shared.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, write_record

#: of the networks that are judged
HIDDEN = (128, 128)


def policies(count: int, folder: Path) -> list[str]:
    """Networks of the log's shapes, each with weights of its own."""
    from slater.data import load
    from slater.data.samples import ballcircle
    from slater.policy import GaussianPolicy, save

    log = load(ballcircle())
    sizes = (log.observation_dim, *HIDDEN, 2 * log.action_dim)
    assert log.action_low is not None
    assert log.action_high is not None
    mean, std = log.observations.mean(axis=0), log.observations.std(axis=0) + 1e-3
    places = []
    for number in range(count):
        rng = np.random.default_rng(number)
        weights = tuple(
            (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32) for a, b in pairwise(sizes)
        )
        biases = tuple(np.zeros(b, np.float32) for b in sizes[1:])
        policy = GaussianPolicy(weights, biases, mean, std, log.action_low, log.action_high, (-5.0, -1.0))
        places.append(str(folder / f"{number}.safetensors"))
        save(policy, places[-1])
    return places


def measured(places: list[str], data: str, folder: Path) -> dict[str, float]:
    """Seconds of one command, on the clock and on the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "slater.cli", "certify", *places, "--data", data, "--limit", "20",
         "--out", str(folder / "out")],
        env={**os.environ, "SLATER_CACHE": str(folder / "cache")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    wall = time.perf_counter() - start
    if ran.returncode not in (0, 1, 4):
        raise SystemExit(ran.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "processor": used}


def main() -> None:
    """Measure, print and keep."""
    parser = arguments(__doc__)
    parser.add_argument("--candidates", type=int, default=100)
    options = parser.parse_args()
    from slater.data.samples import ballcircle

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = policies(options.candidates, folder)
        found: dict[str, Any] = {
            "one policy, fitting": measured(places[:1], str(ballcircle()), folder),
            "one policy, fitted": measured(places[:1], str(ballcircle()), folder),
            f"{options.candidates} candidates, fitted": measured(places, str(ballcircle()), folder),
        }
    write_record("certify", options, found)


if __name__ == "__main__":
    main()
