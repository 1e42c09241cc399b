"""How a column of a table becomes entries of an observation; one idea for readers, contracts and policies.

A number stays one. A flag (true, yes, on) is 1 or 0. A category is one entry per value, 1 where the row has
it (one-hot). A time is the sine and cosine of where it stands in its day, week or year. What was done is kept
with the data and with every policy learned from them, so that a policy takes rows as the table has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slater.disk import typed
from slater.errors import InputError

Kind = Literal["number", "flag", "category", "cycle"]
#: Seconds of the periods that a time is seen in, and where they begin: a week on Monday, in UTC.
PERIODS = {"day": (86_400.0, 0.0), "week": (604_800.0, 259_200.0), "year": (31_556_952.0, 0.0)}
#: Texts that say yes or no.
FLAGS = {
    **dict.fromkeys(("0", "0.0", "false", "f", "no", "n", "off"), 0.0),
    **dict.fromkeys(("1", "1.0", "true", "t", "yes", "y", "on"), 1.0),
}


@dataclass(frozen=True)
class Encoding:
    """One column. values: of a category its texts, of a cycle its periods (day, week, year)."""

    name: str
    kind: Kind = "number"
    values: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries that the column becomes."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values)
        if self.kind == "cycle":
            parts = [(part, period) for period in self.values for part in ("sin", "cos")]
            return tuple(f"{self.name} ({part} of {period})" for part, period in parts)
        return (self.name,)

    def encode(self, values: Any) -> NDArray[np.float64]:
        """Entries of shape (N, len(entries)), from N raw values; NaN where a value is missing."""
        flat = np.asarray(values).reshape(-1)
        if self.kind == "category":
            return self._one_hot(flat)
        if self.kind == "cycle":
            seconds = seconds_of(flat)
            if seconds is None:
                raise InputError(f"{self.name!r} needs times, not {as_text(flat[0])!r}.")
            periods = [PERIODS[period] for period in self.values]
            angles = [2 * np.pi * (seconds + begins) / length for length, begins in periods]
            return np.stack([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)
        return self._numbers(flat)[:, None]

    def _one_hot(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        texts = [as_text(value).strip() for value in flat.tolist()]
        place = {value: index for index, value in enumerate(self.values)}
        hot = np.zeros((len(texts), len(self.values)))
        for row, text in enumerate(texts):
            if text == "":
                hot[row] = np.nan
            elif text in place:
                hot[row, place[text]] = 1.0
            else:
                known = ", ".join(self.values[:12]) + (", ..." if len(self.values) > 12 else "")
                raise InputError(
                    f"{self.name!r} is {text!r} in row {row}, which the data did not have; known are {known}."
                )
        return hot

    def _numbers(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        if flat.dtype.kind in "biuf":
            return flat.astype(np.float64)
        numbers = np.full(len(flat), np.nan)
        for row, value in enumerate(flat.tolist()):
            text = as_text(value).strip()
            try:
                if text:
                    numbers[row] = FLAGS[text.lower()] if self.kind == "flag" else float(text)
            except (KeyError, ValueError):
                wanted = "true or false" if self.kind == "flag" else "a number"
                raise InputError(f"{self.name!r} is {text!r} in row {row}; it needs {wanted}.") from None
        return numbers

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        return {"name": self.name, "kind": self.kind, "values": list(self.values)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Encoding:
        """What `to_json` gave; anything else is an `InputError`."""
        try:
            found: Encoding = typed(cls, {name: record[name] for name in ("name", "kind", "values")})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"An encoding of a column is damaged ({error}).") from None
        if found.kind == "cycle" and not set(found.values) <= set(PERIODS):
            raise InputError(f"The column {found.name!r} is encoded as {found.kind!r}, which is not known.")
        return found

    def __str__(self) -> str:
        what = {
            "flag": "yes or no",
            "category": f"{len(self.values)} values",
            "cycle": " and ".join(self.values),
        }
        return self.name + (f" ({what[self.kind]})" if self.kind != "number" else "")


def as_text(value: Any) -> str:
    """A name or label as text; empty where there is none (None, NaN). A whole float has no decimal point."""
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def seconds_of(values: NDArray[Any]) -> NDArray[np.float64] | None:
    """Times as seconds since 1970, UTC, (N,), NaN where missing; numbers as they are; None if neither."""
    flat = np.asarray(values).reshape(-1)
    try:
        if flat.dtype.kind in "OUS":
            return np.array([_seconds(value) for value in flat.tolist()])
        if flat.dtype.kind == "M":
            seconds = flat.astype("datetime64[us]").astype(np.int64) / 1e6
            return np.where(np.isnat(flat), np.nan, seconds)
        return flat.astype(np.float64)
    except (ValueError, TypeError):
        return None


def _seconds(value: Any) -> float:
    if as_text(value) in ("", "NaT"):
        return np.nan
    time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if time.tzinfo is None:  # a time without a zone is taken as it stands
        return float((np.datetime64(time.replace(tzinfo=None), "us")).astype(np.int64) / 1e6)
    return time.timestamp()


def is_table(rows: Any) -> bool:
    """Whether rows come with names: a DataFrame, an Arrow table, a mapping, or a list of mappings."""
    if isinstance(rows, Mapping):
        return True
    if isinstance(rows, Sequence) and not isinstance(rows, str):
        return len(rows) > 0 and isinstance(rows[0], Mapping)
    return any(hasattr(type(rows), name) for name in ("column_names", "columns"))


def table_columns(table: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Columns by name, of a DataFrame, an Arrow table, a mapping (columns, or one row) or a list of rows."""
    if isinstance(table, Sequence):
        keys = dict.fromkeys(key for row in table for key in row)
        table = {name: [row.get(name) for row in table] for name in keys}
    available = table if isinstance(table, Mapping) else getattr(table, "column_names", None) or table.columns
    available = list(available)
    columns = {}
    for name in names:
        if name not in available:
            raise InputError(f"the rows have no column {name!r}{nearest(name, available)}")
        column = table[name]
        array = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
        columns[name] = np.atleast_1d(array)
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError("the columns of the rows differ in length.")
    return columns


def encode_rows(encodings: Sequence[Encoding], table: Any) -> NDArray[np.float32]:
    """Observations of shape (N, entries) from rows as a table has them; what is missing is refused."""
    columns = table_columns(table, [encoding.name for encoding in encodings])
    parts = [encoding.encode(columns[encoding.name]) for encoding in encodings]
    for encoding, part in zip(encodings, parts, strict=True):
        missing = np.flatnonzero(~np.isfinite(part).all(axis=1))
        if len(missing):
            raise InputError(f"{encoding.name!r} is missing or infinite in row {missing[0]}.")
    return np.concatenate(parts, axis=1).astype(np.float32)


def nearest(name: str, available: Sequence[Any]) -> str:
    """The end of the sentence "there is no column NAME": what was probably meant, or what there is."""
    known = [str(other) for other in available]
    folded = {other.lower().strip(): other for other in known}
    close = get_close_matches(name.lower().strip(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded[close[0]]!r}?"
    return f"; there are {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}."
