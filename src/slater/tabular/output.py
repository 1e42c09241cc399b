"""From the members pi_1..pi_K of a run to the mixture that is handed out.

- `uniform`: the paper's weights.
- `tail`: uniform over the last part of the run, after the players have come close.
- `lp`: the master problem of Dantzig and Wolfe: the weights that maximise the estimated reward of the
  mixture with its estimated costs (plus `confidence` standard errors) under the limits.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.optimize import linprog

from slater.errors import InputError
from slater.tabular._check import Float
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.ope import evaluate, standard_error

__all__ = ["Output", "master_weights", "mix"]

Output = Literal["uniform", "tail", "lp"]

#: the part of a run that `tail` leaves out
BURN_IN = 0.5


def mix(
    data: Counts, members: Float, limits: Float, output: Output, confidence: float
) -> tuple[Mixture, Float | None]:
    """The mixture of `members` `(K, S, A)`, and for `lp` the multipliers of its program, `(I,)`.

    `limits` (J-units) are those that the run aimed at; `confidence` is a number of standard errors.
    """
    K = len(members)
    if output == "uniform":
        return Mixture.uniform(members), None
    if output == "tail":
        first = int(BURN_IN * K)
        weights = np.zeros(K)
        weights[first:] = 1.0 / (K - first)
        return Mixture(members, weights), None
    if output != "lp":
        raise InputError(f"output is {output!r}; choose uniform, tail or lp.")
    reward = evaluate(data, members, data.reward[None], "low")[:, 0]
    costs = evaluate(data, members, data.costs, "high")
    if confidence > 0:
        single = [Mixture.single(member) for member in members]
        errors = np.array([[standard_error(data, m, c) for c in data.costs] for m in single])
        costs = costs + confidence * errors
    weights, multipliers = master_weights(reward, costs, limits)
    return Mixture(members, weights), multipliers


def master_weights(reward: Float, costs: Float, limits: Float) -> tuple[Float, Float]:
    """`argmax_w w.reward` with `w.costs <= limits` on the simplex: weights `(K,)`, multipliers `(I,)`.

    If no weights meet the limits, those that keep the worst excess smallest.
    """
    K, I = costs.shape  # noqa: E741
    simplex = {"A_eq": np.ones((1, K)), "b_eq": np.ones(1), "method": "highs"}
    answer = linprog(-reward, A_ub=costs.T if I else None, b_ub=limits if I else None, **simplex)
    if answer.status == 0:
        weights = np.maximum(answer.x, 0.0)
        multipliers = -np.asarray(answer.ineqlin.marginals) if I else np.zeros(0)
        return weights / weights.sum(), np.maximum(multipliers, 0.0)
    closest = linprog(
        np.append(np.zeros(K), 1.0),
        A_ub=np.hstack([costs.T, -np.ones((I, 1))]),
        b_ub=limits,
        A_eq=np.append(np.ones(K), 0.0)[None],
        b_eq=np.ones(1),
        bounds=[(0, None)] * K + [(None, None)],
        method="highs",
    )
    weights = np.maximum(closest.x[:K], 0.0)
    return weights / weights.sum(), np.maximum(-np.asarray(closest.ineqlin.marginals), 0.0)
