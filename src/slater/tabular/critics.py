"""Critics: what PDCA's players believe a policy is worth, pessimistic by the formulas of `bellman`.

    reward critic   f = argmin_{f in F} 2 E_D(pi, f; R)   + A_D(pi, f)      (pessimistic for reward)
    cost critic     g = argmin_{g in F} 2 E_D(pi, g; C_i) - A_D(pi, g)      (pessimistic for cost)

`critic_programs` solves them for every class W and F; `box_critics` solves those of `Box` and tabular F by
their structure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slater.tabular._check import Float
from slater.tabular.box_critics import BoxCritics
from slater.tabular.classes import Box, L2Ball, Tabular, ValueClass, WeightClass
from slater.tabular.counts import Counts
from slater.tabular.critic_programs import Conic, Simplex, assemble


class Critics:
    """`argmin_{f in F} weight * E_D(pi, f; U_j) + sign_j * A_D(pi, f)`, for m utilities and many policies.

    Large problems with `Box` and tabular F are solved by their structure; small ones keep the simplex method,
    bit for bit.

    utilities: U_j, `(m, S, A)`, the reward or costs; signs: of each, +1 pessimistic for a reward, -1
    pessimistic for a cost, 0 no advantage term; weights, values: the classes W and F; weight: of the Bellman
    error, 2 in the paper.
    """

    def __init__(
        self, data: Counts, utilities: Float, signs: Sequence[int], weights: WeightClass, values: ValueClass,
        weight: float = 2.0,
    ):  # fmt: skip
        self._structured: BoxCritics | None = None
        self._solvers: list[Simplex | Conic] = []
        large = all(signs) and not data.successors.small
        if large and isinstance(weights, Box) and isinstance(values, Tabular):
            self._structured = BoxCritics(data, utilities, signs, weights.bound, weight)
            return
        for utility, sign in zip(utilities, signs, strict=True):
            program = assemble(data, utility, sign, weights, values, weight)
            if isinstance(weights, L2Ball):
                self._solvers.append(Conic(program, data, utility, weights))
            else:
                self._solvers.append(Simplex(program, data.seen.shape))

    def solve(self, policy: Float) -> tuple[Float, Float]:
        """Critics `(m, S, A)` of a policy and their gaps `(m,)`; NaN where a solver's 1e-7 stands for it."""
        if self._structured is not None:
            return self._structured.solve(policy)
        solved = [solver.solve(policy)[: policy.size].reshape(policy.shape) for solver in self._solvers]
        return np.array(solved), np.full(len(solved), np.nan)


class Critic:
    """The critic of one utility `(S, A)`; arguments as in `Critics`."""

    def __init__(
        self, data: Counts, utility: Float, sign: int, weights: WeightClass | None = None,
        values: ValueClass | None = None, weight: float = 2.0,
    ):  # fmt: skip
        self._critics = Critics(data, utility[None], [sign], weights or Box(), values or Tabular(), weight)

    def solve(self, policy: Float) -> Float:
        """The critic of a policy `(S, A)`: f, shape `(S, A)`, J-units."""
        return self._critics.solve(policy)[0][0]
