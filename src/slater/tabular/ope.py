"""Off-policy evaluation on a tabular dataset: what J_U(pi) is, and what the data cannot say.

The minimiser of the exact E_D is the Q-function of the empirical model, so evaluation is one linear
solve. Pairs that were never seen have no residual: their value is not identified, and the answer is an
interval between filling them with the lowest and the highest possible value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from slater.tabular._check import Float
from slater.tabular.classes import Box, Tabular, ValueClass, WeightClass
from slater.tabular.counts import Counts
from slater.tabular.critics import Critic
from slater.tabular.mixture import Mixture

Fill = Literal["low", "high"]

#: a row with fewer draws than this leans on the variance of the others
FEW_DRAWS = 10


class Estimator(Protocol):
    """The OPE oracle of the lambda-player."""

    def costs(self, policy: Float) -> Float:
        """Estimates of `J_Ci(pi)`, J-units, shape `(I,)`, for a policy `(S, A)`."""
        ...


@dataclass
class ModelEstimator:
    """Evaluation on the empirical model; what follows unseen pairs costs the most (`high`) or the least."""

    data: Counts
    fill: Fill = "high"

    def costs(self, policy: Float) -> Float:
        """`J_Ci(pi)` on the empirical model."""
        return evaluate(self.data, policy[None], self.data.costs, self.fill)[0]


class MinimaxEstimator:
    """The paper's loss: `h = f(s0, pi)` with `f = argmin_F E_D(pi, f; C_i)`, no advantage term.

    With `PerSampleBox` this is what the authors run: biased for stochastic transitions.
    """

    def __init__(self, data: Counts, weights: WeightClass | None = None, values: ValueClass | None = None):
        self._start = data.start
        # without the advantage the exact minimum is the empirical model's Q, with pairs that the data do
        # not pin down at their worst
        exact = isinstance(weights or Box(), Box) and isinstance(values or Tabular(), Tabular)
        self._model = ModelEstimator(data) if exact and not data.successors.small else None
        if self._model is None:
            self._critics = [Critic(data, cost, 0, weights, values, weight=1.0) for cost in data.costs]

    def costs(self, policy: Float) -> Float:
        """`f_i(s0, pi)` for each cost."""
        if self._model is not None:
            return self._model.costs(policy)
        return np.array([self._start @ (policy * c.solve(policy)).sum(axis=1) for c in self._critics])


#: name -> the oracle of a dataset, for the classes W and F
ESTIMATORS: dict[str, Callable[[Counts, WeightClass, ValueClass], Estimator]] = {
    "model": lambda data, weights, values: ModelEstimator(data),
    "minimax": MinimaxEstimator,
}


def evaluate(data: Counts, policies: Float, utilities: Float, fill: Fill) -> Float:
    """`J_U(pi)` on the empirical model, J-units, shape `(K, m)`, for `(K, S, A)` and `(m, S, A)`."""
    V = _state_values(data, policies, utilities, fill)
    return np.einsum("s,kms->km", data.start, V)


def _state_values(data: Counts, policies: Float, utilities: Float, fill: Fill) -> Float:
    """V, shape `(K, m, S)`, with the value of unseen pairs set to the end of the box."""
    known = policies * data.seen
    U_pi = np.einsum("ksa,msa->kms", known, utilities)
    fills = np.array([data.value_box(u)[fill == "high"] for u in utilities])
    U_pi += np.einsum("ksa,m->kms", policies * ~data.seen, fills)
    return data.successors.values(known, U_pi.transpose(0, 2, 1), data.discount).transpose(0, 2, 1)


def identification_interval(data: Counts, policy: Float, utility: Float) -> tuple[float, float]:
    """The values of `J_U(pi)` that agree with the empirical model, J-units: `[low, high]`.

    The two ends differ only by what unseen pairs that the policy may reach could be worth; sampling
    error is not in it (`standard_error`).
    """
    low, high = (evaluate(data, policy[None], utility[None], fill)[0, 0] for fill in get_args(Fill))
    return float(low), float(high)


def standard_error(data: Counts, mixture: Mixture, utility: Float, fill: Fill = "high") -> float:
    """Sampling error of `evaluate` for a mixture, J-units, by the delta method.

    `dJ / dPhat(s'|x) = discount H d(x) V(s')`, and the rows of Phat are independent multinomials with
    N(x) draws. A row with fewer than ten draws takes, as one draw more, the variance that the rows with
    two and more have on average: a single draw has none of its own. What is chosen by maximising over
    such rows is off by more than this; `pessimism` is against that. Rows that borrowed visits from their
    state (`pooling`) count with those: the standard deviation of their posterior.
    """
    use = np.flatnonzero(mixture.weights)
    members, weights = mixture.members[use], mixture.weights[use]
    V = _state_values(data, members, utility[None], fill)[:, 0]
    known = members * data.seen
    start = np.broadcast_to(data.start[:, None], (len(use), data.num_states, 1))
    visits = data.successors.flows(known, start, data.discount) * known
    rows = data.successors.rows
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    flat = visits.reshape(len(use), -1)
    gradient, scale = np.zeros(rows.nnz), np.zeros(rows.shape[0])
    for weight, visit, value in zip(weights, flat, V, strict=True):
        gradient += data.discount * weight * visit[row] * value[rows.indices]
        scale += data.discount * weight * visit
    N = data.pair_counts.ravel()
    mean = np.bincount(row, rows.data * gradient, len(N))
    variance = np.maximum(np.bincount(row, rows.data * gradient**2, len(N)) - mean**2, 0.0)
    if data.borrowed:
        return float(np.sqrt(np.sum(np.where(N > 0, variance / (N + data.borrowed + 1.0), 0.0))))
    unbiased = variance * N / np.maximum(N - 1.0, 1.0)
    # the average variance of values, in units of the pair's own scale
    trust = np.where((N >= 2) & (scale > 1e-100), np.minimum(N - 1.0, FEW_DRAWS), 0.0)
    relative = np.divide(unbiased, scale**2, out=np.zeros_like(scale), where=trust > 0)
    pooled = float(trust @ relative) / max(float(trust.sum()), 1.0) * scale**2
    few = (pooled + (N - 1.0) * unbiased) / np.maximum(N, 1.0)
    per_draw = np.where(N >= FEW_DRAWS, unbiased, few)
    return float(np.sqrt(np.sum(np.where(N > 0, per_draw / np.maximum(N, 1e-300), 0.0))))
