"""The log's ensemble as the oracle of a game: networks of it that steer a multiplier and judge nothing.

The ensemble is fitted when the log is studied (`slater.deep.ope.study`), before the first iteration of a run
and once for all runs on the log. A few of its networks are set aside for the lambda-player: what climbed
their errors is then judged by others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.batches import Data
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Careful, Estimate, Estimator, Tick
from slater.deep.ope.ensemble import Ensemble, EnsembleSettings, ensemble_values
from slater.deep.task import Task

__all__ = ["EnsembleEstimator"]


@dataclass(frozen=True)
class EnsembleEstimator(Estimator[Ensemble]):
    """Rollouts in networks that the log's study fitted; nothing is trained in the run.

    settings: of the study's ensemble; copies: how many of its networks steer
    """

    settings: EnsembleSettings
    copies: int = 1
    judges_at_once: ClassVar[bool] = True

    @property
    def policy_steps(self) -> int:
        """One: rolling out takes no training."""
        return 1

    def init(self, task: Task, key: Array) -> Ensemble:
        """Networks at random, in the shape of those that `studied` brings."""
        obs, utilities, inputs = task.obs_dim, 1 + task.costs, task.obs_dim + task.action_dim
        key_dynamics, key_outcomes = jax.random.split(key)

        def many(sizes: list[int], key: Array) -> MLP:
            networks: MLP = jax.vmap(lambda k: MLP(sizes, k))(jax.random.split(key, self.copies))
            return networks

        return Ensemble(
            dynamics=many([inputs, *self.settings.hidden, 2 * obs], key_dynamics),
            outcomes=many([inputs + obs, *self.settings.outcome_hidden, utilities + 1], key_outcomes),
            unit=jnp.ones(obs), low=jnp.zeros(obs), high=jnp.zeros(obs), utility_low=jnp.zeros(utilities),
            utility_high=jnp.zeros(utilities), indicator=jnp.zeros(utilities, bool), ends=jnp.zeros(()),
        )  # fmt: skip

    def studied(self, state: Ensemble, ensemble: Ensemble) -> Ensemble:
        """The first networks of the study's."""
        del state
        return ensemble.only(slice(0, self.copies))

    def value(self, task: Task, state: Ensemble, policy: PolicyNetwork, first: Array, key: Array) -> Estimate:
        """The mean over rollouts, by every network."""
        return Estimate(ensemble_values(task, state, policy, first, key).mean[:, :-1])

    def careful(self, task: Task, state: Ensemble, data: Data, tick: Tick) -> Careful:
        """The same from all first states of the log; who steers has no better one."""
        del tick
        values = jax.jit(lambda policy, key: self.value(task, state, policy, data.initial, key).copies)
        return lambda policy, key: np.asarray(values(policy, key), dtype=np.float64)
