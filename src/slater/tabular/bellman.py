"""The two formulas that every critic is made of: the Bellman error E_D and the advantage A_D.

delta(s, a, s') = f(s, a) - U(s, a) - gamma f(s', pi)
dbar(s, a)      = f(s, a) - U(s, a) - gamma sum_s' Phat(s' | s, a) f(s', pi)
E_D(pi, f; U)   = max_{w in W} |E_D[w(s, a) delta(s, a, s')]|
A_D(pi, f)      = E_D[f(s, pi) - f(s, a)]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from slater.tabular._check import Float, Int
from slater.tabular.classes import L2Ball, PerSampleBox, WeightClass
from slater.tabular.counts import Counts


def bellman_residual(data: Counts, policy: Float, f: Float, utility: Float) -> Float:
    """dbar, shape `(S, A)`: the mean Bellman residual of each pair; zero where there are no data."""
    V = np.einsum("sa,sa->s", policy, f)
    return np.where(data.seen, f - utility - data.successors.lookahead(V, data.discount), 0.0)


def bellman_error(data: Counts, policy: Float, f: Float, utility: Float, weights: WeightClass) -> float:
    """`E_D(pi, f; U)` for a class W, in units of the utility."""
    atoms = Atoms.of(data, weights)
    V = np.einsum("sa,sa->s", policy, f)
    delta = f.ravel()[atoms.pair] - utility.ravel()[atoms.pair] - data.discount * (atoms.follow @ V)
    if isinstance(weights, L2Ball):
        return weights.radius * float(np.sqrt(atoms.mass @ delta**2))
    up, down = atoms.mass @ np.maximum(delta, 0), atoms.mass @ np.maximum(-delta, 0)
    return weights.bound * float(max(up, down))


def advantage(data: Counts, policy: Float, f: Float) -> float:
    """`A_D(pi, f) = E_D[f(s, pi) - f(s, a)]`, in units of f."""
    rho = data.distribution
    return float(np.sum(rho.sum(axis=1, keepdims=True) * policy * f) - np.sum(rho * f))


@dataclass(frozen=True, eq=False)
class Atoms:
    """What a weight function can tell apart: pairs, or for the per-sample form triples (s, a, s').

    pair: (m,) flat pair index; mass: (m,) share of the data; follow: distribution of the next state, sparse
    (m, S), whose rows sum to less than 1 at true ends.
    """

    pair: Int
    follow: sparse.csr_array
    mass: Float

    @classmethod
    def of(cls, data: Counts, weights: WeightClass) -> Atoms:
        """The atoms of a dataset for a class W."""
        S, total = data.num_states, data.pair_counts.sum()
        if not isinstance(weights, PerSampleBox):
            pair = np.flatnonzero(data.seen)
            follow = sparse.csr_array(data.successors.rows[pair])
            return cls(pair, follow, data.pair_counts.ravel()[pair] / total)
        triples = data.transition_counts.tocoo()
        order = np.lexsort((triples.col, triples.row))
        pair, state = triples.row[order].astype(np.int64), triples.col[order]
        follow = sparse.csr_array((np.ones(len(pair)), (np.arange(len(pair)), state)), shape=(len(pair), S))
        mass = triples.data[order] / total
        ended = np.flatnonzero(data.ends)
        if len(ended):
            pair = np.concatenate([pair, ended])
            follow = sparse.csr_array(sparse.vstack([follow, sparse.csr_array((len(ended), S))]))
            mass = np.concatenate([mass, data.ends.ravel()[ended] / total])
        return cls(pair, follow, mass)
