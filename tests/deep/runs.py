"""Runs under test: one that is stopped on the way, and what a folder has learned, to compare to the bit."""

import os
import signal
from pathlib import Path

import slater.deep as deep


class StopAt(deep.Watcher):
    """Asks the run to stop, as Ctrl-C does, once it has passed a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progressed(self, row) -> None:
        if row["step"] >= self.step:
            os.kill(os.getpid(), signal.SIGINT)


def weights(folder: Path) -> dict[str, bytes]:
    """Every file of arrays below `folder`, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}
