"""The transition probabilities of a finite process, and the linear systems that they define.

Rows `P(. | s, a)` are kept sparse, `(S*A, S)`. Two systems are solved over and over, for a policy's
transition matrix `P_pi(s, s') = sum_a pi(a|s) P(s'|s, a)`:

    values   V = u + discount P_pi V              flows   z = b + discount P_pi' z

Small problems are solved densely and in batches of policies, as they always were: their results are the
same to the last bit. Larger ones factorise one dense matrix a policy, and the largest iterate, with the
residual as a certificate: the error of V is at most `max |residual| / (1 - discount)`, that of z in sum of
absolute values likewise.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lu_factor, lu_solve
from scipy.sparse.linalg import LinearOperator, gmres, splu

from slater.errors import InputError
from slater.tabular._check import SUM_TOLERANCE, Float, Int

#: up to this many entries S*A*S the dense path of the paper's problems is taken
SMALL = 2**15

#: up to this many states one dense factorisation is quicker than iterating (8 ms at 716 states)
DENSE_STATES = 800

#: largest error of an iterated solution, relative to its largest entry
TOLERANCE = 1e-12


class Kernel:
    """Sparse rows `(S*A, S)` of a process with S states and A actions; rows may sum to less than one."""

    def __init__(self, rows: Any, actions: int):
        self.rows = sparse.csr_array(rows)
        self.actions = actions
        self.states = self.rows.shape[1]

    @classmethod
    def of(cls, dense: Float) -> Kernel:
        """From an array `(S, A, S)`."""
        S, A, _ = dense.shape
        kernel = cls(dense.reshape(S * A, S), A)
        if kernel.small:
            kernel.__dict__["dense"] = dense
        return kernel

    @property
    def small(self) -> bool:
        """Whether the dense path is taken."""
        return self.states * self.actions * self.states <= SMALL

    @cached_property
    def dense(self) -> Float:
        """The rows as an array `(S, A, S)`; not for large problems."""
        array = self.rows.toarray().reshape(self.states, self.actions, self.states)
        array.setflags(write=False)
        return array

    @cached_property
    def transposed(self) -> sparse.csr_array:
        """The rows' transpose, `(S, S*A)`, for flows."""
        return sparse.csr_array(self.rows.T)

    def lookahead(self, values: Float, discount: float) -> Float:
        """`discount sum_s' P(s'|s, a) V(s')`, shape `(S, A)`, of values `(S,)`."""
        if self.small:
            return np.asarray(discount * self.dense @ values)
        return discount * (self.rows @ values).reshape(self.states, self.actions)

    def under(self, policy: Float) -> sparse.csr_array:
        """`P_pi`, sparse `(S, S)`, of a policy `(S, A)` (or of any weights of pairs)."""
        S, A = self.states, self.actions
        used = policy.ravel() != 0.0
        counts = np.concatenate([[0], np.cumsum(used.reshape(S, A).sum(axis=1))])
        weights = sparse.csr_array((policy.ravel()[used], np.flatnonzero(used), counts), shape=(S, S * A))
        return sparse.csr_array(weights @ self.rows)

    def values(self, policy: Float, utility: Float, discount: float) -> Float:
        """`V` of policies `(K, S, A)` for expected utilities `(K, S, m)` of their steps; of one: `(S,)`."""
        return self._solved(policy, utility, discount, transposed=False)

    def flows(self, policy: Float, inflow: Float, discount: float) -> Float:
        """`z` of policies for an inflow a step; shapes as in `values`."""
        return self._solved(policy, inflow, discount, transposed=True)

    def _solved(self, policy: Float, right: Float, discount: float, *, transposed: bool) -> Float:
        if policy.ndim == 2:
            return self._solved(policy[None], right[None, :, None], discount, transposed=transposed)[0, :, 0]
        if self.small:
            P_pi = np.einsum("ksa,sat->kst", policy, self.dense)
            P_pi = P_pi.transpose(0, 2, 1) if transposed else P_pi
            return np.linalg.solve(np.eye(self.states) - discount * P_pi, right)
        systems = (Resolvent(self.under(one), discount) for one in policy)
        pairs = zip(systems, right, strict=True)
        return np.array([system.flows(x) if transposed else system.values(x) for system, x in pairs])

    def draw(self, pairs: Int, rng: np.random.Generator) -> Int:
        """A next state for each pair index (flat, `(n,)`), rows taken as distributions; shape `(n,)`."""
        # the running sum of all rows together rises by one a row, so one search serves every row
        base = self._cumulative[self.rows.indptr[pairs] - 1]
        base = np.where(self.rows.indptr[pairs] > 0, base, 0.0)
        top = self._cumulative[self.rows.indptr[pairs + 1] - 1]
        place = np.searchsorted(self._cumulative, base + rng.random(len(pairs)) * (top - base), side="right")
        place = np.clip(place, self.rows.indptr[pairs], self.rows.indptr[pairs + 1] - 1)
        return self.rows.indices[place].astype(np.int64)

    @cached_property
    def _cumulative(self) -> Float:
        return np.cumsum(self.rows.data)


class Resolvent:
    """`(I - discount P)^-1` for one substochastic matrix P `(S, S)`, factorised or iterated."""

    def __init__(self, matrix: Any, discount: float):
        self._matrix = matrix
        self._discount = discount
        self._states = matrix.shape[0]

    def values(self, right: Float, *, transposed: bool = False) -> Float:
        """The solution X of `X = right + discount P X`, for `right` of shape `(S,)` or `(S, m)`."""
        if self._states <= DENSE_STATES:
            return np.asarray(lu_solve(self._factors, right, trans=int(transposed), check_finite=False))
        columns = right[:, None] if right.ndim == 1 else right
        solved = [self._iterate(column, transposed=transposed) for column in columns.T]
        return np.stack(solved, axis=1).reshape(right.shape)

    def flows(self, right: Float) -> Float:
        """The same of `X = right + discount P' X`."""
        return self.values(right, transposed=True)

    @cached_property
    def _factors(self) -> Any:
        dense = self._matrix.toarray() if sparse.issparse(self._matrix) else np.array(self._matrix)
        dense *= -self._discount
        dense[np.diag_indices(self._states)] += 1.0
        return lu_factor(dense, overwrite_a=True, check_finite=False)

    def _iterate(self, right: Float, *, transposed: bool) -> Float:
        """GMRES until its certificate holds, and a sparse factorisation if it does not."""
        matrix = sparse.csr_array(self._matrix.T) if transposed else self._matrix
        order = 1 if transposed else np.inf
        size = float(np.linalg.norm(right, order))
        if size == 0.0:
            return np.zeros_like(right)

        def apply(x: Float) -> Float:
            return np.asarray(x - self._discount * (matrix @ x))

        operator = LinearOperator((self._states, self._states), matvec=apply, dtype=np.float64)
        x = np.zeros_like(right)
        # the solution is at least as large as the right side over (1 + discount); two rounds of
        # refinement bring the residual from GMRES' own norm to the one that bounds the error
        for left in (4, 3, 2, 1, 0):
            residual = right - apply(x)
            error = float(np.linalg.norm(residual, order)) / (1.0 - self._discount)
            if error <= TOLERANCE * max(float(np.linalg.norm(x, order)), size):
                return x
            if left:
                x = x + gmres(operator, residual, rtol=1e-8, atol=0.0, restart=60, maxiter=6)[0]
        factors = splu(sparse.csc_array(sparse.eye_array(self._states) - self._discount * self._matrix))
        return np.asarray(factors.solve(right, trans="T" if transposed else "N"))


def policy_iteration(
    kernel: Kernel, utility: Float, discount: float, choice: Int
) -> tuple[Int, Float, Resolvent]:
    """Howard's policy iteration for `utility` `(S, A)` from the actions `choice` `(S,)`.

    Returns the best actions, their Q `(S, A)`, and the resolvent of their transition matrix.
    """
    S, A = utility.shape
    for _ in range(S * A + 100):
        chosen = np.arange(S) * A + choice
        resolvent = Resolvent(sparse.csr_array(kernel.rows[chosen]), discount)
        Q = utility + kernel.lookahead(resolvent.values(utility.ravel()[chosen]), discount)
        better = improved(Q, choice, 1e-11)
        if better is None:
            break
        choice = better
    return choice, Q, resolvent


def improved(Q: Float, choice: Int, tolerance: float = 1e-10) -> Int | None:
    """Better actions `(S,)` than `choice` by Q `(S, A)`, or None if there are none.

    An action changes only for a real gain, so that ties cannot make an iteration cycle.
    """
    states, best = np.arange(len(Q)), np.argmax(Q, axis=1)
    gains = Q[states, best] - Q[states, choice] > tolerance * (1.0 + np.abs(Q).max())
    return np.where(gains, best, choice) if gains.any() else None


def check_rows(name: str, matrix: Any) -> Kernel:
    """A sparse matrix `(S*A, S)` of transition probabilities as a kernel, each row normalised exactly."""
    rows = sparse.csr_array(matrix, dtype=np.float64)
    rows.sum_duplicates()
    pairs, S = rows.shape
    if S == 0 or pairs == 0 or pairs % S:
        raise InputError(
            f"{name} is a sparse matrix of shape {rows.shape}, but (S*A, S) is needed: a row of successors "
            "for each state and action, the actions of one state together."
        )
    if not np.all(np.isfinite(rows.data)) or (rows.data < 0).any():
        bad = rows.data[~np.isfinite(rows.data) | (rows.data < 0)][0]
        raise InputError(f"{name} has an entry {bad:g}, but every entry must be a probability.")
    sums = np.asarray(rows.sum(axis=1)).ravel()
    wrong = np.flatnonzero(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if len(wrong):
        raise InputError(
            f"the probabilities of row {wrong[0]} of {name} sum to {sums[wrong[0]]:.6g}, "
            "but they must sum to 1."
        )
    rows.eliminate_zeros()
    rows.data = rows.data / np.repeat(sums, np.diff(rows.indptr))
    return Kernel(rows, pairs // S)
