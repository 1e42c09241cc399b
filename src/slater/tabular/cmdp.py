"""The constrained Markov decision process, solved exactly.

Units. `J_U(pi) = E sum_t discount^t U(s_t, a_t)` is a discounted sum ("J-units"), in `[0, H]` for a
utility in `[0, 1]`, where `H = 1 / (1 - discount)`. Limits are in J-units. Occupancy measures are
normalised: `d(s, a) = (1 - discount) sum_t discount^t P(s_t = s, a_t = a)` sums to one, and
`J_U = H <d, U>`. The multiplier of a constraint is the same number in both units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog

from slater.errors import InputError
from slater.tabular._check import (
    Float,
    as_array,
    check_choice,
    check_discount,
    check_distribution,
    check_range,
    check_start,
    raw_array,
)
from slater.tabular._kernel import Kernel, check_rows, improved
from slater.tabular.optimum import MasterProgram, best_policy, smallest_excess

#: how an optimum is found: the linear program over occupancy measures, policy iteration under a master
#: program (`optimum`), or the one that suits the size
Method = Literal["auto", "linear-program", "policy-iteration"]

NOT_SOLVED = "the linear program of this CMDP was not solved: "


class Infeasible(InputError):
    """No policy keeps every cost under its limit.

    excess: by how much, in J-units, the worst cost is above its limit under the best policy for that;
    costs: (I,) of that policy, J-units.
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

    policy: (S, A), uniform in states that it never reaches; occupancy: (S, A), normalised, of it.
    J_R, J_C: its reward and costs (I,), J-units; multipliers: optimal Lagrange multipliers lambda*, (I,).
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


class Sizes:
    """S, A, I and H of a problem, or of data of one, from its `costs`, shape `(I, S, A)`, and `discount`."""

    costs: Float
    discount: float

    @property
    def num_states(self) -> int:
        """S."""
        return self.costs.shape[1]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.costs.shape[2]

    @property
    def num_costs(self) -> int:
        """I."""
        return len(self.costs)

    @property
    def horizon(self) -> float:
        """H = 1 / (1 - discount): the factor between occupancy-weighted means and J-units."""
        return 1.0 / (1.0 - self.discount)


@dataclass(frozen=True, eq=False)
class CMDP(Sizes):
    """A finite constrained MDP; every field is checked on construction.

    transition: `P(s' | s, a)`, an array (S, A, S) or a SciPy sparse matrix (S*A, S), the actions of one state
    together.
    reward: `R(s, a)`, (S, A), any finite numbers; costs: `C_i(s, a)`, (I, S, A), not negative. The paper's
    theory has both in [0, 1].
    limits: tau_i, J-units, (I,); discount: gamma, strictly between 0 and 1.
    start: distribution of the first state, (S,), or the index of the first state.
    """

    successors: Kernel
    reward: Float
    costs: Float
    limits: Float
    discount: float
    start: Float

    def __init__(
        self,
        transition: ArrayLike | Any,
        reward: ArrayLike,
        costs: ArrayLike,
        limits: ArrayLike,
        discount: float,
        start: ArrayLike | int = 0,
    ):
        kernel = _kernel(transition)
        S, A = kernel.states, kernel.actions
        C = as_array("costs", costs, (None, S, A))
        limit = as_array("limits", np.atleast_1d(raw_array("limits", limits)), (len(C),))
        check_range("costs", C, 0.0, hint=" (shift the cost, or negate it if it is a reward)")
        check_range("limits", limit, 0.0)
        arrays = {"reward": as_array("reward", reward, (S, A)), "costs": C, "limits": limit}
        arrays["start"] = check_start(start, S)
        for array in arrays.values():
            array.setflags(write=False)
        # the fields of a frozen dataclass are set by this alone
        self.__dict__.update(arrays, successors=kernel, discount=check_discount(discount))

    def with_limits(self, limits: ArrayLike) -> CMDP:
        """The same process under other limits (J-units, shape `(I,)`)."""
        return CMDP(self.successors, self.reward, self.costs, limits, self.discount, self.start)

    @property
    def transition(self) -> Float:
        """`P(s' | s, a)` as an array `(S, A, S)`: for small problems; `successors.rows` is sparse."""
        return self.successors.dense

    # -- evaluation -------------------------------------------------------------------------------

    def q_values(self, policy: Float, utility: Float) -> Float:
        """`Q_U^pi`, shape `(S, A)`, of a policy `(S, A)` for a utility `(S, A)`."""
        return utility + self.successors.lookahead(self.state_values(policy, utility), self.discount)

    def state_values(self, policy: Float, utility: Float) -> Float:
        """`V_U^pi`, shape `(S,)`: the solution of `V = U_pi + discount P_pi V`."""
        return self.successors.values(policy, np.einsum("sa,sa->s", policy, utility), self.discount)

    def occupancy(self, policy: Float) -> Float:
        """Normalised discounted occupancy `d^pi`, shape `(S, A)`, summing to one."""
        d = self.successors.flows(policy, (1.0 - self.discount) * self.start, self.discount)
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
        into = self.successors.transposed
        return sparse.csr_array(out - self.discount * into), (1.0 - self.discount) * self.start

    def solve(self, method: Method = "auto") -> Solution:
        """The optimal policy and multipliers; `Infeasible` if no policy meets the limits.

        `auto` solves small problems by the linear program over occupancy measures, larger ones by policy
        iteration under a master program over policies; both are exact, to 1e-7 of each other.
        """
        if _by_policies(self, method):
            excess, d, multipliers = best_policy(self)
            policy = normalise_policy(d / np.maximum(d.sum(axis=1, keepdims=True), 1e-300))
            J_R, J_C = self.returns(policy)
            if excess > 0:
                raise Infeasible(excess, J_C, self.limits)
            return Solution(policy, self.occupancy(policy), J_R, J_C, multipliers)
        answer = self._program(-self.reward.ravel(), 0)
        if answer.status != 0:
            excess, costs = self.closest(method)
            if excess > 0:
                raise Infeasible(excess, costs, self.limits)
            raise InputError(NOT_SOLVED + answer.message)
        d = np.maximum(answer.x, 0.0).reshape(self.num_states, self.num_actions)
        policy = normalise_policy(np.where(d > 1e-10, d, 0.0))
        multipliers = -np.asarray(answer.ineqlin.marginals) if self.num_costs else np.zeros(0)
        J_R, J_C = self.returns(policy)
        return Solution(policy, self.occupancy(policy), J_R, J_C, np.maximum(multipliers, 0.0))

    def closest(self, method: Method = "auto", *, enough: float = -np.inf) -> tuple[float, Float]:
        """The policy that keeps the worst `J_Ci - tau_i` smallest: that excess, and its costs `(I,)`.

        The excess is in J-units and negative if the limits can be met with room to spare. `method` as
        in `solve`; policy iteration ends early with any policy whose excess is at most `enough`.
        """
        if self.num_costs == 0:
            return -self.horizon, np.zeros(0)
        if _by_policies(self, method):
            master = MasterProgram(self)
            excess, weights = smallest_excess(self, master, enough=enough)
            return excess, weights @ np.array(master.J_C)
        pairs = self.reward.size
        answer = self._program(np.append(np.zeros(pairs), 1.0), 1)
        if answer.status != 0:
            raise InputError(NOT_SOLVED + answer.message)
        costs = self.costs.reshape(-1, pairs) @ answer.x[:-1]
        return self.horizon * float(answer.x[-1]), self.horizon * costs

    def _program(self, cost: Float, excess: int) -> Any:
        """HiGHS on occupancy measures and, if `excess` is 1, by how much all limits may be exceeded."""
        flow, inflow = self.flow
        I, pairs = self.num_costs, self.reward.size  # noqa: E741
        limited = np.hstack([self.costs.reshape(I, pairs), -np.ones((I, excess))])
        if excess:
            flow = sparse.hstack([flow, np.zeros((self.num_states, excess))], format="csr")
        bounds = [(0, None)] * pairs + [(None, None)] * excess
        at_most = (limited, self.limits / self.horizon) if I else (None, None)
        return linprog(cost, *at_most, flow, inflow, bounds, method="highs")

    def slater_margin(self) -> float:
        """phi, normalised units: the largest with `J_Ci(pi) <= tau_i - phi H` for all i and some pi.

        Slater's condition holds if phi > 0, and then `sum_i lambda*_i <= 1 / phi` for rewards in [0, 1].
        A negative margin says by how much (times H, in J-units) the limits are out of reach.
        """
        return -self.closest()[0] / self.horizon

    def best_response(self, multipliers: Float) -> tuple[Float, float]:
        """The policy `(S, A)` that maximises `J_{R - lambda.C}`, by Howard's iteration, and that value."""
        utility = self.reward - np.tensordot(multipliers, self.costs, axes=1)
        S, A = self.num_states, self.num_actions
        if not self.successors.small:
            master = MasterProgram(self)
            value, _ = master.respond(utility)
            return np.eye(A)[master.policies[0]], value
        choice = np.argmax(utility, axis=1)
        for _ in range(S * A + 100):
            better = improved(self.q_values(np.eye(A)[choice], utility), choice)
            if better is None:
                break
            choice = better
        policy = np.eye(A)[choice]
        return policy, float(self.start @ self.state_values(policy, utility))


def _kernel(transition: ArrayLike | Any) -> Kernel:
    """The checked transition probabilities of a CMDP, from what a user hands in."""
    if isinstance(transition, Kernel):
        return transition
    if sparse.issparse(transition):
        return check_rows("transition", transition)
    P = as_array("transition", transition, (None, None, None))
    if P.shape[0] == 0 or P.shape[1] == 0:
        raise InputError(f"transition has shape {P.shape}: at least one state and one action are needed.")
    if P.shape[0] != P.shape[2]:
        raise InputError(f"transition has shape {P.shape}, but its first and last lengths must be equal.")
    P = check_distribution("transition", P)
    P.setflags(write=False)
    return Kernel.of(P)


def _by_policies(cmdp: CMDP, method: Method) -> bool:
    check_choice("method", method, get_args(Method))
    return method == "policy-iteration" or (method == "auto" and not cmdp.successors.small)
