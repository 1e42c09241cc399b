"""PDOCRL, tabular: primal-dual offline constrained RL (Ko, Tewari and Hong, 2025), the successor of PDCA.

A saddle point over occupancies, in normalised units (values times `1 - gamma`, limits `tau / H`):

    max_{w in W, pi}  min_{Q in F, lambda in B Delta^I}
        (1 - gamma) E Q(s0, pi) + E_D[ w (R - lambda.C + gamma Q(s', pi) - Q(s, a)) ] + lambda.tau / H

w is a density ratio and Q the price of breaking the flow equations. For k = 1..K:

    lambda_k = argmin_{lambda in B Delta^I} lambda.(tau - what lambda sees)
    Q_k      = argmin_{Q in F}                         linear in Q: an end of F, by the sign of nu - mu, where
               mu = w D,  nu(s, a) = pi(a | s) [(1 - gamma) p0 + gamma P' mu](s)
    w_{k+1}  = w_k + step_w (1 - gamma) (R - lambda.C + gamma Q(s', pi) - Q), clipped to [0, C_infinity]
    pi_{k+1} = PO(pi_k, Q_k)

and the result is the mixture of the second half. There are no pessimistic critics, and policies that are
not covered need no estimates: a pair without data has mu = 0 < nu, so its Q is the least in F.

What lambda sees decides what is learned. The saddle point's own lambda meets `E_D[w C]` alone, and w lags
behind pi. The released program follows the mean cost *of the log*, which no policy changes, so lambda runs
into one end of its range. The repair shows it the costs of the policy that plays, as in PDCA:
`(1 - gamma) E Qc(s0, pi) + E_D[w (C + gamma Qc(s', pi) - Qc)]`, whose second term vanishes for the exact Qc
of the empirical model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from slater.tabular._check import Float, check_choice, check_positive, check_rounds
from slater.tabular.classes import Tabular
from slater.tabular.counts import Counts
from slater.tabular.dual import Greedy
from slater.tabular.mbcl import FittedQ
from slater.tabular.mixture import Mixture
from slater.tabular.ope import ModelEstimator
from slater.tabular.primal import NaturalPolicyGradient
from slater.tabular.result import Presets, Result, data_driven_bound


@dataclass(frozen=True)
class PDOCRL(Presets):
    """Settings of tabular PDOCRL. Steps and rounds were chosen on seeds 0 to 5 of `paper` and `sparse`.

    Preset `released`: lambda sees the log, B = 10.

    rounds: K; multiplier_bound: B; None: one plus twice the multipliers of the empirical problem.
    lambda_sees: `policy`, the costs of pi_k on the empirical model; `weights`, `E_D[w C]`, the saddle point
    as printed; `data`, the mean cost of the log, as released.
    weight_bound: C_infinity, the largest density ratio; 10 as in released code, and the optimum of the
    paper's problems has up to 6. step: eta of the policy player, on values scaled to [-1, 1]; weight_step: of
    w, per normalised unit of the residual that it follows.
    """

    rounds: int = 2000
    multiplier_bound: float | None = None
    lambda_sees: Literal["policy", "weights", "data"] = "policy"
    weight_bound: float = 10.0
    step: float = 0.5
    weight_step: float = 0.1

    PRESETS: ClassVar = {"released": {"lambda_sees": "data", "multiplier_bound": 10.0}}

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Play the game on the data."""
        data = data.with_limits(limits)
        check_rounds(self.rounds)
        check_choice("lambda_sees", self.lambda_sees, ("policy", "weights", "data"))
        check_positive("weight_bound", self.weight_bound)
        check_positive("weight_step", self.weight_step)
        discount, rho, kernel = data.discount, data.distribution, data.successors
        automatic, _, notes = data_driven_bound(data, data.limits) if data.num_costs else (0.0, 0.0, ())
        bound = automatic if self.multiplier_bound is None else self.multiplier_bound
        if data.num_costs:
            check_positive("the bound B", bound)
        reward, costs = np.where(data.seen, data.reward, 0.0), np.where(data.seen, data.costs, 0.0)
        least, most = _values_in_reach(data)
        widest = (most[0] - least[0] + bound * (most[1:] - least[1:]).max(axis=0, initial=0.0)).max()
        primal = NaturalPolicyGradient(data.num_states, data.num_actions, self.step)
        dual, estimator = Greedy(bound), ModelEstimator(data)

        w = np.ones(reward.shape)
        first = self.rounds // 2
        members = np.zeros((self.rounds - first, *reward.shape))
        multipliers, estimates = (np.zeros((self.rounds, data.num_costs)) for _ in range(2))
        for k in range(self.rounds):
            pi, mu = primal.policy, w * rho
            if k >= first:
                members[k - first] = pi
            if self.lambda_sees == "policy":
                estimates[k] = estimator.costs(pi)
            else:
                seen = mu if self.lambda_sees == "weights" else rho
                estimates[k] = data.horizon * np.einsum("isa,sa->i", costs, seen)
            lam = multipliers[k] = dual.update(estimates[k] - data.limits)
            inflow = (1.0 - discount) * data.start + discount * (kernel.transposed @ mu.ravel())
            low = least[0] - np.einsum("i,isa->sa", lam, most[1:])
            high = most[0] - np.einsum("i,isa->sa", lam, least[1:])
            Q = np.where(pi * inflow[:, None] < mu, high, low)
            ahead = kernel.lookahead(np.einsum("sa,sa->s", pi, Q), discount)
            residual = reward - np.einsum("i,isa->sa", lam, costs) + ahead - Q
            w = np.clip(w + self.weight_step * (1.0 - discount) * residual, 0.0, self.weight_bound)
            primal.update(Q / widest)

        trace = {"multipliers": multipliers, "estimated_costs": estimates}
        mean = multipliers[first:].mean(axis=0)
        return Result("pdocrl", Mixture.uniform(members), mean, bound, self.rounds, notes, trace)


def _values_in_reach(data: Counts) -> tuple[Float, Float]:
    """F: the least and the greatest Q of any policy on the empirical model, `(1 + I, S, A)`, J-units.

    It holds Q^pi of every policy, which the saddle point needs, and is far smaller than `[0, H]`, so that
    the players come close in a tenth of the rounds. Pairs without data span the whole box of values.
    """
    least, most = [], []
    for utility in (data.reward, *data.costs):
        low, high = data.value_box(utility)
        most.append(FittedQ(data, Tabular()).iterate(utility, high, (low, high)))
        least.append(-FittedQ(data, Tabular()).iterate(-utility, -low, (-high, -low)))
    return np.array(least), np.array(most)
