"""Limits in every unit, for records and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from slater.errors import InputError
from slater.limits.limit import Limit, Quantity
from slater.limits.units import Units


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
        cells = [(limit.cost or "cost") + (f" ({limit.said})" if limit.said else "")]
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
