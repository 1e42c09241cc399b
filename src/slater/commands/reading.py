"""How a log of one's own is read: options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from slater.data.formats.base import ReadOptions, read_options
from slater.data.missing import Missing
from slater.errors import InputError

__all__ = ["OwnLog", "missing_of"]


def missing_of(drop_missing: bool, fill: Literal["forward"] | None) -> Missing:
    """What is done with rows that lack a number, from the two options that say so."""
    if drop_missing and fill:
        raise InputError("--drop-missing and --fill exclude each other: choose one.")
    return "drop" if drop_missing else fill or "refuse"


@dataclass(frozen=True)
class OwnLog:
    """How to read a table, where it does not say so itself."""

    columns: tuple[str, ...] = ()
    """ROLE=NAME[,NAME...] for a table with names of its own, as in `slater data info`; kept in the run:
    --columns observations=x,v actions=throttle rewards=profit costs=wear episode=trip"""
    drop_missing: bool = False
    """leave out rows that lack a number; `slater data check` counts them"""
    fill: Literal["forward"] | None = None
    """fill a missing number with that of the row before, in the same episode"""
    horizon: int | None = None
    """steps after which an episode times out, where the data do not say so"""

    def options(self) -> ReadOptions:
        """The same for the library."""
        return read_options(
            self.columns, missing=missing_of(self.drop_missing, self.fill), horizon=self.horizon
        )

    def record(self) -> dict[str, Any]:
        """The same for the record of a run."""
        return self.options().to_json()

    def words(self) -> list[str]:
        """The same as words of a command."""
        words = ["--columns", *self.columns] if self.columns else []
        words += ["--drop-missing"] if self.drop_missing else []
        words += ["--fill", self.fill] if self.fill else []
        return words + (["--horizon", str(self.horizon)] if self.horizon is not None else [])
