"""MBCL: batch policy learning under constraints (Le, Voloshin and Yue, 2019), the paper's main rival.

A game in which lambda moves first. For t = 1..T:

    pi_t       = FQI(R - lambda_t . C)                    best response by fitted Q iteration
    J_t        = FQE(pi_t; R), FQE(pi_t; C_i)             fitted Q evaluation
    stop if    L_max - L_min <= tolerance                 L_max = max_pi L(pi, mean lambda), by FQI + FQE
                                                          L_min = min_lambda L(mean pi, lambda)
    lambda_{t+1} by exponentiated gradient on tau - J_C,t with a slack entry, scaled to B

and the uniform mixture of pi_1..pi_t is returned. Regressions are weighted least squares on the pairs
of the data: exact sample means for tabular F, a projection for linear F. Completeness of F is what makes
them right; without it they may be wrong, or not converge, which is the point of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from slater.tabular._check import Float, check_choice, check_positive, check_rounds
from slater.tabular._kernel import improved
from slater.tabular.classes import Linear, Tabular, ValueClass
from slater.tabular.cmdp import uniform_policy
from slater.tabular.counts import Counts
from slater.tabular.dual import ExponentiatedGradient
from slater.tabular.mixture import Mixture
from slater.tabular.result import Presets, Result, data_driven_bound

#: of fitted Q at most
SWEEPS = 1000


class FittedQ:
    """Fitted Q iteration and evaluation on a dataset, for tabular or linear F.

    With tabular F the regression is the sample mean of each pair, a sweep is a contraction, and its fixed
    point is computed directly: a linear solve for a policy, policy iteration for the optimum. Pairs
    without data have no regression; they get `worst`, or 0 if not `pessimistic`. With linear F a sweep is
    a projection and is iterated, and pairs without data take what the features say.
    """

    def __init__(self, data: Counts, values: ValueClass, *, pessimistic: bool = True):
        self._data = data
        self._pessimistic = pessimistic
        self._projection: Float | None = None
        self._greedy = np.zeros(data.num_states, dtype=np.int64)
        if isinstance(values, Linear):
            features = values.checked(data.num_states, data.num_actions)
            weighted = features * data.distribution.ravel()[:, None]
            # least squares on the data's pairs; the pseudo-inverse takes care of unused features
            self._projection = features @ np.linalg.pinv(weighted.T @ features) @ weighted.T

    def iterate(self, utility: Float, worst: float, box: tuple[float, float]) -> Float:
        """FQI: Q of the optimal policy for `utility`, `(S, A)`; its argmax is the policy."""
        if self._projection is not None:
            return self._sweep(self._projection, utility, None, box)
        eye = np.eye(self._data.num_actions)
        for _ in range(SWEEPS):
            Q = self._solve(eye[self._greedy], utility, worst)
            better = improved(Q, self._greedy)
            if better is None:
                break
            self._greedy = better
        return Q

    def evaluate(self, policy: Float, utility: Float, worst: float, box: tuple[float, float]) -> Float:
        """FQE: Q of `policy` for `utility`, `(S, A)`."""
        if self._projection is not None:
            return self._sweep(self._projection, utility, policy, box)
        return self._solve(policy, utility, worst)

    def _solve(self, policy: Float, utility: Float, worst: float) -> Float:
        data = self._data
        target = np.where(data.seen, utility, worst if self._pessimistic else 0.0)
        U_pi = np.einsum("sa,sa->s", policy, target)
        V = data.successors.values(policy * data.seen, U_pi, data.discount)
        return np.where(data.seen, target + data.successors.lookahead(V, data.discount), target)

    def _sweep(
        self, projection: Float, utility: Float, policy: Float | None, box: tuple[float, float]
    ) -> Float:
        data = self._data
        Q = np.zeros_like(utility)
        for _ in range(SWEEPS):
            V = Q.max(axis=1) if policy is None else np.einsum("sa,sa->s", policy, Q)
            target = utility + data.successors.lookahead(V, data.discount)
            new = np.clip((projection @ target.ravel()).reshape(Q.shape), *box)
            change = float(np.abs(new - Q).max())
            Q = new
            if change <= 1e-6 * (1.0 + abs(box[1])):
                break
        return Q


@dataclass(frozen=True)
class MBCL(Presets):
    """Settings of tabular MBCL.

    rounds: the most rounds T; tolerance: the duality gap at which to stop, J-units; values: the class F.
    multiplier_bound: B; None: one plus twice the multipliers of the empirical problem, so that B >
    |lambda*|_1.
    step: of the exponentiated gradient, per J-unit of violation. The best of .1, .3, 1, 3 at n = 2000 on
    seeds 0 to 9 of the paper's problem; the theory's `sqrt(ln(I + 1) / T) / H` is 30 times smaller, released
    code has 5.
    unseen: `pessimistic` counts pairs without data at their worst; `zero` gives them value 0, as in released
    code: optimistic for costs.
    released: reproduce the released experiment: the limit in normalised units against values in J-units (five
    times too strict at discount .8), B = 1, step 5, unseen pairs 0.
    """

    rounds: int = 300
    multiplier_bound: float | None = None
    step: float = 0.3
    tolerance: float = 0.01
    values: ValueClass = field(default_factory=Tabular)
    unseen: Literal["pessimistic", "zero"] = "pessimistic"
    released: bool = False

    PRESETS: ClassVar = {"released": {"released": True}}

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Play the game on the data."""
        data = data.with_limits(limits)
        check_choice("unseen", self.unseen, ("pessimistic", "zero"))
        check_rounds(self.rounds)
        notes: tuple[str, ...]
        if self.released:
            tau, bound, step, notes = data.limits / data.horizon, 1.0, 5.0, ("released settings",)
            fitted = FittedQ(data, self.values, pessimistic=False)
        else:
            tau = data.limits
            automatic, _, notes = data_driven_bound(data, tau)
            bound = automatic if self.multiplier_bound is None else self.multiplier_bound
            step = self.step
            fitted = FittedQ(data, self.values, pessimistic=self.unseen == "pessimistic")
        if data.num_costs:
            check_positive("the bound B", bound)
        dual = ExponentiatedGradient(bound, step)
        members: list[Float] = []
        rewards, costs, lambdas, gaps = [], [], [], []
        lam = dual.current(data.num_costs)
        for _ in range(self.rounds):
            pi, J_R, J_C = self._respond(data, fitted, lam)
            members.append(pi)
            rewards.append(J_R)
            costs.append(J_C)
            lambdas.append(lam)
            mean_R, mean_C = float(np.mean(rewards)), np.mean(costs, axis=0)
            mean_lambda = np.mean(lambdas, axis=0)
            _, best_R, best_C = self._respond(data, fitted, mean_lambda)
            L_max = best_R + float(mean_lambda @ (tau - best_C))
            L_min = mean_R - bound * float(np.maximum(mean_C - tau, 0.0).max(initial=0.0))
            gaps.append(L_max - L_min)
            if gaps[-1] <= self.tolerance:
                break
            lam = dual.update(J_C - tau)
        rows = {"multipliers": lambdas, "estimated_costs": costs, "estimated_gap": gaps}
        trace = {name: np.array(each) for name, each in rows.items()}
        policy = Mixture.uniform(np.array(members))
        return Result("mbcl", policy, mean_lambda, bound, len(members), notes, trace)

    def _respond(self, data: Counts, fitted: FittedQ, lam: Float) -> tuple[Float, float, Float]:
        """The greedy policy for `R - lambda.C`, and its estimated reward and costs, J-units."""
        low_R, high_R = data.value_box(data.reward)
        boxes_C = [data.value_box(cost) for cost in data.costs]
        worst = low_R - sum(float(w) * box[1] for w, box in zip(lam, boxes_C, strict=True))
        utility = data.reward - np.einsum("i,isa->sa", lam, data.costs)
        Q = fitted.iterate(utility, worst, (worst, high_R))
        policy = greedy_policy(data, Q)
        J_R = _start_value(data, policy, fitted.evaluate(policy, data.reward, low_R, (low_R, high_R)))
        J_C = [
            _start_value(data, policy, fitted.evaluate(policy, cost, box[1], box))
            for cost, box in zip(data.costs, boxes_C, strict=True)
        ]
        return policy, J_R, np.array(J_C)


def greedy_policy(data: Counts, Q: Float) -> Float:
    """The best actions by Q `(S, A)`; a state without data has none worth the name, and is left uniform."""
    known = (data.state_counts > 0)[:, None]
    uniform = uniform_policy(data.num_states, data.num_actions)
    return np.where(known, np.eye(data.num_actions)[np.argmax(Q, axis=1)], uniform)


def _start_value(data: Counts, policy: Float, Q: Float) -> float:
    return float(data.start @ (policy * Q).sum(axis=1))
