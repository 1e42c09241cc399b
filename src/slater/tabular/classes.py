"""The function classes of the paper: W for importance weights, F for values.

W decides how a Bellman error is measured, `E_D(pi, f; U) = max_{w in W} |E_D[w(s,a) delta(s,a,s')]|`,
and F which functions a critic may choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from slater.errors import InputError
from slater.tabular._check import Float, as_array, as_indices, check_indices


@dataclass(frozen=True)
class _Bounded:
    bound: float = 5.0
    _what: ClassVar[str] = "the bound of the box W (C_infinity)"
    _least: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        _at_least(self._what, self.bound, self._least)


@dataclass(frozen=True)
class Box(_Bounded):
    """`W = [0, bound]^{S x A}`: residuals of one pair are averaged first, as w cannot tell them apart.

    `E_D = bound * max(sum_x rho(x) (dbar(x))_+, sum_x rho(x) (-dbar(x))_+)`. The default.
    """


@dataclass(frozen=True)
class PerSampleBox(_Bounded):
    """The formula that the paper prints, with the positive part taken per sample.

    It equals `Box` for deterministic transitions only; otherwise it is larger (Jensen), and biased:
    pairs drift to conditional medians. Kept for reproduction.
    """


@dataclass(frozen=True)
class NormalisedBox(_Bounded):
    """`W = {0 <= w <= bound, E_D[w] = 1}`: the Bellman error is a conditional value at risk."""

    _what = "the bound of the normalised box W"
    _least = 1.0


@dataclass(frozen=True)
class L2Ball:
    """`W = {E_D[w^2] <= radius^2}`: `E_D = radius * sqrt(sum_x rho(x) dbar(x)^2)`."""

    radius: float = 2.0

    def __post_init__(self) -> None:
        _at_least("the radius of the L2 ball W", self.radius, 0.0)


@dataclass(frozen=True, eq=False)
class FiniteList:
    """A finite W: `weights` has shape `(m, S, A)`."""

    weights: Float

    def __init__(self, weights: ArrayLike):
        array = as_array("weights", weights, (None, None, None))
        if len(array) == 0:
            raise InputError("the list W is empty: at least one weight function is needed.")
        object.__setattr__(self, "weights", array)


WeightClass = Box | PerSampleBox | NormalisedBox | L2Ball | FiniteList


@dataclass(frozen=True)
class Tabular:
    """F = every function of (s, a) in the box of values."""


@dataclass(frozen=True, eq=False)
class Linear:
    """F = `{Phi theta}` inside the box of values; `features` Phi has shape `(S, A, d)`."""

    features: Float

    def __init__(self, features: ArrayLike):
        object.__setattr__(self, "features", as_array("features", features, (None, None, None)))

    def checked(self, states: int, actions: int) -> Float:
        """Phi as a matrix `(S*A, d)`, after checking that it belongs to a problem of this size."""
        if self.features.shape[:2] != (states, actions):
            raise InputError(
                f"features has shape {self.features.shape}, but ({states}, {actions}, d) is needed: "
                f"one row of features for each of {states} states and {actions} actions."
            )
        return self.features.reshape(states * actions, -1)


ValueClass = Tabular | Linear


def squared_norm_bound(weights: WeightClass) -> float:
    """A bound on `E_D[w^2]` over importance weights (of mean one) in W: the paper's `C_l2^2`."""
    match weights:
        case Box(bound) | PerSampleBox(bound) | NormalisedBox(bound):
            return bound
        case L2Ball(radius):
            return radius**2
        case FiniteList():
            return float(np.abs(weights.weights).max())


def aggregation(groups: ArrayLike, actions: int) -> Linear:
    """F of functions that treat all states of a group alike; `groups` holds a group index per state."""
    index = as_indices("groups", groups)
    check_indices("groups", index, None, "groups")
    if len(index) == 0:
        raise InputError("groups is empty: one group index per state is needed.")
    member = np.eye(int(index.max()) + 1)[index]
    return Linear(np.einsum("sg,ab->sagb", member, np.eye(actions)).reshape(len(index), actions, -1))


def _at_least(what: str, value: float, low: float) -> None:
    if not value >= low or not np.isfinite(value):
        raise InputError(f"{what} is {value:g}, but it must be a finite number of at least {low:g}.")
