"""What a look at the data says of a run's estimates, and who hears of long work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slater.deep.nets.policy import PolicyNetwork

__all__ = ["Check", "Tick"]

#: told of long work: (what, done, total)
Tick = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Check:
    """What a look at the data says about estimates.

    trusted: whether they may choose the output
    report: JSON, which is added to the run's result
    warnings: sentences for the user
    candidates: policies that the log itself gave on the way, to be mixed with the run's own, each with its
        kind
    evidence: what the look found out, for the output that weighs members; it is not written anywhere
    """

    trusted: bool = True
    report: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    candidates: tuple[tuple[PolicyNetwork, str], ...] = ()
    evidence: Any = None
