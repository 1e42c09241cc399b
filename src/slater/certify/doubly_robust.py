"""A control variate for importance weights: what a fitted Q explains of an episode's cost, with mean zero.

    D = sum_t w_t (c_t - Q(s_t, a_t, t)) + w_{t-1} V(s_t, t),      V(s, t) = E_pi Q(s, a, t),   w_{-1} = 1

has the policy's expected cost as its mean for any Q that was fitted to other episodes: here to those before
(`fits`), so that D may be bet on as it comes. Q is clipped to what is left of an episode at its most, so that
D has a range where weights have one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset

F64 = NDArray[np.float64]

#: Q is fitted anew when the episodes so far are this share of all; before the first it is 0
REFITS = (0.1, 0.25, 0.5)


def fits(episodes: int) -> list[tuple[int, int]]:
    """From which episode to which a fit to all episodes before is used: (begin, end) of each."""
    begins = sorted({int(share * episodes) for share in REFITS} - {0})
    return list(zip(begins, [*begins[1:], episodes][: len(begins)], strict=True))


class _LinearQ:
    """Fitted Q by least squares (LSTD) on features of state, action and time."""

    def __init__(self, data: Dataset, rows: NDArray[np.int64], horizon: int) -> None:
        self.mean = data.observations[rows].mean(axis=0, dtype=np.float64)
        self.scale = np.maximum(data.observations[rows].std(axis=0, dtype=np.float64), 1e-12)
        self.actions = data.num_actions if data.discrete else 0
        self.horizon = horizon

    def state(self, observations: NDArray[Any], time: F64) -> tuple[F64, F64, F64]:
        """Normalised states (n, o), features of them (n, 1 + 2o), and the share of steps left (n, 1)."""
        s = np.clip((observations - self.mean) / self.scale, -5.0, 5.0)
        left = (self.horizon - time[:, None]) / self.horizon
        return s, np.concatenate([np.ones_like(left), s, s**2], axis=1), left

    def features(self, observations: NDArray[Any], actions: NDArray[Any], time: F64) -> F64:
        """Shape (n, features); discrete actions are numbers, or probabilities (n, actions)."""
        s, state, left = self.state(observations, time)
        if self.actions:
            one = np.asarray(actions)
            one = np.eye(self.actions)[one.astype(np.int64)] if one.ndim == 1 else one
            parts = (one[:, :, None] * state[:, None, :]).reshape(len(s), -1)
        else:
            a = np.asarray(actions, dtype=np.float64).reshape(len(s), -1)
            cross = (a[:, :, None] * s[:, None, :]).reshape(len(s), -1)
            parts = np.concatenate([state, a, a**2, cross], axis=1)
        # nothing can be earned once no step is left
        return np.asarray(np.concatenate([parts * left, state * left**2], axis=1))


def controlled(
    data: Dataset,
    members: list[tuple[float, Any]],
    cumulative: F64,
    chosen: NDArray[np.int64],
    horizon: int,
    most: F64,
    rng: np.random.Generator,
) -> F64:
    """D of every episode and cost, (E, I), of a mixture of `members` with shares.

    cumulative: (K, E, T) weights w_t; chosen: numbers of the E episodes in the data; most: (I,) of a step.
    """
    table = data.episodes
    spans = [np.arange(table.starts[number], table.stops[number]) for number in chosen]
    owner = np.concatenate([np.full(len(span), e) for e, span in enumerate(spans)])
    rows = np.concatenate(spans)
    time = np.concatenate([np.arange(len(span), dtype=np.float64) for span in spans])
    step = time.astype(np.int64)
    last = np.concatenate([np.arange(len(span)) == len(span) - 1 for span in spans])
    costs = data.costs[rows].astype(np.float64)
    values = np.zeros((len(chosen), costs.shape[1]))
    for k, (share, member) in enumerate(members):
        weight = cumulative[k][owner, step]
        earlier = np.where(step > 0, cumulative[k][owner, np.maximum(step - 1, 0)], 1.0)
        terms = weight[:, None] * costs
        # of a policy that cannot act only the weights are known, so that nothing is explained away
        for begin, end in fits(len(chosen)) if hasattr(member, "act") else ():
            before, use = owner < begin, (owner >= begin) & (owner < end)
            q = _LinearQ(data, rows[before], horizon)
            seen = data.observations[rows[before]]
            now = q.features(seen, data.actions[rows[before]], time[before])
            following = np.zeros_like(now)
            # E_pi of the features: exact where actions have probabilities, one draw otherwise
            p = _probabilities(q, member, seen)
            own = np.asarray(member.act(seen, rng=rng)) if p is None else p
            ahead = q.features(seen, own, time[before])
            following[:-1] = ahead[1:]
            following[last[before]] = 0.0
            A = now.T @ (now - following) + 1e-3 * len(now) / 100 * np.eye(now.shape[1])
            theta = np.linalg.lstsq(A, now.T @ costs[before], rcond=None)[0]
            ceiling = (horizon - time[use])[:, None] * most
            taken = q.features(data.observations[rows[use]], data.actions[rows[use]], time[use]) @ theta
            mean = _state_values(q, member, theta, data.observations[rows[use]], time[use], ceiling, rng)
            terms[use] -= weight[use][:, None] * np.clip(taken, 0.0, ceiling)
            terms[use] += earlier[use][:, None] * mean
        np.add.at(values, owner, share * terms)
    return values


def _probabilities(q: _LinearQ, member: Any, observations: NDArray[Any]) -> F64 | None:
    says = getattr(member, "probabilities", None)
    if not q.actions or says is None:
        return None
    return np.asarray(says(observations), dtype=np.float64)[:, : q.actions]


def _state_values(
    q: _LinearQ, member: Any, theta: F64, observations: NDArray[Any], time: F64, ceiling: F64,
    rng: np.random.Generator,
) -> F64:  # fmt: skip
    """V = E_pi of the clipped Q, (n, I): a sum, or one draw, whose noise has mean zero."""
    p = _probabilities(q, member, observations)
    if p is None:
        own = np.asarray(member.act(observations, rng=rng))
        return np.clip(q.features(observations, own, time) @ theta, 0.0, ceiling)
    _, state, left = q.state(observations, time)
    split = q.actions * state.shape[1]
    of_action = np.einsum("nf,afi->nai", state, theta[:split].reshape(q.actions, state.shape[1], -1))
    each = left[:, :, None] * of_action + (left**2 * (state @ theta[split:]))[:, None, :]
    return np.asarray(np.einsum("na,nai->ni", p, np.clip(each, 0.0, ceiling[:, None, :])))
