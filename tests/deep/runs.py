"""Runs under test: one that is stopped on the way, and what a folder has learned, to compare to the bit."""

import os
import signal
from pathlib import Path

from safetensors.numpy import load_file

import slater.deep as deep


class StopAt(deep.Watcher):
    """Asks the run to stop, as Ctrl-C does, once it has passed a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progressed(self, row) -> None:
        if row["step"] >= self.step:
            os.kill(os.getpid(), signal.SIGINT)


def weights(folder: Path) -> dict[str, bytes]:
    """Every array below `folder`, by its file and name; what the files say besides is left out."""
    return {
        f"{path.relative_to(folder)}:{name}": array.tobytes()
        for path in sorted(folder.rglob("*.safetensors"))
        for name, array in sorted(load_file(path).items())
    }
