"""What an algorithm is told about its task, and the data as it lies on the device.

Units are settled here, once. Rewards and costs are scaled (`reward_scale`, `cost_scale`), observations
normalised, actions moved to [-1, 1], limits converted by `slater.limits` to discounted sums of the scaled
costs: tau. Everything behind this door works in these units; `Task` knows the way back.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.data.dataset import NO_TRANSITION
from slater.errors import InputError
from slater.limits import Limit, Units, limit_records

F32 = NDArray[np.float32]


F64 = NDArray[np.float64]


#: rows drawn from a store for its reward scale
REWARD_SAMPLE = 2**17


@dataclass(frozen=True, eq=False)
class Task:
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

    def tightened_limits(self, margin: float) -> F32:
        """The limits to aim at, shape (I,), in J-units: tau less the share `margin` of it."""
        return self.tau * (1.0 - margin)

    def unscaled(self, values: NDArray[Any]) -> F64:
        """Discounted sums of the raw utilities, shape (..., 1+I), from those of the scaled ones."""
        return np.asarray(values, dtype=np.float64) / self.scale

    def identity(self, rows: str, *, limits: bool = True) -> str:
        """SHA-256 (hex) of all that the task is made of and of `rows`, the fingerprint of its data.

        The one answer to "is it the same task?", for runs that are resumed and for what is kept of a log.
        limits: whether the limits count; what is fitted to a log serves all of them.
        """
        content = hashlib.sha256(rows.encode())
        for field in fields(self):
            if limits or field.name not in ("limits", "tau"):
                content.update(f"\n{field.name} {_exact(getattr(self, field.name))}".encode())
        return content.hexdigest()

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
            "action_low": None if self.action_low is None else self.action_low.tolist(),
            "action_high": None if self.action_high is None else self.action_high.tolist(),
        }


def _exact(value: Any) -> str:
    """A text that is equal for equal values only; a NumPy number is the same as Python's."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {value.shape} {value.tobytes().hex()}"
    if is_dataclass(value):
        return _exact([getattr(value, field.name) for field in fields(value)])
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_exact, value))}]"
    return repr(value.item() if isinstance(value, np.generic) else value)


#: spread of an entry, as a share of its mean, that is no more than the rounding of single precision
_ROUNDING = 1e-7
#: a limit of this many times the largest discounted cost that the data allow is as good as none
_NO_LIMIT = 1e4


def state_task(
    dataset: Dataset | StoredDataset,
    limits: tuple[Limit, ...],
    gamma: float,
    *,
    normalise_observations: bool = True,
    reward_scale: float | None = None,
) -> Task:
    """The problem that `prepare` gives, for data in memory or on disk (then from its statistics)."""
    units = Units(gamma=gamma, horizon=dataset.horizon, bootstrap_timeouts=True)
    if isinstance(dataset, Dataset) and not dataset.next_known.any():
        raise InputError(f"nothing can be learned from the data: {NO_TRANSITION}.")
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
        # an entry that varies by no more than its rounding tells nothing: leave it rather than divide by it
        varies = ranges.obs_std > np.maximum(_ROUNDING * np.abs(ranges.obs_mean), 1e-30)
        std = np.where(varies, ranges.obs_std, 1.0).astype(np.float32)
    # scaled costs are at most 1 in size, so this is far beyond any sum of them: no limit; more would overflow
    beyond = _NO_LIMIT / (1 - gamma)
    return Task(
        obs_dim=dataset.observation_dim,
        action_dim=dataset.action_dim,
        discrete=dataset.discrete,
        cost_names=dataset.cost_names,
        units=units,
        limits=limits,
        tau=np.minimum(units.thresholds(limits) * scale[1:], beyond).astype(np.float32),
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
    raw = raw_utilities(dataset)
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


def counts_episodes(task: Task) -> bool:
    """Whether estimates are of whole episodes: a horizon is known and no limit is a discounted sum."""
    return task.units.horizon is not None and all(limit.unit != "discounted" for limit in task.limits)


def rollout_length(task: Task) -> int:
    """Steps of a rollout: the horizon, or less where a discounted sum has but 1% of its weight left."""
    cut = math.ceil(math.log(0.01) / math.log(max(task.gamma, 0.01)))
    horizon = task.units.horizon
    if horizon is None:
        return cut
    return horizon if counts_episodes(task) else min(horizon, cut)


def in_j_units(task: Task) -> F64:
    """What sums of scaled utilities over a rollout and its length are divided by, (2+I,): J-units, steps.

    J-units compare with `Task.tau`: where limits count episodes, J is the mean sum over an episode divided by
    T (1-gamma); else the discounted sum over the steps that data and discount allow, scaled up by the weight
    of the rest.
    """
    gamma, length = task.gamma, rollout_length(task)
    size = length * (1.0 - gamma) if counts_episodes(task) else 1.0 - gamma**length
    return np.append(np.full(1 + task.costs, size), 1.0)


def raw_utilities(dataset: Dataset) -> F64:
    """Reward, then costs, of every row as they are in the data, shape (N, 1+I)."""
    return np.concatenate([dataset.rewards[:, None], dataset.costs], axis=1).astype(np.float64)


def normalised(observations: F32, task: Task) -> F32:
    """Observations as the networks see them."""
    return (observations - task.obs_mean) / task.obs_std


def scaled_actions(actions: NDArray[Any], task: Task) -> NDArray[Any]:
    """Actions as the networks see them: continuous ones moved from their bounds to [-1, 1]."""
    if task.action_low is None or task.action_high is None:
        return actions
    return 2.0 * (actions - task.action_low) / (task.action_high - task.action_low) - 1.0
