"""Off-policy evaluation on a tabular dataset: what J_U(pi) is, and what the data cannot say.

The minimiser of the exact E_D is the Q-function of the empirical model, so evaluation is one linear
solve. Pairs that were never seen have no residual: their value is not identified, and the answer is an
interval between filling them with the lowest and the highest possible value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from scipy.optimize import linprog

from slater.tabular._check import Float
from slater.tabular.classes import Box, ValueClass, WeightClass
from slater.tabular.counts import Counts
from slater.tabular.critics import Critic
from slater.tabular.mixture import Mixture

__all__ = [
    "Estimator",
    "MinimaxEstimator",
    "ModelEstimator",
    "evaluate",
    "identification_interval",
    "minimax_interval",
    "standard_error",
]

Fill = Literal["low", "high"]


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
        self._critics = [Critic(data, cost, 0, weights, values, weight=1.0) for cost in data.costs]

    def costs(self, policy: Float) -> Float:
        """`f_i(s0, pi)` for each cost."""
        return np.array([self._start @ (policy * c.solve(policy)).sum(axis=1) for c in self._critics])


def evaluate(data: Counts, policies: Float, utilities: Float, fill: Fill) -> Float:
    """`J_U(pi)` on the empirical model, J-units, shape `(K, m)`, for `(K, S, A)` and `(m, S, A)`."""
    V = _state_values(data, policies, utilities, fill)
    return np.einsum("s,kms->km", data.start, V)


def _fills(data: Counts, utilities: Float, fill: Fill) -> Float:
    return np.array([data.value_box(u)[0 if fill == "low" else 1] for u in utilities])


def _state_values(data: Counts, policies: Float, utilities: Float, fill: Fill) -> Float:
    """V, shape `(K, m, S)`, with the value of unseen pairs set to the end of the box."""
    known = policies * data.seen
    P_pi = np.einsum("ksa,sat->kst", known, data.kernel)
    U_pi = np.einsum("ksa,msa->kms", known, utilities)
    U_pi += np.einsum("ksa,m->kms", policies * ~data.seen, _fills(data, utilities, fill))
    system = np.eye(data.num_states) - data.discount * P_pi
    return np.linalg.solve(system, U_pi.transpose(0, 2, 1)).transpose(0, 2, 1)


def identification_interval(data: Counts, policy: Float, utility: Float) -> tuple[float, float]:
    """The values of `J_U(pi)` that agree with the empirical model, J-units: `[low, high]`.

    The two ends differ only by what unseen pairs that the policy may reach could be worth; sampling
    error is not in it (`standard_error`).
    """
    return (
        float(evaluate(data, policy[None], utility[None], "low")[0, 0]),
        float(evaluate(data, policy[None], utility[None], "high")[0, 0]),
    )


def standard_error(data: Counts, mixture: Mixture, utility: Float, fill: Fill = "high") -> float:
    """Sampling error of `evaluate` for a mixture, J-units, by the delta method.

    `dJ / dPhat(s'|x) = discount H d(x) V(s')`, and the rows of Phat are independent multinomials with
    N(x) draws. A row with a single draw is given half the range of the values as its deviation.
    """
    use = np.flatnonzero(mixture.weights)
    members, weights = mixture.members[use], mixture.weights[use]
    V = _state_values(data, members, utility[None], fill)[:, 0]
    known = members * data.seen
    P_pi = np.einsum("ksa,sat->kst", known, data.kernel)
    system = np.eye(data.num_states) - data.discount * P_pi.transpose(0, 2, 1)
    start = np.broadcast_to(data.start[:, None], (len(use), data.num_states, 1))
    visits = np.linalg.solve(system, start) * known
    gradient = data.discount * np.einsum("k,ksa,kt->sat", weights, visits, V)
    N = data.pair_counts
    mean = np.einsum("sat,sat->sa", data.kernel, gradient)
    variance = np.einsum("sat,sat->sa", data.kernel, gradient**2) - mean**2
    spread = (gradient.max(axis=2) - gradient.min(axis=2)) / 2.0
    unbiased = np.where(N > 1, np.maximum(variance, 0.0) * N / np.maximum(N - 1, 1), spread**2)
    return float(np.sqrt(np.sum(np.where(data.seen, unbiased / np.maximum(N, 1e-300), 0.0))))


def minimax_interval(data: Counts, policy: Float, utility: Float, weights: Box) -> tuple[float, float]:
    """The minimax value interval for `W = [0, bound]^{S x A}` and tabular F, J-units.

        low  = min_f f(s0, pi) + H bound sum_x rho(x) (-dbar(x))_+
        high = max_f f(s0, pi) - H bound sum_x rho(x) (dbar(x))_+

    On the population, `low <= J <= high`, with equality if W holds the policy's importance weights;
    the interval then measures missing coverage only.
    """
    S, A = data.num_states, data.num_actions
    pairs = S * A
    seen = np.flatnonzero(data.seen)
    rho = data.distribution.ravel()[seen]
    first = (data.start[:, None] * policy).ravel()
    follow = np.einsum("xt,ta->xta", data.kernel.reshape(-1, S)[seen], policy).reshape(len(seen), pairs)
    residual = np.eye(pairs)[seen] - data.discount * follow
    u = utility.ravel()[seen]
    box = [data.value_box(utility)] * pairs + [(0.0, None)] * len(seen)
    penalty = data.horizon * weights.bound * rho
    # p >= -dbar for the lower end, p >= dbar for the upper
    low = linprog(
        np.concatenate([first, penalty]),
        A_ub=np.hstack([-residual, -np.eye(len(seen))]),
        b_ub=-u,
        bounds=box,
        method="highs",
    )
    high = linprog(
        np.concatenate([-first, penalty]),
        A_ub=np.hstack([residual, -np.eye(len(seen))]),
        b_ub=u,
        bounds=box,
        method="highs",
    )
    return float(low.fun), float(-high.fun)
