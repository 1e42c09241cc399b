"""A small real dataset that ships with the package, made by `slater collect` (scripts/make_sample.sh)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ballcircle"]


def ballcircle() -> Path:
    """bullet/BallCircle: 300 episodes of 200 steps, under 5 MB, from policies of four penalties."""
    return Path(__file__).parent / "ballcircle.hdf5"
