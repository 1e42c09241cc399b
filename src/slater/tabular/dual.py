"""The lambda-player: multipliers in `B Delta^I = {lambda >= 0, sum_i lambda_i <= B}`.

Each player sees the estimated costs h of the policy just played and answers with multipliers; the
payoff that it minimises is `lambda . (tau - h)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slater.tabular._check import Float


class DualPlayer(Protocol):
    """One game's lambda-player; `update` may keep state from round to round."""

    def update(self, violation: Float) -> Float:
        """Multipliers `(I,)` after seeing `violation = h - tau`, J-units, `(I,)`."""
        ...


@dataclass
class Greedy:
    """The paper's player: the exact minimiser, all of B on the worst violation, or nothing."""

    bound: float

    def update(self, violation: Float) -> Float:
        """`B e_i` for the largest violation if it is positive, else zero."""
        multipliers = np.zeros_like(violation)
        if len(violation) and violation.max() > 0:
            multipliers[int(np.argmax(violation))] = self.bound
        return multipliers


@dataclass
class ExponentiatedGradient:
    """MBCL's player: multiplicative weights over the I costs and a slack entry, scaled to B."""

    bound: float
    step: float
    _log_weights: Float | None = field(default=None, repr=False)

    def update(self, violation: Float) -> Float:
        """Multiply each entry's weight by `exp(step * violation)`; the slack's violation is zero."""
        gradient = np.append(violation, 0.0)
        if self._log_weights is None:
            self._log_weights = np.zeros(len(gradient))
        self._log_weights = self._log_weights + self.step * gradient
        self._log_weights -= self._log_weights.max()
        return self.current(len(violation))

    def current(self, costs: int) -> Float:
        """The multipliers `(I,)` now: `B / (I + 1)` each at the start."""
        logs = np.zeros(costs + 1) if self._log_weights is None else self._log_weights
        weights = np.exp(logs)
        return self.bound * weights[:-1] / weights.sum()


#: name -> the player of a game with B, and a step per J-unit of violation
DUALS: dict[str, Callable[[float, float], DualPlayer]] = {
    "greedy": lambda bound, step: Greedy(bound),
    "exponentiated_gradient": ExponentiatedGradient,
}
