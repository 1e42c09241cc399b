"""How a log of one's own is read: options that every command has that reads one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from slater.data.formats.base import ReadOptions, parse_columns
from slater.data.missing import Missing
from slater.errors import InputError


@dataclass(frozen=True)
class Columns:
    """Which column of a file is which, and what is done where a number is missing."""

    columns: tuple[str, ...] = ()
    """ROLE=NAME[,NAME...] for files with other names, e.g. observations=x,y costs=infos/cost; roles are
    observations, actions, rewards, costs, terminals, timeouts, next_observations, episode, propensity,
    source and time (checked for gaps); a name may be a pattern such as obs_*, and - leaves a role out."""
    cost_names: tuple[str, ...] = ()
    """Names of the costs, in the order of their columns."""
    drop_missing: bool = False
    """Leave out rows that lack a number; they are counted."""
    fill: Literal["forward"] | None = None
    """Fill a missing number with that of the row before, in the same episode; filled rows are counted."""

    def options(self) -> ReadOptions:
        """The same for the library."""
        if self.drop_missing and self.fill:
            raise InputError("--drop-missing and --fill exclude each other: choose one.")
        missing: Missing = "drop" if self.drop_missing else self.fill or "refuse"
        columns, names = parse_columns(self.columns), self.cost_names or None
        return ReadOptions(columns=columns, cost_names=names, missing=missing)


@dataclass(frozen=True)
class Reading(Columns):
    """How to read the file, where it does not say so itself; a run keeps it."""

    env_id: str | None = None
    """Environment that the data came from."""
    horizon: int | None = None
    """Steps after which an episode is cut."""
    action_low: tuple[float, ...] = ()
    """Lower bounds of continuous actions: one for all, or one per dimension."""
    action_high: tuple[float, ...] = ()
    """Upper bounds of continuous actions: one for all, or one per dimension."""
    num_actions: int | None = None
    """Number of discrete actions."""
    discrete: bool | None = None
    """Whether actions are indices; by default, if there is one whole number per row."""
    clip_actions: bool = False
    """Clip actions to the bounds instead of reporting those outside as errors."""
    step: str | None = None
    """How long a step takes, as 1h, 15min, 30s or 1d: for limits such as 10/week."""
    history: bool = False
    """Let the policy remember its episode: what it sees is the observation and running features of what was
    observed and done before in the episode. For logs whose past matters, by slater data check."""

    def options(self) -> ReadOptions:
        """The same for the library."""
        own = (option.name for option in fields(self)[len(fields(Columns)) :])
        given: dict[str, Any] = {name: getattr(self, name) for name in own}
        given |= {name: None for name, value in given.items() if value == ()}
        return replace(super().options(), **given)

    def record(self) -> dict[str, Any]:
        """The same for the record of a run."""
        return self.options().to_json()

    def words(self) -> list[str]:
        """The same as words of a command."""
        words: list[str] = []
        for option in fields(self):
            value, name = getattr(self, option.name), option.name.replace("_", "-")
            if value is False and option.default is None:
                words.append(f"--no-{name}")
            elif value is True:
                words.append(f"--{name}")
            elif value not in (None, False, ()):
                words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
        return words
