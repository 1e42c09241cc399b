"""What a cost limit means, and the one place where its units are converted.

A limit c can be said in three ways: as the cost summed over an episode of T steps, undiscounted (what a
person means by "20 per episode"); as the discounted sum J = E sum_t gamma^t C_t (what a critic
estimates); or as the mean cost of a step. Comparing a limit in one unit with an estimate in another is
the commonest mistake of the field, so a `Limit` carries its unit and `Units` converts.

All conversions assume a constant cost rate r per step. With T the horizon in steps:

    episode     c = r T
    per step    r
    discounted  J = r w,  w = 1/(1-gamma)            critics bootstrap through timeouts (endless process)
                          w = (1-gamma^T)/(1-gamma)  critics stop at timeouts (episodes of T steps)
    normalised  (1-gamma) J                          mean cost under the discounted occupancy

Choose the row that matches the mask of the critics, and use the same mask for reward and costs. So
"discounted" alone says too little: in estimates and limits it is the endless process unless they say
otherwise; the sums of single episodes that a rollout lists end with the episode. `Units.measure` gives what
episodes cost in every unit of a setting, to be compared with limits in the same one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError

__all__ = [
    "Limit",
    "Limits",
    "Quantity",
    "Unit",
    "Units",
    "limit_list",
    "limit_records",
    "limit_table",
    "resolve_limits",
]

Unit = Literal["episode", "discounted", "step"]
#: Every quantity a limit can be expressed in; "normalised" is derived only, never typed by a user.
Quantity = Literal["episode", "discounted", "step", "normalised"]

#: The largest limit: far beyond any cost, and small enough to be converted to every unit without overflow.
LARGEST = 1e15

_SPELLINGS: dict[str, Unit] = {
    "episode": "episode",
    "ep": "episode",
    "discounted": "discounted",
    "step": "step",
    "per_step": "step",
    "per-step": "step",
}
_LIMIT_TEXT = re.compile(r"^(?:(?P<cost>[^=]*)=)?(?P<value>[^=/]*)(?:/(?P<unit>[^=/]*))?$")


@dataclass(frozen=True)
class Limit:
    """An upper bound on one expected cost.

    Build it with `Limit.episode`, `Limit.discounted`, `Limit.per_step` or, from a command line,
    `Limit.parse`. `value` is finite and at least 0, in `unit`; `cost` names the cost it bounds, or is
    None where there is only one (or where `resolve_limits` matches by position).
    """

    value: float
    unit: Unit
    cost: str | None = None

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InputError(f"A limit's unit is one of {', '.join(get_args(Unit))}, not {self.unit!r}.")
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float, np.number)):
            raise InputError(f"A limit is a number, not {self.value!r}.")
        if not math.isfinite(self.value) or self.value < 0:
            raise InputError(f"A limit must be finite and at least 0, not {self.value!r}.")
        if self.value > LARGEST:
            raise InputError(
                f"A limit of {self.value:g} is beyond any cost; to leave a cost without a limit, give a "
                f"number that it cannot reach, at most {LARGEST:g}."
            )
        object.__setattr__(self, "value", float(self.value))

    @classmethod
    def episode(cls, value: float, cost: str | None = None) -> Limit:
        """At most `value` summed over an episode, undiscounted."""
        return cls(value, "episode", cost)

    @classmethod
    def discounted(cls, value: float, cost: str | None = None) -> Limit:
        """At most `value` as a discounted sum, with the discount of the run."""
        return cls(value, "discounted", cost)

    @classmethod
    def per_step(cls, value: float, cost: str | None = None) -> Limit:
        """At most `value` per step, on average."""
        return cls(value, "step", cost)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read `[NAME=]VALUE[/UNIT]`: "20" (per episode), "5/discounted", "0.05/step", "speed=20"."""
        match = _LIMIT_TEXT.match(text.strip())
        if match is None:
            raise InputError(
                f"The limit {text!r} is not [NAME=]VALUE[/UNIT], as 20, 5/discounted, 0.05/step or speed=20."
            )
        spelled = match["unit"]
        unit = "episode" if spelled is None else _SPELLINGS.get(spelled.strip().lower())
        if unit is None:
            raise InputError(
                f"The limit {text!r} has the unknown unit {spelled!r}; use episode, discounted or step."
            )
        cost = match["cost"]
        if cost is not None and not cost.strip():
            raise InputError(
                f"The limit {text!r} has an empty cost name before '='; write NAME=VALUE or VALUE."
            )
        try:
            value = float(match["value"])
        except ValueError:
            raise InputError(f"The limit {text!r} has no number where its value should be.") from None
        if not math.isfinite(value) or not 0 <= value <= LARGEST:
            raise InputError(
                f"The limit {text!r} must be from 0 to {LARGEST:g}; a cost that need not be limited gets a "
                "number that it cannot reach."
            )
        return cls(value, unit, cost.strip() if cost is not None else None)

    def __str__(self) -> str:
        """The text that `Limit.parse` reads back to an equal limit."""
        name = "" if self.cost is None else f"{self.cost}="
        suffix = "" if self.unit == "episode" else f"/{self.unit}"
        value = int(self.value) if self.value.is_integer() and self.value < 1e15 else self.value
        return f"{name}{value!r}{suffix}"


@dataclass(frozen=True)
class Units:
    """The setting in which limits are converted.

    gamma: discount, in [0, 1); 1 is allowed for undiscounted estimators that stop at timeouts.
    horizon: steps T of a full episode, or None for a process without episodes (then only discounted,
        per-step and normalised limits make sense).
    bootstrap_timeouts: True if critics bootstrap through timeouts (only terminals end the future; the
        default everywhere in this project), False if they stop at timeouts too.
    """

    gamma: float
    horizon: int | None
    bootstrap_timeouts: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and 0 <= self.gamma <= 1):
            raise InputError(f"The discount gamma must be in [0, 1), not {self.gamma!r}.")
        if self.horizon is not None and (self.horizon != int(self.horizon) or self.horizon < 1):
            raise InputError(
                f"The horizon must be a whole number of steps, at least 1, not {self.horizon!r}."
            )
        if self.bootstrap_timeouts and self.gamma == 1:
            raise InputError(
                "Critics that bootstrap through timeouts need gamma < 1, or their sums are infinite."
            )
        if not self.bootstrap_timeouts and self.horizon is None:
            raise InputError(
                "Critics that stop at timeouts need a horizon: give the number of steps per episode."
            )

    @property
    def discounted_steps(self) -> float:
        """w: the discounted number of steps, so that a cost rate r per step gives J = r w."""
        if self.bootstrap_timeouts:
            return 1 / (1 - self.gamma)
        horizon = self._known_horizon()
        if self.gamma == 1:
            return float(horizon)
        if self.gamma == 0:
            return 1.0
        # expm1 and log keep the digits that 1 - gamma**T loses when gamma is close to 1
        return -math.expm1(horizon * math.log(self.gamma)) / (1 - self.gamma)

    def _known_horizon(self) -> int:
        if self.horizon is None:
            raise InputError(
                "A limit per episode needs the number of steps of an episode: give the horizon, "
                "or state the limit as VALUE/step or VALUE/discounted."
            )
        return int(self.horizon)

    def _per(self, quantity: Quantity) -> float:
        """What a cost rate of 1 per step amounts to in `quantity`."""
        if quantity == "step":
            return 1.0
        if quantity == "episode":
            return float(self._known_horizon())
        if quantity == "discounted":
            return self.discounted_steps
        if quantity == "normalised":
            if self.gamma == 1:
                raise InputError("The normalised cost (1-gamma) J is undefined for gamma = 1.")
            return (1 - self.gamma) * self.discounted_steps
        raise InputError(f"There is no unit {quantity!r}; use one of {', '.join(get_args(Quantity))}.")

    def convert(self, limit: Limit, to: Quantity) -> float:
        """The value of `limit` in the unit `to`; its own value, to the bit, if the unit is the same."""
        return self.rescale(limit.value, limit.unit, to)

    def rescale(self, value: float, unit: Quantity, to: Quantity) -> float:
        """A sum of costs or rewards in `unit`, as one in the unit `to`: the same rate per step."""
        return value if unit == to else value / self._per(unit) * self._per(to)

    def measure(
        self, costs: ArrayLike, discounted: ArrayLike, lengths: ArrayLike, terminated: ArrayLike
    ) -> dict[Quantity, float]:
        """What episodes cost on average, in every unit of this setting, each of shape (E,).

        costs: undiscounted sums. discounted: sums of gamma^t c_t over the steps of the episode, t from 0.
        lengths: steps lived. terminated: ended for good, rather than by a timeout.

        Per step is the cost per step lived, sum of costs / sum of lengths. Where critics bootstrap through
        timeouts, the discounted sum goes on after a timeout at the episode's own rate.
        """
        each = self.measure_each(costs, discounted, lengths, terminated)
        steps = np.asarray(lengths, np.float64)
        measured = {quantity: float(values.mean()) for quantity, values in each.items()}
        measured["step"] = float(np.sum(each["episode"]) / steps.sum())
        return measured

    def measure_each(
        self, costs: ArrayLike, discounted: ArrayLike, lengths: ArrayLike, terminated: ArrayLike
    ) -> dict[Quantity, NDArray[np.float64]]:
        """What each episode cost by itself, in every unit, each of shape (E,); arguments as in `measure`."""
        sums, ends = np.asarray(costs, np.float64), np.asarray(terminated, np.bool_)
        steps, sums_discounted = np.asarray(lengths, np.float64), np.asarray(discounted, np.float64)
        if self.bootstrap_timeouts:
            after = self.gamma**steps / (1 - self.gamma) * sums / steps
            sums_discounted = np.where(ends, sums_discounted, sums_discounted + after)
        each: dict[Quantity, NDArray[np.float64]] = {
            "episode": sums,
            "step": sums / steps,
            "discounted": sums_discounted,
        }
        if self.gamma < 1:
            each["normalised"] = (1 - self.gamma) * sums_discounted
        return each

    def episode(self, limit: Limit) -> float:
        """`limit` as an undiscounted sum over an episode of `horizon` steps."""
        return self.convert(limit, "episode")

    def discounted(self, limit: Limit) -> float:
        """`limit` as a discounted sum J: what critics and estimators of this setting compare with."""
        return self.convert(limit, "discounted")

    def per_step(self, limit: Limit) -> float:
        """`limit` as a mean cost per step."""
        return self.convert(limit, "step")

    def normalised(self, limit: Limit) -> float:
        """`limit` as (1-gamma) J, the mean cost under the discounted occupancy."""
        return self.convert(limit, "normalised")

    def thresholds(self, limits: Sequence[Limit], to: Quantity = "discounted") -> NDArray[np.float64]:
        """All limits in one unit, shape (I,): tau of the paper for the default."""
        return np.array([self.convert(limit, to) for limit in limits], dtype=np.float64)


#: What a person may give as limits: one, several, or a mapping from names of costs.
Limits = Limit | str | float | Mapping[str, Limit | str | float] | Iterable[Limit | str | float]


def limit_list(limits: Limits) -> list[Limit]:
    """Limits as given, one by one.

    Each is a `Limit`, a text as on the command line, or a number (per episode); one needs no list, and a
    mapping names the cost of each.
    """
    if isinstance(limits, np.ndarray) and limits.ndim == 0:
        limits = limits.item()
    if isinstance(limits, Limit | str | int | float | np.number):
        return [_as_limit(limits)]
    if isinstance(limits, Mapping):
        named = [(str(cost), _as_limit(limit)) for cost, limit in limits.items()]
        for cost, limit in named:
            if limit.cost not in (None, cost):
                raise InputError(
                    f"The limit {limit} is for {cost!r} and names {limit.cost!r}; leave one out."
                )
        return [replace(limit, cost=cost) for cost, limit in named]
    if isinstance(limits, bytes) or not isinstance(limits, Iterable):
        raise InputError(f"Limits are a number, a text, a Limit, a list or a dict of these, not {limits!r}.")
    return [_as_limit(limit) for limit in limits]


def resolve_limits(limits: Limits, cost_names: Sequence[str]) -> tuple[Limit, ...]:
    """One named limit per cost, in the order of `cost_names`.

    limits: as in `limit_list`. Either all are named, in any order, or none is, and then they follow the
    order of the costs. A missing, repeated or unknown limit is an `InputError`: a cost without a limit
    would silently be ignored.
    """
    given = limit_list(limits)
    names = tuple(cost_names)
    known = ", ".join(names)
    example = " and ".join(f"{name}=VALUE" for name in names)
    if not given:
        raise InputError(f"No limit is given; the data has the cost{_s(names)} {known}: add {example}.")
    unnamed = [limit for limit in given if limit.cost is None]
    if unnamed and len(unnamed) < len(given):
        raise InputError(
            f"Some limits are named and some are not ({', '.join(map(str, given))}); write {example}."
        )
    if unnamed:
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} limit{_s(given)} for {len(names)} cost{_s(names)} ({known}); write {example}."
            )
        return tuple(replace(limit, cost=name) for limit, name in zip(given, names, strict=True))
    by_name: dict[str, Limit] = {}
    for limit in given:
        assert limit.cost is not None
        if limit.cost not in names:
            raise InputError(f"The limit {limit} names a cost that the data does not have; it has {known}.")
        if limit.cost in by_name:
            raise InputError(
                f"The cost {limit.cost} has two limits, {by_name[limit.cost]} and {limit}; keep one of them."
            )
        by_name[limit.cost] = limit
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InputError(
            f"No limit for the cost{_s(missing)} {', '.join(missing)}; add "
            + " and ".join(f"{name}=VALUE" for name in missing)
            + "."
        )
    return tuple(by_name[name] for name in names)


def _as_limit(limit: Limit | str | float) -> Limit:
    if isinstance(limit, Limit):
        return limit
    return Limit.parse(limit) if isinstance(limit, str) else Limit.episode(limit)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"


def limit_records(limits: Sequence[Limit], units: Units) -> list[dict[str, float | str | None]]:
    """Each limit in every unit, for a log or JSON; None where the setting does not define the unit."""
    records: list[dict[str, float | str | None]] = []
    for limit in limits:
        record: dict[str, float | str | None] = {"cost": limit.cost, "given": str(limit)}
        for quantity in get_args(Quantity):
            try:
                record[quantity] = units.convert(limit, quantity)
            except InputError:
                record[quantity] = None
        records.append(record)
    return records


def limit_table(limits: Sequence[Limit], units: Units) -> str:
    """The text that every run prints at its start: each limit in all units; `*` marks the one given."""
    header = ("limit on", "per episode", "per step", "discounted sum")
    rows: list[tuple[str, ...]] = [header]
    for limit, record in zip(limits, limit_records(limits, units), strict=True):
        cells = [limit.cost or "cost"]
        for quantity in ("episode", "step", "discounted"):
            value = record[quantity]
            mark = "*" if quantity == limit.unit else ""
            cells.append("-" if value is None else f"{value:.6g}{mark}")
        rows.append(tuple(cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    horizon = "" if units.horizon is None else f"an episode has {units.horizon} steps; "
    goes = "go on beyond the episode" if units.bootstrap_timeouts else "end with the episode"
    lines.append(
        f"(* as given; {horizon}discounted sums count a step {units.gamma:g} of the one before and {goes})"
    )
    return "\n".join(lines)
