"""Tabular COptiDICE (Lee et al., 2022): regularised occupancy measures on the empirical model.

For any number of costs, with `w = d / dD` and `f(x) = (x - 1)^2 / 2`:

    max_w  E_dD[w R] - alpha E_dD[f(w)]   s.t.  w >= 0,  flow equations for w dD,  E_dD[w C_i] <= tau_i / H

The upper bound on the cost that its authors add is in `slater.deep.algorithms.coptidice`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from slater.tabular._check import check_positive
from slater.tabular.cmdp import Infeasible, normalise_policy
from slater.tabular.counts import Counts, Unseen
from slater.tabular.mixture import Mixture
from slater.tabular.occupancy import solve_occupancy_qp
from slater.tabular.result import Presets, Result, data_driven_bound


@dataclass(frozen=True)
class COptiDICE(Presets):
    """Settings of tabular COptiDICE; the preset `paper` is as in the PDCA authors' experiment.

    alpha: strength of the chi-square regulariser, in units of the reward. None: `1 / sqrt(n)`, between the
    `.1` of the PDCA authors (too strong for large n) and the COptiDICE authors' one over the number of
    trajectories.
    unseen: what follows a pair without data (see `Counts.model`); `uniform` is the PDCA authors' choice.
    """

    alpha: float | None = None
    unseen: Unseen = "pessimistic"

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
        reward, reachable = model.reward.ravel(), model.limits
        try:
            w, multipliers = solve_occupancy_qp(model, reference, reward, alpha, reachable)
        except Infeasible as error:
            # the empirical problem is out of reach: aim at the smallest cost that it can reach
            reachable = np.maximum(error.costs, model.limits) * (1 + 1e-6) + 1e-9
            relaxed = model.with_limits(reachable)
            w, multipliers = solve_occupancy_qp(relaxed, reference, reward, alpha, reachable)
            notes = (*notes, "the limits were relaxed to what the empirical model can reach")
        policy = normalise_policy((w * reference).reshape(model.reward.shape))[: data.num_states]
        return Result("coptidice", Mixture.single(policy), multipliers, bound, 1, notes)
