"""PDCA, Algorithm 1 of "A Primal-Dual-Critic Algorithm for Offline Constrained RL".

A game over the estimated Lagrangian `L(pi, lambda) = J_R(pi) + lambda . (tau - J_C(pi))`. For k = 1..K:

    f_k      = argmin_{f in F} 2 E_D(pi_k, f; R)   + A_D(pi_k, f)             reward critic
    g_k^i    = argmin_{g in F} 2 E_D(pi_k, g; C_i) - A_D(pi_k, g)             cost critics
    h_k^i    = OPE(pi_k, C_i)
    lambda_k = argmin_{lambda in B Delta^I} lambda . (tau - h_k)              dual player
    pi_{k+1} = PO(pi_k, f_k + lambda_k . (tau - g_k))                         primal player

and the result is a mixture of pi_1..pi_K, one member per episode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from slater.tabular import classes
from slater.tabular._check import Float, check_choice, check_positive, check_rounds
from slater.tabular.classes import Box, PerSampleBox, Tabular, ValueClass, WeightClass
from slater.tabular.cmdp import Infeasible
from slater.tabular.counts import Counts
from slater.tabular.critics import Critics
from slater.tabular.dual import DUALS
from slater.tabular.ope import ESTIMATORS
from slater.tabular.output import MixtureRule, mix
from slater.tabular.pessimism import for_thin_coverage
from slater.tabular.primal import NaturalPolicyGradient
from slater.tabular.result import Presets, Result, data_driven_bound
from slater.tabular.theory import Mode, TheoremPlan, make_plan

#: the policy player's step on large problems, chosen on seed 0 of ICU-Sepsis
LARGE_STEP = 2000.0


@dataclass(frozen=True)
class PDCA(Presets):
    """Settings of tabular PDCA; `PDCA().run(data)` runs it.

    Preset `paper`: as in the paper's experiments: per-sample errors, its loss as OPE, the uniform mixture.
    Its numbers are those of the authors' code; B = 2 is below the optimal multiplier on some problems,
    which then cannot be solved.

    rounds: K. None: 400, which brings the players close on the paper's problems, or with a mode 2000 (as in
    the authors' code), since the theorems' B are large and slow the game down; 200 on large problems.
    multiplier_bound: B, the budget of the lambda-player. None: one plus twice the multipliers of the
    empirical problem, or with a mode what its theorem says. The paper's grid is 2, 5, 10.
    step: eta of the policy player, on values scaled to [-1, 1]. The paper's grid is 1, 2, 5, 10; larger steps
    reach the same mixture in fewer rounds. None: 20, and 2000 on large problems, whose values are a small
    part of the H that they are scaled by.
    weights: the class W; C_infinity must be at least the optimal policy's largest importance weight (2 to 6
    on the paper's problems). None: `Box(5)`, and on large problems the box that holds the weights of the
    empirical problem's optimum.
    values: the class F.
    pooling: visits that the row of each seen pair borrows from its state (`slater.tabular.pooling`). None:
    none on small problems, on large ones as many as predict the log best.
    pessimism: standard errors of each pair that are taken off its reward and added to its costs before the
    game (`slater.tabular.pessimism`): the critics, the estimator and the mixture all see them. None: none on
    small problems; on large ones .2, but at most half of what the limits can bear.
    covered: keep to pairs with data: the policy player takes no others where a state has any. None: on large
    problems only.
    dual: the lambda-player, a name in `dual.DUALS`; the paper's is greedy; dual_step: of a gradient player,
    per J-unit of violation.
    estimator: the OPE oracle, a name in `ope.ESTIMATORS`: the empirical model, or the paper's minimax loss
    over F and W.
    mixture: how the members are weighted; the paper's is uniform. None: `tail`, or `lp` on large problems and
    in the mode exactly-feasible, where it puts the estimated costs on the tightened limits.
    mode: None, or the theorem that sets B and the tightening; epsilon, delta, phi: its tolerance (J-units,
    see `theory.make_plan`), probability of failure, and Slater margin, normalised; None estimates phi.
    """

    rounds: int | None = None
    multiplier_bound: float | None = None
    step: float | None = None
    weights: WeightClass | None = None
    values: ValueClass = field(default_factory=Tabular)
    pooling: float | None = None
    pessimism: float | None = None
    covered: bool | None = None
    dual: str = "greedy"
    dual_step: float = 0.2
    estimator: str = "model"
    mixture: MixtureRule | None = None
    mode: Mode | None = None
    epsilon: float | None = None
    delta: float = 0.01
    phi: float | None = None

    PRESETS: ClassVar = {
        "paper": {
            "rounds": 2000,
            "multiplier_bound": 2.0,
            "step": 2.0,
            "weights": PerSampleBox(5.0),
            "estimator": "minimax",
            "mixture": "uniform",
        }
    }

    def run(
        self, data: Counts, limits: ArrayLike | None = None, progress: Callable[[int], None] | None = None
    ) -> Result:
        """Play the game under `limits` (J-units; None: the data's); `progress` hears the round's number."""
        return self.for_size(data)._played(data.with_limits(limits), progress)

    def for_size(self, data: Counts) -> PDCA:
        """These settings, with those that are None and depend on the size of the problem decided."""
        large = not data.successors.small
        decided: dict[str, Any] = {
            "rounds": 200 if large else 400 if self.mode is None else 2000,
            "step": LARGE_STEP if large else 20.0,
            "covered": large,
            "mixture": "lp" if large or self.mode == "exactly-feasible" else "tail",
        }
        if not large:  # the rest is for thin coverage, and asks the data
            decided |= {"pooling": 0.0, "pessimism": 0.0, "weights": Box()}
        return replace(self, **{name: x for name, x in decided.items() if getattr(self, name) is None})

    def _played(self, data: Counts, progress: Callable[[int], None] | None) -> Result:
        """The game with settings for the data's size."""
        rounds, output = self.rounds, self.mixture
        assert rounds is not None and output is not None and self.step is not None  # noqa: PT018
        check_rounds(rounds)
        data, thin = for_thin_coverage(data, self.pooling, self.pessimism)
        tau, bound, notes, plan = self._targets(data)
        weights = self._weights(data, tau)
        utilities, signs = np.concatenate([data.reward[None], data.costs]), [1] + [-1] * data.num_costs
        critics = Critics(data, utilities, signs, weights, self.values)
        covered = data.seen if self.covered else None
        primal = NaturalPolicyGradient(data.num_states, data.num_actions, self.step, covered)
        check_choice("dual", self.dual, tuple(DUALS))
        check_choice("estimator", self.estimator, tuple(ESTIMATORS))
        dual = DUALS[self.dual](bound, self.dual_step)
        estimator = ESTIMATORS[self.estimator](data, weights, self.values)
        # z = f + lambda.(tau - g) is at most (reward scale + 2B cost scale) H in size: PO wants [-1, 1]
        scale = (1.0 - data.discount) / (data.reward_scale + 2.0 * bound * data.cost_scale)

        members = np.zeros((rounds, data.num_states, data.num_actions))
        multipliers = np.zeros((rounds, data.num_costs))
        estimates = np.zeros((rounds, data.num_costs))
        gaps = np.zeros(rounds)
        for k in range(rounds):
            pi = members[k] = primal.policy
            q, gap = critics.solve(pi)  # Algorithm 1, lines 2 and 3
            f, g, gaps[k] = q[0], q[1:], gap.max()
            h = estimates[k] = estimator.costs(pi)  # line 4
            lam = multipliers[k] = dual.update(h - tau)  # line 5
            z = f + np.einsum("i,isa->sa", lam, tau[:, None, None] - g) if len(lam) else f
            primal.update(scale * z)  # line 6
            if progress is not None:
                progress(k + 1)

        policy, master = mix(data, members, tau, output)
        mean = policy.weights @ multipliers if master is None else master
        trace = {"multipliers": multipliers, "estimated_costs": estimates, "critic_gap": gaps}
        if plan is not None and plan.required_rounds > rounds:
            notes += (f"the theorem asks for K = {plan.required_rounds:.2g} rounds; {rounds} were played",)
        return Result("pdca", policy, mean, bound, rounds, thin + notes, trace, plan)

    def _weights(self, data: Counts, limits: Float) -> WeightClass:
        if self.weights is not None:
            return self.weights
        # what the paper asks of C_infinity, with the empirical optimum in the place of the optimum
        model = data.model("pessimistic", limits)
        try:
            occupancy = model.solve().occupancy[: data.num_states]
        except Infeasible:
            return Box()
        ratio = occupancy[data.seen] / data.distribution[data.seen]
        return Box(max(Box().bound, float(ratio.max())))

    def plan(self, data: Counts) -> TheoremPlan | None:
        """What the mode's theorem says for this dataset; None without a mode."""
        if self.mode is None:
            return None
        C = classes.squared_norm_bound(self.weights or Box())
        return make_plan(
            data, self.mode, epsilon=self.epsilon, delta=self.delta, phi=self.phi, weight_bound=C
        )

    def _targets(self, data: Counts) -> tuple[Float, float, tuple[str, ...], TheoremPlan | None]:
        """The limits to aim at (J-units, `(I,)`), B, notes, and the plan of the mode."""
        plan = self.plan(data)
        limits = data.limits if plan is None else data.limits - plan.tightening
        notes = () if plan is None else plan.notes
        if data.num_costs == 0:
            return limits, 0.0, notes, plan
        automatic, needed, why = data_driven_bound(data, limits)
        # on large problems phi is small and the theorems' B are in the thousands: too many for the game
        theorem = plan is not None and data.successors.small
        own = plan.multiplier_bound if plan and theorem else automatic
        bound = own if self.multiplier_bound is None else self.multiplier_bound
        check_positive("the bound B", bound)
        if bound <= needed < np.inf:
            note = (
                f"the bound B = {bound:.4g} is not above the multiplier {needed:.4g} estimated from the "
                f"data: the limits may be exceeded; take B of at least {1 + 2 * needed:.3g}"
            )
            warnings.warn(note, stacklevel=4)
            why = (*why, note)
        return limits, bound, notes + why, plan
