"""What an algorithm is told about its task, and the data as it lies on the device.

Units are settled here, once. Rewards and costs are scaled (`reward_scale`, `cost_scale`), observations
normalised, actions moved to [-1, 1], limits converted by `slater.limits` to discounted sums of the scaled
costs: tau. Everything behind this door works in these units; `Problem` knows the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.errors import InputError
from slater.limits import Limit, Units, limit_records

__all__ = [
    "Batch",
    "Data",
    "Problem",
    "draw",
    "normalised",
    "on_device",
    "prepare",
    "scaled_actions",
    "state_problem",
    "transitions",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
#: rows drawn from a store for its reward scale
REWARD_SAMPLE = 2**17


@dataclass(frozen=True, eq=False)
class Problem:
    """The task, without its data. I costs; utility 0 is the reward, utility i the i-th cost.

    tau: (I,) limits as discounted sums of scaled costs
    scale: (1+I,) what each utility was multiplied by
    value_low, value_high: (1+I,) bounds on every discounted sum of a scaled utility
    obs_mean, obs_std: (obs_dim,) normaliser, inside exported policies too
    action_low, action_high: (action_dim,) bounds of continuous actions, else None
    """

    obs_dim: int
    action_dim: int
    discrete: bool
    cost_names: tuple[str, ...]
    units: Units
    limits: tuple[Limit, ...]
    tau: F32
    scale: F64
    value_low: F32
    value_high: F32
    obs_mean: F32
    obs_std: F32
    action_low: F32 | None
    action_high: F32 | None

    @property
    def gamma(self) -> float:
        """Discount."""
        return self.units.gamma

    @property
    def costs(self) -> int:
        """Number of costs I."""
        return len(self.cost_names)

    def unscaled(self, values: NDArray[Any]) -> F64:
        """Discounted sums of the raw utilities, shape (..., 1+I), from those of the scaled ones."""
        return np.asarray(values, dtype=np.float64) / self.scale

    def describe(self) -> dict[str, Any]:
        """What a run's record says about the task, as JSON."""
        return {
            "obs_dim": self.obs_dim,
            "action_dim": self.action_dim,
            "discrete": self.discrete,
            "costs": list(self.cost_names),
            "gamma": self.gamma,
            "horizon": self.units.horizon,
            "limits": limit_records(self.limits, self.units),
            "scale": self.scale.tolist(),
        }


class Data(NamedTuple):
    """The dataset on the device (N transitions, E episodes, scaled and normalised).

    utilities: (N, 1+I) reward, then costs; discount: (N,) gamma, or 0 after a terminal
    returns: (N, 1+I) discounted sums from this row to the end of its episode; after a timeout the rest is
        guessed to continue at the episode's mean rate. Only a warm start uses them.
    initial: (E, obs_dim) first observations
    """

    obs: Array
    actions: Array
    utilities: Array
    discount: Array
    next_obs: Array
    returns: Array
    initial: Array


class Batch(NamedTuple):
    """A minibatch D_mini in the paper's letters: s, a (as a *choice*, see networks), u, gamma, s', s0."""

    s: Array
    a: Array
    u: Array
    discount: Array
    s_next: Array
    returns: Array
    s0: Array


def draw(data: Data, problem: Problem, key: Array, size: int) -> Batch:
    """A minibatch of `size` transitions and `size` first observations, uniform with replacement."""
    key_rows, key_initial = jax.random.split(key)
    rows = jax.random.randint(key_rows, (size,), 0, data.obs.shape[0])
    first = jax.random.randint(key_initial, (size,), 0, data.initial.shape[0])
    actions = data.actions[rows]
    return Batch(
        s=data.obs[rows],
        a=jax.nn.one_hot(actions, problem.action_dim) if problem.discrete else actions,
        u=data.utilities[rows],
        discount=data.discount[rows],
        s_next=data.next_obs[rows],
        returns=data.returns[rows],
        s0=data.initial[first],
    )


def prepare(
    dataset: Dataset,
    limits: tuple[Limit, ...],
    gamma: float,
    *,
    normalise_observations: bool = True,
    reward_scale: float | None = None,
) -> tuple[Problem, Data]:
    """The problem and its data on the device; `limits` one per cost, in the data's order.

    reward_scale: factor on rewards; None scales the 99.9th percentile of their size to 1. Costs are
    always divided by their largest value, so that multipliers mean the same everywhere.
    """
    problem = state_problem(
        dataset, limits, gamma, normalise_observations=normalise_observations, reward_scale=reward_scale
    )
    return problem, on_device(dataset, problem)


def on_device(dataset: Dataset, problem: Problem) -> Data:
    """The dataset in the units of `problem`, which may have been stated for other data of the same task."""
    columns = {name: jnp.asarray(column) for name, column in transitions(dataset, problem).items()}
    return Data(**columns, initial=jnp.asarray(normalised(dataset.initial_observations, problem)))


def state_problem(
    dataset: Dataset | StoredDataset,
    limits: tuple[Limit, ...],
    gamma: float,
    *,
    normalise_observations: bool = True,
    reward_scale: float | None = None,
) -> Problem:
    """The problem that `prepare` gives, for data in memory or on disk (then from its statistics)."""
    units = Units(gamma=gamma, horizon=dataset.horizon, bootstrap_timeouts=True)
    ranges = _measured(dataset) if isinstance(dataset, Dataset) else _stored(dataset)
    largest = np.maximum(np.abs(ranges.low), np.abs(ranges.high))
    scale = 1.0 / np.where(largest > 0, largest, 1.0)
    if reward_scale is not None:
        if not (np.isfinite(reward_scale) and reward_scale > 0):
            raise InputError(f"reward_scale must be a positive number, not {reward_scale}.")
        scale[0] = reward_scale
    elif largest[0] > 0:
        scale[0] = 1.0 / max(ranges.reward_size, 1e-3 * largest[0])
    mean = np.zeros(dataset.observation_dim, np.float32)
    std = np.ones(dataset.observation_dim, np.float32)
    if normalise_observations:
        mean = ranges.obs_mean.astype(np.float32)
        # a constant entry tells nothing: leave it as it is rather than divide by nearly 0
        std = np.where(ranges.obs_std > 1e-4, ranges.obs_std, 1.0).astype(np.float32)
    return Problem(
        obs_dim=dataset.observation_dim,
        action_dim=dataset.action_dim,
        discrete=dataset.discrete,
        cost_names=dataset.cost_names,
        units=units,
        limits=limits,
        tau=(units.thresholds(limits) * scale[1:]).astype(np.float32),
        scale=scale,
        value_low=(np.minimum(ranges.low * scale, 0.0) / (1 - gamma)).astype(np.float32),
        value_high=(np.maximum(ranges.high * scale, 0.0) / (1 - gamma)).astype(np.float32),
        obs_mean=mean,
        obs_std=std,
        action_low=None if dataset.discrete else dataset.action_low,
        action_high=None if dataset.discrete else dataset.action_high,
    )


class _Ranges(NamedTuple):
    """What scales are made of.

    low, high: (1+I,) of the raw utilities; reward_size: 99.9th percentile of the size of rewards
    obs_mean, obs_std: (obs_dim,) of observations
    """

    low: F64
    high: F64
    reward_size: float
    obs_mean: F64
    obs_std: F64


def _measured(dataset: Dataset) -> _Ranges:
    raw = _raw_utilities(dataset)
    return _Ranges(
        low=raw.min(axis=0),
        high=raw.max(axis=0),
        reward_size=float(np.quantile(np.abs(raw[:, 0]), 0.999)),
        obs_mean=dataset.observations.mean(axis=0, dtype=np.float64),
        obs_std=dataset.observations.std(axis=0, dtype=np.float64),
    )


def _stored(dataset: StoredDataset) -> _Ranges:
    known = dataset.statistics
    # the one figure that a store does not keep; a fixed seed, so that every run on it has the same scale
    rewards = dataset.sample(np.random.default_rng(0), REWARD_SAMPLE).rewards
    return _Ranges(
        low=np.append(known.reward_low, known.cost_low),
        high=np.append(known.reward_high, known.cost_high),
        reward_size=float(np.quantile(np.abs(rewards.astype(np.float64)), 0.999)),
        obs_mean=known.observation_mean,
        obs_std=known.observation_std,
    )


def _raw_utilities(dataset: Dataset) -> F64:
    return np.concatenate([dataset.rewards[:, None], dataset.costs], axis=1).astype(np.float64)


def normalised(observations: F32, problem: Problem) -> F32:
    """Observations as the networks see them."""
    return (observations - problem.obs_mean) / problem.obs_std


def scaled_actions(actions: NDArray[Any], problem: Problem) -> NDArray[Any]:
    """Actions as the networks see them: continuous ones moved from their bounds to [-1, 1]."""
    if problem.action_low is None or problem.action_high is None:
        return actions
    return 2.0 * (actions - problem.action_low) / (problem.action_high - problem.action_low) - 1.0


def transitions(dataset: Dataset, problem: Problem) -> dict[str, NDArray[Any]]:
    """The columns of `Data` but `initial`, on the host: every row whose next observation is known."""
    rows = np.flatnonzero(dataset.next_known)
    utilities = _raw_utilities(dataset) * problem.scale
    return {
        "obs": normalised(dataset.observations[rows], problem),
        "actions": scaled_actions(dataset.actions[rows], problem),
        "utilities": utilities[rows].astype(np.float32),
        "discount": (problem.gamma * (1.0 - dataset.terminals[rows])).astype(np.float32),
        "next_obs": normalised(dataset.next_observations[rows], problem),
        "returns": _returns(dataset, utilities, problem.gamma)[rows].astype(np.float32),
    }


def _returns(dataset: Dataset, utilities: F64, gamma: float) -> F64:
    """Discounted sums to the end of each row's episode, continued past a timeout at the mean rate."""
    from scipy.signal import lfilter

    returns = np.empty_like(utilities)
    episodes = dataset.episodes
    for start, stop, terminated in zip(episodes.starts, episodes.stops, episodes.terminated, strict=True):
        part = utilities[start:stop]
        # y[t] = u[t] + gamma y[t+1]: a one-pole filter over reversed time
        sums = lfilter([1.0], [1.0, -gamma], part[::-1], axis=0)[::-1]
        if not terminated:
            left = np.arange(stop - start, 0, -1)[:, None]
            sums = sums + gamma**left * part.mean(axis=0) / (1 - gamma)
        returns[start:stop] = sums
    return returns
