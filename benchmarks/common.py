"""What the benchmarks of deep learning share: the clock, the data, the turns, and the record with its date.

Machines differ and are shared, so figures are ratios inside one run: contestants take turns in short blocks
and each keeps its best block, which is what the machine can do when it is left alone. With `--one-thread`
everything uses one core and is timed on the processor's clock: the fair way on a busy machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slater.data import Dataset, Metadata

if TYPE_CHECKING:
    from slater.deep.algorithms.base import Algorithm

__all__ = [
    "ACT", "CLOCK", "GAMMA", "HORIZON", "OBS", "RESULTS", "Measure", "arguments", "best_of_turns", "dataset",
    "engine", "settle_threads", "timed", "write_record",
]  # fmt: skip

OBS, ACT, HORIZON, GAMMA = 8, 2, 200, 0.99
RESULTS = Path(__file__).parent / "results"
#: with one thread, time on the processor: what others on the machine do then hardly matters
CLOCK = time.process_time if "--one-thread" in sys.argv else time.perf_counter
#: runs a block of iterations and returns seconds per iteration
Measure = Callable[[], float]


def dataset(rows: int) -> Dataset:
    """Noise of the right shape: speed does not depend on what the numbers mean."""
    rng = np.random.default_rng(0)
    ends = np.zeros(rows, dtype=bool)
    ends[HORIZON - 1 :: HORIZON] = True
    return Dataset.from_arrays(
        observations=rng.standard_normal((rows, OBS), dtype=np.float32),
        actions=rng.uniform(-1, 1, (rows, ACT)).astype(np.float32),
        rewards=rng.random(rows, dtype=np.float32), costs=(rng.random(rows) < 0.1).astype(np.float32),
        terminals=np.zeros(rows, dtype=bool), timeouts=ends,
        next_observations=rng.standard_normal((rows, OBS), dtype=np.float32),
        metadata=Metadata(horizon=HORIZON),
    )  # fmt: skip


def engine(algorithm: Algorithm[Any, Any], data: Dataset, steps: int, phase: str) -> Measure:
    """`steps` iterations of an algorithm on the engine, compiled before the clock starts."""
    # here, so that the memory of the PyTorch side is measured without JAX
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from slater.deep.batches import prepare
    from slater.deep.engine.iterations import compile_chunk, initial_state
    from slater.limits import resolve_limits

    task, transitions = prepare(data, resolve_limits([20.0], data.cost_names), GAMMA)
    algorithm = algorithm.informed(data, task)
    on_device = algorithm.data(data, task, transitions)
    key = jax.random.key(0)
    chunk = compile_chunk(algorithm, task)
    state = initial_state(algorithm, task, key)
    state, _, _ = chunk((on_device, key), state, jnp.asarray(0), jnp.asarray(1), phase)

    def measure() -> float:
        nonlocal state
        start = CLOCK()
        state, _, _ = chunk((on_device, key), state, jnp.asarray(0), jnp.asarray(steps), phase)
        jax.block_until_ready(eqx.filter(state, eqx.is_array))  # type: ignore[no-untyped-call]
        return (CLOCK() - start) / steps

    return measure


def timed(step: Callable[[], None], steps: int) -> Measure:
    """`step`, run once to warm up, then timed in blocks of `steps`."""
    step()

    def measure() -> float:
        start = CLOCK()
        for _ in range(steps):
            step()
        return (CLOCK() - start) / steps

    return measure


def best_of_turns(contestants: Mapping[str, Measure], repeats: int) -> dict[str, float]:
    """Seconds per iteration of each contestant's best block; they take turns."""
    best = dict.fromkeys(contestants, np.inf)
    for _ in range(repeats):
        for name, measure in contestants.items():
            best[name] = min(best[name], measure())
    return best


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--one-thread", action="store_true", help="one core for every contestant")
    return parser


def settle_threads(options: argparse.Namespace) -> None:
    """One core for JAX and PyTorch where that is asked for."""
    if options.one_thread:
        import torch

        from slater.threads import use_one_thread

        use_one_thread()
        torch.set_num_threads(1)


def write_record(name: str, options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Print `result` and write it to benchmarks/results, with threads, machine, load and date."""
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
        "threads": 1 if options.one_thread else os.cpu_count(),
        **result,
    }
    print(json.dumps(record, indent=1), flush=True)
    RESULTS.mkdir(exist_ok=True)
    suffix = "-one-thread" if options.one_thread else ""
    (RESULTS / f"{name}{suffix}.json").write_text(json.dumps(record, indent=1) + "\n")
