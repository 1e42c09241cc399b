"""Peak memory on a file several times larger than the memory the process is allowed.

    python -m benchmarks.data_memory --gigabytes 4 --allowed-gigabytes 1

makes a DSRL file, then, in child processes whose address space is limited by the kernel (RLIMIT_AS, which
counts everything: code, heap, buffers, memory maps): checks it, converts it to a store, draws random batches
from the store, and trains PDCA on it in shards (with a larger limit: JAX alone takes 0.6 GiB of address
space). As a control, loading the file whole must fail under the limit. The files are deleted at the end.
Prints peak resident memory and speed of each step and writes benchmarks/results/data_memory.json.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from slater.commands.parse import parse
from slater.data import StoredDataset, convert, inspect, load
from slater.errors import InputError

OBSERVATIONS, ACTIONS, HORIZON = 34, 8, 500  # as AntCircle
ROW_BYTES = 4 * (2 * OBSERVATIONS + ACTIONS + 2) + 2
GIB = 2**30


@dataclass(frozen=True)
class Options:
    """Sizes of the benchmark."""

    gigabytes: float = 4.0
    """Size of the file, GiB."""
    allowed_gigabytes: float = 1.0
    """Address space that a child process may use, GiB."""
    train_allowed_gigabytes: float = 1.25
    """Address space that the child process that trains may use, GiB."""
    memory: float = 0.05
    """Memory for the data while training, GB (`slater train --memory`)."""
    batches: int = 2000
    """Random batches to draw from the store."""
    batch: int = 512
    """Transitions in a batch."""
    folder: Path | None = None
    """Where to put the files (default: a temporary folder)."""


def make_file(path: Path, rows: int) -> None:
    """A DSRL file of random walks, written in pieces, without compression (so that its size is its size)."""
    rng = np.random.default_rng(0)
    piece = 100 * HORIZON
    with h5py.File(path, "w") as file:
        shapes: dict[str, tuple[int, ...]] = {
            "observations": (rows, OBSERVATIONS),
            "next_observations": (rows, OBSERVATIONS),
            "actions": (rows, ACTIONS),
            "rewards": (rows,),
            "costs": (rows,),
        }
        for name, shape in shapes.items():
            file.create_dataset(name, shape, np.float32, chunks=(8192, *shape[1:]))
        for name in ("terminals", "timeouts"):
            file.create_dataset(name, (rows,), np.bool_, chunks=(8192,))
        for start in range(0, rows, piece):
            stop = min(start + piece, rows)
            count = stop - start
            steps = rng.normal(size=(count // HORIZON, HORIZON + 1, OBSERVATIONS)).astype(np.float32)
            walks = np.cumsum(steps, axis=1)
            file["observations"][start:stop] = walks[:, :-1].reshape(count, OBSERVATIONS)
            file["next_observations"][start:stop] = walks[:, 1:].reshape(count, OBSERVATIONS)
            file["actions"][start:stop] = rng.uniform(-1, 1, (count, ACTIONS))
            file["rewards"][start:stop] = rng.normal(size=count)
            file["costs"][start:stop] = rng.random(count) < 0.1
            file["terminals"][start:stop] = False
            file["timeouts"][start:stop] = (np.arange(start, stop) + 1) % HORIZON == 0


def train_in_shards(store: Path, out: Path, memory: float) -> dict[str, Any]:
    """Train PDCA with small networks on four shards of the store; what came of it."""
    from slater.deep import train
    from slater.deep.engine.sources import COPIES, row_bytes
    from slater.runs.metrics import read_metrics

    data = StoredDataset(store)
    batch = 256
    rows = int(memory * 1e9 / (COPIES * row_bytes(data)))
    steps = 4 * rows // batch
    train(
        "pdca", data, [20.0], out, preset="paper", options={"memory": memory},
        steps=steps, hidden=(64, 64), batch_size=batch, keep_every=steps,
    )  # fmt: skip
    seconds = read_metrics(out / "metrics.jsonl")[-1]["seconds"]
    return {
        "steps": steps,
        "rows_per_shard": rows,
        "shards": 4,
        "milliseconds_per_step": 1e3 * seconds / steps,
    }


def run_step(step: str, folder: Path, batches: int, batch: int, memory: float) -> dict[str, Any]:
    """One step, in this process; what it measured."""
    source, store = folder / "large.hdf5", folder / "large.store"
    begun = time.perf_counter()
    result: dict[str, Any] = {}
    if step == "load":
        try:
            load(source)
            result["loaded"] = True
        except InputError as error:
            result.update(loaded=False, said=str(error))
    elif step == "check":
        report = inspect(source)
        assert not report.errors, str(report)
    elif step == "convert":
        convert(source, store, overwrite=True)
    elif step == "sample":
        data = StoredDataset(store)
        rng = np.random.default_rng(0)
        total = 0.0
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(batches):
            total += float(data.sample(rng, batch).rewards.sum())
        result["milliseconds_per_batch"] = 1000 * (time.perf_counter() - begun) / batches
        result["cpu_milliseconds_per_batch"] = 1000 * (time.process_time() - used) / batches
        mean = total / (batches * batch)
        assert abs(mean) < 0.05, f"the mean reward of the samples is {mean}, far from 0"
    elif step == "train":
        result |= train_in_shards(store, folder / "run", memory)
    result["seconds"] = time.perf_counter() - begun
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    result["peak_resident_gib"] = usage.ru_maxrss * 1024 / GIB
    return result


def child(step: str, options: Options, folder: Path) -> dict[str, Any]:
    """Run a step in a process that may use only the allowed address space."""
    from slater.threads import children_use_one_thread

    limit = int((options.train_allowed_gigabytes if step == "train" else options.allowed_gigabytes) * GIB)
    command = [sys.executable, "-m", "benchmarks.data_memory", "child", step, str(folder)]
    command += [str(options.batches), str(options.batch), str(options.memory)]
    with children_use_one_thread({"MALLOC_ARENA_MAX": "2"}):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
    if done.returncode:
        raise SystemExit(f"the step {step} failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout))


def main(options: Options) -> None:
    """Make the file, run the steps, print and write the results."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "large.hdf5"
        rows = int(options.gigabytes * GIB / ROW_BYTES) // HORIZON * HORIZON
        make_file(source, rows)
        size = source.stat().st_size / GIB
        print(
            f"file: {rows:,} rows, {size:.2f} GiB; allowed address space: {options.allowed_gigabytes:g} GiB, "
            f"to train {options.train_allowed_gigabytes:g} GiB"
        )
        steps = {}
        for step in ("load", "check", "convert", "sample", "train"):
            steps[step] = child(step, options, folder)
            if step == "convert":
                source.unlink()
        shutil.rmtree(folder / "large.store")
    assert not steps["load"]["loaded"], "the file fits into the allowed memory: the benchmark shows nothing"
    print(f"load whole (control): refused: {steps['load']['said']}")
    for step in ("check", "convert", "sample", "train"):
        measured = steps[step]
        extra = ""
        if step == "sample":
            wall, cpu = measured["milliseconds_per_batch"], measured["cpu_milliseconds_per_batch"]
            extra = f"; a batch of {options.batch}: {wall:.2f} ms, {cpu:.2f} ms of processor"
        if step == "train":
            extra = (
                f"; {measured['steps']} iterations on {measured['shards']} shards of "
                f"{measured['rows_per_shard']:,} rows, {measured['milliseconds_per_step']:.1f} ms each"
            )
        peak = measured["peak_resident_gib"]
        print(
            f"{step:8} peak resident memory {peak:.3f} GiB (1/{size / peak:.0f} of the file), "
            f"{measured['seconds']:.0f} s, of which {measured['cpu_seconds']:.0f} s of processor{extra}"
        )
    results = Path("benchmarks/results")
    results.mkdir(parents=True, exist_ok=True)
    shown = {key: value for key, value in asdict(options).items() if key != "folder"}
    steps["load"].pop("said")
    record = {"options": shown, "rows": rows, "file_gib": size, "steps": steps}
    (results / "data_memory.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        step, folder, batches, batch, memory = sys.argv[2:]
        print(json.dumps(run_step(step, Path(folder), int(batches), int(batch), float(memory))))
    else:
        main(parse(Options, sys.argv[1:], "benchmark"))
