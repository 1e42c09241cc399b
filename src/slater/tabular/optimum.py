"""The optimum of a large CMDP: policy iteration on the Lagrangian under a master program over policies.

A policy's value is linear in its occupancy measure, so the best constrained policy is a mixture of
deterministic ones, and at most `I + 1` of them. The master program (Dantzig and Wolfe) keeps the policies
found so far and answers with their best weights under the limits and the multipliers lambda of that
answer; policy iteration on `R - lambda.C` answers with the policy that the master lacks most. In the
space of multipliers these are cutting planes of the dual function `max_pi J_{R - lambda.C}(pi) + lambda.tau`:
an upper bound on the optimum for every lambda, and the end is reached when it meets the master's value.

The linear program over occupancy measures has S*A columns and S rows and says the same; it is the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog

from slater.errors import InputError
from slater.tabular._check import Float, Int
from slater.tabular._kernel import policy_iteration

if TYPE_CHECKING:
    from slater.tabular.cmdp import CMDP

#: the gap between the dual function and the master's value at which the optimum is reached, relative
GAP = 1e-10

#: a limit is out of reach if the best policy is above it by more than this, relative
REACH = 1e-9

MAX_POLICIES = 5_000

#: of the master's rows; HiGHS' own 1e-7 would be as large as the accuracy promised
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


class MasterProgram:
    """The deterministic policies found so far, and the programs over their mixtures."""

    def __init__(self, cmdp: CMDP):
        self._cmdp = cmdp
        self._choice: Int = np.zeros(cmdp.num_states, dtype=np.int64)
        self._known: set[bytes] = set()
        self.occupancies: list[Float] = []
        self.policies: list[Int] = []
        self.J_R: list[float] = []
        self.J_C: list[Float] = []

    def respond(self, utility: Float) -> tuple[float, bool]:
        """Policy iteration for `utility` `(S, A)` from the last policy: its value, and whether it is new."""
        cmdp = self._cmdp
        self._choice, Q, resolvent = policy_iteration(cmdp.successors, utility, cmdp.discount, self._choice)
        states = np.arange(cmdp.num_states)
        chosen = states * cmdp.num_actions + self._choice
        value = float(cmdp.start @ Q[states, self._choice])
        key = self._choice.tobytes()
        if key in self._known:
            return value, False
        self._known.add(key)
        z = np.maximum(resolvent.flows(cmdp.start), 0.0)
        self.policies.append(self._choice)
        self.occupancies.append((1.0 - cmdp.discount) * z)
        self.J_R.append(float(z @ cmdp.reward.ravel()[chosen]))
        self.J_C.append(cmdp.costs.reshape(cmdp.num_costs, cmdp.reward.size)[:, chosen] @ z)
        return value, True

    def mixture(self, limits: Float) -> tuple[float, Float, Float]:
        """The best mixture under `limits` `(I,)`: its reward, weights `(K,)` and multipliers `(I,)`."""
        answer = self._solved(-np.array(self.J_R), limits, 0)
        return -float(answer.fun), _weights(answer.x), np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0)

    def closest(self, limits: Float) -> tuple[float, Float, Float]:
        """The mixture with the smallest worst excess over `limits`: that excess, weights, multipliers."""
        answer = self._solved(np.append(np.zeros(len(self.J_R)), 1.0), limits, 1)
        simplex = np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0)
        return float(answer.x[-1]), _weights(answer.x[:-1]), simplex / simplex.sum()

    def _solved(self, cost: Float, limits: Float, excess: int) -> Any:
        """The program over weights and, if `excess` is 1, by how much all limits may be exceeded."""
        K = len(self.J_R)
        rows = np.hstack([np.array(self.J_C).T, -np.ones((len(limits), excess))])
        simplex = np.append(np.ones(K), np.zeros(excess))[None]
        bounds = [(0, None)] * K + [(None, None)] * excess
        answer = linprog(cost, rows, limits, simplex, np.ones(1), bounds, method="highs", options=TIGHT)
        if answer.status != 0:
            raise InputError(f"the master program of this CMDP was not solved: {answer.message}")
        return answer

    def occupancy(self, weights: Float) -> Float:
        """Normalised discounted occupancy `(S, A)` of a mixture of the first `len(weights)` policies.

        There may be one more: the answer to the multipliers of `weights`, which gained nothing.
        """
        cmdp = self._cmdp
        total = np.zeros(cmdp.reward.shape)
        for weight, choice, d in zip(weights, self.policies, self.occupancies, strict=False):
            if weight > 0:
                total[np.arange(cmdp.num_states), choice] += weight * d
        return total


def _weights(solution: Float) -> Float:
    weights = np.maximum(np.asarray(solution), 0.0)
    return np.asarray(weights / weights.sum())


def smallest_excess(cmdp: CMDP, master: MasterProgram, *, enough: float = -np.inf) -> tuple[float, Float]:
    """The smallest worst excess `J_Ci - tau_i`, J-units, or any of at most `enough`; and its weights."""
    multipliers = np.full(cmdp.num_costs, 1.0 / cmdp.num_costs)
    scale = 1.0 + float(np.abs(cmdp.limits).max())
    for _ in range(MAX_POLICIES):
        value, new = master.respond(-np.tensordot(multipliers, cmdp.costs, axes=1))
        lower = -value - float(multipliers @ cmdp.limits)
        excess, weights, multipliers = master.closest(cmdp.limits)
        if excess <= enough or not new or excess - lower <= GAP * scale:
            return excess, weights
    raise InputError(f"the smallest cost of this CMDP was not found with {MAX_POLICIES} policies.")


def best_policy(cmdp: CMDP) -> tuple[float, Float, Float]:
    """The optimum: the excess of the limits that had to be allowed, the occupancy `(S, A)`, multipliers.

    The excess is zero where the limits can be met; otherwise it is the smallest possible, and the
    occupancy is that of the policy which comes closest.
    """
    master = MasterProgram(cmdp)
    if cmdp.num_costs == 0:
        master.respond(cmdp.reward)
        return 0.0, master.occupancy(np.ones(1)), np.zeros(0)
    scale = 1.0 + float(np.abs(cmdp.limits).max())
    master.respond(cmdp.reward)
    if np.any(master.J_C[0] > cmdp.limits):
        excess, weights = smallest_excess(cmdp, master, enough=0.0)
        if excess > REACH * scale:
            return excess, master.occupancy(weights), np.zeros(cmdp.num_costs)
    else:
        excess = 0.0
    limits = cmdp.limits + max(excess, 0.0)
    for _ in range(MAX_POLICIES):
        value, weights, multipliers = master.mixture(limits)
        upper, new = master.respond(cmdp.reward - np.tensordot(multipliers, cmdp.costs, axes=1))
        upper += float(multipliers @ limits)
        if not new or upper - value <= GAP * (1.0 + abs(value)):
            return 0.0, master.occupancy(weights), multipliers
    raise InputError(f"the optimum of this CMDP was not found with {MAX_POLICIES} policies.")
