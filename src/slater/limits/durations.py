"""How long things take, as people write it."""

from __future__ import annotations

import math
import re

from slater.errors import InputError

__all__ = ["SPANS", "duration", "spoken"]

#: Seconds of the spans that a limit can be for, and what a step may be given in.
SPANS = {
    "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_629_746.0,
    "year": 31_556_952.0,
}  # fmt: skip
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day", "w": "week"}


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
