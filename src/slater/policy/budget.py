"""What is left of the limits of an episode, and that number in the units of the critics it is compared with.

A critic's sums end somewhere, and the budget must end there too, or cost-to-go and what may still be spent
are two quantities (b: left of a limit, in cost; h = T - t: steps left; g: discount):

    ends        the critic's sums                                   the budget in its units
    horizon     not discounted, end at step T, know the time        b                           exact
    never       discounted, go on through timeouts; for limits      D, from the limit as a discounted sum,
                that are discounted sums                            by D' = (D - c) / g         exact
    timeouts    discounted, end at timeouts, do not know the time   b (1 - g^h) / ((1 - g) h)   released code;
                                                                    right for costs at a constant rate

NumPy alone: a controller keeps its budget with this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.disk import typed
from slater.errors import InputError

Ends = Literal["horizon", "never", "timeouts"]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """How a budget is kept: see the module's text.

    horizon: T, steps of a full episode
    gamma: g of the critics that end `never` or at `timeouts`; of the others, what their unit is made with
    """

    ends: Ends
    horizon: int
    gamma: float

    def __post_init__(self) -> None:
        if self.ends not in get_args(Ends) or self.horizon < 1 or not 0 <= self.gamma < 1:
            raise ValueError(f"no budget ends {self.ends!r} with T = {self.horizon}, gamma = {self.gamma}")

    def start(self, limits: ArrayLike) -> F64:
        """What is left at the start of an episode, (I,), under limits in cost per episode, (I,)."""
        value = np.asarray(limits, dtype=np.float64)
        return value / (self.horizon * (1.0 - self.gamma)) if self.ends == "never" else value

    def after(self, left: F64, costs: ArrayLike) -> F64:
        """What is left, (..., I), after a step that cost `costs`, (..., I)."""
        rest = left - np.asarray(costs, dtype=np.float64)
        return np.asarray(rest / self.gamma) if self.ends == "never" and self.gamma > 0 else rest

    def changed(self, left: F64, time: int, old: ArrayLike, new: ArrayLike) -> F64:
        """What is left at step `time`, (I,), if the limits are `new` instead of `old` from now on."""
        more = self.start(new) - self.start(old)
        return np.asarray(left + (more / self.gamma**time if self.ends == "never" else more))

    def in_critic_units(self, left: F64, time: int) -> F64:
        """What a critic's cost-to-go at step `time` must stay within, (..., I), in raw cost: 0 or more.

        Past the horizon one step is left.
        """
        room = np.maximum(left, 0.0)
        steps = max(self.horizon - time, 1)
        if self.ends == "horizon":  # in the unit of tau: J of a whole episode at the same rate
            return np.asarray(room / (self.horizon * (1.0 - self.gamma)))
        if self.ends == "timeouts":
            return np.asarray(room * (1.0 - self.gamma**steps) / ((1.0 - self.gamma) * steps))
        return room

    def to_json(self) -> dict[str, Any]:
        """As in a policy's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Budget:
        """What `to_json` gave; ValueError or KeyError if it is not that."""
        found: Budget = typed(cls, record)
        return found


class Ledger:
    """The budget of one episode: what is left, the step, and whether the last step's costs were told."""

    def __init__(self, budget: Budget, limits: ArrayLike) -> None:
        self.budget = budget
        self.limits = np.asarray(limits, dtype=np.float64)
        self.left = budget.start(self.limits)
        self.time = 0
        self._told = True

    def take_step(self) -> None:
        """Before each action: refuses where the costs of the action before are not known."""
        if not self._told:
            raise InputError(
                "this policy keeps a budget and was not told what its last action cost: call "
                "observe(reward, costs) after every step."
            )
        self._told = False

    def spend(self, costs: ArrayLike) -> None:
        """What the last action cost, (I,)."""
        value = np.asarray(costs, dtype=np.float64)
        if value.shape != self.left.shape:
            raise InputError(
                f"the policy keeps a budget of {len(self.left)} costs; it was told of {value.size}."
            )
        if not np.all(np.isfinite(value)):
            raise InputError(f"the costs {value.tolist()} of step {self.time} are not all finite numbers.")
        self.left, self.time, self._told = self.budget.after(self.left, value), self.time + 1, True

    def change_limits(self, limits: ArrayLike) -> None:
        """Other limits, (I,), in cost per episode, from now on; what was spent stays spent."""
        new = checked_limits(limits, len(self.left))
        self.left = self.budget.changed(self.left, self.time, self.limits, new)
        self.limits = new


def checked_limits(limits: ArrayLike, costs: int) -> F64:
    """One limit per cost, 0 or more, (I,)."""
    values = np.asarray(limits, dtype=np.float64)
    if values.shape != (costs,) or not np.all(values >= 0):
        raise InputError(
            f"the policy has {costs} costs and needs as many limits >= 0, "
            f"not {np.atleast_1d(values).tolist()}."
        )
    return values
