"""The paper's three theorems as plans: from epsilon, delta and phi to B, the tightening, K and n.

    nearly-feasible   (Thm 1)  B = 1 + 1/phi      limits tau            n ~ C^2 log(.) / ((1-g)^4 phi^2 eps^2)
    any-comparator    (Thm 2)  B = H / eps        limits tau            n ~ C^2 log(.) / ((1-g)^6 eps^4)
    exactly-feasible  (Thm 3)  B = 5 / phi        limits tau - phi*eps  n ~ C^2 log(.) / ((1-g)^4 phi^2 eps^2)

with `K >= 2 ln(A) (1 + 2B)^2 H^4 / eps^2` rounds of exponential weights. The paper's constants hide in
an Omega; they are taken as one here, and the log-cardinalities of the classes are those of grids of
width epsilon, so the n printed is an order of magnitude and not a promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from slater.errors import InputError
from slater.tabular._check import Float, check_choice, check_positive
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.ope import standard_error

Mode = Literal["nearly-feasible", "any-comparator", "exactly-feasible"]
MODES: tuple[Mode, ...] = ("nearly-feasible", "any-comparator", "exactly-feasible")

DEFAULT_EPSILON = 0.25

#: the tightening may use at most this part of the room that Slater's condition leaves
MOST_OF_MARGIN = 0.8


@dataclass(frozen=True)
class TheoremPlan:
    """Settings of a run, and what its theorem asks for.

    mode: which theorem; epsilon: tolerance, J-units; delta: probability of failure.
    phi: Slater margin, normalised units; NaN where the theorem needs none.
    multiplier_bound: B; tightening: what is taken off each limit, J-units, (I,).
    required_rounds, required_size: K and n of the theorem, n up to constants.
    notes: which of these were estimated, and what does not hold.
    """

    mode: Mode
    epsilon: float
    delta: float
    phi: float
    multiplier_bound: float
    tightening: Float
    required_rounds: float
    required_size: float
    notes: tuple[str, ...]


def make_plan(
    data: Counts,
    mode: Mode,
    *,
    epsilon: float | None = None,
    delta: float = 0.01,
    phi: float | None = None,
    weight_bound: float = 5.0,
) -> TheoremPlan:
    """The plan of a mode for a dataset with its limits.

    epsilon: tolerance, J-units. None: .25, and in the mode exactly-feasible the value at which the tightening
    equals the one-sided sampling error of the costs at level `delta`.
    delta: probability of failure, split over the costs. phi: Slater margin, normalised; None estimates it on
    the empirical model. weight_bound: a bound on `E_D[w^2]` over W, the `C_l2^2` of n; C_infinity for weights
    of mean one.
    """
    check_choice("mode", mode, MODES)
    if not 0.0 < delta < 1.0:
        raise InputError(f"delta is {delta:g}, but a probability strictly between 0 and 1 is needed.")
    if epsilon is not None:
        check_positive("epsilon", epsilon)
    notes: list[str] = []
    H, costs = data.horizon, data.num_costs
    tightening = np.zeros(costs)
    eps = DEFAULT_EPSILON if epsilon is None else epsilon
    if mode == "any-comparator":
        bound, margin, power, scale = H / eps, math.nan, 6, eps**4
    else:
        margin = _margin(data, phi, notes)
        bound = 1.0 + 1.0 / margin
        if mode == "exactly-feasible":
            eps, tightening = _tightening(data, margin, epsilon, delta, notes)
            bound = 5.0 / margin
        power, scale = 4, (margin * eps) ** 2
    pairs = data.num_states * data.num_actions
    grids = math.log1p(H / eps) + math.log1p(1 / eps) + math.log1p(weight_bound / eps)
    log_size = pairs * grids + math.log(max(costs, 1) / delta)
    required_size = weight_bound * log_size * H**power / scale
    required_rounds = 2 * math.log(max(data.num_actions, 2)) * (1 + 2 * bound) ** 2 * H**4 / eps**2
    return TheoremPlan(
        mode, eps, delta, margin, bound, tightening, required_rounds, required_size, tuple(notes)
    )


def _margin(data: Counts, phi: float | None, notes: list[str]) -> float:
    if phi is not None:
        if not 0.0 < phi <= 1.0:
            raise InputError(f"phi is {phi:g}, but a Slater margin is in (0, 1], in normalised units.")
        return phi
    estimate = data.model("pessimistic").slater_margin()
    if estimate <= 0.0:
        raise InputError(
            f"Slater's condition fails on the empirical model: the closest policy exceeds a limit by "
            f"{-estimate * data.horizon:.4g}; use the mode any-comparator, give phi, or raise the limits."
        )
    notes.append(f"phi = {estimate:.4g} was estimated on the empirical model")
    return estimate


def _tightening(
    data: Counts, margin: float, epsilon: float | None, delta: float, notes: list[str]
) -> tuple[float, Float]:
    """Epsilon and the amounts taken off the limits, `(I,)`, J-units."""
    if epsilon is not None:
        if epsilon > 0.5:
            raise InputError(f"epsilon is {epsilon:g}, but Theorem 3 needs a value in (0, 1/2].")
        if np.any(margin * epsilon > data.limits):
            raise InputError(
                f"phi * epsilon = {margin * epsilon:.4g} would take the limit {data.limits.min():g} below "
                "zero; give a smaller epsilon or phi."
            )
        return epsilon, np.full(data.num_costs, margin * epsilon)
    if data.num_costs == 0:
        return DEFAULT_EPSILON, np.zeros(0)
    policy = data.model("pessimistic").solve().policy[: data.num_states]
    error = np.array([standard_error(data, Mixture.single(policy), cost) for cost in data.costs])
    wanted = norm.isf(delta / data.num_costs) * error
    room = MOST_OF_MARGIN * margin * data.horizon
    amounts = np.minimum(wanted, room)
    eps = float(amounts.max()) / margin
    if np.any(wanted > room):
        notes.append(
            f"the sampling error asks for a tightening of {wanted.max():.4g}, more than the limits leave "
            f"room for ({room:.4g} is used): exact feasibility is less than {1 - delta:.0%} sure"
        )
    if eps > 0.5:
        notes.append(
            f"n = {data.size} is too small for Theorem 3's epsilon <= 1/2: the tightening follows the "
            f"sampling error instead (epsilon = {eps:.3g})"
        )
    return eps, amounts
