"""Faults at random moments: whatever is killed, interrupted or left without disk goes on to the same bits.

    python -m tests.crashes --faults 200 --seed 0 --log chains.jsonl

Every command is first run undisturbed. Then it is run again and again under one to three faults in a row,
each at a random moment, and once without; what it leaves must be, to the bit, what the undisturbed run left.
A fault is one of

    kill       SIGKILL to the command's process (its workers are left to themselves)
    interrupt  SIGINT to the process group, as Ctrl-C in a terminal
    disk       the output folder is on a tmpfs of too few blocks, enlarged afterwards (needs root)
    rename     the n-th os.replace of the process fails with an input/output error

Moments are drawn in CPU time of all processes of the command, so that they do not depend on the machine's
load. Commands run in forks of this process, which has imported everything and computed nothing. A chain is
drawn from the seed and its number, and begins with the fault that its command has met least often, so that
every command meets every fault. With --log the chains are kept as they end, and the same line goes on.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
TRAINING = ["--set", "batch_size=32", "--set", "hidden=16x16", "--set", "gamma=0.9", "--set", "keep_every=20"]
PHASES = ["--set", "model_steps=10", "--set", "joint_steps=5"]
OFTEN = ["--log-every", "10", "--checkpoint-every", "10"]


@dataclass(frozen=True)
class Command:
    """A command of `slater`: its words, given the data and the folder to write to, and what it leaves.

    again: the words to go on with, given the same; left: what must be the same to the bit. before: what is in
    the folder already, and that or what is left must be there after every fault.
    """

    words: Callable[[Path, Path], Sequence[str]]
    left: Callable[[Path], Any]
    again: Callable[[Path, Path], Sequence[str]] | None = None
    before: Callable[[Path], None] | None = None
    faults: tuple[str, ...] = ("kill", "interrupt", "disk", "rename")
    #: of all faults, in parts: more for commands that are quick
    share: int = 1


def weights(folder: Path) -> dict[str, bytes]:
    """Every policy and checkpoint below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}


def cells(folder: Path) -> list[Any]:
    """Rows of an experiment or a search, without what differs by nature."""
    rows = [json.loads(line)["row"] for line in (folder / "cells.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("seconds", "date"):
            row.pop(name, None)
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def content(path: Path) -> str:
    """The fingerprint of a dataset, computed from its rows."""
    from slater.data import load

    return load(path).fingerprint


def resume_or_again(words: Callable[[Path, Path], list[str]]) -> Callable[[Path, Path], list[str]]:
    """`slater train --resume` where there is a run."""

    def choose(data: Path, out: Path) -> list[str]:
        if (out / "run" / "run.json").exists():
            return ["train", "--resume", str(out / "run")]
        return words(data, out)

    return choose


def training(algorithm: str, *more: str, share: int) -> Command:
    """One run."""

    def words(data: Path, out: Path) -> list[str]:
        files = [str(data), "--out", str(out / "run"), "--limit", "5"]
        return ["train", algorithm, *files, *TRAINING, *OFTEN, *more]

    return Command(words, weights, again=resume_or_again(words), share=share)


def older_store(out: Path) -> None:
    """A store of other data where a new one will be written."""
    from slater.data import save

    from .deep.problems import pointmass

    save(pointmass(seed=1), out / "data.store")


COMMANDS: dict[str, Command] = {
    "train bc": training("bc", "--steps", "200", "--no-estimate", share=6),
    "train pdca": training("pdca", "--steps", "60", *PHASES, share=1),
    "sweep": Command(
        lambda data, out: [
            "train", "bc", str(data), "--out", str(out / "sweep"), "--limit", "5", "--sweep", "seed=0,1",
            "--steps", "200", "--processes", "2", "--no-estimate", *TRAINING, *OFTEN,
        ],
        weights, faults=("kill", "interrupt", "disk"), share=1,
    ),
    "collect": Command(
        lambda data, out: [
            "collect", "collect_toys:Pay", "--out", str(out / "collected.npz"), "--penalty", "0", "2",
            "--steps", "300", "--episodes", "5", "--start-steps", "50", "--batch-size", "16", "--hidden", "8",
        ],
        lambda out: content(out / "collected.npz"), share=1,
    ),
    "tune": Command(
        lambda data, out: [
            "tune", "bc", str(data), "--limit", "6", "--search", "batch_size=16,32", "--steps", "40",
            "--set", "hidden=16", "--set", "gamma=0.9", "--estimate-steps", "20",
            "--estimate-members", "1", "--workers", "1", "--out", str(out / "tuned"),
        ],
        lambda out: cells(out / "tuned"), faults=("kill", "interrupt", "disk"), share=1,
    ),
    "reproduce": Command(
        lambda data, out: [
            "reproduce", "figure1", "--quick", "--repeats", "1", "--workers", "1",
            "--out", str(out / "figure"),
        ],
        lambda out: cells(out / "figure"), share=1,
    ),
    "store": Command(
        lambda data, out: ["data", "convert", str(data), str(out / "data.store")],
        lambda out: content(out / "data.store"), share=12,
    ),
    "store again": Command(
        lambda data, out: ["data", "convert", str(data), str(out / "data.store"), "--overwrite"],
        lambda out: content(out / "data.store"), before=older_store, share=12,
    ),
}  # fmt: skip


def run(
    words: Sequence[str], said: Path, *, after: float | None = None, number: int = 0, fails_at: int = 0
) -> tuple[int, float, int, bool]:
    """Run a command in a fork; exit code (negative: killed), CPU seconds, renames, whether the fault came.

    after, number: send the signal `number` after so many CPU seconds; fails_at: this os.replace fails.
    """
    counts, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(counts)
        _child(words, said, fails_at, send)
    os.close(send)
    used, done, sent = 0.0, (0, 0), False
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        used = max(used, cpu_of(pid))
        # not before the command has begun: what interrupts Python on its way there is not about Slater
        if after is not None and used >= max(after, 0.03):
            sent = True
            if number == signal.SIGKILL:
                os.kill(pid, number)
            else:
                os.killpg(pid, number)
            after = None
        time.sleep(0.01)
    with os.fdopen(counts) as file:
        renames = int(file.read() or 0)
    return os.waitstatus_to_exitcode(done[1]), used, renames, sent or 0 < fails_at <= renames


def _child(words: Sequence[str], said: Path, fails_at: int, send: int) -> None:
    """What the fork does: never returns."""
    os.setsid()
    # a shell starts what runs in its background with Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with said.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    real, renames = os.replace, 0

    def replace(*args: Any, **options: Any) -> None:
        nonlocal renames
        renames += 1
        if renames == fails_at:
            raise OSError(errno.EIO, "Input/output error", str(args[0]))
        real(*args, **options)

    from slater import cli

    os.replace = replace
    code = 70
    try:
        code = cli.main(list(words))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and error.__traceback__.tb_next is None:
            code = 130  # before the command or after it, in this function
        else:
            traceback.print_exc()
    finally:
        os.write(send, str(renames).encode())
        os._exit(code)


def cpu_of(session: int) -> float:
    """CPU seconds of the processes of a session that live."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Outcome:
    """What the faults that came led to; a command may end before one comes.

    verdict: same, said (a sentence on what is lost), or wrong, with the words.
    """

    command: str
    faults: tuple[str, ...]
    verdict: str
    words: str = ""


class Harness:
    """Undisturbed runs, and runs under faults that must equal them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clean: dict[str, tuple[float, int, int, Any]] = {}
        self.number = 0
        self.data = folder / "data.npz"
        from slater.data import save

        from .deep.problems import pointmass

        save(pointmass(), self.data)

    def undisturbed(self, name: str) -> tuple[float, int, int, Any]:
        """CPU seconds, renames, bytes and what is left of a run without a fault, with compiled programs."""
        if name not in self.clean:
            command = COMMANDS[name]
            for turn in ("compiles", "is measured"):
                out = self.folder / f"clean-{name.replace(' ', '-')}-{turn.replace(' ', '-')}"
                out.mkdir()
                said = self.folder / f"{out.name}.txt"
                if command.before is not None:
                    command.before(out)
                code, used, renames, _ = run(command.words(self.data, out), said)
                if code != 0:
                    raise SystemExit(f"{name} fails undisturbed:\n{said.read_text()}")
                size = size_of(out)
                self.clean[name] = used, renames, size, command.left(out)
                shutil.rmtree(out)
        return self.clean[name]

    def chain(self, name: str, faults: Sequence[str], rng: random.Random) -> Outcome:
        """Run under the faults at moments of `rng`, one after the other, then to the end; compare."""
        command = COMMANDS[name]
        used, renames, size, expected = self.undisturbed(name)
        self.number += 1
        out = self.folder / f"out-{self.number}"
        out.mkdir()
        on_small_disk = "disk" in faults
        said = self.folder / f"said-{self.number}.txt"
        words = ""
        if on_small_disk:
            mount(out, 1 << 28)
        try:
            former = None
            if command.before is not None:
                command.before(out)
                former = command.left(out)
            going_on = command.again or command.words
            verdict, delivered = "same", list[str]()
            for fault in faults:
                said.write_bytes(b"")
                options: dict[str, Any] = {}
                if fault in ("kill", "interrupt"):
                    options["after"] = rng.uniform(0.0, 1.05) * used
                    options["number"] = signal.SIGKILL if fault == "kill" else signal.SIGINT
                elif fault == "rename":
                    options["fails_at"] = rng.randint(1, max(renames, 1))
                elif fault == "disk":
                    room = int(rng.uniform(0.02, 0.9) * size)
                    mount(out, used_blocks(out) + room, again=True)
                code, _, _, came = run(going_on(self.data, out), said, **options)
                if came or (fault == "disk" and code != 0):
                    delivered.append(fault)
                words = said.read_text(errors="replace")
                if fault == "disk":
                    mount(out, 1 << 28, again=True)
                if fault != "kill" and ("Traceback" in words or code == 70):
                    return Outcome(
                        name, tuple(delivered), "wrong", f"a traceback after {fault}: {words[-1500:]}"
                    )
                if finished(command, out, expected):
                    break
                if former is not None and not finished(command, out, former):
                    return Outcome(name, tuple(delivered), "wrong", f"what was there is lost: {words[-500:]}")
            if not finished(command, out, expected):
                wait_for_session_end()
                said.write_bytes(b"")
                code, _, _, _ = run(going_on(self.data, out), said)
                words = said.read_text(errors="replace")
                if code == 2 and "Traceback" not in words:
                    verdict = "said"
                elif code != 0:
                    return Outcome(name, tuple(delivered), "wrong", f"exit code {code}: {words[-1500:]}")
                elif not finished(command, out, expected):
                    return Outcome(name, tuple(delivered), "wrong", f"other bits; {words[-500:]}")
            return Outcome(name, tuple(delivered), verdict, words[-300:] if verdict == "said" else "")
        finally:
            if on_small_disk:
                subprocess.run(["umount", "-l", str(out)], check=False)
            shutil.rmtree(out, ignore_errors=True)


def wait_for_session_end() -> None:
    """Workers whose parent was killed get a moment to save and end; a new command waits for them too."""
    time.sleep(0.2)


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def used_blocks(disk: Path) -> int:
    """Bytes in use on the disk that is mounted there."""
    status = os.statvfs(disk)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def finished(command: Command, out: Path, expected: Any) -> bool:
    """Whether the command has left what it leaves undisturbed."""
    try:
        return bool(command.left(out) == expected)
    except Exception:  # half of it, or nothing
        return False


def mount(folder: Path, size: int, *, again: bool = False) -> None:
    """A tmpfs of `size` bytes at `folder`, or another size for the one that is there."""
    options = f"{'remount,' if again else ''}size={max(size // 4096, 1) * 4096}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def may_mount() -> bool:
    """Whether this process may make a small disk."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return done.returncode == 0


def draw(
    outcomes: Sequence[Outcome], seed: int, commands: Sequence[str], small_disks: bool
) -> tuple[str, list[str], random.Random]:
    """The next chain after those that ended: a command, one to three faults, where moments come from."""
    rng = random.Random(f"{seed} {len(outcomes)}")
    came = Counter((outcome.command, fault) for outcome in outcomes for fault in outcome.faults)
    # the command that is furthest behind its share
    counts = {name: sum(came[name, fault] for fault in COMMANDS[name].faults) for name in commands}
    name = min(commands, key=lambda name: counts[name] / COMMANDS[name].share)
    possible = [fault for fault in COMMANDS[name].faults if small_disks or fault != "disk"]
    rng.shuffle(possible)  # a tie is broken by chance
    first = min(possible, key=lambda fault: came[name, fault])
    return name, [first, *(rng.choice(possible) for _ in range(rng.randint(0, 2)))], rng


def read_log(path: Path | None, seed: int) -> list[Outcome]:
    """The chains of this seed that were kept."""
    if path is None or not path.exists():
        return []
    rows = map(json.loads, path.read_text().splitlines())
    return [
        Outcome(row["command"], tuple(row["faults"]), row["verdict"], row["words"])
        for row in rows
        if row["seed"] == seed
    ]


def main() -> int:
    """Print a line per chain, then a table; the exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--log", type=Path, help="keep the chains here; what it holds is not run again")
    options = parser.parse_args()
    # before anything computes: one thread, quick compilation, and compiled programs kept
    from slater.threads import use_one_thread

    from . import conftest  # noqa: F401

    use_one_thread()
    sys.path.insert(0, str(ROOT / "collect"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "collect"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    import slater.cli
    import slater.collect
    import slater.commands.train
    import slater.deep
    import slater.tuning.search  # noqa: F401

    small_disks = may_mount()
    if not small_disks:
        print("full disks are left out: a small tmpfs needs root")
    outcomes = read_log(options.log, options.seed)
    with tempfile.TemporaryDirectory(prefix="slater-crashes-") as folder:
        harness = Harness(Path(folder))
        while (total := sum(len(outcome.faults) for outcome in outcomes)) < options.faults:
            name, faults, rng = draw(outcomes, options.seed, options.only, small_disks)
            began = time.monotonic()
            outcome = harness.chain(name, faults, rng)
            outcomes.append(outcome)
            if options.log is not None:
                with options.log.open("a") as file:
                    file.write(json.dumps({"seed": options.seed, **asdict(outcome)}) + "\n")
            print(
                f"{outcome.command}: {', '.join(outcome.faults)}: {outcome.verdict} {outcome.words} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    table = Counter((outcome.command, fault) for outcome in outcomes for fault in outcome.faults)
    for (name, fault), count in sorted(table.items()):
        print(f"{name:12} {fault:10} {count}")
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    print(f"{total} faults in {len(outcomes)} chains: " + ", ".join(f"{n} {v}" for v, n in verdicts.items()))
    return 1 if verdicts["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
