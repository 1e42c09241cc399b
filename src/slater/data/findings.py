"""What is wrong with a file of data, said in words, with rows; errors apart from warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError

#: How many rows a problem names; the count says how many there are.
ROWS_NAMED = 5
#: What is said of a table without rows.
NO_ROWS = "there are none; the table has names and nothing else: write it again, with its rows"

#: What to do about missing values.
_HOLES = (
    "--drop-missing leaves such rows out and --fill forward takes the value of the row before (in Python "
    'missing="drop" or "forward")'
)
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: with an error the data cannot be used, with a warning it can.

    field: the array or setting concerned. message: what is wrong and what to do, in words.
    count: how many rows (or episodes) are concerned, 0 if it is not about rows.
    rows: the first few of them, numbered from 0.
    """

    severity: Severity
    field: str
    message: str
    count: int = 0
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.count:
            return f"{self.field}: {self.message}"
        listed = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        return f"{self.field}: {self.message} [{self.count} row{'s' if self.count > 1 else ''}: {listed}]"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this class."""
        return {**asdict(self), "rows": list(self.rows)}


@dataclass
class Findings:
    """Collects problems while data streams by; the same problem in many blocks becomes one."""

    _found: dict[tuple[Severity, str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _number: Callable[[NDArray[np.integer]], NDArray[np.integer]] | None = None

    def renumbered(self, number: Callable[[NDArray[np.integer]], NDArray[np.integer]]) -> Findings:
        """The same collection for someone who counts rows otherwise: `number` gives their numbers here."""
        return Findings(self._found, number)

    def add(
        self, severity: Severity, field: str, message: str, rows: NDArray[np.integer] | None = None
    ) -> None:
        """Note a problem; `rows` are absolute row numbers, in order (an empty array: no problem)."""
        if rows is not None and len(rows) == 0:
            return
        if rows is not None and self._number is not None:
            rows = self._number(rows)
        key = (severity, field, message)
        count, named = self._found.get(key, (0, ()))
        if rows is not None:
            count += len(rows)
            named += tuple(int(row) for row in rows[: ROWS_NAMED - len(named)])
        self._found[key] = (count, named)

    @property
    def problems(self) -> list[Finding]:
        """Everything noted so far: errors first, then by field and first row."""
        every = [Finding(*key, *value) for key, value in self._found.items()]
        return sorted(every, key=lambda p: (p.severity, p.field, p.rows, p.message))


@dataclass(frozen=True)
class Report:
    """All problems of one dataset; `name` is the file, or "the arrays"; recognised: of its form, a phrase."""

    name: str
    problems: tuple[Finding, ...]
    recognised: str = ""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The problems with which the data cannot be used."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The problems with which it can, but about which a person should know."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def raise_errors(self) -> None:
        """Raise one `InputError` that tells the first error and how many more there are."""
        if not self.errors:
            return
        more = len(self.errors) - 1
        rest = f" (and {more} more error(s): `slater data check` lists all)" if more else ""
        first = str(self.errors[0]).rstrip(".")
        holes = f"; {_HOLES}" if "NaN" in first else ""
        raise InputError(f"{self.name} cannot be used: {first}{rest}{holes}.")

    def __str__(self) -> str:
        read = f"\n  read as: {self.recognised}" if self.recognised else ""
        if not self.problems:
            return f"{self.name}: no problems found.{read}"
        numbered = " (rows are numbered from 0)" if any(problem.rows for problem in self.problems) else ""
        counts = f"{len(self.errors)} error(s), {len(self.warnings)} warning(s)"
        lines = [f"{self.name}: {counts}{numbered}.{read}"]
        lines += [f"  {problem.severity}: {problem}" for problem in self.problems]
        if any("NaN" in problem.message for problem in self.errors):
            lines.append(f"  where values are missing, {_HOLES}.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A JSON object: name, ok (no errors), errors, warnings."""
        return {
            "file": self.name,
            "ok": not self.errors,
            "recognised": self.recognised,
            "errors": [problem.to_json() for problem in self.errors],
            "warnings": [problem.to_json() for problem in self.warnings],
        }
