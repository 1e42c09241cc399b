"""Learning curves of collected datasets: `python scripts/draw_curves.py OUT.png FILE.curves.jsonl ...`.

One column per file, return above and cost below, per training episode (mean of 10 in a row), one line per
penalty. `slater collect` writes the curves beside its dataset.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def main(out: str, *files: str) -> None:
    """Draw `files` into `out`."""
    figure, axes = plt.subplots(2, len(files), figsize=(3.4 * len(files), 5), squeeze=False, sharex="col")
    for column, file in enumerate(files):
        lines = defaultdict(list)
        for text in Path(file).read_text().splitlines():
            row = json.loads(text)
            lines[tuple(row["penalty"])].append((row["steps"], row["return"], row["cost"]))
        for penalty, rows in sorted(lines.items()):
            steps, returns, costs = (
                np.convolve(part, np.full(10, 0.1), "valid") for part in zip(*rows, strict=True)
            )
            for axis, values in zip(axes[:, column], (returns, costs), strict=True):
                axis.plot(
                    steps / 1000, values, label="penalty " + ",".join(f"{p:g}" for p in penalty), linewidth=1
                )
        axes[0, column].set_title(Path(file).name.split(".")[0])
        axes[0, column].legend(fontsize=7)
        axes[1, column].set_xlabel("environment steps / 1000")
    axes[0, 0].set_ylabel("return per episode")
    axes[1, 0].set_ylabel("cost per episode")
    figure.tight_layout()
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    main(*sys.argv[1:])
