"""What costs can be at most: stated, or known from what a policy or an environment says; never assumed.

An upper bound on a mean from draws needs to know how large a draw can be. The largest draw of the evidence
itself does not say it: where one episode in seventy costs 600, thirty episodes seldom have one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError

F64 = NDArray[np.float64]
#: a number for every cost, numbers in the order of the costs, texts NAME=NUMBER, or numbers by name
Stated = float | str | Sequence[float | str] | Mapping[str, float] | None
#: what a step costs at most by name, and who has seen it
Known = Mapping[str, tuple[float, str]] | None


def named_numbers(given: Stated, names: Sequence[str], what: str) -> dict[str, float]:
    """Numbers by cost; one without a name is for every cost. `what` they are, for errors."""
    if given is None:
        return {}
    parts: list[tuple[str | None, Any]]
    if isinstance(given, Mapping):
        parts = [*given.items()]
    else:
        listed: Any = [given] if isinstance(given, str | Real) else given
        parts = []
        for one in listed:
            name, sign, number = str(one).rpartition("=")
            parts.append((name.strip() if sign else None, number))
        if parts and all(name is None for name, _ in parts):
            if len(parts) not in (1, len(names)):
                raise InputError(f"{what}: {len(parts)} numbers for {len(names)} costs ({', '.join(names)}).")
            many = parts if len(parts) == len(names) else parts * len(names)
            parts = [(name, number) for name, (_, number) in zip(names, many, strict=True)]
    found: dict[str, float] = {}
    for cost, number in parts:
        name = str(cost)
        if name not in names:
            raise InputError(f"{what}: there is no cost {name!r}; the costs are {', '.join(names)}.")
        try:
            value = float(number)
        except (TypeError, ValueError):
            raise InputError(f"{what} of {name} is {number!r}, which is no number.") from None
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{what} of {name} is {value:g}; it must be positive and finite.")
        if name in found:
            raise InputError(f"{what} of {name} is given twice.")
        found[name] = value
    return found


@dataclass(frozen=True)
class Ranges:
    """What a step and an episode cost at most, (I,) each, infinite where that is not known.

    sources: who says so of a step, one text per cost ("" where nobody does). endless: whether nobody knows
    how many steps an episode has at most, so that what a step costs bounds nothing.
    """

    names: tuple[str, ...]
    step: F64
    episode: F64
    sources: tuple[str, ...]
    endless: bool = False

    @classmethod
    def of(
        cls, names: Sequence[str], step: Stated = None, episode: Stated = None, *, known: Known = None
    ) -> Ranges:
        """From what is stated, else from what is `known` of a step by name: a cost, and who has seen it."""
        stated = named_numbers(step, names, "the largest cost of a step")
        whole = named_numbers(episode, names, "the largest cost of an episode")
        sources, steps = [], []
        for name in names:
            own, says = (known or {}).get(name, (0.0, ""))
            if name in stated and stated[name] < own * (1 - 1e-6):
                raise InputError(
                    f"the largest cost of a step of {name} is stated as {stated[name]:g}, but {says} has one "
                    f"of {own:g}; state at least that (largest_step_cost)."
                )
            steps.append(stated.get(name, own if own > 0 else math.inf))
            sources.append("as stated" if name in stated else f"the most in {says}" if own > 0 else "")
        most = np.array([whole.get(name, math.inf) for name in names])
        return cls(tuple(names), np.array(steps), most, tuple(sources))

    def over(self, horizon: int | None) -> Ranges:
        """Of episodes of so many steps; None where only the longest that was seen is known."""
        return replace(self, endless=horizon is None)

    @property
    def bounding(self) -> F64:
        """What a step costs at most, (I,), where that bounds an episode; else infinite."""
        return np.full_like(self.step, np.inf) if self.endless else self.step

    def check_step(self, number: int, cost: float, where: str) -> None:
        """Refuse a step of the evidence that costs more than the range says, or less than nothing."""
        name, most = self.names[number], self.step[number]
        if not cost >= 0:
            raise InputError(f"{where} costs {cost:g} of {name}; certificates are about costs of at least 0.")
        if cost > most * (1 + 1e-6):
            raise InputError(
                f"{where} costs {cost:g} of {name}, more than the {most:g} that a step costs at most "
                f"({self.sources[number]}), so the bound means nothing; state what a step can cost at most "
                "(largest_step_cost)."
            )

    def check_steps(self, costs: NDArray[np.floating], starts: NDArray[np.int64]) -> None:
        """`check_step` of all rows of a log, (N, I); starts: the first row of every episode."""
        for number in range(len(self.names)):
            for row in (int(costs[:, number].argmax()), int(costs[:, number].argmin())):
                episode = int(np.searchsorted(starts, row, side="right")) - 1
                where = f"step {row - int(starts[episode])} of episode {episode}"
                self.check_step(number, float(costs[row, number]), where)

    def check_episodes(self, costs: F64) -> None:
        """Refuse episodes, (E, I), that cost more than an episode is said to."""
        for number, name in enumerate(self.names):
            worst = int(costs[:, number].argmax())
            if costs[worst, number] > self.episode[number] * (1 + 1e-6):
                raise InputError(
                    f"episode {worst} costs {costs[worst, number]:g} of {name}, more than the "
                    f"{self.episode[number]:g} that an episode is said to cost at most; state at least what "
                    "was seen (largest_episode_cost)."
                )

    def largest(self, horizon: int, rates: F64) -> F64:
        """The most that an episode can count, (I,); rates: what a step counts that it did not live."""
        return np.minimum(horizon * np.maximum(self.bounding, rates), self.episode + horizon * rates)

    def condition(self, number: int, horizon: int) -> str:
        """What is taken for granted, as the end of a sentence that begins with "if"."""
        bounded, parts = math.isfinite(self.bounding[number]), []
        if bounded:
            parts.append(f"no step costs more than {self.step[number]:g}")
        if math.isfinite(self.episode[number]):
            parts.append(f"no episode {'' if bounded else 'costs '}more than {self.episode[number]:g}")
        if bounded:
            parts.append(f"an episode has at most {horizon} step{'s' * (horizon > 1)}")
        return " and ".join(parts)

    def unknown(self, number: int) -> str:
        """The reason to abstain where nothing bounds a cost, or ""."""
        if math.isfinite(min(self.bounding[number], self.episode[number])):
            return ""
        what, remedy = f"how much {self.names[number]} a step can have", "largest_step_cost"
        if math.isfinite(self.step[number]):
            what, remedy = "how many steps an episode can have", "horizon"
        return (
            f"{what} at most is not known, and the most that was seen need not be it: state it ({remedy}, or "
            "largest_episode_cost)."
        )

    def notes(self) -> list[str]:
        """Who says so, one sentence per cost."""
        each = zip(self.names, self.step, self.sources, strict=True)
        return [f"{x}: at most {most:g} a step ({who})." for x, most, who in each if math.isfinite(most)]
