"""The pi-player: natural policy gradient, which is exponential weights in every state (the paper's PO)."""

from __future__ import annotations

import numpy as np

from slater.tabular._check import Bool, Float, check_positive
from slater.tabular.cmdp import uniform_policy


class NaturalPolicyGradient:
    """`pi_{k+1}(a|s) ∝ pi_k(a|s) exp(step * z_k(s, a))` for scaled values z in [-1, 1], from uniform.

    With `support` `(S, A)` the actions outside it are never taken, except in states that have none in it.
    With `start` `(S, A)` the first policy is that one instead of the uniform one.

    The regret against any policy is at most `ln(A) / (step K) + step / 2` a round.
    """

    def __init__(
        self, states: int, actions: int, step: float, support: Bool | None = None, start: Float | None = None
    ):
        check_positive("the step of the policy player", step)
        self._logits = np.zeros((states, actions))
        self._step = step
        self.policy = uniform_policy(states, actions)
        if support is not None:
            free = support | ~support.any(axis=1, keepdims=True)
            self._logits[~free] = -np.inf
            self.policy = free / free.sum(axis=1, keepdims=True)
        if start is not None:
            with np.errstate(divide="ignore"):
                self._logits = np.log(start)
            self.policy = start

    def update(self, scaled_values: Float) -> Float:
        """The next policy `(S, A)`."""
        self._logits += self._step * scaled_values
        # shifting by the maximum changes no probability and keeps exp finite for ever
        self._logits -= self._logits.max(axis=1, keepdims=True)
        weights = np.exp(self._logits)
        self.policy = weights / weights.sum(axis=1, keepdims=True)
        return self.policy
