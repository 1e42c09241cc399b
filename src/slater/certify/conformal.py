"""How many deviations from the estimate the truth stays: conformal quantiles over tasks of known truth.

What the log says of a policy (`slater.deep.ope.posterior`) has a mean and a standard deviation of every cost.
On a *bank* of tasks whose truth is known the error is counted in those deviations:

    score of a task    max over its policies of one class, and over its costs, of (truth - mean) / deviation
    factor             the ceil((n + 1)(1 - error))-th smallest of the scores of n tasks

If the next task is like those of the bank, its score exceeds the factor with probability at most `error`
(Vovk et al. 2005): one draw more of n + 1 that could have come in any order. As the score is the worst over a
task's costs and policies, the statement is about all limits of a log at once, and about as many policies of
it as the bank's tasks have. Below the estimate likewise. Too few tasks for an error have no factor: it is
infinite.

A policy's class is what it *is*, whatever algorithm gave it (`CLASSES`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.verdict import Gate

F64 = NDArray[np.float64]

#: what a policy is, and how that is said
CLASSES: Mapping[str, str] = {
    "clone": "imitations of a part of the log",
    "in-sample": "imitations of what was best in the log",
    "played": "policies that were searched for",
    "mixture": "mixtures of such policies",
}
#: a deviation counts as at least this share of the limit, so that no score is without bounds
FLOOR = 0.02


def class_of(kind: str) -> str:
    """The class of a member of a run, by its kind (`slater.runs.result.Member`)."""
    if kind.startswith("clone of "):
        return "clone"
    return "in-sample" if kind.startswith("in-sample ") else "played"


def floored(deviation: Any, limit: Any) -> F64:
    """Deviations of costs, (..., I), that are never less than a share of the limit, (I,)."""
    least = np.maximum(FLOOR * np.asarray(limit, np.float64), 1e-12)
    return np.maximum(np.asarray(deviation, np.float64), least)


def standardised(truth: Any, mean: Any, deviation: Any, limits: Any) -> tuple[float, float]:
    """The worst score of policies, all (..., I): of the truth above the mean, and below it."""
    score = (np.asarray(truth, np.float64) - mean) / floored(deviation, limits)
    return float(score.max()), float((-score).max())


@dataclass(frozen=True)
class Calibration:
    """The scores of a bank.

    scores: class -> (n, 2) of its tasks, above and below; together: class -> how many policies of a task
    share a score, at the median; settings: of everything that decides what is said of a log; said: what the
    bank is, for a person.
    """

    scores: Mapping[str, F64]
    together: Mapping[str, int]
    settings: Mapping[str, Any]
    said: str = ""

    @classmethod
    def of_tasks(
        cls, tasks: Sequence[Mapping[str, Sequence[float]]], settings: Mapping[str, Any], said: str = ""
    ) -> Calibration:
        """From a bank: of every task class -> (score above, score below, number of policies)."""
        rows = {
            name: np.array([task[name] for task in tasks if name in task]).reshape(-1, 3) for name in CLASSES
        }
        together = {name: int(np.median(own[:, 2])) if len(own) else 1 for name, own in rows.items()}
        return cls({name: own[:, :2] for name, own in rows.items()}, together, settings, said)

    def tasks(self, kind: str) -> int:
        """How many have policies of this class."""
        return len(self.scores.get(kind, ()))

    def factors(self, kind: str, error: float) -> tuple[float, float]:
        """Deviations above and below the mean, at least 0; infinite where there are too few tasks."""
        count = self.tasks(kind)
        rank = math.ceil((count + 1) * (1.0 - error) - 1e-9)
        if rank > count:
            return math.inf, math.inf
        above, below = np.maximum(np.sort(self.scores[kind], axis=0)[max(rank, 1) - 1], 0.0)
        return float(above), float(below)

    def share(self, kind: str, candidates: int) -> float:
        """Of the error that each of so many candidates of one log gets."""
        return 1.0 / math.ceil(candidates / max(self.together.get(kind, 1), 1))


def fewest_tasks(error: float) -> int:
    """The fewest tasks that have a factor for an error."""
    return math.ceil(1.0 / error - 1e-9) - 1


def calibration_gate(calibration: Calibration | None, kind: str, error: float) -> Gate:
    """Whether a statement of this error can be made about a policy of a class."""
    name = "tasks of known truth"
    if calibration is None:
        why = "estimates made in this way were never compared with a truth, so they decide nothing."
        return Gate(name, False, why)
    count, needed = calibration.tasks(kind), fewest_tasks(error)
    if count < needed:
        return Gate(
            name, False,
            f"saying so with {1 - error:.1%} needs {needed} tasks of known truth with {CLASSES[kind]}, and "
            f"there are {count}: ask for less confidence or fewer candidates, or run the policy.",
        )  # fmt: skip
    return Gate(name, True, f"{CLASSES[kind]} were compared with the truth on {count} tasks.")


def shipped_calibration(settings: Mapping[str, Any]) -> Calibration | None:
    """What comes with the package, if it was made with these settings."""
    file = resources.files("slater.certify") / "calibration.json"
    if not file.is_file():
        return None
    record = json.loads(file.read_text())
    if record["settings"] != settings:
        return None
    return Calibration.of_tasks(list(record["tasks"].values()), record["settings"], record["said"])
