"""The critics' programs for every class W and F: linear programs by HiGHS, cone programs by Clarabel.

They carry the state values `V(s) = f(s, pi)` as variables of their own. Then the policy enters in the S rows
that define V and nowhere else, so from one iteration to the next S*A coefficients change and the solver goes
on from its last basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy import sparse

from slater.cones import Block, cone_program
from slater.tabular._check import Float
from slater.tabular.bellman import Atoms
from slater.tabular.classes import L2Ball, Linear, ValueClass, WeightClass
from slater.tabular.counts import Counts

#: weight of the pessimistic tie-break on pairs without data, whose value the data do not pin down;
#: it must exceed the solver's tolerance on reduced costs (1e-7) and be small against rho
TIE_BREAK = 1e-6

#: policy coefficients that moved less than this stay as they are in the solver's model
COEFFICIENT_TOLERANCE = 1e-10


@dataclass(eq=False)
class Program:
    """`min cost.x` over `lower <= x <= upper`, `row_lower <= matrix x <= row_upper`.

    Columns: f (S*A), V (S), theta (d, for linear F), then the variables of W, the last of which is t,
    the Bellman error. Rows: the S definitions of V come first.
    """

    cost: Float
    lower: Float
    upper: Float
    matrix: sparse.csr_array
    row_lower: Float
    row_upper: Float


def assemble(
    data: Counts, utility: Float, sign: int, weights: WeightClass, values: ValueClass, weight: float
) -> Program:
    """The program of one critic, for a policy that is yet to come; arguments as in `critics.Critic`."""
    S, A = data.num_states, data.num_actions
    pairs = S * A
    atoms = Atoms.of(data, weights)
    low, high = data.value_box(utility)
    features = values.checked(S, A) if isinstance(values, Linear) else np.zeros((pairs, 0))
    d = features.shape[1]
    base = pairs + S + d

    # delta = select f - gamma follow V - u, as a matrix over the columns (f, V, theta)
    m = len(atoms.pair)
    select = sparse.csr_array((np.ones(m), (np.arange(m), atoms.pair)), (m, pairs))
    parts = [select, -data.discount * atoms.follow, sparse.csr_array((m, d))]
    u = utility.ravel()[atoms.pair]
    rows, row_lower, row_upper = _weight_rows(weights, sparse.csr_array(sparse.hstack(parts)), u, atoms)
    extra = rows.shape[1] - base
    rest = sparse.csr_array((S, extra))
    blocks = [[sparse.csr_array((S, pairs)), sparse.eye_array(S), sparse.csr_array((S, d)), rest]]
    if d:
        blocks.append([sparse.eye_array(pairs), None, -sparse.csr_array(features), None])
    defined = sparse.block_array(blocks)
    zeros = np.zeros(defined.shape[0])

    # scaling the objective by the number of pairs keeps its coefficients near one at any size
    rho = data.distribution
    cost = np.zeros(base + extra)
    cost[:pairs] = sign * (TIE_BREAK * ~data.seen - rho).ravel()
    cost[pairs : pairs + S] = sign * rho.sum(axis=1)
    cost[-1] = weight
    free = np.full(d, np.inf)
    return Program(
        cost * pairs,
        np.concatenate([np.full(pairs + S, low), -free, np.zeros(extra)]),
        np.concatenate([np.full(pairs + S, high), free, np.full(extra, np.inf)]),
        sparse.csr_array(sparse.vstack([defined, rows])),
        np.concatenate([zeros, row_lower]),
        np.concatenate([zeros, row_upper]),
    )


def _weight_rows(
    weights: WeightClass, delta: sparse.csr_array, u: Float, atoms: Atoms
) -> tuple[Any, Float, Float]:
    """The rows, with bounds, that make t at least E_D; `delta` maps (f, V, theta) to residuals plus `u`."""
    if isinstance(weights, L2Ball):  # the cone rows are added by the conic solver
        return sparse.csr_array((0, delta.shape[1] + 1)), np.zeros(0), np.zeros(0)
    # p >= delta, p >= 0;  bound * sum mass p <= t;  bound * (sum mass p - E delta) <= t
    m, mass, bound = len(u), atoms.mass, weights.bound
    mean, row = sparse.csr_array((mass @ delta)[None]), bound * sparse.csr_array(mass[None])
    minus = sparse.csr_array([[-1.0]])
    rows = sparse.block_array(
        [[-delta, sparse.eye_array(m), None], [None, row, minus], [-bound * mean, row, minus]]
    )
    low = np.concatenate([-u, [-np.inf, -np.inf]])
    high = np.concatenate([np.full(m, np.inf), [0.0, -bound * float(mass @ u)]])
    return rows, low, high


class Simplex:
    """HiGHS with its model and basis kept from one policy to the next."""

    def __init__(self, program: Program, shape: tuple[int, int]):
        self._states, self._actions = shape
        # the definition rows start with the coefficients of a policy that never occurs, so that the
        # entries exist in the matrix and later changes do not alter its sparsity
        S, A = shape
        rows, cols = np.repeat(np.arange(S), A), np.arange(S * A)
        start = sparse.csr_array((np.full(S * A, -1.0 / A), (rows, cols)), shape=program.matrix.shape)
        matrix = sparse.csc_array(program.matrix + start)
        self._policy = np.full(shape, 1.0 / A)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(program.cost), len(program.row_lower)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
        lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
        lp.a_matrix_.value_ = matrix.data
        self._highs = highspy.Highs()
        # primal simplex needs the fewest pivots after a change of coefficients; presolve discards the basis
        options = {
            "output_flag": False,
            "presolve": "off",
            "solver": "simplex",
            "simplex_strategy": 4,
            "threads": 1,
        }
        for option, value in options.items():
            self._highs.setOptionValue(option, value)
        self._highs.passModel(lp)

    def solve(self, policy: Float) -> Float:
        """The program's variables at the optimum for a policy `(S, A)`."""
        highs = self._highs
        moved = np.abs(policy - self._policy) > COEFFICIENT_TOLERANCE
        for s, a in np.argwhere(moved).tolist():
            highs.changeCoeff(s, s * self._actions + a, -float(policy[s, a]))
        self._policy = np.where(moved, policy, self._policy)
        for last in (False, True):
            highs.run()
            if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                return np.array(highs.getSolution().col_value)
            if not last:  # numerical trouble from an old basis: start again from none
                highs.clearSolver()
        raise RuntimeError(f"the critic's linear program ended as {highs.getModelStatus()}")


class Conic:
    """Clarabel for the L2 ball: `radius * || sqrt(mass) * delta || <= t`."""

    def __init__(self, program: Program, data: Counts, utility: Float, weights: L2Ball):
        self._program = program
        self._shape = (data.num_states, data.num_actions)
        atoms = Atoms.of(data, weights)
        root = weights.radius * np.sqrt(atoms.mass)
        count, width = len(root), len(program.cost)
        select = sparse.csr_array((root, (np.arange(count), atoms.pair)), shape=(count, data.seen.size))
        follow = -data.discount * sparse.diags_array(root) @ atoms.follow
        rest = sparse.csr_array((count, width - select.shape[1] - follow.shape[1]))
        body = sparse.hstack([select, follow, rest])
        head = sparse.csr_array(([-1.0], ([0], [width - 1])), shape=(1, width))
        # Clarabel: A x + s = b with s in the cone (t, root * (delta))
        self._cone = sparse.vstack([head, -body])
        self._cone_b = np.concatenate([[0.0], -root * utility.ravel()[atoms.pair]])

    def solve(self, policy: Float) -> Float:
        """The program's variables at the optimum for a policy `(S, A)`."""
        p = self._program
        S, A = self._shape
        rows, cols = np.repeat(np.arange(S), A), np.arange(S * A)
        define = sparse.csr_array((-policy.ravel(), (rows, cols)), shape=p.matrix.shape)
        eye = sparse.eye_array(len(p.cost), format="csr")
        high, low = np.flatnonzero(np.isfinite(p.upper)), np.flatnonzero(np.isfinite(p.lower))
        blocks: list[Block] = [
            (p.matrix + define, p.row_upper, "zero"),
            (eye[high], p.upper[high], "nonnegative"),
            (-eye[low], -p.lower[low], "nonnegative"),
            (self._cone, self._cone_b, "second-order"),
        ]
        solution, _, wrong = cone_program(sparse.csc_array((len(p.cost), len(p.cost))), p.cost, blocks)
        if wrong:
            raise RuntimeError(f"the critic's cone program ended as {wrong}")
        return solution
