"""One word for one thing in both halves; an old spelling is refused with the new one in the sentence.

multiplier_bound     B, the bound on the sum of multipliers
steps                gradient iterations
rounds               iterations of the game
projected_gradient   the lambda-player that steps along the excess
mixture              how the members are mixed: uniform, tail, lp
preset               a named set of settings
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from slater.errors import InputError

__all__ = ["OLD_NAMES", "OLD_VALUES", "refuse_old_name", "refuse_old_value", "refuses_old_names"]

Settings = TypeVar("Settings")

#: settings that had another name -> the names they may have now
OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "B": ("multiplier_bound",),
    "bound": ("multiplier_bound",),
    "iterations": ("rounds", "steps"),
    "output": ("mixture",),
}
#: values of settings that had another spelling -> the one they have now
OLD_VALUES: Mapping[str, str] = {
    "projected": "projected_gradient",
    "exponentiated": "exponentiated_gradient",
}


def refuse_old_name(owner: str, name: str, known: Collection[str]) -> None:
    """Raise an `InputError` if `name` is an old spelling of one of the `known` settings of `owner`."""
    new = next((new for new in OLD_NAMES.get(name, ()) if new in known), None)
    if name not in known and new is not None:
        raise InputError(f"the setting {name!r} of {owner} is called {new!r} now.")


def refuse_old_value(name: str, value: object, known: Collection[str]) -> None:
    """Raise an `InputError` if `value` is an old spelling of one of the `known` values of setting `name`."""
    if isinstance(value, str) and value not in known and OLD_VALUES.get(value) in known:
        raise InputError(f"the value {value!r} of {name} is called {OLD_VALUES[value]!r} now.")


def refuses_old_names(cls: type[Settings]) -> type[Settings]:
    """A dataclass of settings that answers an old spelling with the new one, where Python says TypeError."""
    plain = cls.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in named:
            refuse_old_name(cls.__name__, name, known)
        plain(self, *args, **named)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls
