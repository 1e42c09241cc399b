"""What would decide where the evidence does not: how many episodes of the policy, looked at as they come.

Episodes are drawn again and again from those at hand, scaled to the estimated mean, and bet on as
`slater certify --own FILE --plan` does after every one: the bounds hold at all looks together, so that a
staged deployment may be looked at every day and stopped when it is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Below
from slater.certify.verdict import Certificate, error_of_each

F64 = NDArray[np.float64]

#: episodes that are planned for at most, and how often a deployment is played
MOST_EPISODES, DEPLOYMENTS = 20_000, 30


@dataclass(frozen=True)
class Plan:
    """Episodes after which half and nine of ten deployments are decided; None where 20,000 are too few."""

    cost: str
    mean: float
    verdict: str
    half: int | None
    nine_of_ten: int | None

    @property
    def sentence(self) -> str:
        """What to do, for somebody who has to decide."""
        at = f"if the mean {self.cost} of an episode is {self.mean:.4g}"
        if self.half is None:
            return (
                f"not even {MOST_EPISODES:,} trial episodes would decide, {at}: that is too near the limit, "
                "or the largest cost is too large; ask about another limit, or state a smaller one if "
                "you know it."
            )
        often = "" if self.nine_of_ten is None else f", and {self.nine_of_ten:,} in nine of ten trials"
        return f"about {self.half:,} trial episodes would decide ({self.verdict}){often}, {at}."


def plan_of(cost: str, costs: Sequence[float], mean: float, limit: float, most: float, error: float) -> Plan:
    """From costs of episodes at hand, (E,), which only say how costs are spread."""
    seen = np.asarray(costs, dtype=np.float64)
    if len(seen) == 0 or seen.max() <= 0:
        # none cost anything: it comes rarely, and is as large as the limit
        seen = np.array([0.0, max(limit, 1e-12)])
    within = mean <= limit
    rng = np.random.default_rng(0)
    share = min(mean / max(float(seen.mean()), 1e-300), most / float(seen.max()))
    draws = share * seen[rng.integers(0, len(seen), (MOST_EPISODES, DEPLOYMENTS))]
    if share * seen.mean() < mean * (1 - 1e-9):  # what scaling cannot give comes as the most
        chance = (mean - share * seen.mean()) / max(most - share * seen.mean(), 1e-300)
        draws = np.where(rng.random(draws.shape) < chance, most, draws)
    bets = Below(draws, 0.0, most, stopping=True) if within else Below(-draws, -most, 0.0, stopping=True)
    decided = bets.capital(limit if within else -limit, error) >= 1.0
    needed = np.where(decided.any(axis=0), decided.argmax(axis=0) + 1, MOST_EPISODES + 1)
    counts = np.quantile(needed, [0.5, 0.9], method="higher")
    half, most_of_them = (None if count > MOST_EPISODES else int(count) for count in counts)
    return Plan(cost, float(mean), "pass" if within else "fail", half, most_of_them)


def with_plan(certificate: Certificate, costs: Sequence[Sequence[float]]) -> Certificate:
    """With what would decide the limits left open (`details["plan"]`); costs: of episodes at hand, (E, I)."""
    largest = [float(most) for most in certificate.details.get("largest", ())]
    if not largest:
        return certificate
    error = error_of_each(certificate.confidence, len(certificate.limits), certificate.candidates)
    plans: list[Mapping[str, Any]] = []
    for i, one in enumerate(certificate.limits):
        known = math.isfinite(largest[i]) and math.isfinite(one.estimate)
        if one.verdict != "abstain" or not known or not 0.0 < one.limit < largest[i]:
            continue
        found = plan_of(
            one.cost, [row[i] for row in costs], max(one.estimate, 0.0), one.limit, largest[i], error
        )
        plans.append({**vars(found), "sentence": found.sentence})
    return replace(certificate, details={**certificate.details, "plan": plans}) if plans else certificate
