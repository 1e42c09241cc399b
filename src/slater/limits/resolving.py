"""From what a person gives to one named limit per cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from slater.encoding import nearest
from slater.errors import InputError
from slater.limits.limit import Limit

#: What a person may give as limits: one, several, or a mapping from names of costs.
Limits = Limit | str | float | Mapping[str, Limit | str | float] | Iterable[Limit | str | float]


def limit_list(limits: Limits, step: float | None = None) -> list[Limit]:
    """Limits as given, one by one.

    Each is a `Limit`, a text as on the command line, or a number (per episode); one needs no list, and a
    mapping names the cost of each. step: seconds of a step, for limits such as "10/week".
    """
    if isinstance(limits, np.ndarray) and limits.ndim == 0:
        limits = limits.item()
    if isinstance(limits, Limit | str | int | float | np.number):
        return [_as_limit(limits, step)]
    if isinstance(limits, Mapping):
        named = [(str(cost), _as_limit(limit, step)) for cost, limit in limits.items()]
        for cost, limit in named:
            if limit.cost not in (None, cost):
                raise InputError(
                    f"The limit {limit} is for {cost!r} and names {limit.cost!r}; leave one out."
                )
        return [replace(limit, cost=cost) for cost, limit in named]
    if isinstance(limits, bytes) or not isinstance(limits, Iterable):
        raise InputError(f"Limits are a number, a text, a Limit, a list or a dict of these, not {limits!r}.")
    return [_as_limit(limit, step) for limit in limits]


def resolve_limits(limits: Limits, cost_names: Sequence[str], step: float | None = None) -> tuple[Limit, ...]:
    """One named limit per cost, in the order of `cost_names`.

    limits, step: as in `limit_list`. Either all are named, in any order, or none is, and then they follow the
    order of the costs. A missing, repeated or unknown limit is an `InputError`: a cost without a limit
    would silently be ignored.
    """
    given = limit_list(limits, step)
    names = tuple(cost_names)
    known = ", ".join(names)
    example = " and ".join(f"{name}=VALUE" for name in names)
    if not given:
        raise InputError(
            f"No limit is given; the data has the cost{_s(names)} {known}: add {example} "
            "(--limit, in Python limits=)."
        )
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
            near = nearest(limit.cost, names).replace("there are", "it has")
            raise InputError(f"The limit {limit} names a cost that the data does not have{near}")
        if limit.cost in by_name:
            raise InputError(
                f"The cost {limit.cost} has two limits, {by_name[limit.cost]} and {limit}; keep one of them."
            )
        by_name[limit.cost] = limit
    missing = [name for name in names if name not in by_name]
    if missing:
        wanted = " and ".join(f"{name}=VALUE" for name in missing)
        raise InputError(f"No limit for the cost{_s(missing)} {', '.join(missing)}; add {wanted}.")
    return tuple(by_name[name] for name in names)


def _as_limit(limit: Limit | str | float, step: float | None) -> Limit:
    if isinstance(limit, Limit):
        return limit
    return Limit.parse(limit, step) if isinstance(limit, str) else Limit.episode(limit)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
