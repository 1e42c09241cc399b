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
from slater.tabular._check import Float
from slater.tabular.bellman import bellman_error
from slater.tabular.classes import Box, Linear, Tabular, ValueClass, WeightClass
from slater.tabular.cmdp import normalise_policy
from slater.tabular.counts import Counts
from slater.tabular.critics import Critic
from slater.tabular.mbcl import FittedQ, greedy_policy
from slater.tabular.mixture import Mixture
from slater.tabular.pdca import PDCA
from slater.tabular.result import Result


@dataclass(frozen=True)
class ACrab:
    """A-Crab: the critic, the policy player and the mixture of PDCA, without costs.

    Attributes:
        rounds: K.
        step: eta of the policy player, on values scaled to [-1, 1]; None as in PDCA.
        weights: the class W; None as in PDCA.
        values: the class F.

    """

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
    """MABO. With tabular F the minimum is 0, at the optimal Q of the empirical model: value iteration.

    With linear F the problem is not convex (the maximum inside): for a fixed greedy policy it is the
    critic's program without advantage; alternate, restart, keep the best true objective.

    Attributes:
        weights: the class W (used for linear F).
        values: the class F.
        restarts: starting policies for linear F.
        rounds: alternations a start.
        seed: of the starting policies.

    """

    weights: WeightClass = field(default_factory=Box)
    values: ValueClass = field(default_factory=Tabular)
    restarts: int = 8
    rounds: int = 20
    seed: int = 0

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """The greedy policy of the minimiser; the worst value for pairs without data."""
        del limits
        low, high = data.value_box(data.reward)
        if isinstance(self.values, Linear):
            Q, solves = self._alternate(data)
        else:
            Q, solves = FittedQ(data, self.values).iterate(data.reward, low, (low, high)), 1
        return Result("mabo", Mixture.single(greedy_policy(data, Q)), np.zeros(data.num_costs), 0.0, solves)

    def _alternate(self, data: Counts) -> tuple[Float, int]:
        rng = np.random.default_rng(self.seed)
        critic = Critic(data, data.reward, 0, self.weights, self.values, weight=1.0)
        best: tuple[float, Float] | None = None
        solves = 0
        eye = np.eye(data.num_actions)
        for start in range(self.restarts):
            policy = (
                data.behaviour if start == 0 else eye[rng.integers(data.num_actions, size=data.num_states)]
            )
            for _ in range(self.rounds):
                f = critic.solve(policy)
                solves += 1
                greedy = eye[np.argmax(f, axis=1)]
                # with the greedy policy the residual is that of max_a' f(s', a')
                objective = bellman_error(data, greedy, f, data.reward, self.weights)
                if best is None or objective < best[0] - 1e-12:
                    best = (objective, f)
                if np.array_equal(greedy, policy):
                    break
                policy = greedy
        assert best is not None
        return best[1], solves


@dataclass(frozen=True)
class PRORL:
    """PRO-RL, tabular: the inner minimum over v makes the flow equations soft, and a quadratic program.

    `max E_D[w R] - alpha E_D[w^2 / 2] - Bv sum_s |flow residual of w rho|(s)` over `0 <= w <= Bw`.

    Attributes:
        alpha: strength of the regulariser; its authors take it of the order of the error sought.
        weight_bound: Bw, the largest importance weight.

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
        rows = sparse.vstack(
            [
                sparse.hstack([flow, -eye_u]),
                sparse.hstack([-flow, -eye_u]),
                sparse.hstack([eye_w, sparse.csr_array((pairs, S))]),
                sparse.hstack([-eye_w, sparse.csr_array((pairs, S))]),
            ]
        )
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
