"""Small datasets that ship with the package: a ball for the demo, a heated room for the tutorial."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["ballcircle", "copy", "room", "sample"]


def sample() -> Path:
    """The log to try things on, whose path `slater.load` and `slater.train` take: that of `ballcircle`."""
    return ballcircle()


def ballcircle() -> Path:
    """bullet/BallCircle: 300 episodes of 200 steps, under 5 MB, from policies of four penalties.

    Made by `slater collect` (scripts/make_sample.sh).
    """
    return Path(__file__).parent / "ballcircle.hdf5"


def room() -> Path:
    """200 days of 24 hours of a heated room (`slater.envs.room`), as CSV: comfort, and energy as the cost.

    Made by scripts/make_room_log.py.
    """
    return Path(__file__).parent / "room.csv"


def copy(name: str, folder: str | Path = ".") -> Path:
    """Copy the file called `name` ("room.csv", "ballcircle.hdf5") into a folder; its new path."""
    return Path(shutil.copy(Path(__file__).parent / name, folder))
