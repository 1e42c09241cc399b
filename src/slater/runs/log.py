"""The log that a run learned from, read again as the run read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, ReadOptions, load
from slater.runs.record import Run


def load_log(run: Run | None, path: str | Path | None = None) -> Dataset:
    """The data of `run`, or those at `path` instead; columns and missing values as the run was told.

    What the run was told is of its kind of file: another kind at `path` says what it holds itself.
    """
    source = path if path is not None else run.data if run is not None else ""
    told = run is not None and bool(run.reading) and Path(source).suffix == Path(run.data).suffix
    return load(source, ReadOptions.from_json(run.reading) if run is not None and told else None)


def judged_sums(data: Dataset, costs: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns (E,) and costs (E, I), in the order of `costs`, of the logged episodes that can be judged."""
    returns, sums = data.episodes.judged_sums
    return returns, sums[:, [data.cost_names.index(name) for name in costs]]
