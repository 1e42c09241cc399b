"""From the members pi_1..pi_K of a run to the mixture that is handed out.

- `uniform`: the paper's weights.
- `tail`: uniform over the last part of the run, after the players have come close.
- `lp`: the master problem of Dantzig and Wolfe (`slater.mixing`): the weights that maximise the estimated
  reward of the mixture with its estimated costs under the limits.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from slater.mixing import best_mixture
from slater.tabular._check import Float, check_choice
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.ope import evaluate

MixtureRule = Literal["uniform", "tail", "lp"]

#: the part of a run that `tail` leaves out
BURN_IN = 0.5


def mix(data: Counts, members: Float, limits: Float, rule: MixtureRule) -> tuple[Mixture, Float | None]:
    """The mixture of `members` `(K, S, A)` for limits aimed at (J-units); for `lp` multipliers `(I,)`."""
    check_choice("mixture", rule, get_args(MixtureRule))
    if rule == "uniform":
        return Mixture.uniform(members), None
    if rule == "tail":
        K, first = len(members), int(BURN_IN * len(members))
        return Mixture(members, np.where(np.arange(K) < first, 0.0, 1.0 / (K - first))), None
    reward = evaluate(data, members, data.reward[None], "low")[:, 0]
    best = best_mixture(reward, evaluate(data, members, data.costs, "high"), limits)
    return Mixture(members, best.weights), best.prices
