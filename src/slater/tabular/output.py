"""From the members pi_1..pi_K of a run to the mixture that is handed out.

- `uniform`: the paper's weights.
- `tail`: uniform over the last part of the run, after the players have come close.
- `lp`: the master problem of Dantzig and Wolfe (`slater.mixing`): the weights that maximise the estimated
  reward of the mixture with its estimated costs (plus `confidence` standard errors) under the limits.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from slater.mixing import best_mixture
from slater.tabular._check import Float, check_choice
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.ope import evaluate, standard_error

MixtureRule = Literal["uniform", "tail", "lp"]

#: the part of a run that `tail` leaves out
BURN_IN = 0.5


def mix(
    data: Counts, members: Float, limits: Float, rule: MixtureRule, confidence: float
) -> tuple[Mixture, Float | None]:
    """The mixture of `members` `(K, S, A)`, and for `lp` the multipliers of its program, `(I,)`.

    `limits` (J-units) are those that the run aimed at; `confidence` is a number of standard errors.
    """
    K = len(members)
    if rule == "uniform":
        return Mixture.uniform(members), None
    if rule == "tail":
        first = int(BURN_IN * K)
        weights = np.zeros(K)
        weights[first:] = 1.0 / (K - first)
        return Mixture(members, weights), None
    check_choice("mixture", rule, get_args(MixtureRule))
    reward = evaluate(data, members, data.reward[None], "low")[:, 0]
    costs = evaluate(data, members, data.costs, "high")
    if confidence > 0:
        single = [Mixture.single(member) for member in members]
        errors = np.array([[standard_error(data, m, c) for c in data.costs] for m in single])
        costs = costs + confidence * errors
    best = best_mixture(reward, costs, limits)
    return Mixture(members, best.weights), best.prices
