"""What a policy file says about itself: what the policy takes and gives, what it was made from, how judged.

Observations are checked at every call: their shape, and that they are finite. Whether one is far from all
that the data had is asked for with `check="warn"` or `check="raise"`: the contract holds the range of each
entry.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slater.disk import typed
from slater.encoding import Encoding
from slater.errors import InputError

#: the largest size of an entry: beyond any measurement, and its square still fits into 32 bits
LARGEST = 1e18
#: what to do about an observation that is far outside the data's range
RangeCheck = Literal["ignore", "warn", "raise"]


@dataclass(frozen=True)
class Entry:
    """One entry of an observation or action. low, high: the range in the data (observations), or the bounds
    that actions stay within; unit: as text, empty if the data name none.
    """

    name: str
    unit: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.unit})' if self.unit else ''}: {self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class Contract:
    """See the module's text.

    actions: of continuous actions one entry per dimension, of discrete ones none; num_actions: of discrete
    limits: as given, one per cost; judged: sentences on what is estimated, and how
    limit_status: cost -> "within", "above" or "not known" (`slater.runs.LimitStatus`)
    members: share of episodes and name of every policy of a mixture

    What a certificate needs to know, so that a copy of the file is judged as its run is:

    costs: names, in the order of the limits; largest_step_cost: of each in the data, raw units
    imitates: whether the algorithm does nothing but imitate; reading: how the data were read
    trained_on: hashes of the episodes that trained it (`slater.runs.trained_on`), "" if not known
    held_out: what was kept from training (`slater.runs.held_out`), as JSON

    columns: how raw columns become the entries of an observation (`slater.encoding`), where that is known
    action_names: of discrete actions what each index is called, where that is known
    """

    observations: tuple[Entry, ...]
    actions: tuple[Entry, ...]
    num_actions: int | None
    limits: tuple[str, ...]
    judged: tuple[str, ...]
    algorithm: str
    steps: int
    seed: int
    gamma: float
    horizon: int | None
    env_id: str | None
    data: str
    fingerprint: str
    rows: int
    episodes: int
    limit_status: Mapping[str, str]
    members: tuple[tuple[float, str], ...] = ()
    costs: tuple[str, ...] = ()
    largest_step_cost: tuple[float, ...] = ()
    imitates: bool = False
    reading: Mapping[str, Any] = field(default_factory=dict)
    trained_on: str = ""
    held_out: Mapping[str, Any] | None = None
    columns: tuple[Encoding, ...] = ()
    action_names: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As in the file."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Contract:
        """What `to_json` gave; ValueError, TypeError or KeyError if it is not that."""
        found: Contract = typed(cls, {name: record[name] for name in cls.__dataclass_fields__})
        return found

    def __str__(self) -> str:
        lines = [
            f"{self.algorithm}, {self.steps} steps, seed {self.seed}; gamma {self.gamma:g}, "
            + ("no horizon" if self.horizon is None else f"episodes of {self.horizon} steps")
            + (f", {self.env_id}" if self.env_id else ""),
            f"data: {self.data}, {self.rows:,} rows in {self.episodes:,} episodes, {self.fingerprint[:16]}",
            "limits: " + ", ".join(self.limits),
            f"observations, {len(self.observations)} entries, with their range in the data:",
            *(f"  {entry}" for entry in self.observations),
        ]
        if self.num_actions is not None:
            named = ": " + ", ".join(self.action_names) if self.action_names else ", from 0"
            lines.append(f"actions: one of {self.num_actions}{named}")
        else:
            lines += [f"actions, {len(self.actions)} entries, with their bounds:"]
            lines += [f"  {entry}" for entry in self.actions]
        if self.members:
            lines.append("each episode is played by one policy, drawn at its start:")
            lines += [f"  {share:.1%}  {name}" for share, name in self.members]
        return "\n".join([*lines, *self.judged])


def checked(observations: NDArray[Any], entries: int) -> NDArray[np.float32]:
    """Observations as float32; one sentence if their shape is not `(batch, entries)` or one is not finite."""
    try:
        given = np.asarray(observations)
        if np.iscomplexobj(given):
            raise TypeError("they are complex")
        given = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the policy takes observations as an array of numbers ({error}).") from error
    if given.ndim != 2 or given.shape[1] != entries:
        raise InputError(f"the policy takes observations of shape (batch, {entries}), not {given.shape}.")
    if not np.all(np.abs(given) <= LARGEST):
        row, entry = (int(place[0]) for place in np.nonzero(~(np.abs(given) <= LARGEST)))
        raise InputError(
            f"entry {entry} of the observation{f' in row {row}' if len(given) > 1 else ''} is "
            f"{given[row, entry]:g}; the policy takes finite numbers only, up to {LARGEST:g} in size."
        )
    return given.astype(np.float32)


def usable(outputs: NDArray[Any], observations: NDArray[Any]) -> NDArray[Any]:
    """What a network gave for observations (batch, obs_dim), each (batch, ...); refused if it is not finite.

    A number that fits into 32 bits may be too large for what is computed with it.
    """
    if not np.isfinite(outputs).all():
        row = int(np.nonzero(~np.isfinite(outputs))[0][0])
        entry = int(np.abs(observations[row]).argmax())
        raise InputError(
            f"the policy has no action for the observation{f' in row {row}' if len(outputs) > 1 else ''}: "
            f"entry {entry} is {observations[row, entry]:g}, and what is computed from it is not finite."
        )
    return outputs


def check_range(observation: NDArray[Any], contract: Contract | None, check: RangeCheck) -> None:
    """Warn or raise if an entry of `observation`, (obs_dim,), is outside its range by more than its width."""
    if check == "ignore":
        return
    if check not in ("warn", "raise"):
        raise InputError(f"check is {check!r}; it must be 'warn', 'raise' or 'ignore'.")
    if contract is None:
        raise InputError("this policy does not say which range its data had; act with check='ignore'.")
    found = _far(np.asarray(observation, dtype=np.float64), contract.observations)
    if not found:
        return
    text = f"the observation is far outside the data: {'; '.join(found)}."
    if check == "raise":
        raise InputError(text)
    warnings.warn(text, stacklevel=3)


def _far(observation: NDArray[np.float64], entries: Sequence[Entry]) -> list[str]:
    if observation.shape != (len(entries),):
        raise InputError(
            f"the policy takes an observation of shape ({len(entries)},), not {observation.shape}."
        )
    low, high = (np.array([getattr(entry, side) for entry in entries]) for side in ("low", "high"))
    # an entry that is constant in the data has no width: rounding is no reason to speak
    width = np.maximum(high - low, 1e-6 * np.maximum(np.abs(low), 1.0))
    far = (observation < low - width) | (observation > high + width)
    return [
        f"{entry.name} is {value:.4g}, range {entry.low:.4g} to {entry.high:.4g}"
        for entry, value, outside in zip(entries, observation, far, strict=True)
        if outside
    ]
