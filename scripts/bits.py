"""Fingerprints of a short run of every algorithm, to compare two states of the code on one machine.

    python scripts/bits.py > before.txt      # in one checkout, with its src on PYTHONPATH
    python scripts/bits.py > after.txt       # in the other
    diff before.txt after.txt

One line per algorithm, preset and kind of data: the hash of all arrays of its policy files, and of the
weights and estimates in its result. Bits depend on the processor: the lines mean nothing on another machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.deep.conformance.table import QUICK_OF, kinds  # noqa: E402
from tests.deep.problems import QUICK, pointmass  # noqa: E402

import slater.deep as deep  # noqa: E402


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


def main() -> None:
    """Print a line per algorithm, preset and kind of data."""
    only = sys.argv[1:]
    for name, preset in QUICK_OF:
        if only and name not in only:
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


if __name__ == "__main__":
    main()
