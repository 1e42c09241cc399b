"""The critics' programs for `W = Box` and every function of (s, a), solved by their structure.

The program of a reward critic, with `K = weight * bound` and residuals dbar as in `critics`, is

    min_{low <= f <= high}  K max(sum rho (dbar)_+, sum rho (-dbar)_+)
                            + sum_s rho(s) f(s, pi) - sum_x rho(x) f(x)

(a cost critic is a reward critic of the negated cost). With `theta` in [0, 1] for the maximum of the two
sums and weights w in `[-K (1 - theta), K theta]` for the positive parts, its dual is a flow. Put
`m = rho (1 - w)`, `c(s) = rho(s) - discount sum_x Phat(s|x) rho(x)`:

    z(s)  = c(s) + discount sum_x Phat(s|x) m(x)                  what arrives in a state
    r(x)  = pi(x) z(s) - m(x),   (1 - K theta) rho(x) <= m(x) <= (1 + K (1 - theta)) rho(x)
    G     = max_m sum_x (m(x) - rho(x)) u(x) + low r(x)_+ - high r(x)_-

A pair can pass on between a and b times its share of the data; what does not fit is settled at the ends
of the box of values. Since `low <= u + discount Phat V <= high`, passing on as much as fits is best:
`m(x) = clip(pi(x) z(s), a rho(x), b rho(x))`, for every utility alike. The equation for z is a contraction
(factor: the discount, in sum of absolute values) and piecewise linear: Newton's method on it solves one
linear system a step and ends exactly, with f from the transposed system: `f = low` where the flow is cut
off, `high` where it is missing, and the Bellman equation in between. G is concave and piecewise linear in
theta, and tangents from both sides find its maximum; there the two f are mixed until both sums agree.

G is a lower bound on the program whatever m is, and any f in the box an upper one: their difference is the
duality gap of the program, and it is returned with the critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slater.tabular._check import Float
from slater.tabular._kernel import Resolvent
from slater.tabular.counts import Counts

#: the duality gap at which a critic is solved, as a share of the width of its box of values
TOLERANCE = 1e-8

#: Newton steps on the flow before plain iteration of the contraction takes over
NEWTON_STEPS = 30

#: values of theta tried for one policy; on the problems of the benchmarks six are enough
MOST_TANGENTS = 60


@dataclass(frozen=True, eq=False)
class _Tangent:
    """What one theta says of m utilities: minimisers f (m, S, A), G (m,), and G's slope in theta over K (m,),
    `sum rho (dbar)_+ - sum rho (-dbar)_+`.
    """

    theta: float
    f: Float
    value: Float
    slope: Float


class BoxCritics:
    """The critics of `critics.Critics`, arguments as there, for `Box` with C_infinity `bound`."""

    def __init__(
        self, data: Counts, utilities: Float, signs: Sequence[int], bound: float, weight: float = 2.0
    ):
        self._data = data
        self._signs = np.array(signs, dtype=float)
        self._utilities = self._signs[:, None, None] * np.where(data.seen, utilities, 0.0)
        boxes = np.array([data.value_box(u) for u in utilities])
        ends = self._signs[:, None] * boxes
        self._low, self._high = ends.min(axis=1), ends.max(axis=1)
        self._strength = weight * bound
        self._rho = data.distribution
        self._first = self._rho.sum(axis=1) - data.discount * (data.successors.transposed @ self._rho.ravel())
        self._z = self._rho.sum(axis=1)
        self._theta = np.full(len(signs), 0.5)
        self._width = np.full(len(signs), 0.25)

    def solve(self, policy: Float) -> tuple[Float, Float]:
        """The critics of a policy `(S, A)`: f, shape `(m, S, A)`, and duality gaps `(m,)`; J-units."""
        tangents: list[_Tangent] = []
        solved = [self._search(j, policy, tangents) for j in range(len(self._signs))]
        f = np.array([answer for answer, _ in solved]) * self._signs[:, None, None]
        return f, np.array([gap for _, gap in solved])

    # -- one utility ------------------------------------------------------------------------------

    def _search(self, j: int, policy: Float, tangents: list[_Tangent]) -> tuple[Float, float]:
        """The critic of utility j and its gap; what is learned about theta is kept for the others."""
        tolerance = TOLERANCE * (self._high[j] - self._low[j])
        theta, step = float(self._theta[j]), float(self._width[j])
        best: tuple[Float, float] | None = None
        for _ in range(MOST_TANGENTS):
            left = max((t for t in tangents if t.slope[j] >= 0), key=lambda t: t.theta, default=None)
            right = min((t for t in tangents if t.slope[j] <= 0), key=lambda t: t.theta, default=None)
            if left is not None or right is not None:
                f = self._between(left, right, j)
                lower = max(float(t.value[j]) for t in tangents)
                gap = self._objective(j, policy, f) - lower
                if best is None or gap < best[1]:
                    best = (f, gap)
                if gap <= tolerance or (left is not None and left is right):
                    break
            if left is not None and right is not None:
                theta = self._next(left, right, j)
                if not left.theta < theta < right.theta:
                    break
            elif left is not None:
                if left.theta >= 1.0:
                    break
                theta, step = min(max(theta, left.theta) + step, 1.0), 4.0 * step
            elif right is not None:
                if right.theta <= 0.0:
                    break
                theta, step = max(min(theta, right.theta) - step, 0.0), 4.0 * step
            tangents.append(self._tangent(theta, policy))
        assert best is not None
        near = [t.theta for t in (left, right) if t is not None]
        # the next policy is close to this one: look for its theta near this one's
        moved = abs(sum(near) / len(near) - float(self._theta[j]))
        self._theta[j], self._width[j] = sum(near) / len(near), min(max(moved, 1e-4), 0.25)
        return best[0], max(best[1], 0.0)

    def _next(self, left: _Tangent, right: _Tangent, j: int) -> float:
        """Where the two tangents meet, or the middle if that is one of their own points."""
        rise, fall = self._strength * left.slope[j], self._strength * right.slope[j]
        if rise - fall <= 0.0:
            return 0.5 * (left.theta + right.theta)
        meet = (right.value[j] - left.value[j] + rise * left.theta - fall * right.theta) / (rise - fall)
        inner = 1e-3 * (right.theta - left.theta)
        return float(np.clip(meet, left.theta + inner, right.theta - inner))

    def _between(self, left: _Tangent | None, right: _Tangent | None, j: int) -> Float:
        """The mixture of both sides' minimisers in which the two sums of residuals agree."""
        if left is None or right is None:
            one = left if right is None else right
            assert one is not None
            return one.f[j]
        up, down = float(left.slope[j]), float(-right.slope[j])
        share = 0.5 if up + down <= 0.0 else down / (up + down)
        return share * left.f[j] + (1.0 - share) * right.f[j]

    def _objective(self, j: int, policy: Float, f: Float) -> float:
        up, down, V = self._residuals(j, policy, f)
        return self._strength * max(up, down) + float(self._rho.sum(axis=1) @ V - np.sum(self._rho * f))

    def _residuals(self, j: int, policy: Float, f: Float) -> tuple[float, float, Float]:
        """`sum rho (dbar)_+`, `sum rho (-dbar)_+` and V `(S,)`."""
        V = np.einsum("sa,sa->s", policy, f)
        delta = f - self._utilities[j] - self._data.successors.lookahead(V, self._data.discount)
        weighted = self._rho * delta
        return float(np.maximum(weighted, 0.0).sum()), float(np.maximum(-weighted, 0.0).sum()), V

    # -- one theta --------------------------------------------------------------------------------

    def _tangent(self, theta: float, policy: Float) -> _Tangent:
        data, rho = self._data, self._rho
        low_flow = (1.0 - self._strength * theta) * rho
        high_flow = (1.0 + self._strength * (1.0 - theta)) * rho
        into, discount = data.successors.transposed, data.discount
        z = self._z
        last: tuple[Float, Float] | None = None
        resolvent: Resolvent | None = None
        for step in range(200 * NEWTON_STEPS):
            wish = policy * z[:, None]
            missing = wish < low_flow
            # a pair without data passes nothing on
            cut = (wish > high_flow) | (~data.seen & ~missing)
            if last is not None and np.array_equal(missing, last[0]) and np.array_equal(cut, last[1]):
                break
            clamped = np.where(missing, low_flow, np.where(cut, high_flow, 0.0))
            if step < NEWTON_STEPS:
                inside = np.where(missing | cut, 0.0, policy)
                resolvent = Resolvent(data.successors.under(inside), discount)
                z = resolvent.flows(self._first + discount * (into @ clamped.ravel()))
                last = (missing, cut)
            else:
                passed = np.where(missing | cut, clamped, wish)
                z = self._first + discount * (into @ passed.ravel())
                last = (missing, cut) if step % 50 == 0 else None
                resolvent = None
        if resolvent is None:
            resolvent = Resolvent(data.successors.under(np.where(missing | cut, 0.0, policy)), discount)
        self._z = z
        low, high = self._low[:, None, None], self._high[:, None, None]
        settled = np.where(missing, high, np.where(cut, low, self._utilities))
        V = resolvent.values(np.einsum("sa,jsa->sj", policy, settled)).T
        f = np.empty_like(self._utilities)
        slope, value = np.empty(len(V)), np.empty(len(V))
        passed = np.clip(policy * z[:, None], low_flow, high_flow)
        arrived = self._first + discount * (into @ passed.ravel())
        rest = policy * arrived[:, None] - passed
        for j in range(len(V)):
            ahead = data.successors.lookahead(V[j], discount)
            inside = np.clip(self._utilities[j] + ahead, self._low[j], self._high[j])
            f[j] = np.where(missing | cut, settled[j], inside)
            up, down, _ = self._residuals(j, policy, f[j])
            slope[j] = up - down
            value[j] = np.sum((passed - rho) * self._utilities[j]) + np.sum(
                self._low[j] * np.maximum(rest, 0.0) - self._high[j] * np.maximum(-rest, 0.0)
            )
        return _Tangent(theta, f, value, slope)
