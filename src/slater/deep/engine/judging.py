"""An estimate of a run's policies from its data, where the algorithm itself makes none.

The shared estimators judge every policy that acts in the mixture: rollouts in a model that is fitted to the
data, or fitted Q evaluation where observations are one-hot. A cost is the largest of several networks'
estimates, the reward their mean. Nothing of it changes what was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.batches import on_device
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Estimate, Tick, fitted
from slater.deep.ope.fitted_q import FittedQEstimator
from slater.deep.ope.model import ModelEstimator, suits_a_model
from slater.deep.task import Task

__all__ = ["judge_members"]

#: iterations of the fit, of the model or of fitted Q evaluation; fewer in a run that is shorter
FIT = 15_000
#: rows that the estimate is made from at most, of data larger than memory
ROWS = 500_000


def judge_members(
    algorithm: Algorithm[Any, Any], task: Task, members: Sequence[Member], weights: NDArray[np.float64],
    policies: Sequence[Any], dataset: Dataset | StoredDataset, key: Array, tick: Tick,
) -> tuple[list[Member], dict[str, Any], list[str]]:  # fmt: skip
    """The members, those with weight estimated; how they were, as JSON; and sentences of warning."""
    acting = [index for index, weight in enumerate(weights) if weight > 0]
    if not all(isinstance(policies[index], PolicyNetwork) for index in acting):
        why = (
            f"nothing is estimated about the policy of {algorithm.name}, which is more than a distribution "
            "of actions given a state: whether it keeps the limits is not known."
        )
        return list(members), {"by": None}, [why]
    if isinstance(dataset, StoredDataset):
        dataset = dataset.shard(np.random.default_rng(0), ROWS)
    config, data = algorithm.config, on_device(dataset, task)
    steps = min(FIT, config.steps)
    estimator: Any  # a model or fitted Q, each with a state of its own type
    if suits_a_model(dataset):
        by = "model"
        estimator = ModelEstimator(hidden=config.hidden, steps=steps)
    else:
        by = "fitted Q"
        estimator = FittedQEstimator(
            hidden=config.hidden, batch_size=config.batch_size, careful_steps=steps, careful_copies=3
        )
    # a stream of its own: the run's draws stay what they are
    key_fit, key_judge = jax.random.split(jax.random.fold_in(key, 1))
    tick("fit for the estimates", 0, len(acting))
    state = fitted(estimator, task, data, config.batch_size, key_fit)
    careful = estimator.careful(task, state, data, tick)
    judged = list(members)
    for done, index in enumerate(acting):
        copies = careful(policies[index], jax.random.fold_in(key_judge, members[index].step))
        values = Estimate(jnp.asarray(copies)).pessimistic
        judged[index] = replace(members[index], estimates=tuple(map(float, values)), careful=True)
        tick("estimates of the policies", done + 1, len(acting))
    check = estimator.check(task, state, dataset)
    about = {"by": by, "steps": steps, "trusted": check.trusted, **check.report}
    # the remedy that a check names is a setting of the algorithm that asks for it
    end = "; its estimates cannot be trusted"
    return judged, about, [t.partition(end)[0] + f"{end}." if end in t else t for t in check.warnings]
