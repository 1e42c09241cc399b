"""From raw columns, as a file or a user has them, to rows: shapes, types, ends, next observations.

A `Layout` is decided once, from the names, shapes and types of the columns; `rows_of` then turns each
block of raw columns into rows. Readers that stream use the same two steps as arrays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.findings import NO_ROWS, Findings, Severity
from slater.data.fingerprint import OPTIONAL_FIELDS, ROW_FIELDS
from slater.data.metadata import MOST_ACTIONS, Metadata, doubtful_names
from slater.data.names import as_names

#: Raw columns that a format may have; anything else in a file is ignored.
RAW_FIELDS = (*ROW_FIELDS, "episode", *OPTIONAL_FIELDS)
#: Raw columns that may hold text: labels and names.
TEXT_FIELDS = ("episode", "source")
_REQUIRED = ("observations", "actions", "rewards", "costs")
_FLAT = ("rewards", "terminals", "timeouts", "next_known", "episode", *OPTIONAL_FIELDS)

#: rows of a dataset, name of the column -> its values
Block = dict[str, NDArray[Any]]
#: the same of raw columns
RawBlock = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Column:
    """Shape and type of a raw column: `rows` entries (None: not known before reading) of shape `tail`."""

    rows: int | None
    tail: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Layout:
    """How raw columns become rows.

    clip: bounds to clip continuous actions to. whole_episodes: labels end the last episode too, even where
    the data has timeouts of its own and none is set there.
    """

    observation_dim: int
    action_dim: int
    discrete: bool
    cost_names: tuple[str, ...]
    present: frozenset[str]
    clip: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    whole_episodes: bool = False


def layout_of(
    columns: Mapping[str, Column],
    *,
    cost_names: Sequence[str] | None,
    metadata: Metadata,
    findings: Findings,
    discrete: bool | None = None,
) -> Layout | None:
    """Decide the layout, noting every structural problem; None if the columns cannot form rows.

    `discrete` overrides the rule that actions are discrete if they are one integer per row.
    """
    broken: list[str] = []

    def error(field: str, message: str) -> None:
        broken.append(field)
        findings.add("error", field, message)

    def warn(field: str, message: str) -> None:
        findings.add("warning", field, message)

    for name in _REQUIRED:
        if name not in columns:
            error(name, "missing; every dataset needs it (a column map says where it is)")
    for name, column in columns.items():
        shape = f"has shape (N, {', '.join(map(str, column.tail))})"
        if name not in TEXT_FIELDS and column.dtype.kind not in "biuf":
            error(name, f"holds {column.dtype}, not numbers")
        if name in _FLAT and column.tail not in ((), (1,)):
            error(name, f"{shape}; one number per row is needed")
        if name not in _FLAT and (len(column.tail) > 1 or 0 in column.tail):
            error(name, f"{shape}; flatten each row to one dimension")
    counts = {name: column.rows for name, column in columns.items() if column.rows is not None}
    if len(set(counts.values())) > 1:
        error("rows", "the columns differ in length: " + ", ".join(f"{n} has {c}" for n, c in counts.items()))
    if counts and max(counts.values()) == 0:
        error("rows", NO_ROWS)
    if "terminals" not in columns:
        if "episode" in columns:
            warn("terminals", "missing: every episode is taken to end by a timeout")
        elif "timeouts" in columns:
            warn("terminals", "missing: every end is taken for a timeout")
        else:
            error("terminals", "missing, as are timeouts and episode labels: nothing says where episodes end")
    elif "timeouts" not in columns and "episode" not in columns:
        warn("timeouts", "missing: every end is taken for a terminal, with no value after it")
    if "next_observations" not in columns:
        lost = "the last step of an episode that ends by a timeout counts in its sums but not as a transition"
        warn("next_observations", f"missing: derived from the following rows; {lost}")
    if broken:
        return None

    obs_dim, act_dim = _width(columns["observations"]), _width(columns["actions"])
    if "next_observations" in columns and _width(columns["next_observations"]) != obs_dim:
        width = _width(columns["next_observations"])
        error("next_observations", f"has {width} entries per row, observations have {obs_dim}")
    if discrete is None:
        discrete = metadata.num_actions is not None or (
            columns["actions"].dtype.kind in "biu" and act_dim == 1 and metadata.action_low is None
        )
    if discrete and act_dim != 1:
        error("actions", f"has {act_dim} entries per row; discrete actions are one number")
    for name in ("action_low", "action_high"):
        bound = getattr(metadata, name)
        if bound is not None and not discrete and len(bound) != act_dim:
            error(name, f"has {len(bound)} entries, actions have {act_dim}")
    num_costs = _width(columns["costs"])
    numbered = ("cost",) if num_costs == 1 else tuple(f"cost_{i}" for i in range(num_costs))
    names = numbered if cost_names is None else tuple(cost_names)
    if len(names) != num_costs:
        given = f"{len(names)} names are given ({', '.join(names)})"
        error("costs", f"has {num_costs} entries per row, but {given}")
    if wrong_names := doubtful_names(names):
        error("costs", wrong_names)
    if metadata.num_actions is not None and metadata.num_actions > MOST_ACTIONS:
        error("num_actions", f"is {metadata.num_actions}; more than {MOST_ACTIONS:,} actions are not served")
    bounds = zip(metadata.action_low or (), metadata.action_high or (), strict=False)
    if not discrete and any(low > high for low, high in bounds):
        error("action_low", "is above action_high")
    if broken:
        return None
    return Layout(obs_dim, act_dim, discrete, names, frozenset(columns))


def _width(column: Column) -> int:
    return column.tail[0] if column.tail else 1


def stream_rows(
    blocks: Iterable[RawBlock], layout: Layout, findings: Findings
) -> Iterator[tuple[Block, NDArray[np.float32] | None]]:
    """Rows for each raw block, with the first observation after the block (None at the end of the data).

    A block is held until the next one arrives, because ends and next observations can depend on it.
    """
    rows = _Rows(layout, findings)
    full = (block for block in blocks if len(block["observations"]))
    held = next(full, None)
    while held is not None:
        following = next(full, None)
        yield rows.of(held, following)
        held = following


class _Rows:
    """Makes rows of raw blocks in their order."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._offset = 0
        self._seen: set[Any] = set()  # labels of the episodes that have ended

    def _mark(self, severity: Severity, field: str, message: str, where: NDArray[Any]) -> None:
        """Note a problem of the rows of the present block, (N,)."""
        self._findings.add(severity, field, message, self._offset + np.flatnonzero(where))

    def of(self, raw: RawBlock, following: RawBlock | None) -> tuple[Block, NDArray[np.float32] | None]:
        """Rows, and the first observation of the block that follows."""
        layout, size = self._layout, len(raw["observations"])

        def matrix(name: str, width: int) -> NDArray[np.float32]:
            return _single(raw[name]).reshape(size, width)

        observations = matrix("observations", layout.observation_dim)
        after = None
        if following is not None:
            after = np.asarray(following["observations"][0], np.float32).reshape(layout.observation_dim)
        terminals, timeouts = self._flags(raw, "terminals"), self._flags(raw, "timeouts")
        if "episode" in layout.present:
            own = timeouts.copy() if "timeouts" in layout.present else None
            timeouts |= self._ends_of_labels(raw, following, terminals, own)
        rows: Block = {
            "observations": observations,
            "actions": self._actions(np.asarray(raw["actions"]).reshape(size, layout.action_dim)),
            "rewards": matrix("rewards", 1)[:, 0],
            "costs": matrix("costs", len(layout.cost_names)),
            "terminals": terminals,
            "timeouts": timeouts,
        }
        if "next_observations" in layout.present:
            rows["next_observations"] = matrix("next_observations", layout.observation_dim)
            told = "next_known" in layout.present
            rows["next_known"] = self._flags(raw, "next_known") if told else np.ones(size, dtype=np.bool_)
        else:
            shifted = np.empty_like(observations)
            shifted[:-1] = observations[1:]
            shifted[-1] = observations[-1] if after is None else after
            alone = terminals | timeouts
            alone[-1] |= after is None
            shifted[alone] = observations[alone]
            rows["next_observations"] = shifted
            rows["next_known"] = ~alone | terminals
        if "propensity" in layout.present:
            rows["propensity"] = np.ascontiguousarray(raw["propensity"], dtype=np.float64).reshape(size)
        if "source" in layout.present:
            rows["source"] = as_names(raw["source"])
        self._offset += size
        return rows, after

    def _flags(self, raw: RawBlock, name: str) -> NDArray[np.bool_]:
        size = len(raw["observations"])
        if name not in self._layout.present:
            return np.zeros(size, dtype=np.bool_)
        values = np.asarray(raw[name]).reshape(size)
        if values.dtype == np.bool_:  # a damaged file can put other bytes than 0 and 1 in there
            values = values.view(np.uint8)
        message = "is neither 0 nor 1, nor true, false, yes or no; write 1 where it holds and 0 elsewhere"
        self._mark("error", name, message, (values != 0) & (values != 1))
        return values.astype(np.bool_)

    def _actions(self, values: NDArray[Any]) -> NDArray[Any]:
        if not self._layout.discrete:
            actions = _single(values)
            if self._layout.clip is None:
                return actions
            clipped = np.clip(actions, *self._layout.clip)
            changed = ((clipped != actions) & ~np.isnan(actions)).any(axis=1)
            self._mark("warning", "actions", "was outside the bounds and is clipped", changed)
            return clipped
        indices = values[:, 0]
        with np.errstate(invalid="ignore"):
            whole = (indices >= 0) & (indices < 2**31) & (indices == np.floor(indices.astype(np.float64)))
        self._mark("error", "actions", "is not a whole number from 0, as discrete actions are", ~whole)
        return np.where(whole, indices, 0).astype(np.int32)

    def _ends_of_labels(
        self,
        raw: RawBlock,
        following: RawBlock | None,
        terminals: NDArray[np.bool_],
        timeouts: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_]:
        """Timeouts that episode labels imply: the last row of a label, unless it is terminal.

        If the data has `timeouts` of its own (not None), an end without a flag is noted, and at the very end
        of the data it is none unless episodes are whole: there the episode may just not be finished.
        """
        labels = np.asarray(raw["episode"]).reshape(-1)
        over = following is None or bool(np.asarray(following["episode"]).reshape(-1)[0] != labels[-1])
        last = np.append(labels[1:] != labels[:-1], over)
        missing = np.array([label is None or label != label for label in labels.tolist()], dtype=np.bool_)
        self._mark("error", "episode", "has no label; give each row that of its episode", missing)
        if labels.dtype.kind == "f":
            remedy = "give labels as text or whole numbers"
            message = f"is a number too large to be told from the next one; {remedy}"
            self._mark("error", "episode", message, np.abs(labels) >= 2**53)
        message = "is set in the middle of an episode (the next row has the same label)"
        self._mark("error", "terminals", message, terminals & ~last)
        if timeouts is not None:
            self._mark("error", "timeouts", message, timeouts & ~last)
        again, ends = np.zeros(len(labels), dtype=np.bool_), np.flatnonzero(last & ~missing)
        for end, label in zip(ends, labels[ends].tolist(), strict=True):
            again[end] = label in self._seen
            self._seen.add(label)
        message = "comes back after another one began; sort the rows so that each episode is in one piece"
        self._mark("error", "episode", message, again)
        implied = last & ~terminals
        if timeouts is not None:
            if following is None and not self._layout.whole_episodes:
                implied[-1] = False
            message = "is not set where an episode ends by its label; taken for a timeout"
            self._mark("warning", "timeouts", message, implied & ~timeouts)
        return implied


def _single(values: NDArray[Any]) -> NDArray[np.float32]:
    """In single precision; a finite number beyond it becomes the largest there is, which checks report."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if np.isinf(single).any():
        largest = np.copysign(np.finfo(np.float32).max, single)
        single = np.where(np.isinf(single) & np.isfinite(values), largest, single)
    return single
