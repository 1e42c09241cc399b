"""What an estimator of J(pi) is: the OPE oracle of the game, and the judge of its members.

An estimator is a frozen dataclass of settings; everything that changes is in a state (a PyTree of its
own), so that runs can be resumed, stacked and compiled:

    init      the state before the first iteration
    studied   takes over the networks of the log model, if the estimator lives off those
    fit       iterations before the game that serve every policy (a learned model); `fit_steps` of them
    update    iterations for one policy at the end of a round (fitted Q); `policy_steps` of them
    value     J of a policy by the state, cheap enough for every round: an `Estimate`
    careful   after training, a function that estimates any policy as well as this estimator can
    check     how far the estimates can be trusted, by the data: a `Check`

A new one is a class here and a name in the table `slater.deep.algorithms.pdca.parts.ESTIMATORS`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.batches import Batch, Data
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task

if TYPE_CHECKING:
    from slater.deep.log_model.dynamics import Dynamics

__all__ = ["Careful", "Check", "Estimate", "Estimator", "Tick"]

#: told of long work: (what, done, total)
Tick = Callable[[str, int, int], None]
#: (policy, key) -> J of every utility by several copies, shape (M, 1+I)
Careful = Callable[[PolicyNetwork, Array], NDArray[np.float64]]
EstimatorState = TypeVar("EstimatorState")


class Estimate(NamedTuple):
    """J of every utility, reward first, by M copies: shape (M, 1+I).

    In J-units of the scaled utilities, to be compared with `task.tau`; `task.unscaled` leads back. Where
    limits are per episode, J <= tau is to say that an episode's undiscounted cost is within its limit.
    """

    copies: Array

    @property
    def mean(self) -> Array:
        """Over copies, shape (1+I,)."""
        return jnp.mean(self.copies, axis=0)

    @property
    def spread(self) -> Array:
        """Standard deviation over copies, shape (1+I,): what the data leave open, if copies show it."""
        return jnp.std(self.copies, axis=0)

    @property
    def pessimistic(self) -> Array:
        """The mean reward and the largest of every cost, shape (1+I,)."""
        return jnp.append(jnp.mean(self.copies[:, 0]), jnp.max(self.copies[:, 1:], axis=0))


@dataclass(frozen=True)
class Check:
    """What a look at the data says about an estimator.

    trusted: whether its estimates may choose the output
    report: JSON, which is added to the run's result
    warnings: sentences for the user
    columns: policies that the log itself gave on the way, to be mixed with the run's own, each with its kind
    evidence: what the look found out, for the output that weighs members; it is not written anywhere
    """

    trusted: bool = True
    report: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    columns: tuple[tuple[PolicyNetwork, str], ...] = ()
    evidence: Any = None


class Estimator(abc.ABC, Generic[EstimatorState]):
    """An OPE oracle; see the module's text."""

    #: after training, how many policies are worth a careful estimate; None: all
    careful_limit: int | None = None

    @property
    def fit_steps(self) -> int:
        """Iterations of `fit` before the game."""
        return 0

    @property
    @abc.abstractmethod
    def policy_steps(self) -> int:
        """Iterations of `update` per round, for the round's policy; 0: one beside each of the players'."""

    @abc.abstractmethod
    def init(self, task: Task, key: Array) -> EstimatorState:
        """The state before the first iteration."""

    def studied(self, state: EstimatorState, dynamics: Dynamics) -> EstimatorState:
        """The state with what it takes of the log model; nothing by default."""
        del dynamics
        return state

    def fit(
        self, task: Task, state: EstimatorState, batch: Batch, key: Array
    ) -> tuple[EstimatorState, dict[str, Array]]:
        """One iteration on a minibatch, for every policy; and scalars to log."""
        del task, batch, key
        return state, {}

    def update(
        self, task: Task, state: EstimatorState, policy: PolicyNetwork, batch: Batch, key: Array, place: Array
    ) -> tuple[EstimatorState, dict[str, Array]]:
        """One iteration for `policy`, the `place`-th (from 0) of its round; and scalars to log."""
        del task, policy, batch, key, place
        return state, {}

    @abc.abstractmethod
    def value(
        self, task: Task, state: EstimatorState, policy: PolicyNetwork, first: Array, key: Array
    ) -> Estimate:
        """J of `policy` from first states (n, obs_dim): compiled into training."""

    @abc.abstractmethod
    def careful(self, task: Task, state: EstimatorState, data: Data, tick: Tick) -> Careful:
        """A function that estimates one policy after the other on `data`, with all care."""

    def check(self, task: Task, state: EstimatorState, dataset: Dataset | StoredDataset) -> Check:
        """How far its estimates can be trusted; by default nothing is known against them."""
        del task, state, dataset
        return Check()
