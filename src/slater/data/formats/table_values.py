"""What the cells of a table mean: numbers, flags, labels and times, and the sentence where they do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slater.encoding import FLAGS, PERIODS, Encoding, as_text, seconds_of
from slater.errors import InputError

_NULLS = {"", "NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan", "None"}

#: A number or a date as somebody writes it: 1.234,5 or 31.1.2026.
_AMOUNT = re.compile(r"[+-]?[\d.,/' ]+")
#: How the names of other things about an action end.
_NOT_ACTIONS = re.compile(r"_(log_?)?prob(ability)?$|_propensity$|_density$|_mask$|_name$|_label$")


def entries_of(matches: list[str]) -> list[str]:
    """Of the names that a pattern matches those that are numbered, if any is; else what may be an entry."""
    numbered = [name for name in matches if name[-1].isdigit()]
    return numbered or [name for name in matches if not _NOT_ACTIONS.search(name)] or matches


def numbers_of(arrow: Any, values: Any) -> NDArray[Any]:
    """The values of an Arrow column in NumPy: times in UTC, decimals as floats, NaN where missing."""
    types, kind = arrow.types, values.type
    if types.is_timestamp(kind) or types.is_date(kind):
        values = values if types.is_timestamp(kind) else values.cast(arrow.timestamp("ms"))
        whole = values.cast(arrow.timestamp("ns", values.type.tz), safe=False).cast(arrow.int64())
        times = whole.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        return np.asarray(times).astype("datetime64[ns]")
    if types.is_dictionary(kind):
        values = values.dictionary_decode()
    if types.is_duration(kind):
        whole = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[kind.unit]
        return np.asarray(values.cast(arrow.int64()).to_numpy(zero_copy_only=False)) * whole
    if types.is_null(kind) or types.is_decimal(kind) or (types.is_boolean(kind) and values.null_count):
        values = values.cast(arrow.float64()) if not types.is_boolean(kind) else values.cast(arrow.int8())
    return np.asarray(values.to_numpy(zero_copy_only=False))


class Survey:
    """All values of a column that holds text or times: what a category may be, and what spans a cycle."""

    #: More different texts than this are names of things, not kinds of them.
    MOST = 100
    #: As many texts that begin as numbers do may be kinds of something: 10-20, 1st, 6 boxes.
    BANDS = 20

    def __init__(self, table: str, name: str, role: str) -> None:
        self._table, self._name, self._role = table, name, role
        self._texts: dict[str, None] = {}
        self._kinds = False
        self._seconds: list[float] = []
        self._count = 0

    @staticmethod
    def text(types: Any, kind: Any) -> bool:
        """Whether a column of this Arrow type holds text."""
        tests = (types.is_dictionary, types.is_string, types.is_large_string, types.is_string_view)
        return any(test(kind) for test in tests)

    @staticmethod
    def needed(types: Any, kind: Any) -> bool:
        """Whether a column of this Arrow type must be looked at whole before it can be read."""
        return Survey.text(types, kind) or bool(types.is_timestamp(kind) or types.is_date(kind))

    def update(self, values: Any) -> None:
        """Take the next values."""
        import pyarrow

        if not self.text(pyarrow.types, values.type):
            times = numbers_of(pyarrow, values)
            seconds = times[~np.isnat(times)].astype("datetime64[s]").astype(np.int64)
            self._seconds += np.unique(seconds).tolist()
            if len(self._seconds) > 10_000:  # the ends, and enough between them to see hours
                self._seconds.sort()
                del self._seconds[500:-500]
            return
        self._count += len(values)
        self._kinds |= bool(pyarrow.types.is_dictionary(values.type))
        texts = (as_text(value).strip() for value in values.unique().to_pylist())
        self._texts |= dict.fromkeys(text for text in texts if text not in _NULLS)
        if len(self._texts) > self.MOST and not self._numeric and not self._dates():
            self._refuse(f"more than {self.MOST} different texts")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self._table}: the column {self._name!r} ({self._role}) holds {what} "
            f"({next(iter(self._texts))!r}, ...): they are no kinds of something; leave the column out, or "
            "put what it says into columns of numbers."
        )

    @property
    def _numeric(self) -> bool:
        """Whether most texts begin as numbers do: then it is a column of numbers with something odd in it.

        Not if the table says that they are kinds, nor where none is a number and few say it again and again.
        """
        plain = any(is_number(text) or _AMOUNT.fullmatch(text) for text in self._texts)
        few = len(self._texts) <= min(self.BANDS, self._count / 2) and not plain
        if self._kinds or (few and not self._dates()):
            return False
        like = sum(bool(re.match(r"[+-]?[.,]?\d", text)) for text in self._texts)
        return 2 * like >= len(self._texts) > 0

    def _dates(self) -> bool:
        return bool(self._texts) and seconds_of(np.array(list(self._texts), dtype=object)) is not None

    @property
    def numbers(self) -> bool:
        """Whether all texts are numbers, or there is none."""
        return not self._seconds and not self._kinds and all(map(is_number, self._texts))

    def encoding(self) -> Encoding:
        """How the column becomes entries of an observation."""
        if self.numbers:
            return Encoding(self._name)  # numbers that are kept as text, or nothing but holes
        if self._texts and self._dates():
            found = seconds_of(np.array(list(self._texts), dtype=object))
            self._seconds = [] if found is None else found.tolist()
            self._texts = {}
        if self._seconds:
            return Encoding(self._name, "cycle", _periods(np.array(self._seconds)))
        lowered = {text.lower() for text in self._texts}
        if lowered <= FLAGS.keys():
            return Encoding(self._name, "flag")
        if self._numeric:  # reading it will name the odd ones
            return Encoding(self._name)
        if 10 < len(self._texts) > self._count / 2:
            self._refuse("another text in most rows")
        return Encoding(self._name, "category", tuple(sorted(self._texts)))

    def choices(self) -> tuple[str, ...]:
        """The names of discrete actions; none if the column holds numbers with something odd in it."""
        return () if self._numeric else tuple(sorted(self._texts))


def _periods(seconds: NDArray[np.float64]) -> tuple[str, ...]:
    """The periods that times tell apart: the day if they have hours, the week and year if they span some."""
    span = float(seconds.max() - seconds.min())
    day, week, year = (PERIODS[name][0] for name in ("day", "week", "year"))
    hours = len(np.unique(np.mod(seconds, day))) > 1
    chosen = [("day", hours), ("week", span >= week), ("year", span >= year / 4)]
    return tuple(name for name, used in chosen if used) or ("day",)


def labels_of_text(texts: list[str | None], nulls: set[str]) -> NDArray[Any]:
    """Labels as they stand, without blanks around them; None where there is none."""
    stripped = [(text or "").strip() for text in texts]
    return np.array([None if text in nulls else text for text in stripped], dtype=object)


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a cell is a number as people write them."""
    if decimal == ",":
        text = text.replace(".", "_").replace(",", ".")
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def not_numbers(path: Path | str, name: str, role: str, text: str, row: int, count: int) -> str:
    """The sentence for a column of text or times where numbers are needed."""
    shown = f"{text[:40]!r} in row {row}" + (f" and {count - 1} more" if count > 1 else "")
    if re.match(r"\d{4}-\d\d-\d\d", text):
        return (
            f"{path}: the column {name!r} ({role}) holds times ({shown}), not numbers; give seconds "
            f"since a start as numbers, or map it as time={name}, which checks it for gaps."
        )
    if re.fullmatch(r"\d{1,2}[./]\d{1,2}[./]\d{2,4}.*", text):
        return f"{path}: the column {name!r} ({role}) holds dates as {shown}; write them as 2026-01-31."
    remedy = "give each value a number (0, 1, ...) or a column of its own, or leave the column out"
    if count and count <= 3:
        remedy = "correct these rows, or leave them empty and drop or fill what is missing"
    what = f"{path}: the column {name!r} ({role}) holds text ({shown}), not numbers"
    return f"{what}; {remedy} (rows are numbered from 0)."


def flags_of_text(texts: list[str | None]) -> NDArray[np.float64]:
    """0, 1, true, false, yes or no in any case; what is neither becomes NaN, which checks report by row."""
    return np.array([FLAGS.get((text or "").strip().lower(), np.nan) for text in texts])
