"""What the cells of a table mean: numbers, flags, labels and times, and the sentence where they do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["entries_of", "flags_of_text", "is_number", "labels_of_text", "not_numbers", "times_of"]

#: How the names of other things about an action end.
_NOT_ACTIONS = re.compile(r"_(log_?)?prob(ability)?$|_propensity$|_density$|_mask$|_name$|_label$")


def entries_of(matches: list[str]) -> list[str]:
    """Of the names that a pattern matches those that are numbered, if any is; else what may be an entry."""
    numbered = [name for name in matches if name[-1].isdigit()]
    return numbered or [name for name in matches if not _NOT_ACTIONS.search(name)] or matches


def times_of(arrow: Any, values: Any) -> NDArray[Any]:
    """Dates and times, with or without a zone, as times in UTC."""
    kind = values.type
    if not arrow.types.is_timestamp(kind):
        values = values.cast(arrow.timestamp("ms"))
    zone = getattr(values.type, "tz", None)
    plain = values.cast(arrow.timestamp(values.type.unit, zone)).cast(arrow.timestamp("ns", zone), safe=False)
    return np.asarray(plain.cast(arrow.int64()).to_numpy(zero_copy_only=False)).astype("datetime64[ns]")


def labels_of_text(texts: list[str | None], nulls: set[str]) -> NDArray[Any]:
    """Labels as they stand, without blanks around them; None where there is none."""
    stripped = [(text or "").strip() for text in texts]
    return np.array([None if text in nulls else text for text in stripped], dtype=object)


def is_number(text: str) -> bool:
    """Whether a cell is a number as people write them."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def not_numbers(path: Path, name: str, role: str, text: str, row: int, count: int) -> str:
    """The sentence for a column of text or times where numbers are needed."""
    shown = repr(text[:40])
    where = f"in row {row}" + (f" and {count - 1} more" if count > 1 else "")
    if re.match(r"\d{4}-\d\d-\d\d", text):
        return (
            f"{path}: the column {name!r} ({role}) holds times ({shown} {where}), not numbers; give seconds "
            f"since a start as numbers, or map it as time={name}, which checks it for gaps."
        )
    remedy = "give each value a number (0, 1, ...) or a column of its own, or leave the column out"
    if count and count <= 3:
        remedy = "correct these rows, or leave them empty and drop or fill what is missing"
    what = f"{path}: the column {name!r} ({role}) holds text ({shown} {where}), not numbers"
    return f"{what}; {remedy} (rows are numbered from 0)."


_FLAG_TEXT = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "0.0": 0.0, "1.0": 1.0}


def flags_of_text(texts: list[str | None]) -> NDArray[np.float64]:
    """0, 1, true or false in any case; anything else becomes NaN, which the checks report with its row."""
    return np.array([_FLAG_TEXT.get((text or "").strip().lower(), np.nan) for text in texts])
