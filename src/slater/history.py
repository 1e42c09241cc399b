"""What a policy remembers of its episode; one idea for logs, which have it made row by row, and for actors.

The memory is a few running features of past observations and actions, in units of the log's spread: sums over
the episode, and exponential means over a short and a long stretch. It starts at 0, which is the log's mean,
and is updated by one line, so that logs, controllers and ONNX files compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.disk import typed
from slater.errors import InputError

F32 = NDArray[np.float32]
#: steps of the short exponential mean; the long one is a fifth of the horizon, or twice this if that is more
SHORT, LONG = 3.0, 0.2


@dataclass(frozen=True)
class History:
    """How an episode's past is remembered.

    entries: of an observation; actions: number of discrete actions, None if they are continuous
    centre, spread: (entries + action entries,) means and deviations in the log, of observations then actions
    horizon: steps of an episode
    """

    entries: int
    actions: int | None
    centre: tuple[float, ...]
    spread: tuple[float, ...]
    horizon: int

    @classmethod
    def of(
        cls, observations: NDArray[Any], actions: NDArray[Any], count: int | None, horizon: int
    ) -> History:
        """For a log of observations (N, o) and actions (N, a), or (N,) of `count` discrete ones."""
        seen = np.concatenate([observations, _vectors(actions, count)], axis=1).astype(np.float64)
        spread = seen.std(axis=0)
        varies = spread > np.maximum(1e-7 * np.abs(seen).max(axis=0), 1e-30)
        centre, scale = seen.mean(axis=0).tolist(), np.where(varies, spread, 1.0).tolist()
        return cls(observations.shape[1], count, tuple(centre), tuple(scale), horizon)

    @property
    def size(self) -> int:
        """Numbers that are remembered: the time, then sums and both means of every entry."""
        return 1 + 3 * len(self.centre)

    @property
    def weights(self) -> tuple[F32, F32]:
        """Decay and gain of every number, (size,): the memory becomes decay * memory + gain * seen."""
        width = len(self.centre)
        long = max(LONG * self.horizon, 2 * SHORT)
        decay = np.repeat([1.0, 1 - 1 / SHORT, 1 - 1 / long], [1 + width, width, width])
        gain = np.repeat([1 / self.horizon, 1 / SHORT, 1 / long], [1 + width, width, width])
        return decay.astype(np.float32), gain.astype(np.float32)

    def start(self, rows: int) -> F32:
        """The memory at the start of `rows` episodes, (rows, size)."""
        return np.zeros((rows, self.size), np.float32)

    def after(self, memory: F32, observations: NDArray[Any], actions: NDArray[Any]) -> F32:
        """The memory (rows, size) after a step with these observations and actions, a row per episode."""
        seen: F32 = np.concatenate([observations, _vectors(actions, self.actions)], axis=1).astype(np.float32)
        centre, spread = (np.array(side, np.float32) for side in (self.centre, self.spread))
        seen = np.asarray((seen - centre) / spread, np.float32)
        decay, gain = self.weights
        one = np.ones((len(seen), 1), np.float32)
        return np.asarray(decay * memory + gain * np.concatenate([one, seen, seen, seen], axis=1), np.float32)

    def along(
        self, observations: NDArray[Any], actions: NDArray[Any], starts: NDArray[Any], stops: NDArray[Any]
    ) -> tuple[F32, F32]:
        """Of every row of a log the memory before it and after it, (N, size); episode e has the rows
        starts[e] to stops[e] - 1.
        """
        before = np.zeros((len(observations), self.size), np.float32)
        after, lengths = np.zeros_like(before), stops - starts
        order = np.argsort(-lengths, kind="stable")  # those that last are the first ones at every step
        starts, lengths = starts[order], lengths[order]
        memory = self.start(len(starts))
        for step in range(int(lengths.max(initial=0))):
            rows = starts[: np.searchsorted(-lengths, -step)] + step
            before[rows] = memory = memory[: len(rows)]
            after[rows] = memory = self.after(memory, observations[rows], actions[rows])
        return before, after

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> History:
        """What `to_json` gave; anything else is an `InputError`."""
        try:
            found: History = typed(cls, record)
            if len(found.centre) != len(found.spread) or not 0 < found.entries < len(found.centre):
                raise ValueError("its numbers do not fit together")
            if found.horizon < 1 or not np.all(np.array(found.spread) > 0):
                raise ValueError("a horizon or spread is not above 0")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"what a policy remembers is damaged ({error}).") from None
        return found


def _vectors(actions: NDArray[Any], count: int | None) -> NDArray[Any]:
    """Actions as vectors: discrete ones, of which there are `count`, as one-hot rows."""
    return np.asarray(actions) if count is None else np.eye(count, dtype=np.float32)[actions]
