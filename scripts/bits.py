"""Fingerprints of a short run of every algorithm, to compare two states of the code on one machine.

    python scripts/bits.py --against main                  # this checkout and another commit: equal or not
    python scripts/bits.py --against main cpq pdca:paper   # the same for some algorithms, or presets of them
    python scripts/bits.py --against main tabular          # those of finite problems alone
    python scripts/bits.py                                 # the lines of this checkout alone

One line per algorithm, preset and kind of data: the hash of all arrays of its policy files, and of the
weights and estimates in its result; of an algorithm for finite problems, of its policies and multipliers.
The source of the other commit is taken out of git into a temporary folder; both sides run the settings of
this checkout's conformance table, each in a process of its own with a cache of log models of its own. Exit
code 1 if a line differs; an algorithm that the other commit does not have is new. Bits depend on the
processor and on the number of threads: the lines mean nothing on another machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent


def arrays_hash(folder: Path) -> str:
    """Hash of every array in the policy files of a run, names left out: files may be renamed."""
    digest = hashlib.sha256()
    for name in ("mixture", "policy"):
        for key, array in sorted(load_file(folder / f"{name}.safetensors").items()):
            digest.update(key.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def result_hash(folder: Path) -> str:
    """Hash of the weights and estimates of a result."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    kept = [[row["weight"], row.get("estimates")] for row in result["members"]]
    kept.append(result.get("mixture_estimates"))
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def print_lines(only: list[str]) -> None:
    """Print a line per algorithm, preset and kind of data; `only`: names of algorithms, none for all."""
    sys.path.insert(0, str(ROOT))
    if not only or "tabular" in only:
        print_tabular()
    if only == ["tabular"]:
        return
    from tests.deep.conformance.table import QUICK_OF, kinds
    from tests.deep.problems import QUICK, pointmass

    import slater.deep as deep

    for name, preset in QUICK_OF:
        if only and not {name, f"{name}:{preset}"} & set(only):
            continue
        for discrete, costs in kinds(name):
            data = pointmass(discrete=discrete, costs=costs)
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                deep.train(
                    name, data, ["5"] * costs, out, seed=0, preset=preset,
                    **{**QUICK, **QUICK_OF[name, preset]},
                )  # fmt: skip
                kind = "discrete" if discrete else "continuous"
                print(name, preset, kind, costs, arrays_hash(out), result_hash(out), flush=True)


def print_tabular() -> None:
    """A line per algorithm for finite problems, on a problem of each path: dense and sparse."""
    from slater import tabular as tab

    for size in ("small", "large"):
        rng = np.random.default_rng(3)
        if size == "small":
            cmdp = tab.paper_cmdp(rng)
            behaviour = tab.half_optimal_behaviour(cmdp)
        else:
            S, A = 60, 10
            P = rng.dirichlet(np.full(S, 0.1), size=(S, A))
            cmdp = tab.CMDP(P, rng.random((S, A)), rng.beta(0.2, 0.2, size=(1, S, A)), [1.5], 0.8)
            behaviour = tab.uniform_policy(S, A)
        data = tab.Counts.sample(cmdp, behaviour, 2000, rng)
        runs: dict[str, Any] = {
            "pdca": tab.PDCA(rounds=20), "pdca:paper": tab.PDCA.preset("paper", rounds=3),
            "mbcl": tab.MBCL(rounds=5), "coptidice": tab.COptiDICE(), "plugin": tab.PlugIn(),
            "acrab": tab.ACrab(rounds=5), "mabo": tab.MABO(), "prorl": tab.PRORL(),
        }  # fmt: skip
        later = ("PDOCRL", "WSAC")
        runs |= {name.lower(): getattr(tab, name)(rounds=10) for name in later if hasattr(tab, name)}
        for name, algorithm in runs.items():
            if size == "large" and name == "pdca:paper":
                continue  # a program per sample
            found = algorithm.run(data)
            hashes = []
            for arrays in ((found.policy.members, found.policy.weights), (found.multipliers,)):
                content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
                hashes.append(hashlib.sha256(content).hexdigest()[:16])
            print("tabular", name, size, *hashes, flush=True)


def lines_of(source: Path, only: list[str]) -> dict[str, str]:
    """What a process with `source` as its code prints: algorithm, preset and kind of data -> hashes."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPATH": str(source), "SLATER_CACHE": cache}
        done = subprocess.run(
            [sys.executable, __file__, *only], env=env, stdout=subprocess.PIPE, text=True, check=True
        )
    parts = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    return {name: f"{arrays} {result}" for name, arrays, result in parts}


def compare(commit: str, only: list[str]) -> int:
    """Print for every run whether this checkout and `commit` give the same bits; 1 if one does not."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        before = lines_of(Path(folder) / "src", only)
    after = lines_of(ROOT / "src", only)
    differing = 0
    for name, hashes in after.items():
        word = "new" if name not in before else "equal" if hashes == before[name] else "DIFFERENT"
        differing += word == "DIFFERENT"
        print(f"{word:9}", name, hashes)
    return int(differing > 0)


def main() -> int:
    """Compare with another commit, or print lines."""
    words = sys.argv[1:]
    if words[:1] == ["--against"]:
        return compare(words[1], words[2:])
    print_lines(words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
