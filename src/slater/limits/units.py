"""The setting in which limits are converted, what episodes cost in every unit of it, and tables of limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError
from slater.limits.limit import Limit, Quantity


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
        steps = self.horizon
        if steps is not None and (steps != int(steps) or steps < 1):
            raise InputError(f"The horizon must be a whole number of steps, at least 1, not {steps!r}.")
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
        if quantity not in get_args(Quantity):
            raise InputError(f"There is no unit {quantity!r}; use one of {', '.join(get_args(Quantity))}.")
        if quantity == "normalised" and self.gamma == 1:
            raise InputError("The normalised cost (1-gamma) J is undefined for gamma = 1.")
        if quantity in ("step", "episode"):
            return 1.0 if quantity == "step" else float(self._known_horizon())
        return (1 - self.gamma if quantity == "normalised" else 1) * self.discounted_steps

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
        each: dict[Quantity, NDArray[np.float64]] = {"episode": sums, "step": sums / steps}
        each["discounted"] = sums_discounted
        if self.gamma < 1:
            each["normalised"] = (1 - self.gamma) * sums_discounted
        return each

    def episode(self, limit: Limit) -> float:
        """`limit` as an undiscounted sum over an episode of `horizon` steps."""
        return self.convert(limit, "episode")

    def per_step(self, limit: Limit) -> float:
        """`limit` as a mean cost per step."""
        return self.convert(limit, "step")

    def thresholds(self, limits: Sequence[Limit], to: Quantity = "discounted") -> NDArray[np.float64]:
        """All limits in one unit, shape (I,): tau of the paper for the default."""
        return np.array([self.convert(limit, to) for limit in limits], dtype=np.float64)


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
    rows = [["limit on", "per episode", "per step", "discounted sum"]]
    for limit, record in zip(limits, limit_records(limits, units), strict=True):
        cells = [(limit.cost or "cost") + (f" ({limit.said})" if limit.said else "")]
        for quantity in ("episode", "step", "discounted"):
            value = record[quantity]
            mark = "*" if quantity == limit.unit else ""
            cells.append("-" if value is None else f"{value:.6g}{mark}")
        rows.append(cells)
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for name, *figures in rows:
        aligned = (figure.rjust(width) for figure, width in zip(figures, widths, strict=True))
        lines.append("  ".join((name.ljust(first), *aligned)))
    horizon = "" if units.horizon is None else f"an episode has {units.horizon} steps; "
    goes = "go on beyond the episode" if units.bootstrap_timeouts else "end with the episode"
    lines.append(
        f"(* as given; {horizon}discounted sums count a step {units.gamma:g} of the one before and {goes})"
    )
    return "\n".join(lines)
