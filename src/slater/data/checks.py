"""Checks of rows as they stream by: every problem, in words, with rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.dataset import NO_TRANSITION, Dataset, Metadata
from slater.data.episodes import LEAST_LIVED
from slater.data.findings import Findings, Report
from slater.data.metadata import MOST_ACTIONS
from slater.data.repeats import Repeats
from slater.data.whole_actions import WholeActions

__all__ = ["Inspector", "check"]

#: How far apart a next observation and the following row may be and still be called the same.
_SAME = 1e-4
#: Larger numbers cannot be squared in single precision; nothing that is measured is so large.
LARGEST_NUMBER = 1e18
_TOO_LARGE = (
    f"is beyond {LARGEST_NUMBER:g}; if it stands for a missing value, leave that empty, else choose "
    "another unit"
)
#: A column's rounding, as a share of its range, from which it is said.
_COARSE = 1e-3


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
        self._amounts = WholeActions() if assumed else None
        self._labels = labels or {}
        self._low: dict[str, NDArray[Any]] = {}
        self._high: dict[str, NDArray[Any]] = {}
        self._repeats = Repeats(findings)
        self._size = 0
        self._started = 0  # row at which the current episode began
        self._timeout_lengths: Counter[int] = Counter()
        self._longest = 0
        self._ends = 0
        self._reward_range = (np.inf, -np.inf)
        self._transitions = 0
        self._level: NDArray[np.float32] | None = (
            None  # reward and costs of the last row, if its episode goes on
        )
        self._rises = np.zeros(1 + len(self._cost_names), dtype=np.int64)
        self._falls = np.zeros(1 + len(self._cost_names), dtype=np.int64)
        self._running: str | None = None  # source of the episode that the last block left unfinished

    def update(self, rows: Mapping[str, NDArray[Any]], after: NDArray[np.float32] | None) -> None:
        """Check one block; `after` is the first observation behind it, None at the end of the data."""
        offset = self._size
        note = self._findings.add
        for name in ("observations", "actions", "rewards", "costs", "next_observations"):
            if name == "next_observations" and self._derived:
                continue  # it would only repeat what observations say
            values = rows[name]
            if values.dtype.kind == "f":
                finite = np.isfinite(values)
                table = ~finite.reshape(len(values), -1)
                for column, words in self._columns(name, table.shape[1]):
                    bad = table.any(axis=1) if column is None else table[:, column]
                    note("error", name, f"{words}is NaN or infinite", offset + np.flatnonzero(bad))
                with np.errstate(invalid="ignore"):
                    table = (np.abs(values) > LARGEST_NUMBER).reshape(len(values), -1) & ~table
                for column, words in self._columns(name, table.shape[1]) if table.any() else ():
                    bad = table.any(axis=1) if column is None else table[:, column]
                    note("error", name, f"{words}{_TOO_LARGE}", offset + np.flatnonzero(bad))
        self._check_actions(rows["actions"], offset)
        costs, rewards = rows["costs"], rows["rewards"]
        for index, name in enumerate(self._cost_names):
            message = f"the cost {name!r} is negative; a cost is a harm, at least 0"
            note("warning", "costs", message, offset + np.flatnonzero(costs[:, index] < 0))
        self._reward_range = (
            min(self._reward_range[0], float(np.fmin.reduce(rewards))),
            max(self._reward_range[1], float(np.fmax.reduce(rewards))),
        )
        both = rows["terminals"] & rows["timeouts"]
        note(
            "warning",
            "timeouts",
            "is set on a terminal row; the row is treated as a terminal",
            offset + np.flatnonzero(both),
        )
        if not self._derived:
            self._check_continuity(rows, after, offset)
        self._repeats.update(rows, offset)
        self._check_totals(rows)
        self._transitions += int(rows["next_known"].sum())
        for name in ("observations", "actions", "costs"):
            low, high = np.fmin.reduce(rows[name]), np.fmax.reduce(rows[name])
            self._low[name] = np.asarray(np.fmin(self._low[name], low) if name in self._low else low)
            self._high[name] = np.asarray(np.fmax(self._high[name], high) if name in self._high else high)
        self._check_lengths(rows, offset)
        if "propensity" in rows:
            self._check_propensity(rows["propensity"], offset, discrete=rows["actions"].ndim == 1)
        if "source" in rows:
            self._check_source(rows, offset)
        self._size += len(rewards)

    def _columns(self, name: str, width: int) -> list[tuple[int | None, str]]:
        """Columns to speak of one by one, with the words for each, or all of a role at once."""
        labels = self._labels.get(name, ())
        if len(labels) != width:
            return [(None, "")]
        return [(index, f"the column {label!r} ") for index, label in enumerate(labels)]

    def _check_totals(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Count where reward and costs rise and fall within episodes."""
        values = np.concatenate([rows["rewards"][:, None], rows["costs"]], axis=1)
        inside = ~(rows["terminals"] | rows["timeouts"])
        before = values[:1] if self._level is None else self._level[None]
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.diff(values, axis=0, prepend=before)[np.concatenate([[True], inside[:-1]])]
        self._rises += (steps > 0).sum(axis=0)
        self._falls += (steps < 0).sum(axis=0)
        self._level = values[-1] if inside[-1] else None

    def _check_propensity(self, values: NDArray[np.float64], offset: int, *, discrete: bool) -> None:
        note = self._findings.add
        finite = np.isfinite(values)
        note("error", "propensity", "is NaN or infinite", offset + np.flatnonzero(~finite))
        message = "is not above 0; the action was taken, so it was possible"
        note("error", "propensity", message, offset + np.flatnonzero(finite & (values <= 0)))
        if discrete:
            message = "is above 1, but the probability of a discrete action is at most 1"
            note("error", "propensity", message, offset + np.flatnonzero(finite & (values > 1 + 1e-6)))

    def _check_source(self, rows: Mapping[str, NDArray[Any]], offset: int) -> None:
        names = rows["source"]
        note = self._findings.add
        note("error", "source", "has no name", offset + np.flatnonzero(names == ""))
        ends = rows["terminals"] | rows["timeouts"]
        changes = np.zeros(len(names), dtype=np.bool_)
        changes[1:] = (names[1:] != names[:-1]) & ~ends[:-1]
        changes[0] = self._running is not None and self._running != names[0]
        message = "changes in the middle of an episode; one policy takes all actions of an episode"
        note("error", "source", message, offset + np.flatnonzero(changes))
        self._running = None if ends[-1] else str(names[-1])

    def _check_actions(self, actions: NDArray[Any], offset: int) -> None:
        stated = self._metadata
        if actions.ndim == 1:
            if self._amounts is not None:
                self._amounts.update(actions, offset)
            if (largest := int(actions.max())) >= MOST_ACTIONS:
                message = (
                    f"is the index {largest}, where at most {MOST_ACTIONS:,} actions are served; number the "
                    "actions from 0, or say that they are amounts: not discrete"
                )
                self._findings.add("error", "actions", message, offset + np.flatnonzero(actions == largest))
            if stated.num_actions is not None:
                message = f"is not below the stated number of actions, {stated.num_actions}"
                self._findings.add(
                    "error", "actions", message, offset + np.flatnonzero(actions >= stated.num_actions)
                )
            return
        if stated.action_low is None or stated.action_high is None:
            if self._amounts is not None:
                self._amounts.update(actions, offset)
            return
        low = np.asarray(stated.action_low, dtype=np.float32)
        high = np.asarray(stated.action_high, dtype=np.float32)
        slack = 1e-5 * np.maximum(1, np.where(np.isfinite(high - low), high - low, 1))
        outside = ((actions < low - slack) | (actions > high + slack)).any(axis=1)
        self._findings.add(
            "error",
            "actions",
            "is outside the stated bounds; clip it if the environment did",
            offset + np.flatnonzero(outside),
        )

    def _check_continuity(
        self, rows: Mapping[str, NDArray[Any]], after: NDArray[np.float32] | None, offset: int
    ) -> None:
        """Where next observations are given: do they go on where, and only where, no end is marked?"""
        observations, following = rows["observations"], rows["next_observations"]
        comparable = slice(None) if after is not None else slice(0, -1)
        next_rows = observations[1:] if after is None else np.concatenate([observations[1:], after[None]])
        following, current = following[comparable], observations[comparable]
        known = rows["next_known"][comparable].copy()
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.all(np.abs(following - next_rows) <= _SAME * (1 + np.abs(next_rows)), axis=1)
            moved = np.any(current != following, axis=1)
        # a NaN is reported as such; here it would only repeat itself
        known &= np.isfinite(next_rows).all(axis=1) & np.isfinite(following).all(axis=1)
        terminal, timeout = rows["terminals"][comparable], rows["timeouts"][comparable]
        note = self._findings.add
        note(
            "warning",
            "terminals",
            "is set in the middle of an episode: the next row goes on from this one",
            offset + np.flatnonzero(terminal & same & moved & known),
        )
        note(
            "warning",
            "timeouts",
            "is set in the middle of an episode: the next row goes on from this one",
            offset + np.flatnonzero(timeout & ~terminal & same & moved & known),
        )
        note(
            "warning",
            "next_observations",
            "is not where the next row begins, and no end is marked there",
            offset + np.flatnonzero(~terminal & ~timeout & ~same & known),
        )

    def _check_lengths(self, rows: Mapping[str, NDArray[Any]], offset: int) -> None:
        ends = rows["terminals"] | rows["timeouts"]
        stops = offset + np.flatnonzero(ends) + 1
        if len(stops) == 0:
            return
        lengths = np.diff(stops, prepend=self._started)
        cut = ~rows["terminals"][stops - 1 - offset]
        self._ends += len(stops)
        self._timeout_lengths.update(lengths[cut].tolist())
        self._longest = max(self._longest, int(lengths.max()))
        horizon = self._metadata.horizon
        if horizon is not None:
            message = f"an episode that ends here is longer than the stated horizon of {horizon} steps"
            self._findings.add("error", "horizon", message, stops[lengths > horizon] - 1)
            short = lengths < LEAST_LIVED * horizon
            message = f"an episode is cut off here before the stated horizon of {horizon} steps; "
            by_rate = message + "it is judged by its rate"
            self._findings.add("warning", "horizon", by_rate, stops[cut & ~short & (lengths < horizon)] - 1)
            left_out = message + "it lived less than half of them and is not judged"
            self._findings.add("warning", "horizon", left_out, stops[cut & short] - 1)
        self._started = int(stops[-1])

    def finish(self) -> None:
        """Note what only the whole data can show."""
        note = self._findings.add
        if self._size == 0:
            note("error", "rows", "there are none")
            return
        tail = self._size - self._started
        horizon = self._metadata.horizon
        if self._ends == 0:
            note("error", "terminals", "no episode end: neither terminals nor timeouts is ever set")
        elif tail:
            note(
                "warning",
                "timeouts",
                f"the last {tail} rows have no end; they are used for training but not counted as an episode",
            )
        if tail and horizon is not None and tail > horizon:
            note(
                "error",
                "horizon",
                f"the last {tail} rows have no end, but the stated horizon is {horizon} steps",
            )
        cut_off = {n: count for n, count in self._timeout_lengths.items() if n < self._longest}
        if horizon is None and cut_off:
            short = sum(count for n, count in cut_off.items() if n < LEAST_LIVED * self._longest)
            by_rate = sum(cut_off.values()) - short
            note(
                "warning",
                "horizon",
                "timeouts come at different lengths and no horizon is stated; the longest episode, "
                f"{self._longest} steps, is taken for it: {by_rate} cut-off episodes are judged by their "
                f"rate, {short} that lived less than half of it not at all; state the horizon, or mark true "
                "ends as terminals",
            )
        for name, low, high in zip(self._cost_names, self._low["costs"], self._high["costs"], strict=True):
            if low == high:
                known = "zero in every row; no limit on it can bind"
                if low != 0:
                    known = f"{low:g} in every row; it cannot tell one policy from another"
                note("warning", "costs", f"the cost {name!r} is {known}")
        for name in ("observations", "actions"):
            self._note_ranges(name)
        if self._amounts is not None:
            self._amounts.remark(note, discrete=self._low["actions"].ndim == 0)
        if self._transitions == 0:
            note("warning", "next_observations", NO_TRANSITION)
        elif self._longest == 1:
            note("warning", "horizon", "every episode has one step: no decision has anything to follow it")
        for name, rises, falls in zip(
            ("the reward", *(f"the cost {name!r}" for name in self._cost_names)),
            self._rises.tolist(), self._falls.tolist(), strict=True,
        ):  # fmt: skip
            if falls == 0 and rises >= 3 * max(self._ends, 1):
                message = f"{name} rises and never falls within an episode: is it a running total?"
                note(
                    "warning",
                    "rewards" if name == "the reward" else "costs",
                    message + " give what each step adds",
                )
        if self._reward_range[0] == self._reward_range[1]:
            note("warning", "rewards", f"is {self._reward_range[0]:g} in every row")

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
            self._findings.add(
                "warning",
                name,
                f"{words[i]}: values near {largest[i]:.6g} are kept in steps of {step[i]:.3g} (single "
                "precision); subtract a constant, such as the first value, to keep smaller differences",
            )


def check(dataset: Dataset, name: str = "The dataset") -> Report:
    """All problems of a dataset in memory."""
    findings = Findings()
    inspector = Inspector(
        dataset.cost_names, dataset.metadata, findings, derived=not dataset.next_known.all()
    )
    inspector.update(dataset.rows(), None)
    inspector.finish()
    return Report(name, tuple(findings.problems))
