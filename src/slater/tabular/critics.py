"""Critics: the two formulas E_D and A_D, and the programs that minimise their sum.

    delta(s, a, s') = f(s, a) - U(s, a) - gamma f(s', pi)
    dbar(s, a)      = f(s, a) - U(s, a) - gamma sum_s' Phat(s' | s, a) f(s', pi)
    E_D(pi, f; U)   = max_{w in W} |E_D[w(s, a) delta(s, a, s')]|
    A_D(pi, f)      = E_D[f(s, pi) - f(s, a)]

    reward critic   f = argmin_{f in F} 2 E_D(pi, f; R)   + A_D(pi, f)      (pessimistic for reward)
    cost critic     g = argmin_{g in F} 2 E_D(pi, g; C_i) - A_D(pi, g)      (pessimistic for cost)

The programs carry the state values `V(s) = f(s, pi)` as variables of their own. Then the policy enters
in the S rows that define V and nowhere else, so from one iteration to the next S*A coefficients change
and the solver goes on from its last basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import clarabel
import highspy
import numpy as np
from scipy import sparse

from slater.errors import InputError
from slater.tabular._check import Float, Int
from slater.tabular.box_critics import BoxCritics
from slater.tabular.classes import (
    Box,
    FiniteList,
    L2Ball,
    Linear,
    NormalisedBox,
    PerSampleBox,
    Tabular,
    ValueClass,
    WeightClass,
)
from slater.tabular.counts import Counts

__all__ = ["Critic", "CriticBank", "advantage", "bellman_error", "bellman_residual"]

#: weight of the pessimistic tie-break on pairs without data, whose value the data do not pin down;
#: it must exceed the solver's tolerance on reduced costs (1e-7) and be small against rho
TIE_BREAK = 1e-6

#: policy coefficients that moved less than this stay as they are in the solver's model
COEFFICIENT_TOLERANCE = 1e-10


# -- the two formulas -----------------------------------------------------------------------------


def bellman_residual(data: Counts, policy: Float, f: Float, utility: Float) -> Float:
    """dbar, shape `(S, A)`: the mean Bellman residual of each pair; zero where there are no data."""
    V = np.einsum("sa,sa->s", policy, f)
    return np.where(data.seen, f - utility - data.successors.lookahead(V, data.discount), 0.0)


def bellman_error(data: Counts, policy: Float, f: Float, utility: Float, weights: WeightClass) -> float:
    """`E_D(pi, f; U)` for a class W, in units of the utility."""
    atoms = _Atoms.of(data, weights)
    V = np.einsum("sa,sa->s", policy, f)
    delta = f.ravel()[atoms.pair] - utility.ravel()[atoms.pair] - data.discount * (atoms.follow @ V)
    match weights:
        case Box(bound) | PerSampleBox(bound):
            return bound * float(max(atoms.mass @ np.maximum(delta, 0), atoms.mass @ np.maximum(-delta, 0)))
        case NormalisedBox(bound):
            return max(_worst_mean(delta, atoms.mass, bound), _worst_mean(-delta, atoms.mass, bound))
        case L2Ball(radius):
            return radius * float(np.sqrt(atoms.mass @ delta**2))
        case FiniteList():
            return float(np.abs(_list_masses(weights, data, atoms) @ delta).max())


def advantage(data: Counts, policy: Float, f: Float) -> float:
    """`A_D(pi, f) = E_D[f(s, pi) - f(s, a)]`, in units of f."""
    rho = data.distribution
    return float(np.sum(rho.sum(axis=1, keepdims=True) * policy * f) - np.sum(rho * f))


def _worst_mean(delta: Float, mass: Float, bound: float) -> float:
    """`max E[w delta]` over `0 <= w <= bound, E[w] = 1`: fill the largest residuals first."""
    order = np.argsort(-delta)
    filled = np.minimum(np.cumsum(bound * mass[order]), 1.0)
    return float(np.diff(filled, prepend=0.0) @ delta[order])


def _list_masses(weights: FiniteList, data: Counts, atoms: _Atoms) -> Float:
    shape = (data.num_states, data.num_actions)
    if weights.weights.shape[1:] != shape:
        raise InputError(
            f"weights has shape {weights.weights.shape}, but (m, {shape[0]}, {shape[1]}) is needed."
        )
    return weights.weights.reshape(len(weights.weights), -1)[:, atoms.pair] * atoms.mass


@dataclass(frozen=True, eq=False)
class _Atoms:
    """What a weight function can tell apart: pairs, or for the per-sample form triples (s, a, s').

    Attributes:
        pair: flat pair index of each atom, shape `(m,)`.
        follow: distribution of its next state, sparse `(m, S)`; rows sum to less than 1 at true ends.
        mass: its share of the data, shape `(m,)`.

    """

    pair: Int
    follow: sparse.csr_array
    mass: Float

    @classmethod
    def of(cls, data: Counts, weights: WeightClass) -> _Atoms:
        S = data.num_states
        total = data.pair_counts.sum()
        if not isinstance(weights, PerSampleBox):
            pair = np.flatnonzero(data.seen)
            return cls(
                pair, sparse.csr_array(data.successors.rows[pair]), data.pair_counts.ravel()[pair] / total
            )
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


# -- the programs ---------------------------------------------------------------------------------


@dataclass(eq=False)
class _Program:
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


class Critic:
    """`argmin_{f in F} weight * E_D(pi, f; U) + sign * A_D(pi, f)`, for one utility and many policies.

    Args:
        data: the dataset.
        utility: `(S, A)`: the reward or one cost.
        sign: +1 pessimistic for a reward, -1 pessimistic for a cost, 0 no advantage term.
        weights: the class W.
        values: the class F.
        weight: of the Bellman error; 2 in the paper.

    """

    def __init__(
        self,
        data: Counts,
        utility: Float,
        sign: int,
        weights: WeightClass | None = None,
        values: ValueClass | None = None,
        weight: float = 2.0,
    ):
        self._data = data
        self._weights = weights if weights is not None else Box()
        self._shape = (data.num_states, data.num_actions)
        self._structured: BoxCritics | None = None
        if sign and _has_structure(data, self._weights, values or Tabular()):
            assert isinstance(self._weights, Box)
            self._structured = BoxCritics(data, utility[None], [sign], self._weights.bound, weight)
            return
        program = _assemble(data, utility, sign, self._weights, values or Tabular(), weight)
        self._solver: _Simplex | _Conic
        if isinstance(self._weights, L2Ball):
            self._solver = _Conic(program, data, utility, self._weights)
        else:
            self._solver = _Simplex(program, self._shape)

    def solve(self, policy: Float) -> Float:
        """The critic of a policy `(S, A)`: f, shape `(S, A)`, J-units."""
        if self._structured is not None:
            return self._structured.solve(policy)[0][0]
        return self._solver.solve(policy)[: policy.size].reshape(self._shape)


def _has_structure(data: Counts, weights: WeightClass, values: ValueClass) -> bool:
    """Whether `box_critics` solves these programs; small ones keep the simplex method, bit for bit."""
    return isinstance(weights, Box) and isinstance(values, Tabular) and not data.successors.small


class CriticBank:
    """The reward's and the costs' critics of PDCA for one policy after another.

    On large problems with `Box` and tabular F they are solved by their structure (`box_critics`), all
    others by one linear or cone program each.
    """

    def __init__(self, data: Counts, weights: WeightClass, values: ValueClass):
        self._structured: BoxCritics | None = None
        self._programs: list[Critic] = []
        utilities = np.concatenate([data.reward[None], data.costs])
        signs = [1] + [-1] * data.num_costs
        if _has_structure(data, weights, values):
            assert isinstance(weights, Box)
            self._structured = BoxCritics(data, utilities, signs, weights.bound)
        else:
            self._programs = [
                Critic(data, utility, sign, weights, values)
                for utility, sign in zip(utilities, signs, strict=True)
            ]

    def solve(self, policy: Float) -> tuple[Float, Float, float]:
        """The critics f `(S, A)`, g `(I, S, A)`, and the largest duality gap of their programs, J-units.

        The gap is NaN where a solver's own tolerance (1e-7) stands for it.
        """
        if self._structured is not None:
            f, gaps = self._structured.solve(policy)
            return f[0], f[1:], float(gaps.max())
        solved = np.array([program.solve(policy) for program in self._programs])
        return solved[0], solved[1:], float("nan")


def _assemble(
    data: Counts, utility: Float, sign: int, weights: WeightClass, values: ValueClass, weight: float
) -> _Program:
    S, A = data.num_states, data.num_actions
    pairs = S * A
    atoms = _Atoms.of(data, weights)
    low, high = data.value_box(utility)
    features = values.checked(S, A) if isinstance(values, Linear) else np.zeros((pairs, 0))
    d = features.shape[1]
    base = pairs + S + d

    # delta = select f - gamma follow V - u, as a matrix over the columns (f, V, theta)
    select = sparse.csr_array(
        (np.ones(len(atoms.pair)), (np.arange(len(atoms.pair)), atoms.pair)), (len(atoms.pair), pairs)
    )
    delta = sparse.csr_array(
        sparse.hstack([select, -data.discount * atoms.follow, sparse.csr_array((len(atoms.pair), d))])
    )
    u = utility.ravel()[atoms.pair]
    extra, rows, row_lower, row_upper = _weight_rows(weights, delta, u, atoms, data)

    definition = sparse.hstack(
        [sparse.csr_array((S, pairs)), sparse.eye_array(S), sparse.csr_array((S, d + len(extra)))]
    )
    blocks, lows, ups = [definition], [np.zeros(S)], [np.zeros(S)]
    if d:
        tie = [sparse.eye_array(pairs), sparse.csr_array((pairs, S)), -sparse.csr_array(features)]
        blocks.append(sparse.hstack([*tie, sparse.csr_array((pairs, len(extra)))]))
        lows.append(np.zeros(pairs))
        ups.append(np.zeros(pairs))
    blocks.append(rows)

    # scaling the objective by the number of pairs keeps its coefficients near one at any size
    rho = data.distribution
    cost = np.zeros(base + len(extra))
    cost[:pairs] = sign * (TIE_BREAK * ~data.seen - rho).ravel()
    cost[pairs : pairs + S] = sign * rho.sum(axis=1)
    cost[-1] = weight
    free = np.full(d, np.inf)
    return _Program(
        cost * pairs,
        np.concatenate([np.full(pairs + S, low), -free, extra]),
        np.concatenate([np.full(pairs + S, high), free, np.full(len(extra), np.inf)]),
        sparse.csr_array(sparse.vstack(blocks)),
        np.concatenate([*lows, row_lower]),
        np.concatenate([*ups, row_upper]),
    )


def _weight_rows(
    weights: WeightClass, delta: sparse.csr_array, u: Float, atoms: _Atoms, data: Counts
) -> tuple[Float, Any, Float, Float]:
    """The rows that make the last variable t at least E_D: lower bounds of W's variables, rows, bounds.

    `delta` maps (f, V, theta) to the residuals plus `u`.
    """
    m, mass = len(u), atoms.mass
    eye, column, none = sparse.eye_array(m), np.ones((m, 1)), np.full
    mean, mean_u = sparse.csr_array((mass @ delta)[None]), float(mass @ u)
    row = sparse.csr_array(mass[None])
    one = sparse.csr_array([[1.0]])
    match weights:
        case Box(bound) | PerSampleBox(bound):
            # p >= delta, p >= 0;  bound * sum mass p <= t;  bound * (sum mass p - E delta) <= t
            rows = sparse.vstack(
                [
                    sparse.hstack([-delta, eye, sparse.csr_array((m, 1))]),
                    sparse.hstack([sparse.csr_array(mean.shape), bound * row, -one]),
                    sparse.hstack([-bound * mean, bound * row, -one]),
                ]
            )
            low = np.concatenate([-u, [-np.inf, -np.inf]])
            return np.zeros(m + 1), rows, low, np.concatenate([none(m, np.inf), [0.0, -bound * mean_u]])
        case NormalisedBox(bound):
            # E_D = max over the two signs of min_c c + bound * sum mass (+-delta - c)_+
            zero, none_m = sparse.csr_array((m, m)), sparse.csr_array((m, 1))
            gap = sparse.csr_array(mean.shape)
            empty = sparse.csr_array((1, m))
            zero1 = sparse.csr_array((1, 1))
            rows = sparse.vstack(
                [
                    sparse.hstack([-delta, eye, zero, column, none_m, none_m]),
                    sparse.hstack([delta, zero, eye, none_m, column, none_m]),
                    sparse.hstack([gap, -bound * row, empty, -one, zero1, one]),
                    sparse.hstack([gap, empty, -bound * row, zero1, -one, one]),
                ]
            )
            extra = np.concatenate([np.zeros(2 * m), [-np.inf, -np.inf, 0.0]])
            return extra, rows, np.concatenate([-u, u, [0.0, 0.0]]), none(2 * m + 2, np.inf)
        case FiniteList():
            # t >= +-E_D[w delta] for each w of the list
            masses = _list_masses(weights, data, atoms)
            means, shift = sparse.csr_array(masses @ delta), masses @ u
            ones = np.ones((len(masses), 1))
            rows = sparse.vstack([sparse.hstack([-means, ones]), sparse.hstack([means, ones])])
            return np.zeros(1), rows, np.concatenate([-shift, shift]), none(2 * len(masses), np.inf)
        case L2Ball():
            # the cone rows are added by the conic solver
            return np.zeros(1), sparse.csr_array((0, delta.shape[1] + 1)), np.zeros(0), np.zeros(0)


class _Simplex:
    """HiGHS with its model and basis kept from one policy to the next."""

    def __init__(self, program: _Program, shape: tuple[int, int]):
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
        for option, value in (
            ("output_flag", False),
            ("presolve", "off"),
            ("solver", "simplex"),
            ("simplex_strategy", 4),
            ("threads", 1),
        ):
            self._highs.setOptionValue(option, value)
        self._highs.passModel(lp)

    def solve(self, policy: Float) -> Float:
        highs = self._highs
        moved = np.abs(policy - self._policy) > COEFFICIENT_TOLERANCE
        for s, a in np.argwhere(moved).tolist():
            highs.changeCoeff(s, s * self._actions + a, -float(policy[s, a]))
        self._policy = np.where(moved, policy, self._policy)
        for attempt in range(2):
            highs.run()
            if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                return np.array(highs.getSolution().col_value)
            if attempt == 0:
                # numerical trouble from an old basis: start again from none
                highs.clearSolver()
        raise RuntimeError(f"the critic's linear program ended as {highs.getModelStatus()}")


class _Conic:
    """Clarabel for the L2 ball: `radius * || sqrt(mass) * delta || <= t`."""

    def __init__(self, program: _Program, data: Counts, utility: Float, weights: L2Ball):
        self._program = program
        self._shape = (data.num_states, data.num_actions)
        atoms = _Atoms.of(data, weights)
        root = weights.radius * np.sqrt(atoms.mass)
        count, width = len(root), len(program.cost)
        select = sparse.csr_array(
            (root, (np.arange(count), atoms.pair)), shape=(count, data.num_states * data.num_actions)
        )
        follow = -data.discount * sparse.diags_array(root) @ atoms.follow
        rest = sparse.csr_array((count, width - select.shape[1] - follow.shape[1]))
        body = sparse.hstack([select, follow, rest])
        head = sparse.csr_array(([-1.0], ([0], [width - 1])), shape=(1, width))
        # Clarabel: A x + s = b with s in the cone (t, root * (delta))
        self._cone = sparse.vstack([head, -body])
        self._cone_b = np.concatenate([[0.0], -root * utility.ravel()[atoms.pair]])
        self._count = count + 1

    def solve(self, policy: Float) -> Float:
        p = self._program
        S, A = self._shape
        rows, cols = np.repeat(np.arange(S), A), np.arange(S * A)
        define = sparse.csr_array((-policy.ravel(), (rows, cols)), shape=p.matrix.shape)
        eye = sparse.eye_array(len(p.cost), format="csr")
        high, low = np.flatnonzero(np.isfinite(p.upper)), np.flatnonzero(np.isfinite(p.lower))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        answer = clarabel.DefaultSolver(
            sparse.csc_matrix((len(p.cost), len(p.cost))),
            p.cost,
            sparse.csc_matrix(sparse.vstack([p.matrix + define, eye[high], -eye[low], self._cone])),
            np.concatenate([p.row_upper, p.upper[high], -p.lower[low], self._cone_b]),
            [
                clarabel.ZeroConeT(len(p.row_upper)),
                clarabel.NonnegativeConeT(len(high) + len(low)),
                clarabel.SecondOrderConeT(self._count),
            ],
            settings,
        ).solve()
        if str(answer.status) not in ("Solved", "AlmostSolved"):
            raise RuntimeError(f"the critic's cone program ended as {answer.status}")
        return np.asarray(answer.x)
