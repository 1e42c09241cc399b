"""What a person wants to know about data before training on it, gathered in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.files import Opened
from slater.data.fingerprint import Fingerprint
from slater.limits import Limit, Units, resolve_limits

#: Actions kept for histograms; a longer file is thinned evenly.
_SAMPLE = 200_000
_BINS = 20
_JOINT_BINS = 10


@dataclass(frozen=True)
class LimitShare:
    """How much of the data keeps a limit.

    text: the limit as given. bounds: per episode of full length, undiscounted, one per cost.
    safe: judged episodes that keep all of them. share: of the judged episodes. each: the same for the limit
    on each cost alone. best_return: largest return among the safe ones, None if there is none. best_costs:
    its costs.
    """

    text: str
    bounds: tuple[float, ...]
    safe: int
    share: float
    each: tuple[float, ...]
    best_return: float | None
    best_costs: tuple[float, ...] | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this class."""
        return {
            "limit": self.text,
            "per_episode": list(self.bounds),
            "safe_episodes": self.safe,
            "share": self.share,
            "share_of_each_cost": list(self.each),
            "best_return": self.best_return,
            "best_costs": None if self.best_costs is None else list(self.best_costs),
        }


@dataclass(frozen=True)
class SourceMeans:
    """One policy of those that made the data: its judged episodes, and their mean return and costs.

    return_error: standard error of the mean return over its episodes; 0 for a single one.
    """

    name: str
    episodes: int
    mean_return: float
    return_error: float
    mean_costs: tuple[float, ...]


@dataclass(frozen=True)
class ActionCoverage:
    """Where the actions of the data lie.

    For continuous actions, per dimension: smallest and largest, mean, standard deviation, the share within
    1% of either bound, and a histogram (shares over equal bins between the bounds). `joint` is the share
    of cells, 10 per dimension, that hold any action (None with more than 3 dimensions).
    For discrete actions `histogram` has one row: the share of each action.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    smallest: NDArray[np.float64]
    largest: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    at_bounds: NDArray[np.float64]
    histogram: NDArray[np.float64]
    joint: float | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this class."""
        record: dict[str, Any] = {
            name: np.asarray(getattr(self, name)).tolist()
            for name in ("low", "high", "smallest", "largest", "mean", "std", "at_bounds", "histogram")
        }
        return {**record, "joint": self.joint}


@dataclass(frozen=True)
class Summary:
    """Sizes, episodes, limits kept and coverage of one dataset; `to_json` names every figure."""

    name: str
    format: str
    env_id: str | None
    rows: int
    transitions: int
    observation_dim: int
    action_dim: int
    discrete: bool
    cost_names: tuple[str, ...]
    horizon: int
    horizon_stated: bool
    fingerprint: str
    episodes: Episodes
    timeouts_at: tuple[int, ...]
    shares: tuple[LimitShare, ...]
    actions: ActionCoverage
    propensities: bool = False
    choices: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[SourceMeans, ...] | None:
        """The policies that made the data, by name; None where the data does not say."""
        if self.episodes.source is None:
            return None
        found = []
        for name in np.unique(self.episodes.source):
            own = self.episodes.judged & (self.episodes.source == name)
            count = int(own.sum())
            if not count:
                continue
            returns = self.episodes.returns_per_episode[own]
            found.append(
                SourceMeans(
                    name=str(name),
                    episodes=count,
                    mean_return=float(returns.mean()),
                    return_error=float(returns.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0,
                    mean_costs=tuple(map(float, self.episodes.costs_per_episode[own].mean(axis=0))),
                )
            )
        return tuple(found)

    @property
    def judged(self) -> NDArray[np.int64]:
        """Numbers of the episodes that are judged; see `slater.data.episodes`."""
        return np.flatnonzero(self.episodes.judged)

    def frontier(self, cost: int = 0) -> NDArray[np.float64]:
        """The best return at each cost, shape (K, 2), for one cost; see `frontier`."""
        judged, table = self.judged, self.episodes
        return frontier(table.costs_per_episode[judged, cost], table.returns_per_episode[judged])

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        judged, episodes = self.judged, self.episodes
        cut_off = episodes.complete & episodes.cut_off
        returns, costs = episodes.returns_per_episode[judged], episodes.costs_per_episode[judged]
        return {
            "file": self.name,
            "format": self.format,
            "env_id": self.env_id,
            "rows": self.rows,
            "transitions": self.transitions,
            "observation_dim": self.observation_dim,
            "action_dim": self.action_dim,
            "discrete_actions": self.discrete,
            "cost_names": list(self.cost_names),
            "horizon": self.horizon,
            "horizon_stated": self.horizon_stated,
            "fingerprint": self.fingerprint,
            "episodes": int(episodes.complete.sum()),
            "incomplete_episodes": int((~episodes.complete).sum()),
            "ended_by_terminal": int(episodes.terminated.sum()),
            "ended_by_timeout": int((episodes.complete & ~episodes.terminated).sum()),
            "cut_off_judged_by_rate": int((cut_off & episodes.judged).sum()),
            "cut_off_not_judged": int((cut_off & ~episodes.judged).sum()),
            "timeouts_at_steps": list(self.timeouts_at),
            "episode_length": _spread(episodes.lengths[episodes.complete]),
            "episode_return": _spread(returns),
            "episode_cost": {name: _spread(costs[:, index]) for index, name in enumerate(self.cost_names)},
            "propensities": self.propensities,
            "sources": None
            if self.sources is None
            else [
                {
                    "source": source.name,
                    "episodes": source.episodes,
                    "mean_return": source.mean_return,
                    "return_error": source.return_error,
                    "mean_costs": dict(zip(self.cost_names, source.mean_costs, strict=True)),
                }
                for source in self.sources
            ],
            "limits": [share.to_json() for share in self.shares],
            "frontier": {name: self.frontier(index).tolist() for index, name in enumerate(self.cost_names)},
            "actions": self.actions.to_json(),
        }


def _spread(values: NDArray[Any]) -> dict[str, float | None]:
    if len(values) == 0:
        return dict.fromkeys(("min", "lower_quartile", "median", "upper_quartile", "max", "mean"))
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    names = ("min", "lower_quartile", "median", "upper_quartile", "max")
    return {**dict(zip(names, map(float, quartiles), strict=True)), "mean": float(np.mean(values))}


def frontier(costs: NDArray[np.float64], returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """The steps of "best return among episodes with at most this cost": rows (cost, return), both rising."""
    order = np.lexsort((-returns, costs))
    best = np.maximum.accumulate(returns[order]) if len(order) else np.zeros(0)
    rises = np.concatenate([[True], best[1:] > best[:-1]]) if len(order) else np.zeros(0, dtype=np.bool_)
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
    layout = opened.require_layout()
    counter = EpisodeCounter(len(layout.cost_names), opened.metadata.horizon)
    actions, content = _ActionSample(), Fingerprint(layout.cost_names)
    size = known = 0
    for rows in opened.rows():
        counter.update(rows)
        content.update(rows)
        actions.update(rows["actions"])
        size += len(rows["rewards"])
        known += int(rows["next_known"].sum())
    opened.report.raise_errors()
    episodes = counter.finish()
    stated, horizon = opened.metadata.horizon, episodes.horizon
    cut = episodes.complete & ~episodes.terminated
    choices = opened.metadata.action_names or ()
    coverage = actions.coverage(
        opened.metadata.action_low, opened.metadata.action_high, opened.metadata.num_actions
    )
    return Summary(
        name=opened.reader.name,
        format=opened.reader.format,
        env_id=opened.metadata.env_id,
        rows=size,
        transitions=known,
        observation_dim=layout.observation_dim,
        action_dim=coverage.histogram.shape[1] if layout.discrete else layout.action_dim,
        discrete=layout.discrete,
        cost_names=layout.cost_names,
        horizon=horizon,
        horizon_stated=stated is not None,
        fingerprint=content.hexdigest(),
        episodes=episodes,
        timeouts_at=tuple(int(n) for n in np.unique(episodes.lengths[cut])[:10]),
        shares=tuple(_shares(episodes, limits, layout.cost_names, Units(gamma, horizon))),
        actions=coverage,
        propensities="propensity" in layout.present,
        choices=choices if layout.discrete and len(choices) == coverage.histogram.shape[1] else (),
    )


def _shares(
    episodes: Episodes, limits: Sequence[Limit], cost_names: Sequence[str], units: Units
) -> Iterable[LimitShare]:
    sets: list[tuple[str, tuple[Limit, ...]]] = []
    if any(limit.cost is not None for limit in limits):
        resolved = resolve_limits(limits, cost_names)
        sets.append((", ".join(map(str, resolved)), resolved))
    else:
        sets += [(str(limit), (limit,) * len(cost_names)) for limit in limits]
    judged = max(1, int(episodes.judged.sum()))
    returns, costs = episodes.returns_per_episode, episodes.costs_per_episode
    for text, chosen in sets:
        safe = np.flatnonzero(episodes.keep(chosen, units))
        each = [episodes.keep_one(i, limit, units).sum() / judged for i, limit in enumerate(chosen)]
        best = safe[np.argmax(returns[safe])] if len(safe) else None
        yield LimitShare(
            text=text,
            bounds=tuple(map(float, units.thresholds(chosen, "episode"))),
            safe=len(safe),
            share=len(safe) / judged,
            each=tuple(map(float, each)),
            best_return=None if best is None else float(returns[best]),
            best_costs=None if best is None else tuple(map(float, costs[best])),
        )


class _ActionSample:
    """An even sample of the actions that stream by: every s-th, s doubling when there are too many."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []
        self._count = 0
        self._stride = 1
        self._seen = 0
        self._low: NDArray[Any] | None = None
        self._high: NDArray[Any] | None = None

    def update(self, actions: NDArray[Any]) -> None:
        low, high = actions.min(axis=0), actions.max(axis=0)
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)
        part = actions[-self._seen % self._stride :: self._stride]
        self._seen += len(actions)
        self._kept.append(part.copy())
        self._count += len(part)
        if self._count > 2 * _SAMPLE:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2
            self._count = len(self._kept[0])

    def coverage(
        self, low: Sequence[float] | None, high: Sequence[float] | None, num_actions: int | None
    ) -> ActionCoverage:
        sample = np.concatenate(self._kept)
        assert self._low is not None
        assert self._high is not None
        smallest, largest = np.atleast_1d(self._low).astype(float), np.atleast_1d(self._high).astype(float)
        table = sample.reshape(len(sample), -1).astype(np.float64)
        if sample.ndim == 1:
            count = num_actions or int(largest[0]) + 1
            shares = np.bincount(sample, minlength=count)[None] / len(sample)
            bounds = (np.zeros(1), np.array([count - 1.0]))
            return ActionCoverage(
                *bounds,
                smallest,
                largest,
                table.mean(0),
                table.std(0),
                np.zeros(1),
                shares,
                float((shares > 0).mean()),
            )
        inside = max(np.abs(smallest).max(), np.abs(largest).max()) <= 1
        lows = (
            np.asarray(low, float) if low is not None else (-np.ones_like(smallest) if inside else smallest)
        )
        highs = (
            np.asarray(high, float) if high is not None else (np.ones_like(largest) if inside else largest)
        )
        width = np.where(highs > lows, highs - lows, 1.0)
        unit = np.clip((table - lows) / width, 0, 1)
        edges = (unit <= 0.01) | (unit >= 0.99)
        cells = np.minimum((unit * _BINS).astype(int), _BINS - 1)
        histogram = np.stack([np.bincount(column, minlength=_BINS) for column in cells.T]) / len(table)
        joint = None
        if table.shape[1] <= 3:
            places = np.minimum((unit * _JOINT_BINS).astype(int), _JOINT_BINS - 1)
            joint = len(np.unique(places, axis=0)) / _JOINT_BINS ** table.shape[1]
        return ActionCoverage(
            lows, highs, smallest, largest, table.mean(0), table.std(0), edges.mean(0), histogram, joint
        )


def spread_of(record: Mapping[str, float | None]) -> str:
    """One line for a distribution: min, quartiles, max."""
    if record["min"] is None:
        return "no episode is judged"
    return (
        f"{record['min']:.4g} .. {record['max']:.4g}  (median {record['median']:.4g}, quartiles "
        f"{record['lower_quartile']:.4g} and {record['upper_quartile']:.4g}, mean {record['mean']:.4g})"
    )
