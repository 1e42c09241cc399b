"""Critics: what PDCA's players believe a policy is worth, pessimistic by the formulas of `bellman`.

    reward critic   f = argmin_{f in F} 2 E_D(pi, f; R)   + A_D(pi, f)      (pessimistic for reward)
    cost critic     g = argmin_{g in F} 2 E_D(pi, g; C_i) - A_D(pi, g)      (pessimistic for cost)

`critic_programs` solves them for every class W and F; `box_critics` solves those of `Box` and tabular F by
their structure.
"""

from __future__ import annotations

import numpy as np

from slater.tabular._check import Float
from slater.tabular.box_critics import BoxCritics
from slater.tabular.classes import Box, L2Ball, Tabular, ValueClass, WeightClass
from slater.tabular.counts import Counts
from slater.tabular.critic_programs import Conic, Simplex, assemble

__all__ = ["Critic", "CriticBank"]


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
        program = assemble(data, utility, sign, self._weights, values or Tabular(), weight)
        self._solver: Simplex | Conic
        if isinstance(self._weights, L2Ball):
            self._solver = Conic(program, data, utility, self._weights)
        else:
            self._solver = Simplex(program, self._shape)

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
