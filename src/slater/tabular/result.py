"""What every tabular algorithm takes and gives, so that a comparison is a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import ArrayLike

from slater.errors import InputError
from slater.tabular._check import Float
from slater.tabular.counts import Counts
from slater.tabular.mixture import Mixture
from slater.tabular.theory import TheoremPlan


@dataclass(frozen=True)
class Result:
    """The outcome of a run on a dataset; nothing in it has seen the true model.

    algorithm: its name; rounds: rounds played or solver calls made.
    policy: the mixture to deploy (one member for algorithms that give a single policy).
    multipliers: those that belong to it, (I,); zero for unconstrained algorithms.
    multiplier_bound: B, the budget of the lambda-player; the certificate uses it.
    notes: what a careful reader should know about this run, one sentence each.
    trace: per-iteration arrays by name, e.g. `multipliers` (K, I) and `estimated_costs` (K, I).
    plan: what PDCA's theorem said for the data, of a run with a mode.
    """

    algorithm: str
    policy: Mixture
    multipliers: Float
    multiplier_bound: float
    rounds: int
    notes: tuple[str, ...] = ()
    trace: Mapping[str, Float] = field(default_factory=dict)
    plan: TheoremPlan | None = None


class Presets:
    """Settings that come in named sets: `PRESETS` has the fields of each."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named set of settings, with `changes` to them."""
        if name not in cls.PRESETS:
            known = ", ".join(cls.PRESETS)
            raise InputError(f"{cls.__name__} has no preset {name!r}; the only one is {known}.")
        return cls(**{**cls.PRESETS[name], **changes})


class Algorithm(Protocol):
    """Settings that can be run on a dataset."""

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Learn a policy from the data alone, under `limits` (J-units, `(I,)`); None: those the data have."""
        ...


#: B is this many times the multiplier estimated from data, plus one
BOUND_FACTOR = 2.0


def data_driven_bound(data: Counts, limits: Float) -> tuple[float, float, tuple[str, ...]]:
    """B when the user gives none: one plus twice the multipliers of the empirical problem.

    The players need B above `|lambda*|_1`, and all they do slows down as B grows. `limits` are in
    J-units. Returns B, the estimate of `|lambda*|_1` (infinite if the empirical problem cannot meet
    the limits), and notes.
    """
    for unseen in ("pessimistic", "optimistic"):
        model = data.model(unseen, limits)
        try:
            estimate = float(model.solve().multipliers.sum())
        except InputError:
            continue
        if unseen == "pessimistic":
            return 1.0 + BOUND_FACTOR * estimate, estimate, ()
        note = "the data meet the limits only if pairs that were never seen cost nothing"
        return 1.0 + BOUND_FACTOR * estimate, estimate, (note,)
    excess = model.closest()[0]
    note = f"on the empirical model no policy meets the limits (the closest exceeds them by {excess:.4g})"
    return 50.0, float("inf"), (note,)
