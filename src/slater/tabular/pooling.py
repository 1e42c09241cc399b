"""Rows of rarely visited pairs lean on their state: how much, the data say themselves.

A pair that was seen once has a row `Phat(. | s, a)` that is one draw. Whoever maximises over such rows takes
those whose draw was lucky, and believes that luck to the last digit. What followed the *other* actions of the
state says more: each row gets `k` more visits, spread as all that followed the state,

    P(s' | s, a) = (N(s, a, s') + k Pbar(s' | s)) / (N(s, a) + k),   Pbar(s' | s) = sum_a N(s, a, s') / N(s)

(the mean of a Dirichlet posterior whose prior is the state's average, after Robbins' empirical Bayes). `k`
is the number that predicts each logged transition best from all the others: where actions make little
difference it is large, where each action leads elsewhere it is zero and nothing changes. Rows with many
visits keep what they say. Pairs without data stay without.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse

from slater.errors import InputError
from slater.tabular.counts import Counts

#: numbers of borrowed visits that are tried; below the least of them nothing is borrowed
TRIED = 2.0 ** np.arange(-2, 11)


def best_borrowing(data: Counts) -> float:
    """The number of visits to borrow that predicts the logged transitions best, each from all the others.

    Transitions that no other of the same state repeats say nothing about it and are left out. Zero where
    the least number tried is the best one, or where nothing is repeated.
    """
    table = _extended(data)
    logged = table.tocoo()
    state = logged.row // data.num_actions
    in_state = np.asarray(_by_state(data, table)[state, logged.col]).ravel()
    left_out = np.minimum(logged.data, 1.0)  # a step that is weighted counts less than one
    use = in_state - left_out > 1e-12
    if not use.any():
        return 0.0
    one, n = left_out[use], logged.data[use]
    own, others = data.pair_counts.ravel()[logged.row[use]] - one, data.state_counts[state[use]] - one
    average = (in_state[use] - one) / others
    scores = [n @ np.log((n - one + k * average) / (own + k)) for k in TRIED]
    best = int(np.argmax(scores))
    return float(TRIED[best]) if best > 0 else 0.0


def pooled(data: Counts, borrowed: float | None = None) -> Counts:
    """The data with `borrowed` visits from its state in each seen row; None: as `best_borrowing` says.

    Numbers of visits, rewards and costs stay; the next states are shared out anew.
    """
    if data.borrowed:
        raise InputError("these data have been pooled already; pool the log as it was recorded.")
    k = best_borrowing(data) if borrowed is None else borrowed
    if not k >= 0.0 or not np.isfinite(k):
        raise InputError(f"the number of borrowed visits is {k:g}, but it must not be negative.")
    if k == 0.0:
        return data
    A, N = data.num_actions, data.pair_counts.ravel()
    seen = np.flatnonzero(N)
    lent = np.zeros(len(N))
    lent[seen] = k * N[seen] / (N[seen] + k)
    counts, of_state = _extended(data), np.maximum(data.state_counts, 1e-300)
    state_of = sparse.csr_array(
        (lent[seen] / of_state[seen // A], (seen, seen // A)), shape=(len(N), data.num_states)
    )
    kept = sparse.diags_array(np.where(N > 0, N / (N + k), 0.0))
    shared = sparse.csr_array(kept @ counts + state_of @ _by_state(data, counts))
    shared.sum_duplicates()
    return dataclasses.replace(
        data,
        transition_counts=sparse.csr_array(shared[:, :-1]),
        ends=np.asarray(shared[:, [-1]].toarray()).reshape(data.ends.shape),
        borrowed=k,
    )


def _extended(data: Counts) -> sparse.csr_array:
    """Counts `(S*A, S + 1)`: the last column is the end of an episode."""
    return sparse.csr_array(
        sparse.hstack([data.transition_counts, sparse.csr_array(data.ends.reshape(-1, 1))])
    )


def _by_state(data: Counts, counts: sparse.csr_array) -> sparse.csr_array:
    """What followed each state, `(S, S + 1)`."""
    S, A = data.ends.shape
    sums = sparse.csr_array((np.ones(S * A), (np.repeat(np.arange(S), A), np.arange(S * A))), (S, S * A))
    return sparse.csr_array(sums @ counts)
