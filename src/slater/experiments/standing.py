"""Who is safe, who is best of those, by how much, and how sure that is: what a reader of a table wants first.

A method is *safe* on a task if its mean cost is within the limit at every one of the limits, each mean over
seeds; one that was run at some of them only does not count. Aggregates are interquartile means over runs,
as in rliable (Agarwal et al., NeurIPS 2021), and differences are of pairs that met the same task, limit and
seed. Intervals are percentiles of a bootstrap that draws tasks, and runs within each task: few tasks, with
few seeds each, are what the numbers rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slater.jobs.engines import Row
from slater.report.html import Table

DRAWS, CONFIDENCE = 2_000, 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Standing:
    """A method over all tasks: those that it has rows of, those on which it is safe, and those on which it
    has the most reward of all that are safe there; its interquartile mean of normalised reward with an
    interval, and the share of its runs that kept their limit.
    """

    label: str
    tasks: tuple[str, ...]
    safe: tuple[str, ...]
    best: tuple[str, ...]
    reward: float
    interval: Interval
    kept: float


@dataclass(frozen=True)
class Difference:
    """How much more normalised reward one method has than another in runs on the same task, limit and seed.

    pairs: such runs; chance: share of pairs in which it has more, ties by half
    """

    label: str
    other: str
    tasks: int
    pairs: int
    mean: float
    interval: Interval
    chance: float


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """The mean of what is left without the lowest and the highest quarter; of few values, of all in part."""
    ordered = np.sort(values)
    cut = len(ordered) / 4.0
    # a value at the edge counts by the share of it that is inside
    place = np.arange(len(ordered))
    weights = np.clip(np.minimum(place + 1.0 - cut, len(ordered) - cut - place), 0.0, 1.0)
    return float(np.average(ordered, weights=weights))


def _interval(
    groups: Sequence[NDArray[np.float64]], statistic: Callable[[NDArray[np.float64]], float]
) -> Interval:
    """Of a statistic of all values, where tasks and the runs of each are drawn again."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        tasks = rng.integers(len(groups), size=len(groups))
        drawn.append(statistic(np.concatenate([rng.choice(groups[k], len(groups[k])) for k in tasks])))
    low, high = np.quantile(drawn, [(1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0])
    return float(low), float(high)


def safe(rows: Sequence[Row], limits: Collection[str] = ()) -> bool:
    """Whether the mean cost keeps every limit, of a method's rows on one task.

    limits: of the task; a method that was not run at one of them is not known to be safe.
    """
    met: dict[str, list[float]] = {limit: [] for limit in limits}
    for row in rows:
        met.setdefault(row["limit"], []).append(row["normalised_cost"])
    return all(costs and np.mean(costs) <= 1.0 for costs in met.values())


def limits_of(flat: Sequence[Row]) -> dict[str, set[str]]:
    """Every limit at which any method was run, by task."""
    found: dict[str, set[str]] = {}
    for row in flat:
        found.setdefault(row["place"], set()).add(row["limit"])
    return found


def by_task(flat: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Label of a method -> task -> rows."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in flat:
        found.setdefault(row["label"], {}).setdefault(row["place"], []).append(row)
    return found


def mean_reward(rows: Sequence[Row]) -> float:
    """Of rows, normalised."""
    return float(np.mean([row["normalised_reward"] for row in rows]))


def standings(flat: Sequence[Row], still: Sequence[str] = ()) -> list[Standing]:
    """Of every method: those safe on most tasks first, then by reward.

    still: tasks whose behaviours do not move, or on which no limit binds; they do not count.
    """
    rows = [row for row in flat if row["task"] not in still]
    tasks, limits = by_task(rows), limits_of(rows)
    mean: dict[str, dict[str, float]] = {place: {} for place in limits}  # of those safe there
    for label, own in tasks.items():
        for place, mine in own.items():
            if safe(mine, limits[place]):
                mean[place][label] = mean_reward(mine)
    found = []
    for label, own in tasks.items():
        within = tuple(place for place in own if label in mean[place])
        best = tuple(place for place in within if mean[place][label] >= max(mean[place].values()))
        groups = [np.array([row["normalised_reward"] for row in mine]) for mine in own.values()]
        kept = float(np.mean([row["normalised_cost"] <= 1.0 for mine in own.values() for row in mine]))
        reward, interval = interquartile_mean(np.concatenate(groups)), _interval(groups, interquartile_mean)
        found.append(Standing(label, tuple(own), within, best, reward, interval, kept))
    return sorted(found, key=lambda one: (-len(one.safe), -len(one.best), -one.reward))


def differences(flat: Sequence[Row], label: str, still: Sequence[str] = ()) -> list[Difference]:
    """Of one method to every other, in the runs that both have on the same task, limit and seed."""

    def meeting(row: Row) -> tuple[str, str, int]:
        return row["place"], row["limit"], row["seed"]

    own = {meeting(row): row for row in flat if row["label"] == label and row["task"] not in still}
    found = []
    for other, rows in by_task(flat).items():
        groups = [
            np.array(gains)
            for mine in rows.values()
            if (gains := [own[meeting(row)]["normalised_reward"] - row["normalised_reward"]
                          for row in mine if meeting(row) in own])
        ]  # fmt: skip
        if groups and other != label:
            every = np.concatenate(groups)
            chance = float(np.mean(np.where(every == 0.0, 0.5, every > 0.0)))
            interval = _interval(groups, lambda values: float(np.mean(values)))
            found.append(
                Difference(label, other, len(groups), len(every), float(every.mean()), interval, chance)
            )
    return found


def sentences(found: Sequence[Standing], against: Sequence[Difference]) -> list[str]:
    """The answer in words: who is safe where, who is best of those, by how much and how sure."""
    first = found[0]
    count = len({place for one in found for place in one.tasks})
    lines = []
    if not first.safe:
        lines.append(f"No method is within every limit on any of the {count} tasks.")
    else:
        equal = [one.label for one in found if len(one.safe) == len(first.safe)]
        lines.append(
            f"{' and '.join(equal)} {'is' if len(equal) == 1 else 'are'} within every limit on "
            f"{len(first.safe)} of {count} tasks, more than any other method."
            if len(equal) < len(found)
            else f"All methods are within every limit on {len(first.safe)} of {count} tasks."
        )
        ahead = max(found, key=lambda one: len(one.best))
        lines.append(
            f"Of the methods safe on a task, {ahead.label} has the most reward on {len(ahead.best)} of "
            f"{len({place for one in found for place in one.safe})}."
        )
    for one in against:
        low, high = one.interval
        sure = "more" if low > 0.0 else "less" if high < 0.0 else "not known to be more or less"
        lines.append(
            f"{one.label} against {one.other}: {one.mean:+.3f} of normalised reward ({low:+.3f} to "
            f"{high:+.3f}, {one.pairs} pairs of {one.tasks} tasks): {sure}."
        )
    return lines


def standings_table(found: Sequence[Standing]) -> Table:
    """Standings as a table."""
    rows = []
    for one in found:
        safe_on, (low, high) = f"{len(one.safe)} of {len(one.tasks)}", one.interval
        reward, kept = f"{one.reward:.3f} ({low:.3f} to {high:.3f})", f"{one.kept:.0%}"
        rows.append([one.label, safe_on, ", ".join(one.safe) or "none", str(len(one.best)), reward, kept])
    caption = (
        "Safe: run at each one of the limits, with a mean cost within it. Best: most reward of those safe. "
        "Reward: interquartile mean over runs, 95% interval of a bootstrap over tasks and runs, safe or not."
    )
    return Table(["method", "safe on", "tasks", "best on", "reward", "runs within"], rows, caption)
