"""What every format is made of: a reader that gives raw columns in blocks, a writer that takes rows."""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import RAW_FIELDS, Block, Column
from slater.data.findings import Findings
from slater.data.metadata import Metadata
from slater.data.missing import CHOICES, Missing
from slater.encoding import nearest
from slater.errors import InputError
from slater.limits import duration
from slater.pairs import parse_lists

#: What a column can be to us; `time` is checked and not kept.
ROLES = (*RAW_FIELDS, "time")
#: Rows read at a time, unless they are so wide that a block would be larger than `_BLOCK_BYTES`.
BLOCK_ROWS = 65_536
_BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ReadOptions:
    """What a reader is told, over and above what the file says; None leaves it to the file.

    columns: role -> names in the file, e.g. {"observations": ("x", "y"), "costs": ("infos/cost",)}. The
        roles are observations, actions, rewards, costs, terminals, timeouts, next_observations, episode,
        propensity, source, and time, which is checked for order and gaps and not kept. Several names are
        put side by side; a name may end in *: all that begin so, numbers in order. No name at all, (),
        leaves out what the file has under the role's own name.
    cost_names: names of the costs, in order.
    discrete: whether actions are indices; by default they are if there is one integer per row.
    clip_actions: clip continuous actions to the bounds instead of reporting those outside.
    step: how long a step takes, in seconds or as "1h", "15min"; see `slater.data.Metadata`.
    missing: what to do with rows that lack a number: "refuse" them, "drop" them, or take the value of the
        row before ("forward"); see `slater.data.missing`.
    history: put the memory of its episode behind every observation (`slater.history`).
    like: what is known of data of the same kind: columns that are no numbers become entries and choices as
        they did there, by name if all names are there, else in the order that is given; not recorded.
    """

    env_id: str | None = None
    horizon: int | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost_names: tuple[str, ...] | None = None
    discrete: bool | None = None
    clip_actions: bool = False
    missing: Missing = "refuse"
    step: str | float | None = None
    history: bool = False
    like: Metadata | None = None

    def __post_init__(self) -> None:
        if self.missing not in CHOICES:
            raise InputError(
                f"What to do with missing values is one of {', '.join(CHOICES)}, not {self.missing!r}."
            )
        for role in self.columns:
            if role not in ROLES:
                raise InputError(f"There is no role {role!r} for a column{nearest(role, ROLES)}")
        for name in ("horizon", "num_actions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"The option {name} must be at least 1, not {value}.")
        for name in ("action_low", "action_high"):
            if any(not math.isfinite(bound) for bound in getattr(self, name) or ()):
                raise InputError(f"The option {name} must be finite.")

    def to_json(self) -> dict[str, Any]:
        """What is told, as a JSON object for the record of a run; `from_json` reads it back."""
        told = {**vars(self), "columns": {role: list(names) for role, names in self.columns.items()}}
        plain = {name: value for name, value in told.items() if value != getattr(ReadOptions(), name)}
        plain.pop("like", None)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ReadOptions:
        """Read what `to_json` wrote; what does not fit is an `InputError`."""
        known = {field.name for field in fields(cls)}
        try:
            told: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
            if "columns" in told:
                told["columns"] = {str(role): tuple(map(str, n)) for role, n in told["columns"].items()}
            if not set(told) <= known:
                raise ValueError(f"unknown {', '.join(sorted(set(told) - known))}")
            return cls(**told)
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"The record of how the data was read is damaged ({error}).") from None

    def override(self, metadata: Metadata, action_dim: int | None) -> Metadata:
        """The file's metadata with what the options say put over it; one bound serves all dimensions."""

        def spread(bounds: tuple[float, ...] | None) -> tuple[float, ...] | None:
            return bounds * action_dim if bounds is not None and len(bounds) == 1 and action_dim else bounds

        told: dict[str, Any] = {name: getattr(self, name) for name in ("env_id", "horizon", "num_actions")}
        told |= {"action_low": spread(self.action_low), "action_high": spread(self.action_high)}
        told["step"] = None if self.step is None else duration(self.step)
        return replace(metadata, **{name: value for name, value in told.items() if value is not None})


def read_options(
    columns: Mapping[str, str | Sequence[str]] | Sequence[str] | None = None, **told: Any
) -> ReadOptions:
    """Options from plain values: columns as a mapping from roles to names, or as texts "ROLE=NAME,NAME"."""
    if isinstance(columns, Mapping):
        mapped = {role: (n,) if isinstance(n, str) else tuple(n) for role, n in columns.items()}
    else:
        mapped = parse_columns(columns.split() if isinstance(columns, str) else columns or ())
    known = {field.name for field in fields(ReadOptions)}
    for name in told.keys() - known:
        raise InputError(f"There is no option {name!r} for reading; there are {', '.join(sorted(known))}.")
    return ReadOptions(columns=mapped, **told)


def parse_columns(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """A column map from texts like "observations=x,y,v*" and "costs=infos/cost"; "source=-" leaves it out."""
    columns = parse_lists(texts, "column map", "observations=x,y")
    return {role: () if names == ("-",) else names for role, names in columns.items()}


@dataclass(frozen=True)
class Notes:
    """What our writers say of a file inside it, in the place that each format has for such things."""

    metadata: Metadata
    cost_names: tuple[str, ...]
    discrete: bool
    fingerprint: str = ""

    def to_text(self, fingerprint: str) -> str:
        """JSON that `parse` reads back, with the fingerprint of the rows written."""
        record = {"format": 1, "metadata": self.metadata.to_json(), "cost_names": list(self.cost_names)}
        return json.dumps({**record, "discrete": self.discrete, "fingerprint": fingerprint})

    @classmethod
    def parse(cls, path: Path | str, text: str | bytes) -> Notes:
        """Read `to_text`; anything else means that the file is damaged."""
        try:
            record = json.loads(text)
            return cls(
                metadata=Metadata.from_json(record["metadata"]),
                cost_names=tuple(str(name) for name in record["cost_names"]),
                discrete=bool(record["discrete"]),
                fingerprint=str(record["fingerprint"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            damaged(path, error, "file written by Slater")


class Reader(ABC):
    """An open file (or anything else) that gives raw columns, block by block.

    name: what a person calls it; used in messages. format: the name of the format.
    columns: names, shapes and types. metadata, cost_names, fingerprint: what it says of itself.
    """

    name: str
    format: str
    columns: dict[str, Column]
    metadata: Metadata = Metadata()
    cost_names: tuple[str, ...] | None = None
    discrete: bool | None = None
    fingerprint: str | None = None
    #: role -> the names of its columns, where a person gave them names; used in messages
    labels: Mapping[str, tuple[str, ...]] = {}
    #: what was found of the form of the file, where that could have been another; a phrase for a person
    recognised: str = ""
    #: the environment is known to clip actions, so those outside the bounds are clipped, with a warning
    clips_actions: bool = False
    #: the format itself says where every episode ends, the last one included, whatever the flags say
    whole_episodes: bool = False

    def note(self, findings: Findings) -> None:
        """Add the problems that only this format can see; called before blocks are read."""
        return

    def adopt(self, notes: Notes, *, own_costs: bool = True) -> None:
        """Take over what the file says of itself; cost names only if its own cost columns are read."""
        self.metadata, self.discrete, self.fingerprint = notes.metadata, notes.discrete, notes.fingerprint
        self.clips_actions = False
        if own_costs:
            self.cost_names = notes.cost_names

    @abstractmethod
    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Raw columns, at most `rows` rows at a time, in order; may be called again to read again."""

    def block_rows(self) -> int:
        """How many rows to read at a time, so that a block stays within some megabytes."""
        width = sum(max(1, math.prod(c.tail)) * c.dtype.itemsize for c in self.columns.values())
        return max(256, min(BLOCK_ROWS, _BLOCK_BYTES // max(1, width)))

    def close(self) -> None:
        """Let go of the file."""
        return

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writer(ABC):
    """A file being written, in a `with` statement: rows in blocks, then `finish`.

    What is raised inside, here or by the writer, leaves no half file behind: what is written goes by the name
    `_partial` until it is whole.
    """

    def __init__(self, path: Path, notes: Notes) -> None:
        self._path, self._notes = path, notes
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    @abstractmethod
    def write(self, rows: Block) -> None:
        """Append rows."""

    @abstractmethod
    def finish(self, fingerprint: str) -> None:
        """Complete the file and put it in its place."""

    def abandon(self) -> None:
        """Remove what was written so far; nothing, where rows are kept in memory to the end."""
        return


def damaged(
    path: Path | str, error: BaseException, kind: str, remedy: str = "get or write it again"
) -> NoReturn:
    """Turn whatever a format's library raises on a damaged file into one sentence."""
    detail = " ".join(str(error).split())[:200] or type(error).__name__
    if odd := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", detail):  # Arrow, of a CSV file
        row, wanted, there = odd.groups()
        raise InputError(
            f"{path}: line {row} has {there} values, not {wanted} as the header; mend or delete that line."
        ) from None
    raise InputError(f"{path} is damaged or is no {kind} ({detail}); {remedy}.") from None


def side_by_side(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns of the same role: one as it is, several as (N, width)."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def mapped_roles(
    path: Path | str,
    found: Mapping[str, Sequence[str]],
    options: ReadOptions,
    available: Iterable[str] = (),
) -> dict[str, Sequence[str]]:
    """What each role is read from, the options over what was found.

    available: refused is a file that lacks a role but has one of these names, not taken, that is almost the
    role's: a typing error, or a flipped bit. Without this, a file whose `timeouts` is misnamed would be read
    as one without timeouts.
    """
    roles = {**found, **options.columns}
    taken = {name for names in roles.values() for name in names}
    unused = [name for name in available if name not in taken and name not in roles]
    for role in RAW_FIELDS:
        if role == "source" or role in roles:  # too common a word: `resource` is no slip for it
            continue
        if near := get_close_matches(role, unused, n=1, cutoff=0.8):
            raise InputError(
                f"{path} has no {role} but has {listing(near)}; if that is meant, say so "
                f"in the column map, {role}={listing(near)}."
            )
    return {role: names for role, names in roles.items() if names}


def expand_names(role: str, names: Sequence[str], available: Sequence[str]) -> list[str]:
    """Column names with patterns such as `obs_*` replaced by what matches; numbered names by number."""
    expanded: list[str] = []
    for name in names:
        if name.endswith("*"):
            matches = [n for n in available if n.startswith(name[:-1])]
            if all(match[-1:].isdigit() for match in matches):  # obs_10 after obs_9, else the file's order
                matches.sort(key=lambda n: (stem := n.rstrip("0123456789"), int(n[len(stem) :])))
            if not matches:
                raise InputError(f"No column begins with {name[:-1]!r}, wanted for {role}.")
            expanded.extend(matches)
        elif name in available:
            expanded.append(name)
        else:
            hint = " Roles are separated by spaces, the columns of one role by commas." if "=" in name else ""
            near = nearest(name, [listing([other]) for other in available])
            raise InputError(f"There is no column {name!r}, wanted for {role}{near}{hint}")
    twice = [name for index, name in enumerate(expanded) if name in expanded[:index]]
    if twice:
        raise InputError(f"The column {twice[0]!r} is given twice for {role}; give each column once.")
    return expanded


def listing(names: Iterable[object]) -> str:
    """Names found in a file, for a message of one line: the first twelve, odd characters escaped."""
    every = [repr(str(name))[1:-1][:60] for name in names]
    return ", ".join(every[:12]) + (", ..." if len(every) > 12 else "") if every else "nothing"
