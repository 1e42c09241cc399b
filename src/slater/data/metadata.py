"""What a dataset says of itself besides its rows, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.encoding import Encoding
from slater.errors import InputError
from slater.history import History
from slater.limits import duration

#: More discrete actions than this are a mistake: a network has an output for each.
MOST_ACTIONS = 2**16


@dataclass(frozen=True)
class Metadata:
    """What a file may say about its data; None where it says nothing.

    env_id: environment the data came from, as in `slater.envs.make` or Gymnasium.
    horizon: steps after which an episode is cut by a timeout.
    action_low, action_high: bounds per action dimension (continuous actions).
    num_actions: number of actions (discrete actions).
    columns: how the columns of the table that observations came from became their entries, in order.
    action_names: of discrete actions what each index is called, if that is known by as many names; else what
        the columns of the actions are called.
    step: how long a step takes, in seconds; limits such as "10/week" need it.
    history: the memory of its episode that stands behind every observation, if there is one.
    notes: anything else, as text: how the data was made, seeds, versions.
    """

    env_id: str | None = None
    horizon: int | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Encoding, ...] | None = None
    action_names: tuple[str, ...] | None = None
    step: float | None = None
    history: History | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        return {
            "env_id": self.env_id,
            "horizon": self.horizon,
            "action_low": None if self.action_low is None else list(self.action_low),
            "action_high": None if self.action_high is None else list(self.action_high),
            "num_actions": self.num_actions,
            **({} if self.columns is None else {"columns": [e.to_json() for e in self.columns]}),
            **({} if self.action_names is None else {"action_names": list(self.action_names)}),
            **({} if self.step is None else {"step": self.step}),
            **({} if self.history is None else {"history": self.history.to_json()}),
            "notes": dict(self.notes),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Metadata:
        """Read what `to_json` wrote; anything of a wrong type is an `InputError` that names it."""

        def read(key: str, what: str, fits: Callable[[Any], bool]) -> Any:
            value = record.get(key)
            if value is not None and not fits(value):
                raise InputError(f"The metadata field {key} must be {what}, not {value!r}.")
            return value

        def count(key: str) -> int | None:
            return read(key, "a whole number, at least 1", lambda x: _number(x, int) and x >= 1)

        def bounds(key: str) -> tuple[float, ...] | None:
            value = read(key, "a list of numbers", lambda x: _listed(x) and all(_number(y) for y in x))
            return None if value is None else tuple(map(float, value))

        columns, named = (read(key, "a list", _listed) for key in ("columns", "action_names"))
        notes = read("notes", "an object", lambda x: isinstance(x, Mapping)) or {}
        return cls(
            env_id=read("env_id", "text", lambda x: isinstance(x, str)),
            horizon=count("horizon"),
            action_low=bounds("action_low"),
            action_high=bounds("action_high"),
            num_actions=count("num_actions"),
            columns=None if columns is None else tuple(Encoding.from_json(column) for column in columns),
            action_names=None if named is None else tuple(map(str, named)),
            step=None if record.get("step") is None else duration(record["step"]),
            history=None if record.get("history") is None else History.from_json(record["history"]),
            notes={str(key): str(value) for key, value in notes.items()},
        )

    def entry_names(self, count: int) -> list[str] | None:
        """What the entries of an observation of `count` numbers are called; None where nobody said."""
        names = [entry for column in self.columns or () for entry in column.entries]
        return names if len(names) == count else None


def _number(value: object, kind: Any = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _listed(value: object) -> bool:
    return isinstance(value, list | tuple)


def stated_bounds(
    stated: Metadata, low: NDArray[Any], high: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds as `action_bounds`, before those of an action that never varies."""
    if max(np.abs(low).max(), np.abs(high).max()) <= 1:
        low, high = np.full(len(low), -1.0), np.full(len(high), 1.0)
    lower = low if stated.action_low is None else stated.action_low
    upper = high if stated.action_high is None else stated.action_high
    return np.asarray(lower, np.float64), np.asarray(upper, np.float64)


def action_bounds(
    stated: Metadata, low: NDArray[Any], high: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Bounds of continuous actions, each (a,): as stated, else [-1, 1] around data in there, else the data's.

    low, high: (a,) the smallest and largest actions in the data. An action that never varies gets bounds a
    ten-thousandth to both sides of it, so that it can be scaled and a policy keeps it where it was.
    """
    lower, upper = stated_bounds(stated, low, high)
    room = np.where(lower == upper, 1e-4 * np.maximum(np.abs(lower), 1e-4), 0.0)
    return (lower - room).astype(np.float32), (upper + room).astype(np.float32)


def doubtful_names(cost_names: Sequence[str]) -> str:
    """What is wrong with the names of the costs, in words after "The costs"; empty if nothing is."""
    if not cost_names or len(set(cost_names)) != len(cost_names) or not all(cost_names):
        return f"need distinct names that are not empty, not {', '.join(map(repr, cost_names))}"
    for name in cost_names:
        if name.strip().lower() in ("reward", "rewards", "return"):
            return (
                f"need other names than {name!r}, which names the reward's estimate; call it otherwise "
                "(cost_names, --cost-names)"
            )
    return ""
