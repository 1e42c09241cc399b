"""The constrained Markov decision process, solved exactly.

Units. `J_U(pi) = E sum_t discount^t U(s_t, a_t)` is a discounted sum ("J-units"), in `[0, H]` for a
utility in `[0, 1]`, where `H = 1 / (1 - discount)`. Limits are in J-units. Occupancy measures are
normalised: `d(s, a) = (1 - discount) sum_t discount^t P(s_t = s, a_t = a)` sums to one, and
`J_U = H <d, U>`. The multiplier of a constraint is the same number in both units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog

from slater.errors import InputError
from slater.tabular._check import (
    Float,
    as_array,
    check_discount,
    check_distribution,
    check_range,
    check_start,
    raw_array,
)
from slater.tabular._sizes import Sizes

__all__ = ["CMDP", "Infeasible", "Solution", "normalise_policy", "uniform_policy"]


class Infeasible(InputError):
    """No policy keeps every cost under its limit.

    Attributes:
        excess: by how much, in J-units, the worst cost is above its limit under the best policy for that.
        costs: J-units, shape `(I,)`, of the policy that keeps the worst excess smallest.

    """

    def __init__(self, excess: float, costs: Float, limits: Float):
        self.excess = excess
        self.costs = costs
        worst = int(np.argmax(costs - limits))
        super().__init__(
            f"no policy meets the limits: even the policy that comes closest exceeds limit {worst} "
            f"({limits[worst]:.6g}, discounted) by {excess:.6g}, with a cost of {costs[worst]:.6g}; "
            f"raise that limit to at least {limits[worst] + excess:.6g}."
        )


@dataclass(frozen=True)
class Solution:
    """The optimum of a CMDP.

    Attributes:
        policy: `(S, A)`, uniform in states that it never reaches.
        occupancy: `(S, A)`, normalised discounted occupancy of `policy`.
        J_R: its reward, J-units.
        J_C: its costs, J-units, shape `(I,)`.
        multipliers: optimal Lagrange multipliers lambda*, shape `(I,)`.

    """

    policy: Float
    occupancy: Float
    J_R: float
    J_C: Float
    multipliers: Float


def uniform_policy(states: int, actions: int) -> Float:
    """The policy that takes every action with equal probability, shape `(S, A)`."""
    return np.full((states, actions), 1.0 / actions)


def normalise_policy(weights: Float) -> Float:
    """Action weights `(S, A)` as a policy; uniform where all weights of a state vanish."""
    weights = np.maximum(weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    uniform = 1.0 / weights.shape[1]
    return np.where(total > 1e-12, weights / np.where(total > 1e-12, total, 1.0), uniform)


@dataclass(frozen=True, eq=False)
class CMDP(Sizes):
    """A finite constrained MDP; every field is checked on construction.

    Args:
        transition: `P(s' | s, a)`, shape `(S, A, S)`.
        reward: `R(s, a)`, shape `(S, A)`, any finite numbers; the paper's theory has `[0, 1]`.
        costs: `C_i(s, a)`, shape `(I, S, A)`, not negative; the paper's theory has `[0, 1]`.
        limits: tau_i, J-units, shape `(I,)`.
        discount: gamma, strictly between 0 and 1.
        start: distribution of the first state, shape `(S,)`, or the index of the first state.

    """

    transition: Float
    reward: Float
    costs: Float
    limits: Float
    discount: float
    start: Float

    def __init__(
        self,
        transition: ArrayLike,
        reward: ArrayLike,
        costs: ArrayLike,
        limits: ArrayLike,
        discount: float,
        start: ArrayLike | int = 0,
    ):
        P = as_array("transition", transition, (None, None, None))
        S, A, S2 = P.shape
        if S == 0 or A == 0:
            raise InputError(f"transition has shape {P.shape}: at least one state and one action are needed.")
        if S != S2:
            raise InputError(f"transition has shape {P.shape}, but its first and last lengths must be equal.")
        C = as_array("costs", costs, (None, S, A))
        limit = as_array("limits", np.atleast_1d(raw_array("limits", limits)), (len(C),))
        check_range("costs", C, 0.0, hint=" (shift the cost, or negate it if it is a reward)")
        check_range("limits", limit, 0.0)
        fields = {
            "transition": check_distribution("transition", P),
            "reward": as_array("reward", reward, (S, A)),
            "costs": C,
            "limits": limit,
            "discount": check_discount(discount),
            "start": check_start(start, S),
        }
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    def with_limits(self, limits: ArrayLike) -> CMDP:
        """The same process under other limits (J-units, shape `(I,)`)."""
        return CMDP(self.transition, self.reward, self.costs, limits, self.discount, self.start)

    # -- evaluation -------------------------------------------------------------------------------

    def q_values(self, policy: Float, utility: Float) -> Float:
        """`Q_U^pi`, shape `(S, A)`, of a policy `(S, A)` for a utility `(S, A)`."""
        return utility + self.discount * self.transition @ self.state_values(policy, utility)

    def state_values(self, policy: Float, utility: Float) -> Float:
        """`V_U^pi`, shape `(S,)`: the solution of `V = U_pi + discount P_pi V`."""
        P_pi = np.einsum("sa,sat->st", policy, self.transition)
        U_pi = np.einsum("sa,sa->s", policy, utility)
        return np.linalg.solve(np.eye(self.num_states) - self.discount * P_pi, U_pi)

    def occupancy(self, policy: Float) -> Float:
        """Normalised discounted occupancy `d^pi`, shape `(S, A)`, summing to one."""
        P_pi = np.einsum("sa,sat->st", policy, self.transition)
        d = np.linalg.solve(
            np.eye(self.num_states) - self.discount * P_pi.T, (1.0 - self.discount) * self.start
        )
        return np.maximum(d, 0.0)[:, None] * policy

    def returns(self, policy: Float) -> tuple[float, Float]:
        """`J_R` and `J_C` (shape `(I,)`), J-units, of a Markov policy `(S, A)`."""
        d = self.horizon * self.occupancy(policy)
        return float(np.sum(d * self.reward)), np.einsum("isa,sa->i", self.costs, d)

    # -- optimisation -----------------------------------------------------------------------------

    @cached_property
    def flow(self) -> tuple[sparse.csr_array, Float]:
        """Matrix `(S, S*A)` and right side `(S,)` of the flow equations of occupancy measures d:

        `sum_a d(s, a) - discount sum_x P(s | x) d(x) = (1 - discount) start(s)`.
        """
        S, A = self.num_states, self.num_actions
        out = sparse.kron(sparse.eye_array(S), np.ones((1, A)))
        into = sparse.csr_array(self.transition.reshape(S * A, S).T)
        return sparse.csr_array(out - self.discount * into), (1.0 - self.discount) * self.start

    def solve(self) -> Solution:
        """The optimal policy and multipliers, from the linear program over occupancy measures.

        Raises:
            Infeasible: if no policy meets the limits; it says by how much.

        """
        flow, inflow = self.flow
        C = self.costs.reshape(self.num_costs, self.reward.size)
        answer = linprog(
            -self.reward.ravel(),
            A_ub=C if self.num_costs else None,
            b_ub=self.limits / self.horizon if self.num_costs else None,
            A_eq=flow,
            b_eq=inflow,
            method="highs",
        )
        if answer.status != 0:
            excess, costs = self.closest()
            if excess > 0:
                raise Infeasible(excess, costs, self.limits)
            raise InputError(f"the linear program of this CMDP was not solved: {answer.message}")
        d = np.maximum(answer.x, 0.0).reshape(self.num_states, self.num_actions)
        policy = normalise_policy(np.where(d > 1e-10, d, 0.0))
        multipliers = -np.asarray(answer.ineqlin.marginals) if self.num_costs else np.zeros(0)
        J_R, J_C = self.returns(policy)
        return Solution(policy, self.occupancy(policy), J_R, J_C, np.maximum(multipliers, 0.0))

    def closest(self) -> tuple[float, Float]:
        """The policy that keeps the worst `J_Ci - tau_i` smallest: that excess, and its costs `(I,)`.

        The excess is in J-units and negative if the limits can be met with room to spare.
        """
        if self.num_costs == 0:
            return -self.horizon, np.zeros(0)
        flow, inflow = self.flow
        C = self.costs.reshape(self.num_costs, self.reward.size)
        pairs = C.shape[1]
        answer = linprog(
            np.append(np.zeros(pairs), 1.0),
            A_ub=np.hstack([C, -np.ones((self.num_costs, 1))]),
            b_ub=self.limits / self.horizon,
            A_eq=sparse.hstack([flow, np.zeros((self.num_states, 1))], format="csr"),
            b_eq=inflow,
            bounds=[(0, None)] * pairs + [(None, None)],
            method="highs",
        )
        if answer.status != 0:
            raise InputError(f"the linear program of this CMDP was not solved: {answer.message}")
        return self.horizon * float(answer.x[-1]), self.horizon * (C @ answer.x[:-1])

    def slater_margin(self) -> float:
        """phi, normalised units: the largest with `J_Ci(pi) <= tau_i - phi H` for all i and some pi.

        Slater's condition holds if phi > 0, and then `sum_i lambda*_i <= 1 / phi` for rewards in [0, 1].
        A negative margin says by how much (times H, in J-units) the limits are out of reach.
        """
        return -self.closest()[0] / self.horizon

    def best_response(self, multipliers: Float) -> tuple[Float, float]:
        """The policy `(S, A)` that maximises `J_{R - lambda.C}`, and that value in J-units.

        Howard's policy iteration, exact up to rounding.
        """
        utility = self.reward - np.tensordot(multipliers, self.costs, axes=1)
        S, A = self.num_states, self.num_actions
        choice = np.argmax(utility, axis=1)
        for _ in range(S * A + 100):
            Q = self.q_values(np.eye(A)[choice], utility)
            better = np.argmax(Q, axis=1)
            # change an action only for a real gain, so that ties cannot make the iteration cycle
            gain = Q[np.arange(S), better] - Q[np.arange(S), choice]
            improve = gain > 1e-10 * (1.0 + np.abs(Q).max())
            if not improve.any():
                break
            choice = np.where(improve, better, choice)
        policy = np.eye(A)[choice]
        return policy, float(self.start @ self.state_values(policy, utility))
