"""One limit: a number, its unit, and the cost that it bounds; and durations, as people write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from slater.errors import InputError

Unit = Literal["episode", "discounted", "step"]
#: Every quantity a limit can be expressed in; "normalised" is derived only, never typed by a user.
Quantity = Literal["episode", "discounted", "step", "normalised"]

#: The largest limit: far beyond any cost, and small enough to be converted to every unit without overflow.
LARGEST = 1e15

_SPELLINGS: dict[str, Unit] = {
    **dict.fromkeys(("episode", "ep"), "episode"),
    "discounted": "discounted",
    **dict.fromkeys(("step", "per_step", "per-step"), "step"),
}
#: Seconds of the spans that a limit can be for, and what a step may be given in.
SPANS = {
    "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_629_746.0,
    "year": 31_556_952.0,
}  # fmt: skip
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_LIMIT_TEXT = re.compile(
    r"^(?:(?P<cost>[^=]*)=)?(?P<value>[^=/]*)(?:/(?P<unit>[^=/@]*)(?:@(?P<step>[^=/@]*))?)?$"
)


def duration(text: str | float) -> float:
    """Seconds of "1h", "15min", "2 days", or of a number of seconds."""
    match = re.fullmatch(r"\s*([\d.]+(?:[eE][+-]?\d+)?)\s*([a-z]*?)s?\s*", f"{text}")
    word = "" if match is None else match[2] or ("s" if str(text).strip().endswith("s") else "")
    name = _SHORT.get(word, word) if not isinstance(text, int | float) else "second"
    try:
        seconds = float(match[1]) * SPANS[name] if match is not None else math.nan
    except (ValueError, KeyError):
        seconds = math.nan
    if isinstance(text, bool) or not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{text!r} is no duration; write it as 1h, 15min, 30s, 1d or 1w.")
    return seconds


def spoken(seconds: float) -> str:
    """The text of a duration, which `duration` reads back."""
    for short in ("w", "d", "h", "min"):
        count = seconds / SPANS[_SHORT[short]]
        if float(f"{count:.12g}") * SPANS[_SHORT[short]] == seconds and (count.is_integer() or count > 1):
            return f"{count:.12g}{short}"
    return f"{seconds!r}s"


def _plain(value: float) -> str:
    return repr(int(value) if value.is_integer() and value < 1e15 else value)


@dataclass(frozen=True)
class Limit:
    """An upper bound on one expected cost.

    Build it with `Limit.episode`, `Limit.discounted`, `Limit.per_step` or, from a command line,
    `Limit.parse`. `value` is finite and at least 0, in `unit`; `cost` names the cost it bounds, or is
    None where there is only one (or where `resolve_limits` matches by position). `said`: how a person put it
    where that is no unit of these, as "10/week@1h", ten a week with steps of an hour: a limit per step.
    """

    value: float
    unit: Unit
    cost: str | None = None
    said: str | None = field(default=None, compare=False)

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
    def parse(cls, text: str, step: float | None = None) -> Limit:
        """Read `[NAME=]VALUE[/UNIT]`: "20" (per episode), "5/discounted", "0.05/step", "speed=20", "10/week".

        The last needs to know how long a step is: `step`, in seconds, or "10/week@1h".
        """
        match = _LIMIT_TEXT.match(text.strip())
        if match is None:
            raise InputError(
                f"The limit {text!r} is not [NAME=]VALUE[/UNIT], as 20, 5/discounted, 0.05/step or speed=20."
            )
        spelled = match["unit"]
        word = "episode" if spelled is None else spelled.strip().lower()
        span = word if word in SPANS else word.removesuffix("s")
        unit = "step" if span in SPANS else _SPELLINGS.get(word)
        if unit is None or (match["step"] is not None and span not in SPANS):
            raise InputError(
                f"The limit {text!r} has the unknown unit {spelled!r}; use episode, discounted or step, or "
                "hour, day, week, month or year."
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
        name = cost.strip() if cost is not None else None
        if span not in SPANS:
            return cls(value, unit, name)
        step = step if match["step"] is None else duration(match["step"])
        if step is None:
            raise InputError(
                f"The limit {text!r} needs to know how long a step is: say it with the data (--step 1h, or "
                f"step='1h' in Python), or with the limit, {match['value'].strip()}/{span}@1h."
            )
        said = f"{_plain(value)}/{span}@{spoken(step)}"
        return cls(value * step / SPANS[span], unit, name, said)

    def __str__(self) -> str:
        """The text that `Limit.parse` reads back to an equal limit."""
        name = "" if self.cost is None else f"{self.cost}="
        suffix = "" if self.unit == "episode" else f"/{self.unit}"
        return name + (self.said or f"{_plain(self.value)}{suffix}")
