"""An estimate of a run's policies from its data, where the algorithm itself makes none.

The service that PDCA asks judges every policy that acts in the mixture: the log model and its posterior
(`slater.deep.ope.posterior`). Nothing of it changes what was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.log_model.log_model import cache_folder, fit_log_model, settings_of
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Tick
from slater.deep.ope.posterior import posterior_of
from slater.deep.task import Task
from slater.limit_status import LimitStatus

#: iterations of fits at most; fewer in a run that is shorter
FIT = 8_000
#: with which limits are said to be kept
CONFIDENCE = 0.95


class Judged(NamedTuple):
    """What is said of a run: its members, those with weight estimated; how, as JSON; warnings; and what is
    known of each limit, or None where the estimates say it.
    """

    members: list[Member]
    about: dict[str, Any]
    warnings: list[str]
    status: list[LimitStatus] | None


def judge_members(
    algorithm: Algorithm[Any, Any], task: Task, members: Sequence[Member], weights: NDArray[np.float64],
    policies: Sequence[Any], dataset: Dataset | StoredDataset, tick: Tick,
) -> Judged:  # fmt: skip
    """The members with weight, estimated."""
    acting = [index for index, weight in enumerate(weights) if weight > 0]
    if not all(isinstance(policies[index], PolicyNetwork) for index in acting):
        why = (
            f"nothing is estimated about the policy of {algorithm.name}, which is more than a distribution "
            "of actions given a state: whether it keeps the limits is not known."
        )
        return Judged(list(members), {"by": None}, [why], None)
    steps, judged = min(FIT, algorithm.config.steps), list(members)
    log = fit_log_model(dataset, task, settings_of(dataset, steps), cache_folder(), tick)
    found = posterior_of(log, [policies[index] for index in acting])
    own = slice(len(log.kinds), None)
    for index, mean, spread in zip(acting, found.mean[own], found.deviation[own], strict=True):
        estimates, wide = tuple(map(float, mean)), tuple(map(float, spread))
        judged[index] = replace(members[index], estimates=estimates, careful=True, spread=wide)
    mixed = np.concatenate([np.zeros(len(log.kinds)), weights[acting]])
    status = found.status(mixed, task.tau, CONFIDENCE)
    return Judged(judged, {"by": "the log model", "steps": steps, "trusted": True}, [], status)
