"""Tabular COptiDICE (Lee et al., 2022): regularised occupancy measures on the empirical model.

Vanilla, for any number of costs, with `w = d / dD` and `f(x) = (x - 1)^2 / 2`:

    max_w  E_dD[w R] - alpha E_dD[f(w)]   s.t.  w >= 0,  flow equations for w dD,  E_dD[w C_i] <= tau_i / H

Conservative, for one cost: the cost constraint uses an upper bound over models close to the data,

    UB(w) = min_{t >= 0, chi}  t log E_phat exp(ell / t) + t eps,
    ell   = (1 - gamma) E chi(s0) + w(s, a) (C(s, a) + gamma chi(s') - chi(s)),

which is the largest `E_p[w C]` over p with `KL(p || phat) <= eps` under the flow equations; the multiplier
is found by bisection on programs with reward `R - lambda C`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from slater.errors import InputError
from slater.tabular._check import Float, check_choice, check_positive
from slater.tabular.cmdp import CMDP, Infeasible, normalise_policy
from slater.tabular.counts import Counts, Unseen
from slater.tabular.mixture import Mixture
from slater.tabular.occupancy import solve_occupancy_qp
from slater.tabular.result import Presets, Result, data_driven_bound


@dataclass(frozen=True)
class COptiDICE(Presets):
    """Settings of tabular COptiDICE; the preset `paper` is as in the PDCA authors' experiment.

    variant: `vanilla`, or `conservative` with the cost upper bound (one cost only).
    alpha: strength of the chi-square regulariser, in units of the reward. None: `1 / sqrt(n)`, between the
    `.1` of the PDCA authors (too strong for large n) and the COptiDICE authors' one over the number of
    trajectories.
    epsilon: radius of the KL ball of the conservative variant; None: `.1 / n`, after its authors.
    unseen: what follows a pair without data (see `Counts.model`); `uniform` is the PDCA authors' choice.
    bisections: of the conservative variant's multiplier in `[0, max_multiplier]`.
    """

    variant: Literal["vanilla", "conservative"] = "vanilla"
    alpha: float | None = None
    epsilon: float | None = None
    unseen: Unseen = "pessimistic"
    bisections: int = 15
    max_multiplier: float = 10.0

    PRESETS: ClassVar = {"paper": {"alpha": 0.1, "unseen": "uniform"}}

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Solve the program on the empirical model."""
        data = data.with_limits(limits)
        alpha = data.size**-0.5 if self.alpha is None else self.alpha
        check_positive("alpha", alpha)
        model = data.model(self.unseen)
        behaviour = np.vstack([data.behaviour, np.full((2, data.num_actions), 1.0 / data.num_actions)])
        reference = model.occupancy(behaviour).ravel() + 1e-6
        reference /= reference.sum()
        bound, _, notes = data_driven_bound(data, data.limits)
        check_choice("variant", self.variant, ("vanilla", "conservative"))
        iterations = 1 if self.variant == "vanilla" else self.bisections
        if self.variant == "conservative" and data.num_costs != 1:
            raise InputError(f"conservative COptiDICE knows one cost; this problem has {data.num_costs}.")
        try:
            w, multipliers = self._solved(data, model, reference, alpha)
        except Infeasible as error:
            # the empirical problem is out of reach: aim at the smallest cost that it can reach
            reachable = model.with_limits(np.maximum(error.costs, model.limits) * (1 + 1e-6) + 1e-9)
            w, multipliers = self._solved(data, reachable, reference, alpha)
            notes = (*notes, "the limits were relaxed to what the empirical model can reach")
        policy = normalise_policy((w * reference).reshape(model.reward.shape))[: data.num_states]
        return Result("coptidice", Mixture.single(policy), multipliers, bound, iterations, notes)

    def _solved(self, data: Counts, model: CMDP, reference: Float, alpha: float) -> tuple[Float, Float]:
        if self.variant == "vanilla":
            return solve_occupancy_qp(model, reference, model.reward.ravel(), alpha, model.limits)
        epsilon = 0.1 / data.size if self.epsilon is None else self.epsilon
        target = float(model.limits[0]) / model.horizon
        low, high = 0.0, self.max_multiplier
        reward, cost = model.reward.ravel(), model.costs[0].ravel()
        best = solve_occupancy_qp(model, reference, reward - high * cost, alpha, None)[0]
        for _ in range(self.bisections):
            middle = (low + high) / 2
            w = solve_occupancy_qp(model, reference, reward - middle * cost, alpha, None)[0]
            if cost_upper_bound(model, reference, w, epsilon) > target:
                low = middle
            else:
                high, best = middle, w
        return best, np.array([high])


def cost_upper_bound(model: CMDP, reference: Float, w: Float, epsilon: float) -> float:
    """UB(w), normalised units: the largest cost of the weights `w` `(S*A,)` over models in the KL ball."""
    S, pairs = model.num_states, len(reference)
    joint = (reference[:, None] * model.transition.reshape(pairs, S)).ravel() + 1e-10
    log_p = np.log(joint / joint.sum())
    state = np.repeat(np.arange(S), model.num_actions)
    cost = np.repeat(w * model.costs[0].ravel(), S)
    weight = np.repeat(w, S)
    start = (1.0 - model.discount) * model.start
    here, there = np.repeat(state, S), np.tile(np.arange(S), pairs)

    def objective(x: Float) -> tuple[float, Float]:
        chi, t = x[:S], np.exp(x[S])
        ell = start @ chi + cost + weight * (model.discount * chi[there] - chi[here])
        value = t * logsumexp(log_p + ell / t) + t * epsilon
        p = softmax(log_p + ell / t)
        flow = model.discount * np.bincount(there, p * weight, S) - np.bincount(here, p * weight, S)
        slope = (value - p @ ell) / t
        return float(value), np.append(start + flow, slope * t)

    first = np.append(np.ones(S), 0.0)
    answer = minimize(
        objective, first, jac=True, method="L-BFGS-B", bounds=[(None, None)] * S + [(-25.0, 10.0)]
    )
    return float(answer.fun)
