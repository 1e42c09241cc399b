"""The certificate: how far a pair (mixture, multipliers) is from a saddle point of the Lagrangian.

    gap = [ max_pi J_{R - lambda.C}(pi) + lambda.tau ] - [ J_R(mix) - B max_i (J_Ci(mix) - tau_i)_+ ] >= 0

The first bracket bounds J_R* from above for any lambda >= 0; the second is the worst the lambda-player
with budget B can do to the mixture. A gap of at most xi means `J_R(mix) >= J_R* - xi`, and
`J_Ci(mix) <= tau_i + xi / (B - |lambda*|_1)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slater.tabular._check import Float, as_array, check_range
from slater.tabular.cmdp import CMDP
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture


@dataclass(frozen=True)
class Certificate:
    """Exact on the model that it was computed on, in J-units.

    gap: the duality gap; upper, lower: the two brackets; no feasible policy of the model earns more than
    upper.
    J_R, J_C: of the mixture on the model; slack: `tau - J_C`, (I,), negative where a limit is broken.
    multipliers: lambda, (I,); multiplier_bound: B, at least `sum lambda`.
    """

    gap: float
    upper: float
    lower: float
    J_R: float
    J_C: Float
    slack: Float
    multipliers: Float
    multiplier_bound: float


def certify(cmdp: CMDP, mixture: Mixture, multipliers: Float, multiplier_bound: float) -> Certificate:
    """The certificate on a known model; `multipliers` need not be optimal, and B is at least their sum."""
    multipliers = as_array("multipliers", multipliers, (cmdp.num_costs,))
    check_range("multipliers", multipliers, 0.0)
    bound = max(multiplier_bound, float(multipliers.sum()))
    J_R, J_C = mixture.returns(cmdp)
    upper = cmdp.best_response(multipliers)[1] + float(multipliers @ cmdp.limits)
    lower = J_R - bound * float(np.maximum(J_C - cmdp.limits, 0.0).max(initial=0.0))
    return Certificate(upper - lower, upper, lower, J_R, J_C, cmdp.limits - J_C, multipliers, bound)


def estimate_certificate(
    data: Counts, mixture: Mixture, multipliers: Float, multiplier_bound: float
) -> Certificate:
    """The same from data alone: on the empirical model, with unseen pairs counted at their worst."""
    model = data.model("pessimistic")
    return certify(model, mixture.extended(model.num_states), multipliers, multiplier_bound)
