"""What the rows of a log show of its columns: which take few values, how far they go, how a cost comes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_LEVELS", "NAMES", "PLAIN", "POSITIVE", "TWO_VALUES", "count_levels", "levels_of", "shown_by"]

#: a column with at most so many different values, each seen so often, has levels
MOST_LEVELS, LEAST_SEEN = 6, 5
#: levels of each column of one-hot observations: being the one that is on
NAMES = 1
#: share of a column's values that lie at its extreme if that is a wall
AT_WALL = 0.01
#: share of zeros from which a utility that is never negative is taken for events
SOME_ZEROS = 0.05
#: how the mean of a utility is fitted
TWO_VALUES, POSITIVE, PLAIN = 0, 1, 2


def levels_of(observations: NDArray[Any]) -> int:
    """Levels of a column at most in a model of (N, D) observations: `NAMES` if all are one-hot, else
    `MOST_LEVELS` if any column takes few values, else 0.
    """
    on = observations != 0
    if observations.shape[1] > 1 and np.all(on.sum(axis=1) == 1) and np.all(observations[on] == 1):
        return NAMES
    return MOST_LEVELS if count_levels(observations).any() else 0


def count_levels(observations: NDArray[Any]) -> NDArray[np.int64]:
    """Of every column of (N, D) observations the number of its values if they are few, else 0."""
    counts = []
    for column in observations.T:
        values, seen = np.unique(column, return_counts=True)
        few = 1 < len(values) <= MOST_LEVELS and np.median(seen) >= LEAST_SEEN
        counts.append(len(values) if few else 0)
    return np.array(counts, dtype=np.int64)


def shown_by(rows: dict[str, NDArray[Any]], most: int) -> tuple[Any, ...]:
    """Of D columns and 1+I utilities, as fields of `Dynamics`: levels (D, L), level_count (D,), unit, low and
    high (D,), links, utility_low, utility_high and utility_mean (1+I,), ends.

    rows: the fields of `Rows`, NumPy; most: L, levels of a column at most; 0: no column has levels
    """
    obs, following, u = rows["obs"], rows["next_obs"], rows["utilities"].astype(np.float64)
    low = np.minimum(obs.min(axis=0), following.min(axis=0))
    high = np.maximum(obs.max(axis=0), following.max(axis=0))
    count = count_levels(obs) if most > NAMES else np.where(high > low, most, 0)
    levels = np.zeros((obs.shape[1], most))
    for column in np.flatnonzero(count > NAMES):
        values = np.unique(obs[:, column])
        if not np.isin(following[:, column], values).all():
            count[column] = 0
            continue
        levels[column] = np.append(values, np.full(most - len(values), values[-1]))
    change = (following - obs).astype(np.float64)
    root, spread = np.sqrt(np.mean(change**2, axis=0)), obs.std(axis=0, dtype=np.float64)
    # a tenth of the range beyond the range, unless values pile up there: a wall; a name is on or off
    room = (0.0 if most == NAMES else 0.1) * (high - low)
    walls = [np.mean(obs <= low + 1e-6 * room, axis=0), np.mean(obs >= high - 1e-6 * room, axis=0)]
    u_low, u_high = u.min(axis=0), u.max(axis=0)
    two = np.all((u == u_low) | (u == u_high), axis=0) & (u_high > u_low)
    positive = (u_low >= 0) & (np.mean(u == 0, axis=0) > SOME_ZEROS) & (u_high > 0)
    return (
        levels, count, np.where(root > 1e-6, root, 1e-3 * np.maximum(spread, 1e-3)),
        low - np.where(walls[0] > AT_WALL, 0.0, room), high + np.where(walls[1] > AT_WALL, 0.0, room),
        np.where(two, TWO_VALUES, np.where(positive, POSITIVE, PLAIN)), u_low, u_high,
        np.maximum(np.abs(u.mean(axis=0)), 1e-9), float(rows["ended"].any()),
    )  # fmt: skip
