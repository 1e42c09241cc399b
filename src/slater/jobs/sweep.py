"""Many runs at once: the grid of seeds and settings, and one single-threaded process per run.

On a CPU several runs go fastest as processes of one thread each. Every run, alone or among others, goes
through the same worker with the same single thread, so its bits do not depend on its company.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from slater.errors import InputError
from slater.runs import read_metrics, read_result
from slater.runs.metrics import METRICS

__all__ = ["Job", "grid", "last_row", "one_thread", "run_jobs"]


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """What to set so that a process computes with one thread; XLA reads it at its first computation."""
    flags = f"{environment.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its folder and the arguments of `slater train` that make it."""

    folder: Path
    arguments: tuple[str, ...]


def grid(sweeps: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, str]]:
    """Every combination of `NAME=V1,V2,...` texts and seeds, as name -> value; the seed varies fastest."""
    axes: list[tuple[str, list[str]]] = []
    for text in sweeps:
        name, separator, values = text.partition("=")
        parts = [value.strip() for value in values.split(",") if value.strip()]
        if not separator or not name.strip() or not parts:
            raise InputError(f"the sweep {text!r} is not NAME=V1,V2,...; write for example limit=10,20,40.")
        if name.strip() in (known for known, _ in axes):
            raise InputError(f"the sweep names {name.strip()!r} twice; give all its values at once.")
        axes.append((name.strip(), parts))
    axes.append(("seed", [str(seed) for seed in seeds]))
    for point in itertools.product(*(parts for _, parts in axes)):
        yield dict(zip((name for name, _ in axes), point, strict=True))


def run_jobs(
    jobs: Sequence[Job], processes: int, watch: Callable[[Mapping[Path, Mapping[str, object]]], None]
) -> dict[Path, str]:
    """Run every job, `processes` at a time; return what went wrong, by folder (empty: nothing).

    `watch` is called twice a second with the last row of metrics of each run. Ctrl-C asks every worker to
    save and stop, and waits for it.
    """
    waiting = list(jobs)
    running: dict[Path, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    failures: dict[Path, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                running[job.folder] = _start(job)
            time.sleep(0.5)
            watch({job.folder: last_row(job.folder) for job in jobs})
            for folder, (process, log) in list(running.items()):
                if process.poll() is not None:
                    del running[folder]
                    if process.returncode != 0:
                        failures[folder] = _last_words(log)
                    log.close()
        return failures
    finally:
        # the terminal's Ctrl-C reaches the workers too; this is for those it does not reach
        for process, _ in running.values():
            process.terminate()
        for process, log in running.values():
            process.wait()
            log.close()


def _start(job: Job) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
    environment = {**os.environ, **one_thread(os.environ)}
    command = [sys.executable, "-m", "slater.cli", "train", *job.arguments, "--worker"]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment), log


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("slater: error: ") if lines else "the worker ended without a word"


def last_row(folder: Path) -> Mapping[str, object]:
    """The last row of metrics of a run, `done` and its steps if it is finished, or nothing."""
    if (result := read_result(folder)) is not None:
        return {"done": True, "steps": result.steps}
    rows = read_metrics(folder / METRICS)
    return rows[-1] if rows else {}
