"""Reads mutated files in a process of its own that is watched: for hangs, for memory, for code that runs.

    python -m tests.data.fuzz KIND MUTATIONS        one line of JSON with what was found

The child reads file after file and writes a line for each; the parent ends it when a file takes more than
`SECONDS` of processor time (or ten minutes of the clock, on a busy machine) and starts another behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10
GIGABYTE = 2**30
#: Audit events that no reader of data has a reason for.
FORBIDDEN = (
    "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect",
    "ctypes.dlopen", "marshal.loads", "code.__new__",
)  # fmt: skip
#: Kinds whose bytes hold a checksum of everything that is read, so that a wrong number must be noticed.
CHECKED = (
    "ours.hdf5",
    "theirs.hdf5",
    "a.npz",
    "a.parquet",
    "a.csv",
    "store/rows.npy",
    "minari/notes",
    "a.safetensors",
)
#: Kinds that hold plain numbers: a sentence or something that reads, and none of the rest.
UNCHECKED = (
    "minari/data", "store/notes.json", "store/episodes.npz", "run.json", "result.json",
    "metrics.jsonl", "evaluations.jsonl", "held_out.json", "certificate.json", "own.csv", "own.parquet",
    "behaviour",
)  # fmt: skip
KINDS = CHECKED + UNCHECKED


def _peak() -> int:
    """Peak resident bytes of this program: ru_maxrss would count what its parent had when it was started."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The content cut short, with one bit flipped, with bytes overwritten or with bytes from elsewhere."""
    kind = rng.random()
    changed = bytearray(content)
    if kind < 0.15:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind < 0.75:
        bit = rng.randrange(8 * len(changed))
        changed[bit // 8] ^= 1 << bit % 8
    elif kind < 0.9:
        for _ in range(rng.randrange(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    else:
        start, source, length = (
            rng.randrange(len(changed)),
            rng.randrange(len(changed)),
            rng.randrange(1, 200),
        )
        changed[start : start + length] = changed[source : source + length]
    return bytes(changed)


def write_like_dsrl(data, path):
    """A DSRL file as others write it: gzip, no checksums but those of zlib."""
    import h5py

    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            array = getattr(data, name)
            file.create_dataset(name, data=array, compression="gzip", chunks=(100, *array.shape[1:]))
        file.create_dataset("costs", data=data.costs[:, 0], compression="gzip")


def prepare(kind: str, folder: Path):
    """The file that is mutated, and a function that reads it and returns what must not change."""
    from slater.data import load, save

    from .make import remembering, walk

    data = walk(episodes=30) if kind == "theirs.hdf5" else remembering(episodes=30)

    def fingerprint(path):
        return load(path).fingerprint

    if kind == "a.safetensors":
        return _policy(folder)
    if kind in ("own.csv", "own.parquet"):
        return _own_table(folder, kind)
    if kind == "behaviour":
        return _behaviour(folder)
    if kind.endswith((".json", ".jsonl")) and "/" not in kind:
        return _run(folder, kind)
    if kind.startswith("minari/"):
        os.environ["MINARI_DATASETS_PATH"] = str(folder)
        save(data, "minari:fuzz/a-v0")
        name = "metadata.json" if kind.endswith("notes") else "main_data.hdf5"
        return folder / "fuzz" / "a-v0" / "data" / name, lambda: fingerprint("minari:fuzz/a-v0")
    if kind.startswith("store/"):
        save(data, folder / "a.store")
        return folder / "a.store" / kind.removeprefix("store/"), lambda: fingerprint(folder / "a.store")
    path = folder / kind
    write_like_dsrl(data, path) if kind == "theirs.hdf5" else save(data, path)
    return path, lambda: fingerprint(path)


def _policy(folder):
    import numpy as np

    from slater.policy import GaussianPolicy, load, save

    rng = np.random.default_rng(0)
    weights = tuple(rng.normal(size=shape).astype(np.float32) for shape in ((3, 8), (8, 4)))
    biases = tuple(np.zeros(size, np.float32) for size in (8, 4))
    policy = GaussianPolicy(
        weights, biases, np.zeros(3, np.float32), np.ones(3, np.float32),
        low=-np.ones(2, np.float32), high=np.ones(2, np.float32), log_std_range=(-5.0, 2.0),
    )  # fmt: skip
    path = folder / "a.safetensors"
    save(policy, path)

    def read():
        return {name: array.tobytes() for name, array in load(path).tensors().items()}

    return path, read


@dataclass(frozen=True)
class _Config:
    steps: int = 60
    eta: float = 3e-4


def _run(folder, kind):
    from slater.certify.verdict import Certificate, Evidence, Gate, LimitVerdict
    from slater.limits import Limit, Units, limit_records
    from slater.runs import LimitStatus, Run, read_metrics, read_result
    from slater.runs.evaluations import Evaluation, add_evaluation, read_evaluations
    from slater.runs.held_out import HeldOut, read_held_out
    from slater.runs.record import read_record, write_record
    from slater.runs.result import LimitRecord, Member, Result, write_result

    records = limit_records([Limit.episode(20, "wear")], Units(0.99, 100))
    task = {
        "obs_dim": 3, "action_dim": 2, "discrete": False, "costs": ["wear"], "gamma": 0.99, "horizon": 100,
        "limits": records, "scale": [1.0, 0.5], "action_low": [-1.0], "action_high": [1.0],
        "identity": "cd",
    }  # fmt: skip
    run = Run(
        "pdca", (Limit.episode(20, "wear"),), {"steps": 60}, data="log.csv", reading={"missing": "drop"}
    )
    write_record(folder, run, _Config(), task, "bullet/BallRun")
    sums = {"reward": 1.5, "wear": 3.25}
    members = (Member(20, "iterate", 0.25, sums), Member(40, "iterate", 0.75, sums))
    limits, known = tuple(LimitRecord(**one) for one in records), {"wear": LimitStatus.WITHIN}
    details = {"certificate": {"gap": 0.1}}
    result = Result("pdca", 0, 60, limits, members, known, True, sums, sums, ("a warning",), details)
    write_result(folder, result)
    rows = [{"step": step, "loss": 1 / step, "steps_per_second": 30.5} for step in range(10, 70, 10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    means = {"return": 1.5, "wear": 3.25}
    add_evaluation(
        folder,
        Evaluation("mixture", "toy", 5, 0, False, None, means, means, {"wear": {"episode": 3.25}}, "ab"),
    )
    HeldOut("ab", "cd", 0.2, 0, (1, 4, 5)).save(folder)
    verdict = LimitVerdict(
        "wear", 20.0, "per episode", "pass", 3.0, 2.0, 5.0, "rollouts", "It is within.",
        (Gate("episodes", True, "there are enough."),), (Evidence("episodes", 3.0, 2.0, 5.0),), 0.1,
    )  # fmt: skip
    Certificate("a run", 0.95, (verdict,), digest="ab").save(folder / "certificate.json")
    readers = {
        "run.json": lambda: read_record(folder),
        "result.json": lambda: str(read_result(folder)),
        "metrics.jsonl": lambda: read_metrics(folder / "metrics.jsonl"),
        "evaluations.jsonl": lambda: read_evaluations(folder),
        "held_out.json": lambda: read_held_out(folder),
        "certificate.json": lambda: Certificate.load(folder / "certificate.json").table(),
    }
    return folder / kind, lambda: repr(readers[kind]())


def _own_table(folder, kind):
    """A table as others write it: own names, text for episodes and sources, times, no notes, no checksum."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from slater.data import load

    size = 60
    rng = np.random.default_rng(0)
    trip = np.arange(size) // 6
    columns = {
        "when": pa.array(np.datetime64("2026-01-01T00:00:00") + np.arange(size).astype("timedelta64[m]")),
        "trip": pa.array([f"trip {number}" for number in trip]), "x": rng.normal(size=size),
        "v": rng.normal(size=size), "throttle": rng.uniform(size=size), "profit": rng.normal(size=size),
        "wear": rng.uniform(size=size), "noise": rng.integers(0, 2, size),
        "crashed": (np.arange(size) % 6 == 5).astype(int),
        "driver": pa.array([("careful", "bold")[number % 2] for number in trip]),
    }  # fmt: skip
    table = pa.table(columns)
    told = [
        "observations=x,v", "actions=throttle", "rewards=profit", "costs=wear,noise", "terminals=crashed",
        "episode=trip", "time=when", "source=driver",
    ]  # fmt: skip
    path = folder / kind
    pa.csv.write_csv(table, path) if kind.endswith("csv") else pq.write_table(table, path)
    return path, lambda: load(path, columns=told).fingerprint


def _behaviour(folder):
    """A file of behaviours: policies, their curve and settings."""
    import shutil

    from slater.collect.behaviour import load_behaviour

    path = folder / "humanoid.safetensors"
    shutil.copy(Path(__file__).parents[2] / "behaviours" / "humanoid.safetensors", path)

    def read():
        found = load_behaviour(path)
        return [
            (source.name, *(array.tobytes() for array in source.policy.tensors().values()))
            for source in found.sources
        ]

    return path, read


def child(kind: str, first: int, last: int, folder: str) -> None:
    """Read the mutations first .. last-1; one line of JSON for each."""
    from slater.errors import InputError

    path, read = prepare(kind, Path(folder))
    original, expected = path.read_bytes(), read()
    path.write_bytes(original[: len(original) // 2])
    with contextlib.suppress(InputError):  # what is imported late is imported now, before anybody listens
        read()
    caught: list[str] = []
    listening = False

    def listen(event: str, _: object) -> None:
        if listening and event in FORBIDDEN:
            caught.append(event)

    sys.addaudithook(listen)
    for number in range(first, last):
        path.write_bytes(mutate(original, random.Random(f"{kind} {number}")))
        print(json.dumps({"begin": number}), flush=True)
        del caught[:]
        listening = True
        try:
            outcome = "right" if read() == expected else "wrong"
        except InputError as error:
            text = str(error)
            outcome = "sentence" if "\n" not in text and len(text) < 600 else f"bad sentence: {text[:300]!r}"
        except BaseException as error:
            outcome = f"traceback: {type(error).__name__}: {str(error)[:200]}"
        listening = False
        if caught:
            outcome = f"code: {caught}"
        peak = _peak()
        print(json.dumps({"done": number, "outcome": outcome, "peak": peak}), flush=True)


def run(kind: str, mutations: int) -> dict[str, object]:
    """Counts of outcomes, everything that must not happen with the number of its mutation, peak memory."""
    counts = {"right": 0, "sentence": 0, "other": 0}
    faults: list[str] = []
    peak = 0
    first = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while first < mutations:
            own = Path(folder) / str(first)  # a child that is started again finds nothing of the one before
            own.mkdir()
            done, fault, top = _watch(kind, first, mutations, str(own), counts)
            faults += fault
            peak = max(peak, top)
            first = done
    if peak > GIGABYTE:
        faults.append(f"memory: {peak / GIGABYTE:.2f} GiB")
    return {
        "kind": kind, "mutations": mutations, **counts, "faults": faults,
        "peak_gib": round(peak / GIGABYTE, 3), "seconds": round(time.monotonic() - started),
    }  # fmt: skip


def _watch(kind, first, last, folder, counts):
    """One child until it ends or is ended: the next mutation, faults, peak memory."""
    command = [sys.executable, "-m", "tests.data.fuzz", "child", kind, str(first), str(last), folder]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 (read when the child has ended)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    faults, peak, current, buffer = [], 0, None, b""
    began = time.monotonic(), 0.0
    while True:
        piece = process.stdout.read()
        buffer += piece or b""
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            record = json.loads(line)
            if "begin" in record:
                current, began = record["begin"], (time.monotonic(), _processor(process.pid))
                continue
            first, current, peak = record["done"] + 1, None, max(peak, record["peak"])
            outcome = record["outcome"]
            if outcome == "wrong":
                counts["other"] += 1
                if kind in CHECKED:
                    faults.append(f"mutation {record['done']}: other data")
            elif outcome in counts:
                counts[outcome] += 1
            else:
                faults.append(f"mutation {record['done']}: {outcome}")
        if process.poll() is not None and not piece:
            break
        waited, used = time.monotonic() - began[0], _processor(process.pid) - began[1]
        if current is not None and (used > SECONDS or waited > 60 * SECONDS):
            process.kill()
            faults.append(f"mutation {current}: hang of {used:.0f} s")
            first = current + 1
            break
        time.sleep(0.05)
    process.wait()
    process.stdout.close()
    if (first < last and current is None) or (process.returncode not in (0, -9)):
        errors.seek(0)
        words = errors.read().decode(errors="replace")[-300:]
        faults.append(f"mutation {first}: the process ended ({process.returncode}): {words}")
        first = first + 1 if current is not None else last
    return first, faults, peak


def _processor(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
