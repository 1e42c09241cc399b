"""WSAC, tabular: weighted safe actor-critic (Wei et al., 2024), which improves on the policy that logged.

For k = 1..K, with the critics' formulas of PDCA and a multiplier that is never learned:

    f_k      = argmin_{f in F}         A_D(pi_k, f) + beta E_D(pi_k, f; R)             reward critic
    g_k^i    = argmin_{g in F} -lambda A_D(pi_k, g) + beta E_D(pi_k, g; C_i)           cost critics
    pi_{k+1} = PO(pi_k, f_k - lambda sum_i 1{A_D(pi_k, g_k^i) > (1 - gamma) room_i} g_k^i)

where `room_i = tau_i - J_Ci(mu)` is what the logging policy mu leaves of limit i. The policy player climbs
`A_D(pi, f) - lambda sum_i (A_D(pi, g_i) - (1 - gamma) room_i)_+`, so it stops paying for a cost that keeps
its limit.

Why it cannot lose to mu. If Q^pi is in F it has E_D = 0, so the minimisers satisfy, for every beta,

    (1 - gamma) (J_R(pi) - J_R(mu))  >=  A_D(pi, f),      (1 - gamma) (J_Ci(pi) - J_Ci(mu))  <=  A_D(pi, g_i),

when D has the occupancy of mu. A_D(mu, .) = 0, so where mu keeps the limits the climber's regret against mu
alone gives `mean J_R(pi_k) >= J_R(mu) - H regret`, and `mean J_Ci(pi_k) <= tau_i + (spread of f) H / lambda`.
No policy but mu needs coverage, and no estimate of a cost decides anything. The hinge is of the policy's
whole advantage, not of each action's: with the latter mu itself would pay, and the first claim would fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from slater.tabular._check import check_choice, check_positive, check_rounds
from slater.tabular.bellman import advantage
from slater.tabular.classes import Box, Tabular, ValueClass, WeightClass
from slater.tabular.counts import Counts
from slater.tabular.critics import Critic
from slater.tabular.mixture import Mixture
from slater.tabular.ope import ModelEstimator
from slater.tabular.primal import NaturalPolicyGradient
from slater.tabular.result import Result, data_driven_bound


@dataclass(frozen=True)
class WSAC:
    """Settings of tabular WSAC.

    rounds: K; bellman_weight: beta; weights, values: the classes W and F.
    level: `limits`, every cost stays within its limit; `reference`, at the cost of the policy that logged,
    whatever the limits are.
    multiplier: lambda; it must be above the optimal multipliers at that level. None: one plus twice those of
    the empirical problem.
    step: eta of the policy player, on values scaled to [-1, 1]; its regret against the log's policy grows
    with it.
    """

    rounds: int = 200
    level: Literal["limits", "reference"] = "limits"
    multiplier: float | None = None
    bellman_weight: float = 2.0
    step: float = 2.0
    weights: WeightClass = field(default_factory=Box)
    values: ValueClass = field(default_factory=Tabular)

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Play the game on the data, from the policy that logged them."""
        data = data.with_limits(limits)
        check_rounds(self.rounds)
        check_choice("level", self.level, ("limits", "reference"))
        check_positive("bellman_weight", self.bellman_weight)
        reference = ModelEstimator(data).costs(data.behaviour)
        tau = reference if self.level == "reference" else data.limits
        automatic, _, notes = data_driven_bound(data, tau) if data.num_costs else (1.0, 0.0, ())
        lam = automatic if self.multiplier is None else self.multiplier
        check_positive("the multiplier", lam)
        for cost in np.flatnonzero(reference > data.limits):
            notes += (
                f"the policy that logged costs {reference[cost]:.4g}, above limit {cost} "
                f"({data.limits[cost]:.4g}): improving on it does not mean keeping that limit",
            )
        beta, classes = self.bellman_weight, (self.weights, self.values)
        reward_critic = Critic(data, data.reward, 1, *classes, beta)
        cost_critics = [Critic(data, cost, -1, *classes, beta / lam) for cost in data.costs]
        primal = NaturalPolicyGradient(data.num_states, data.num_actions, self.step, start=data.behaviour)
        scale = (1.0 - data.discount) / (data.reward_scale + lam * data.num_costs * data.cost_scale)
        room = (1.0 - data.discount) * (tau - reference)

        members = np.zeros((self.rounds, data.num_states, data.num_actions))
        multipliers, excess = (np.zeros((self.rounds, data.num_costs)) for _ in range(2))
        for k in range(self.rounds):
            pi = members[k] = primal.policy
            z = reward_critic.solve(pi)
            for i, critic in enumerate(cost_critics):
                g = critic.solve(pi)
                excess[k, i] = advantage(data, pi, g) - room[i]
                if excess[k, i] > 0:
                    multipliers[k, i] = lam
                    z = z - lam * g
            primal.update(scale * z)

        trace = {"multipliers": multipliers, "estimated_excess": data.horizon * excess}
        policy, mean = Mixture.uniform(members), multipliers.mean(axis=0)
        return Result("wsac", policy, mean, lam * max(1, data.num_costs), self.rounds, notes, trace)
