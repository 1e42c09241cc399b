"""The function classes of the paper: W for importance weights, F for values.

W decides how a Bellman error is measured, `E_D(pi, f; U) = max_{w in W} |E_D[w(s,a) delta(s,a,s')]|`,
and F which functions a critic may choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from slater.errors import InputError
from slater.tabular._check import Float, as_array, as_indices, check_indices


@dataclass(frozen=True)
class _Bounded:
    bound: float = 5.0

    def __post_init__(self) -> None:
        _check_size("the bound of the box W (C_infinity)", self.bound)


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
class L2Ball:
    """`W = {E_D[w^2] <= radius^2}`: `E_D = radius * sqrt(sum_x rho(x) dbar(x)^2)`."""

    radius: float = 2.0

    def __post_init__(self) -> None:
        _check_size("the radius of the L2 ball W", self.radius)


WeightClass = Box | PerSampleBox | L2Ball


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
    return weights.radius**2 if isinstance(weights, L2Ball) else weights.bound


def aggregation(groups: ArrayLike, actions: int) -> Linear:
    """F of functions that treat all states of a group alike; `groups` holds a group index per state."""
    index = as_indices("groups", groups)
    check_indices("groups", index, None, "groups")
    if len(index) == 0:
        raise InputError("groups is empty: one group index per state is needed.")
    member = np.eye(int(index.max()) + 1)[index]
    return Linear(np.einsum("sg,ab->sagb", member, np.eye(actions)).reshape(len(index), actions, -1))


def _check_size(what: str, value: float) -> None:
    if not 0.0 <= value < np.inf:
        raise InputError(f"{what} is {value:g}, but it must be a finite number of at least 0.")
