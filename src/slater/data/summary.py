"""What a person wants to know about data before training on it, gathered in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.files import Opened
from slater.data.fingerprint import Fingerprint
from slater.data.metadata import Metadata, stated_bounds
from slater.limits import Limit, Units, resolve_limits

#: Actions kept for histograms; a longer file is thinned evenly.
_SAMPLE = 200_000
_BINS = 20
_JOINT_BINS = 10
_SPREAD = ("min", "lower_quartile", "median", "upper_quartile", "max")


@dataclass(frozen=True)
class Summary:
    """Sizes, episodes, limits kept and coverage of one dataset.

    record: every figure by name, as a JSON object; choices: the names of discrete actions, if known

    Where the record speaks of actions: per dimension the smallest and largest, mean, standard deviation, the
    share within 1% of either bound, and shares over equal bins between the bounds; `joint` is the share of
    cells, 10 per dimension, that hold any action (None with more than 3 dimensions). Of discrete actions
    `histogram` has one row: the share of each.
    """

    record: Mapping[str, Any]
    episodes: Episodes
    choices: tuple[str, ...] = ()


def _spread(values: NDArray[Any]) -> dict[str, float | None]:
    if len(values) == 0:
        return dict.fromkeys((*_SPREAD, "mean"))
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return {**dict(zip(_SPREAD, quartiles, strict=True)), "mean": float(np.mean(values))}


def frontier(costs: NDArray[np.float64], returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """The steps of "best return among episodes with at most this cost": rows (cost, return), both rising."""
    order = np.lexsort((-returns, costs))
    best = np.maximum.accumulate(returns[order])
    rises = np.diff(best, prepend=-np.inf) > 0
    return np.stack([costs[order][rises], best[rises]], axis=1)


def summarise(
    opened: Opened,
    limits: Sequence[Limit] = (Limit.episode(10), Limit.episode(20), Limit.episode(40)),
    gamma: float = 0.99,
) -> Summary:
    """Stream through an opened file and gather its summary; problems go to `opened.findings`.

    Limits without names are alternatives, each for every cost; named ones together are one set. `gamma`
    converts discounted limits to episode units, with critics that bootstrap through timeouts.
    """
    layout, meta = opened.require_layout(), opened.metadata
    names = layout.cost_names
    counter, content, actions = EpisodeCounter(len(names), meta.horizon), Fingerprint(names), _ActionSample()
    size = known = 0
    for rows in opened.rows():
        counter.update(rows)
        content.update(rows)
        actions.update(rows["actions"])
        size += len(rows["rewards"])
        known += int(rows["next_known"].sum())
    opened.report.raise_errors()
    episodes, coverage = counter.finish(), actions.coverage(meta)
    count = len(coverage["histogram"][0]) if layout.discrete else layout.action_dim
    timed = episodes.complete & ~episodes.terminated
    cut_off = episodes.complete & episodes.cut_off
    returns, costs = episodes.judged_sums
    record = {
        "file": opened.reader.name,
        "format": opened.reader.format,
        "env_id": meta.env_id,
        "rows": size,
        "transitions": known,
        "observation_dim": layout.observation_dim,
        "action_dim": count,
        "discrete_actions": layout.discrete,
        "cost_names": list(names),
        "horizon": episodes.horizon,
        "horizon_stated": meta.horizon is not None,
        "fingerprint": content.hexdigest(),
        "episodes": int(episodes.complete.sum()),
        "incomplete_episodes": int((~episodes.complete).sum()),
        "ended_by_terminal": int(episodes.terminated.sum()),
        "ended_by_timeout": int(timed.sum()),
        "cut_off_judged_by_rate": int((cut_off & episodes.judged).sum()),
        "cut_off_not_judged": int((cut_off & ~episodes.judged).sum()),
        "timeouts_at_steps": np.unique(episodes.lengths[timed])[:10].tolist(),
        "episode_length": _spread(episodes.lengths[episodes.complete]),
        "episode_return": _spread(returns),
        "episode_cost": {name: _spread(costs[:, index]) for index, name in enumerate(names)},
        "propensities": "propensity" in layout.present,
        "sources": None if episodes.source is None else list(_sources(episodes, names)),
        "limits": list(_shares(episodes, limits, names, Units(gamma, episodes.horizon))),
        "frontier": {name: frontier(costs[:, i], returns).tolist() for i, name in enumerate(names)},
        "actions": coverage,
    }
    choices = meta.action_names or ()
    return Summary(record, episodes, choices if layout.discrete and len(choices) == count else ())


def _sources(episodes: Episodes, cost_names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The policies that made the data, by name: judged episodes, and their mean return and costs.

    The error of a mean is its standard error over episodes; 0 for a single one.
    """
    for name in np.unique(np.asarray(episodes.source)):
        own = episodes.judged & (episodes.source == name)
        count = int(own.sum())
        if count:
            returns, costs = episodes.returns_per_episode[own], episodes.costs_per_episode[own]
            yield {
                "source": str(name),
                "episodes": count,
                "mean_return": float(returns.mean()),
                "return_error": float(returns.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0,
                "mean_costs": dict(zip(cost_names, costs.mean(axis=0).tolist(), strict=True)),
            }


def _shares(
    episodes: Episodes, limits: Sequence[Limit], cost_names: Sequence[str], units: Units
) -> Iterator[dict[str, Any]]:
    """How many judged episodes keep limits, all of them and each alone, and the best of those that do."""
    if any(limit.cost is not None for limit in limits):
        resolved = resolve_limits(limits, cost_names)
        sets = [(", ".join(map(str, resolved)), resolved)]
    else:
        sets = [(str(limit), (limit,) * len(cost_names)) for limit in limits]
    judged = max(1, int(episodes.judged.sum()))
    returns, costs = episodes.returns_per_episode, episodes.costs_per_episode
    for text, chosen in sets:
        safe = np.flatnonzero(episodes.keep(chosen, units))
        each = [episodes.keep_one(i, limit, units).sum() / judged for i, limit in enumerate(chosen)]
        best = safe[np.argmax(returns[safe])] if len(safe) else None
        yield {
            "limit": text,
            "per_episode": units.thresholds(chosen, "episode").tolist(),
            "safe_episodes": len(safe),
            "share": len(safe) / judged,
            "share_of_each_cost": list(map(float, each)),
            "best_return": None if best is None else float(returns[best]),
            "best_costs": None if best is None else costs[best].tolist(),
        }


class _ActionSample:
    """An even sample of the actions that stream by: every s-th, s doubling when there are too many."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []
        self._stride = 1
        self._seen = 0
        self._low: Any = np.inf
        self._high: Any = -np.inf

    def update(self, actions: NDArray[Any]) -> None:
        self._low = np.minimum(self._low, actions.min(axis=0))
        self._high = np.maximum(self._high, actions.max(axis=0))
        self._kept.append(actions[-self._seen % self._stride :: self._stride].copy())
        self._seen += len(actions)
        if sum(map(len, self._kept)) > 2 * _SAMPLE:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2

    def coverage(self, meta: Metadata) -> dict[str, Any]:
        sample = np.concatenate(self._kept)
        table = sample.reshape(len(sample), -1).astype(np.float64)
        smallest, largest = np.atleast_1d(self._low).astype(float), np.atleast_1d(self._high).astype(float)
        joint: float | None = None
        if sample.ndim == 1:
            low, high = np.zeros(1), np.array([(meta.num_actions or int(largest[0]) + 1) - 1.0])
            edges: NDArray[Any] = np.zeros((1, 1))
            shares = np.bincount(sample, minlength=int(high[0]) + 1)[None] / len(sample)
            joint = float((shares > 0).mean())
        else:
            low, high = stated_bounds(meta, smallest, largest)
            unit = np.clip((table - low) / np.where(high > low, high - low, 1.0), 0, 1)
            edges = (unit <= 0.01) | (unit >= 0.99)
            cells = np.minimum((unit * _BINS).astype(int), _BINS - 1)
            shares = np.stack([np.bincount(column, minlength=_BINS) for column in cells.T]) / len(table)
            if table.shape[1] <= 3:
                places = np.minimum((unit * _JOINT_BINS).astype(int), _JOINT_BINS - 1)
                joint = len(np.unique(places, axis=0)) / _JOINT_BINS ** table.shape[1]
        names = ("low", "high", "smallest", "largest", "mean", "std", "at_bounds", "histogram")
        arrays = (low, high, smallest, largest, table.mean(0), table.std(0), edges.mean(0), shares)
        return {**{name: array.tolist() for name, array in zip(names, arrays, strict=True)}, "joint": joint}
