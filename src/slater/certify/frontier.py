"""What another limit would cost: the linear program of the output, solved again for any limits.

A run keeps its policies with estimates of reward and costs. The best mixture within *other* limits is one
linear program over them, without training; its multiplier is the price of the limit, the reward that one more
unit of it would buy. A pool of several runs, algorithms and seeds is the same program with more candidates.

The estimates are those that the runs made from their logs. A program that picks among many candidates picks
those whose estimates err in their favour, so `margin` holds a share of every limit back, and where candidates
have a spread (how sure the log is of them) the program sees cost + spread and reward - spread. Of policies
that one log is asked about together the joint spread of a mixture counts, in a cone program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.limit_status import LimitStatus
from slater.limits import LARGEST
from slater.mixing import best_mixture, robust_mixture

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A policy that can be mixed, and its estimated sums per episode; costs in the order of the pool."""

    name: str
    reward: float
    costs: tuple[float, ...]
    reward_spread: float = 0.0
    cost_spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Pool:
    """Policies of one or more runs, judged in one unit (sums per episode) over the same costs."""

    cost_names: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    #: whether all estimates passed their check on the data
    trusted: bool = True
    #: (1+I, K, K) of what is said of reward and costs, where one log says it of all candidates; else spreads
    #: add up
    covariance: F64 | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InputError(
                "there is no policy with estimates to mix; give a run whose members were estimated."
            )
        for candidate in self.candidates:
            if len(candidate.costs) != len(self.cost_names):
                raise InputError(
                    f"{candidate.name} has {len(candidate.costs)} costs, but the pool has "
                    f"{len(self.cost_names)} ({', '.join(self.cost_names)}); pool runs over the same costs."
                )

    @classmethod
    def union(cls, pools: Sequence[Pool]) -> Pool:
        """All candidates of several pools, which must have the same costs."""
        if not pools:
            raise InputError("there is nothing to pool; give at least one run.")
        names = pools[0].cost_names
        for pool in pools:
            if set(pool.cost_names) != set(names):
                raise InputError(
                    f"one run has the costs {', '.join(pool.cost_names)} and another {', '.join(names)}; "
                    "pool runs over the same costs."
                )
        candidates = tuple(candidate for pool in pools for candidate in pool.ordered(names).candidates)
        return cls(names, candidates, all(pool.trusted for pool in pools))

    def ordered(self, names: tuple[str, ...]) -> Pool:
        """The same policies with their costs in the order of `names`."""
        if names == self.cost_names:
            return self
        order = [self.cost_names.index(name) for name in names]
        candidates = tuple(
            replace(
                candidate, costs=tuple(candidate.costs[k] for k in order),
                cost_spread=tuple(candidate.cost_spread[k] for k in order) if candidate.cost_spread else (),
            )
            for candidate in self.candidates
        )  # fmt: skip
        return replace(self, cost_names=names, candidates=candidates)

    def bounds(self, deviations: float) -> tuple[F64, F64]:
        """Reward (K,) less, and costs (K, I) plus, that many spreads."""
        zero = (0.0,) * len(self.cost_names)
        reward = np.array([c.reward - deviations * c.reward_spread for c in self.candidates])
        costs = np.array(
            [np.add(c.costs, deviations * np.array(c.cost_spread or zero)) for c in self.candidates]
        ).reshape(len(self.candidates), len(self.cost_names))
        return reward, costs


@dataclass(frozen=True)
class Point:
    """The best mixture at some limits (all sums per episode).

    limits: what each cost may be, (I,); reward, costs: of the mixture by its members' estimates; reward_low,
    costs_high: the same by the bounds that the program saw.
    prices: reward that one more unit of each limit would buy; 0 where a limit does not bind.
    within: whether any mixture keeps the limits by the bounds; status: the same, where the estimates passed
    their check; else "within" is not known. weights: name of a candidate -> its share of episodes.
    """

    limits: tuple[float, ...]
    reward: float
    costs: tuple[float, ...]
    reward_low: float
    costs_high: tuple[float, ...]
    prices: tuple[float, ...]
    within: bool
    status: LimitStatus
    weights: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON; a price that does not exist is null."""
        return asdict(self) | ({} if self.within else {"prices": None})


def _check_margin(margin: float) -> None:
    if not 0.0 <= margin < 1.0:
        raise InputError(f"the margin is {margin:g}; it is a share of the limit, at least 0 and below 1.")


def mix(pool: Pool, limits: Sequence[float], *, margin: float = 0.0) -> Point:
    """The best mixture of the pool within `limits` less the share `margin`, by bounds."""
    given = np.asarray(limits, dtype=np.float64)
    if given.shape != (len(pool.cost_names),):
        raise InputError(
            f"{given.size} limits for {len(pool.cost_names)} costs ({', '.join(pool.cost_names)}); "
            "give one for each."
        )
    _check_margin(margin)
    reward, costs = pool.bounds(1.0)
    mean_reward, mean_costs = pool.bounds(0.0)
    if pool.covariance is None:
        unit = np.maximum(given, 1e-3 * np.maximum(np.abs(costs).max(axis=0), 1e-12))
        best = best_mixture(reward, costs, given * (1.0 - margin), unit=unit, slack=1e-9, least_weight=1e-6)
        spread = best.weights @ np.column_stack([mean_reward - reward, costs - mean_costs])
    else:
        means = np.column_stack([mean_reward, mean_costs])
        best = robust_mixture(means, pool.covariance, given * (1.0 - margin), (1.0, 1.0))
        joint = np.einsum("a,uab,b->u", best.weights, pool.covariance, best.weights)
        spread = np.sqrt(np.maximum(joint, 0.0))
    each = zip(pool.candidates, best.weights, strict=True)
    chosen = {candidate.name: float(weight) for candidate, weight in each if weight > 0}
    within = best.excess <= 1e-9
    known = LimitStatus.WITHIN if pool.trusted else LimitStatus.NOT_KNOWN
    value, sums = float(best.weights @ mean_reward), best.weights @ mean_costs
    prices = best.prices.tolist() if within else [float("nan")] * len(given)
    return Point(
        tuple(given.tolist()), value, tuple(sums.tolist()), float(best.weights @ mean_reward - spread[0]),
        tuple((sums + spread[1:]).tolist()), tuple(prices), within, known if within else LimitStatus.ABOVE,
        chosen,
    )  # fmt: skip


@dataclass(frozen=True)
class Frontier:
    """Best mixtures along one limit, or over a grid of two, and what is drawn beside them.

    cost_names: of the pool; points: in the order of the limits.
    candidates: every policy, name -> (reward, costs...).
    spreads: of the same, where they are known: the program sees reward less, and costs plus, these.
    episodes: returns and costs of the log's episodes, (E, 1 + I), or None; sources: a source that the log
    names -> mean return and costs of its episodes, (1 + I,).
    marked: limits that the runs were trained for, each (I,).
    """

    cost_names: tuple[str, ...]
    points: tuple[Point, ...]
    candidates: dict[str, tuple[float, ...]]
    spreads: dict[str, tuple[float, ...]]
    episodes: tuple[tuple[float, ...], ...] | None = None
    sources: dict[str, tuple[float, ...]] | None = None
    marked: tuple[tuple[float, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON; a price that does not exist is null."""
        tables = {"policies": self.candidates, "spreads": self.spreads, "sources": self.sources or {}}
        lists = {what: {name: list(row) for name, row in rows.items()} for what, rows in tables.items()}
        head = {
            "unit": "per episode",
            "costs": list(self.cost_names),
            "trained_for": list(map(list, self.marked)),
        }
        return {**head, "points": [p.as_dict() for p in self.points], **lists}

    def rows(self, most: int = 10) -> list[tuple[Point, bool]]:
        """At most `most` points, evenly over the frontier, one for each mixture.

        With each point: whether it is the last mixture along the one limit, which every higher limit keeps
        too. Limits that no mixture keeps are one row, the highest of them.
        """
        found: list[Point] = []
        for p in self.points:
            same = found and found[-1].within == p.within and (not p.within or _alike(found[-1], p))
            if not same:
                found.append(p)
            elif not p.within:
                found[-1] = p
        if len(self.cost_names) > 1:
            # neighbours of a map are not neighbours in this order: each mixture once, poorest first
            unique: list[Point] = []
            for p in sorted((p for p in found if p.within), key=lambda p: (p.reward, p.limits)):
                if not any(_alike(p, one) for one in unique):
                    unique.append(p)
            found = unique or found[:1]
        if len(found) > most:
            kept = {round(k * (len(found) - 1) / (most - 1)) for k in range(most)}
            found = [p for k, p in enumerate(found) if k in kept]
        ends = len(self.cost_names) == 1 and found and not any(found[-1].prices)
        return [(p, bool(ends) and p is found[-1]) for p in found]

    def table(self, most: int = 10) -> str:
        """One line per row, at most `most`: limits, reward, costs, prices."""
        lines = [f"{'limit':>16} {'reward':>10} {'at least':>10} {'cost':>16} {'price of one more unit':>24}"]
        for p, last in self.rows(most):
            price = ", ".join(f"{x:.3g}" for x in p.prices) if p.within else "out of reach*"
            limit, cost = (", ".join(f"{x:.4g}" for x in values) for values in (p.limits, p.costs))
            more = f"{limit}+" if last else limit
            lines.append(f"{more:>16} {p.reward:>10.4g} {p.reward_low:>10.4g} {cost:>16} {price:>24}")
        if any(not p.within for p, _ in self.rows(most)):
            lines.append(f"(* {WHY})")
        return "\n".join(lines)


#: a limit is out of reach, though the cost of its best mixture may be below it
WHY = "no mixture keeps the limit with the errors of its estimates counted"


def _alike(a: Point, b: Point) -> bool:
    """Whether two points are the same mixture."""
    return a.weights.keys() == b.weights.keys() and all(
        abs(weight - b.weights[name]) < 1e-6 for name, weight in a.weights.items()
    )


def trace(
    pool: Pool,
    grids: Sequence[Iterable[float]] | None = None,
    *,
    margin: float = 0.0,
    resolution: int | None = None,
    marked: Sequence[Sequence[float]] = (),
) -> Frontier:
    """The frontier of a pool of one or two costs.

    grids: the limits to solve for, one sequence per cost; by default from the cheapest policy's cost to
    that of the richest one, 25 values for one cost and 12 x 12 for two (`resolution`). marked: limits that
    are to be in the picture, such as those that the runs were trained for, each (I,).
    """
    _check_margin(margin)
    costs = len(pool.cost_names)
    if costs > 2:
        raise InputError(
            f"a frontier of {costs} costs cannot be drawn; fix all limits but two and mix instead."
        )
    reward, highs = pool.bounds(1.0)
    if grids is None:
        count = resolution or (25 if costs == 1 else 12)
        richest = highs[int(reward.argmax())]
        grids = []
        for i, high in enumerate(highs.T):
            top = max(float(richest[i]), float(np.median(high)), *(one[i] for one in marked), 1e-9)
            grids.append(np.linspace(max(float(high.min()), 0.0), 1.05 * top / (1 - margin), count))
    axes = [sorted({float(x) for x in grid}) for grid in grids]
    if len(axes) != costs or any(not axis for axis in axes):
        raise InputError(f"give limits to solve for, one list for each of {', '.join(pool.cost_names)}.")
    for x in (x for axis in axes for x in axis):
        if not 0 <= x <= LARGEST:
            raise InputError(f"the limit {x:g} is not from 0 to {LARGEST:g}; limits are sums per episode.")
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, costs)
    points = tuple(mix(pool, row.tolist(), margin=margin) for row in mesh)
    candidates = {c.name: (c.reward, *c.costs) for c in pool.candidates}
    spreads = {c.name: (c.reward_spread, *c.cost_spread) for c in pool.candidates if any(c.cost_spread)}
    own = tuple(tuple(float(x) for x in limits) for limits in marked)
    return Frontier(pool.cost_names, points, candidates, spreads, marked=own)
