"""The three unconstrained algorithms of the paper's Table 1: A-Crab, MABO and PRO-RL.

They maximise reward and ignore the costs; beside the constrained ones they show what a limit is worth.

- A-Crab (Zhu et al., 2023) is PDCA with no costs: f_k = argmin A_D + 2 E_D, then exponential weights.
- MABO (Xie and Jiang, 2020): `min_{f in F} max_{w in W} |E_D[w (f - R - gamma max_a' f(s', a'))]|`,
  then the greedy policy.
- PRO-RL (Zhan et al., 2022): a regularised saddle point over importance weights w and values v,
  `max_{0<=w<=Bw} min_{|v|<=Bv} (1-gamma) E v(s0) - alpha E_D[w^2/2] + E_D[w (R + gamma v(s') - v(s))]`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from slater.cones import cone_program
from slater.errors import InputError
from slater.tabular.classes import Tabular, ValueClass, WeightClass
from slater.tabular.cmdp import normalise_policy
from slater.tabular.counts import Counts
from slater.tabular.mbcl import FittedQ, greedy_policy
from slater.tabular.mixture import Mixture
from slater.tabular.pdca import PDCA
from slater.tabular.result import Result


@dataclass(frozen=True)
class ACrab:
    """A-Crab: the critic, the policy player and the mixture of PDCA, without costs; settings as there."""

    rounds: int = 400
    step: float | None = None
    weights: WeightClass | None = None
    values: ValueClass = field(default_factory=Tabular)

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Run PDCA on the dataset with its costs left out."""
        del limits
        free = dataclasses.replace(data, costs=data.costs[:0], limits=data.limits[:0])
        pdca = PDCA(rounds=self.rounds, step=self.step, weights=self.weights, values=self.values)
        result = pdca.run(free)
        return Result("acrab", result.policy, np.zeros(data.num_costs), 0.0, result.rounds)


@dataclass(frozen=True)
class MABO:
    """MABO with tabular F: the minimum is 0, at the optimal Q of the empirical model, by value iteration."""

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """The greedy policy of the minimiser; the worst value for pairs without data."""
        del limits
        low, high = data.value_box(data.reward)
        Q = FittedQ(data, Tabular()).iterate(data.reward, low, (low, high))
        return Result("mabo", Mixture.single(greedy_policy(data, Q)), np.zeros(data.num_costs), 0.0, 1)


@dataclass(frozen=True)
class PRORL:
    """PRO-RL, tabular: the inner minimum over v makes the flow equations soft, and a quadratic program.

    `max E_D[w R] - alpha E_D[w^2 / 2] - Bv sum_s |flow residual of w rho|(s)` over `0 <= w <= Bw`. alpha: its
    authors take it of the order of the error sought; weight_bound: Bw, the largest importance weight.
    """

    alpha: float = 0.01
    weight_bound: float = 20.0

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Solve the program; the policy follows `rho w`, uniform where that vanishes."""
        del limits
        if not self.alpha >= 0:
            raise InputError(f"alpha is {self.alpha:g}, but it must not be negative.")
        S, A = data.num_states, data.num_actions
        pairs = S * A
        rho = data.distribution.ravel()
        # Bv = (1 + alpha max |f'(w)|) H bounds the multipliers of the flow equations
        value_bound = (data.reward_scale + self.alpha * self.weight_bound) * data.horizon
        out = sparse.kron(sparse.eye_array(S), np.ones((1, A)))
        into = data.successors.transposed
        flow = (data.discount * into - out) @ sparse.diags_array(rho)
        inflow = (1.0 - data.discount) * data.start
        eye_w, eye_u = sparse.eye_array(pairs), sparse.eye_array(S)
        # u(s) >= +-[inflow + flow w](s);  0 <= w <= Bw
        rows = sparse.block_array([[flow, -eye_u], [-flow, -eye_u], [eye_w, None], [-eye_w, None]])
        right = np.concatenate([-inflow, inflow, np.full(pairs, self.weight_bound), np.zeros(pairs)])
        solution, _, wrong = cone_program(
            sparse.diags_array(np.concatenate([self.alpha * rho, np.zeros(S)])),
            np.concatenate([-rho * np.where(data.seen, data.reward, 0.0).ravel(), np.full(S, value_bound)]),
            [(rows, right, "nonnegative")],
        )
        if wrong:
            raise RuntimeError(f"the quadratic program of PRO-RL ended as {wrong}")
        w = np.maximum(solution[:pairs], 0.0)
        mass = (rho * w).reshape(S, A)
        policy = normalise_policy(np.where(mass > 1e-9, mass, 0.0))
        return Result("prorl", Mixture.single(policy), np.zeros(data.num_costs), 0.0, 1)
