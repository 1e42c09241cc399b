"""Checks of rows as they stream by: every problem, in words, with rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.dataset import NO_TRANSITION, Dataset
from slater.data.episodes import LEAST_LIVED
from slater.data.findings import NO_ROWS, Findings, Report, Severity
from slater.data.metadata import MOST_ACTIONS, Metadata

#: How far apart a next observation and the following row may be and still be called the same.
_SAME = 1e-4
#: Larger numbers cannot be squared in single precision; nothing that is measured is so large.
LARGEST_NUMBER = 1e18
_TOO_LARGE = (
    f"is beyond {LARGEST_NUMBER:g}; if it stands for a missing value, leave that empty, else choose "
    "another unit"
)
#: So many rows in a row that stand earlier in the same episode, in the same order, are a copy.
_STRETCH = 3
#: A column's rounding, as a share of its range, from which it is said.
_COARSE = 1e-3

_NUMBERS = ("observations", "actions", "rewards", "costs")
Rows = Mapping[str, NDArray[Any]]


class _WholeActions:
    """Are actions whole numbers, one per row, all of them or nearly? Then nobody said what they are."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._odd: list[int] = []
        self._size = 0

    def update(self, actions: NDArray[Any], offset: int) -> None:
        """Take the actions from row `offset` on, (N,) or (N, a)."""
        if actions.ndim == 2 and actions.shape[1] != 1:
            return
        values = actions.reshape(-1)
        whole = np.isfinite(values) & (values == np.floor(values)) & (values >= 0) & (values < MOST_ACTIONS)
        self._size += len(values)
        if len(self._odd) <= self._size // 100 + 3:
            self._odd += (offset + np.flatnonzero(~whole)).tolist()
        if len(self._seen) <= MOST_ACTIONS:
            self._seen.update(np.unique(values[whole]).astype(int).tolist())

    def remark(self, note: Any, *, discrete: bool) -> None:
        """Say what was assumed where it may be wrong."""
        largest = max(self._seen, default=0)
        if discrete and len(self._seen) <= largest:
            message = (
                f"the whole numbers are taken for {largest + 1} discrete actions, of which "
                f"{len(self._seen)} occur; if they are amounts, say that actions are not discrete, "
                "else state the number of actions"
            )
            note("warning", "actions", message)
        if discrete or not 1 <= largest < 50 or len(self._odd) > max(self._size // 100, 1):
            return
        amounts = "they are taken for amounts; if they are choices, say that actions are discrete"
        if self._odd:
            message = f"all but {len(self._odd)} are whole numbers from 0 to {largest}: {amounts} and correct"
            note("warning", "actions", f"{message} this", np.array(self._odd))
        elif len(self._seen) == largest + 1:
            message = f"all are whole numbers from 0 to {largest}, with a decimal point: {amounts}"
            note("warning", "actions", message)


class Repeats:
    """What a log holds twice: rows that repeat the row before, copied stretches, whole episodes.

    Takes blocks of rows in order; memory grows with the number of episodes only.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._before: np.uint64 | None = None  # the last row, if its episode goes on
        self._content = blake2b(digest_size=16)  # of the episode so far
        self._contents: set[bytes] = set()

    def update(self, rows: Rows, offset: int) -> None:
        """Look at the rows from number `offset` on."""
        ends = rows["terminals"] | rows["timeouts"]
        if rows["actions"].ndim == 2:  # a discrete world may well stand still, or go in circles
            self._rows(_codes(rows), ends, offset)
        self._episodes(rows, ends, offset)

    def _rows(self, codes: NDArray[np.uint64], ends: NDArray[np.bool_], offset: int) -> None:
        before = self._before is not None and bool(codes[0] == self._before)
        same = np.append(before, (codes[1:] == codes[:-1]) & ~ends[:-1])
        message = "repeats the row before it in every number; was it logged twice?"
        self._findings.add("warning", "rows", message, offset + np.flatnonzero(same))
        self._before = None if ends[-1] else codes[-1]
        # the row before with the same content, in the same episode, and how far back it stands
        order = np.argsort(codes, kind="stable")
        again = codes[order[1:]] == codes[order[:-1]]
        lag = np.zeros(len(codes), dtype=np.int64)
        lag[order[1:][again]] = (order[1:] - order[:-1])[again]
        episode = np.concatenate([[0], np.cumsum(ends[:-1])])
        lag[(lag < 2) | (episode[np.arange(len(codes)) - lag] != episode)] = 0
        starts = np.flatnonzero(np.diff(lag, prepend=-1))
        lengths = np.diff(starts, append=len(lag))
        copied = np.flatnonzero(np.repeat((lag[starts] > 0) & (lengths >= _STRETCH), lengths))
        message = "stands earlier in the same episode, like the rows around it; were they copied?"
        self._findings.add("warning", "rows", message, offset + copied)

    def _episodes(self, rows: Rows, ends: NDArray[np.bool_], offset: int) -> None:
        start, copies = 0, []
        columns = [np.ascontiguousarray(rows[name]) for name in ("observations", "actions", "rewards")]
        for stop in [*(np.flatnonzero(ends) + 1).tolist(), len(ends)]:
            for values in columns:
                self._content.update(values[start:stop].tobytes())
            if stop > start and ends[stop - 1]:
                digest = self._content.digest()
                if digest in self._contents:
                    copies.append(stop - 1)
                self._contents.add(digest)
                self._content = blake2b(digest_size=16)
            start = stop
        message = "an episode that ends here is a copy of an earlier one"
        self._findings.add("warning", "rows", message, offset + np.array(copies, dtype=np.int64))


def _codes(rows: Rows) -> NDArray[np.uint64]:
    """A number for the content of each row, (N,), equal where all its numbers are (0 and -0 too)."""
    table = np.concatenate([rows[name].reshape(len(rows["rewards"]), -1) for name in _NUMBERS], axis=1)
    words = (np.ascontiguousarray(table, np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)
    keys = np.random.default_rng(0).integers(2**63, size=words.shape[1], dtype=np.uint64) | np.uint64(1)
    return np.asarray(((words + np.uint64(1)) * keys).sum(axis=1, dtype=np.uint64))


class Inspector:
    """Takes blocks of rows in order (`update`), then `finish`; notes problems in `findings`.

    derived: next observations were made from the following rows, so comparing them would say nothing.
    assumed: nobody said whether actions are indices or amounts; it was told by their type.
    labels: role -> names of its columns, for messages. Memory grows with the number of episodes only.
    """

    def __init__(
        self,
        cost_names: Sequence[str],
        metadata: Metadata,
        findings: Findings,
        *,
        derived: bool = False,
        assumed: bool = False,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._metadata = metadata
        self._cost_names = tuple(cost_names)
        self._findings = findings
        self._derived = derived
        self._amounts = _WholeActions() if assumed else None
        self._labels = labels or {}
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}
        self._repeats = Repeats(findings)
        self._size = 0
        self._stops: list[NDArray[np.int64]] = []  # of the episodes that have ended
        self._terminated: list[NDArray[np.bool_]] = []
        self._transitions = 0
        #: reward and costs of the last row, if its episode goes on
        self._level: NDArray[np.float32] | None = None
        self._rises, self._falls = np.zeros((2, 1 + len(self._cost_names)), dtype=np.int64)
        self._running: str | None = None  # source of the episode that the last block left unfinished

    def update(self, rows: Rows, after: NDArray[np.float32] | None) -> None:
        """Check one block; `after` is the first observation behind it, None at the end of the data."""
        for name in (*_NUMBERS, "next_observations"):
            if name == "next_observations" and self._derived:
                continue  # it would only repeat what observations say
            values = rows[name].reshape(len(rows[name]), -1)
            if values.dtype.kind == "f":
                finite = np.isfinite(values)
                with np.errstate(invalid="ignore"):
                    large = finite & (np.abs(values) > LARGEST_NUMBER)
                for bad, message in ((~finite, "is NaN or infinite"), (large, _TOO_LARGE)):
                    for column, words in self._columns(name, values.shape[1]) if bad.any() else ():
                        self._mark("error", name, words + message, bad[:, column].any(axis=1))
        self._check_actions(rows["actions"])
        costs, rewards = rows["costs"], rows["rewards"]
        for index, name in enumerate(self._cost_names):
            message = f"the cost {name!r} is negative; a cost is a harm, at least 0"
            self._mark("warning", "costs", message, costs[:, index] < 0)
        both = rows["terminals"] & rows["timeouts"]
        self._mark("warning", "timeouts", "is set on a terminal row; the row is treated as a terminal", both)
        if not self._derived:
            self._check_continuity(rows, after)
        self._repeats.update(rows, self._size)
        self._check_totals(rows)
        self._transitions += int(rows["next_known"].sum())
        for name in _NUMBERS:
            for bounds, pick in ((self._low, np.fmin), (self._high, np.fmax)):
                own: Any = pick.reduce(rows[name])
                bounds[name] = np.asarray(pick(bounds.get(name, own), own))
        last = np.flatnonzero(rows["terminals"] | rows["timeouts"])
        self._stops.append(self._size + last + 1)
        self._terminated.append(rows["terminals"][last])
        if "propensity" in rows:
            self._check_propensity(rows["propensity"], discrete=rows["actions"].ndim == 1)
        if "source" in rows:
            self._check_source(rows)
        self._size += len(rewards)

    def _mark(self, severity: Severity, field: str, message: str, where: Any) -> None:
        """Note a problem of the rows of the present block, (N,)."""
        self._findings.add(severity, field, message, self._size + np.flatnonzero(where))

    def _columns(self, name: str, width: int) -> list[tuple[list[int], str]]:
        """Columns to speak of one by one, with the words for each, or all of a role at once."""
        labels = self._labels.get(name, ())
        if len(labels) != width:
            return [(list(range(width)), "")]
        return [([index], f"the column {label!r} ") for index, label in enumerate(labels)]

    def _check_totals(self, rows: Rows) -> None:
        """Count where reward and costs rise and fall within episodes."""
        values = np.concatenate([rows["rewards"][:, None], rows["costs"]], axis=1)
        inside = ~(rows["terminals"] | rows["timeouts"])
        before = values[:1] if self._level is None else self._level[None]
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.diff(values, axis=0, prepend=before)[np.concatenate([[True], inside[:-1]])]
        self._rises += (steps > 0).sum(axis=0)
        self._falls += (steps < 0).sum(axis=0)
        self._level = values[-1] if inside[-1] else None

    def _check_propensity(self, values: NDArray[np.float64], *, discrete: bool) -> None:
        finite = np.isfinite(values)
        self._mark("error", "propensity", "is NaN or infinite", ~finite)
        message = "is not above 0; the action was taken, so it was possible"
        self._mark("error", "propensity", message, finite & (values <= 0))
        if discrete:
            message = "is above 1, but the probability of a discrete action is at most 1"
            self._mark("error", "propensity", message, finite & (values > 1 + 1e-6))

    def _check_source(self, rows: Rows) -> None:
        names = rows["source"]
        self._mark("error", "source", "has no name", names == "")
        ends = rows["terminals"] | rows["timeouts"]
        before = self._running not in (None, names[0])
        changes = np.append(before, (names[1:] != names[:-1]) & ~ends[:-1])
        message = "changes in the middle of an episode; one policy takes all actions of an episode"
        self._mark("error", "source", message, changes)
        self._running = None if ends[-1] else str(names[-1])

    def _check_actions(self, actions: NDArray[Any]) -> None:
        stated = self._metadata
        bounded = stated.action_low is not None and stated.action_high is not None
        if self._amounts is not None and (actions.ndim == 1 or not bounded):
            self._amounts.update(actions, self._size)
        if actions.ndim == 1:
            if (largest := int(actions.max())) >= MOST_ACTIONS:
                served = f"is the index {largest}, where at most {MOST_ACTIONS:,} actions are served; "
                message = served + "number the actions from 0, or say that they are amounts: not discrete"
                self._mark("error", "actions", message, actions == largest)
            if stated.num_actions is not None:
                message = f"is not below the stated number of actions, {stated.num_actions}"
                self._mark("error", "actions", message, actions >= stated.num_actions)
        elif bounded:
            low, high = (np.asarray(b, dtype=np.float32) for b in (stated.action_low, stated.action_high))
            slack = 1e-5 * np.maximum(1, np.where(np.isfinite(high - low), high - low, 1))
            outside = np.any((actions < low - slack) | (actions > high + slack), axis=1)
            message = "is outside the stated bounds; clip it if the environment did"
            self._mark("error", "actions", message, outside)

    def _check_continuity(self, rows: Rows, after: NDArray[np.float32] | None) -> None:
        """Where next observations are given: do they go on where, and only where, no end is marked?"""
        observations, following = rows["observations"], rows["next_observations"]
        comparable = slice(None) if after is not None else slice(0, -1)
        next_rows = observations[1:] if after is None else np.concatenate([observations[1:], after[None]])
        following, current = following[comparable], observations[comparable]
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.all(np.abs(following - next_rows) <= _SAME * (1 + np.abs(next_rows)), axis=1)
            moved = np.any(current != following, axis=1)
        # a NaN is reported as such; here it would only repeat itself
        known = rows["next_known"][comparable] & np.isfinite(next_rows).all(axis=1)
        known &= np.isfinite(following).all(axis=1)
        terminal, timeout = rows["terminals"][comparable], rows["timeouts"][comparable]
        goes_on = "is set in the middle of an episode: the next row goes on from this one"
        self._mark("warning", "terminals", goes_on, terminal & same & moved & known)
        self._mark("warning", "timeouts", goes_on, timeout & ~terminal & same & moved & known)
        message = "is not where the next row begins, and no end is marked there"
        self._mark("warning", "next_observations", message, ~terminal & ~timeout & ~same & known)

    def finish(self) -> None:
        """Note what only the whole data can show."""
        note = self._findings.add
        if self._size == 0:
            note("error", "rows", NO_ROWS)
            return
        stops, terminated = np.concatenate(self._stops), np.concatenate(self._terminated)
        lengths = np.diff(stops, prepend=0)
        longest = int(lengths.max(initial=0))
        self._note_lengths(stops, lengths, ~terminated, longest)
        for name, low, high in zip(self._cost_names, self._low["costs"], self._high["costs"], strict=True):
            if low == high:
                known = f"{low:g} in every row; it cannot tell one policy from another"
                if low == 0:
                    known = "zero in every row; no limit on it can bind"
                note("warning", "costs", f"the cost {name!r} is {known}")
        for name in ("observations", "actions"):
            self._note_ranges(name)
        if self._amounts is not None:
            self._amounts.remark(note, discrete=self._low["actions"].ndim == 0)
        if self._transitions == 0:
            note("warning", "next_observations", NO_TRANSITION)
        elif longest == 1:
            note("warning", "horizon", "every episode has one step: no decision has anything to follow it")
        names = ("the reward", *(f"the cost {name!r}" for name in self._cost_names))
        for name, rises, falls in zip(names, self._rises, self._falls, strict=True):
            if falls == 0 and rises >= 3 * max(len(stops), 1):
                message = f"{name} rises and never falls within an episode: is it a running total?"
                field = "rewards" if name == "the reward" else "costs"
                note("warning", field, message + " give what each step adds")
        if self._low["rewards"] == self._high["rewards"]:
            note("warning", "rewards", f"is {float(self._low['rewards']):g} in every row")

    def _note_lengths(
        self, stops: NDArray[np.int64], lengths: NDArray[np.int64], cut: NDArray[np.bool_], longest: int
    ) -> None:
        """Of the episodes that have ended, (E,): do they, and what follows them, fit a horizon?"""
        note, horizon = self._findings.add, self._metadata.horizon
        tail = self._size - (int(stops[-1]) if len(stops) else 0)
        if len(stops) == 0:
            note("error", "terminals", "no episode end: neither terminals nor timeouts is ever set")
        elif tail:
            message = "they are used for training but not counted as an episode"
            note("warning", "timeouts", f"the last {tail} rows have no end; {message}")
        early = cut & (lengths < (horizon or longest))
        short = cut & (lengths < LEAST_LIVED * (horizon or longest))
        if horizon is not None:
            if tail > horizon:
                message = f"but the stated horizon is {horizon} steps"
                note("error", "horizon", f"the last {tail} rows have no end, {message}")
            message = f"an episode that ends here is longer than the stated horizon of {horizon} steps"
            note("error", "horizon", message, stops[lengths > horizon] - 1)
            message = f"an episode is cut off here before the stated horizon of {horizon} steps; "
            note("warning", "horizon", message + "it is judged by its rate", stops[early & ~short] - 1)
            left_out = message + "it lived less than half of them and is not judged"
            note("warning", "horizon", left_out, stops[short] - 1)
        elif early.any():
            left_out = f", {short.sum()} that lived less than half of it not at all" if short.any() else ""
            message = (
                "timeouts come at different lengths and no horizon is stated; the longest episode, "
                f"{longest} steps, is taken for it: {(early & ~short).sum()} cut off before are judged by "
                f"their rate{left_out}; state the horizon (--horizon, in Python horizon=), or mark true ends "
                "as terminals"
            )
            note("warning", "horizon", message)

    def _note_ranges(self, name: str) -> None:
        """Columns that say nothing: the same in every row, or finer than single precision can hold."""
        lows, highs = np.atleast_1d(self._low[name]), np.atleast_1d(self._high[name])
        labels = self._labels.get(name, ())
        words = [f"the column {label!r}" for label in labels]
        if len(words) != len(lows):
            words = [f"entry {index}" for index in range(len(lows))]
        constant = [words[i] for i in np.flatnonzero(lows == highs).tolist()]
        if constant:
            shown = ", ".join(constant[:10]) + (", ..." if len(constant) > 10 else "")
            self._findings.add("warning", name, f"{shown}: the same in every row")
        if lows.dtype.kind != "f":
            return
        largest = np.maximum(np.abs(lows), np.abs(highs))
        with np.errstate(invalid="ignore", over="ignore"):
            step = np.spacing(largest)
            coarse = np.where(lows == highs, step >= 1, step > _COARSE * (highs - lows))
        for i in np.flatnonzero(coarse & np.isfinite(largest)).tolist():
            message = (
                f"{words[i]}: values near {largest[i]:.6g} are kept in steps of {step[i]:.3g} (single "
                "precision); subtract a constant, such as the first value, to keep smaller differences"
            )
            self._findings.add("warning", name, message)


def check(dataset: Dataset, name: str = "The dataset") -> Report:
    """All problems of a dataset in memory."""
    findings = Findings()
    inspector = Inspector(
        dataset.cost_names, dataset.metadata, findings, derived=not dataset.next_known.all()
    )
    inspector.update(dataset.rows(), None)
    inspector.finish()
    return Report(name, tuple(findings.problems))
