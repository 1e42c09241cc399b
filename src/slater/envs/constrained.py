"""The one shape of environment that the rest of Slater sees.

A `ConstrainedEnv` is a Gymnasium environment with flat float observations, with actions that are
checked and clipped to the action space, and with an `info` that always has the same two entries, at
`reset` (zeros) and at every `step`:

- `info["cost"]`: the task's own scalar cost of the step, a float;
- `info["costs"]`: the named costs of the step, a dict in the order of `cost_names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError

Step = tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]


def checked_action(action: Any, space: gym.Space[Any]) -> Any:
    """`action` as the space wants it: an int in range, or a finite array clipped to the bounds.

    Raises `InputError` for a wrong shape, a value that is not finite, or an index out of range.
    Clipping is part of the contract: simulators differ in what they do beyond their bounds.
    """
    values = np.asarray(action)
    if isinstance(space, gym.spaces.Discrete):
        if values.shape != () or not np.issubdtype(values.dtype, np.integer):
            raise InputError(
                f"an action has shape {values.shape} and type {values.dtype}, but the environment takes "
                f"one integer from {space.start} to {space.start + space.n - 1}."
            )
        index = int(values)
        if not space.start <= index < space.start + space.n:
            raise InputError(
                f"an action is {index}, but the environment takes an integer from {space.start} to "
                f"{space.start + space.n - 1}."
            )
        return index
    assert isinstance(space, gym.spaces.Box)
    if values.shape != space.shape:
        raise InputError(
            f"an action has shape {values.shape}, but the environment takes actions of shape {space.shape}."
        )
    if values.dtype.kind not in "fiu":
        raise InputError(f"an action has type {values.dtype}, but the environment takes real numbers.")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values.ravel()))[0])
        raise InputError(
            f"an action has the value {values.ravel()[where]} at index {where}; it must be finite."
        )
    return np.clip(values, space.low, space.high).astype(space.dtype, copy=False)


def chosen_costs(env_id: str, costs: Any, available: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The names in `costs` (a sequence, or a string with commas), checked against `available`."""
    names = tuple(part for part in costs.split(",") if part) if isinstance(costs, str) else tuple(costs)
    for name in names:
        if available is not None and name not in available:
            raise InputError(f"{env_id} has no cost {name!r}; choose from {', '.join(available)}.")
    if len(set(names)) != len(names):
        raise InputError(f"the costs {', '.join(names)} asked of {env_id} name one cost twice.")
    return names


class ConstrainedEnv(gym.Env[NDArray[np.float64], Any]):
    """A Gymnasium environment with named costs; made by `slater.envs.make`.

    It is no wrapper: what it is made of has no costs by name, other seeds, or a spec of its own, so
    `unwrapped` is this. Attributes: `env`, the simulator; `env_id`, the id it was made from; `cost_names`,
    the order of `info["costs"]`, which is also the order of every cost vector of shape `(I,)` that rollouts
    report.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: str, cost_names: tuple[str, ...]) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        space = env.action_space
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.Box):
            raise InputError(
                f"{env_id} has actions in {space}; Slater takes a Box or a Discrete space, so wrap the "
                "environment."
            )
        self.env_id = env_id
        self.cost_names = cost_names
        self.spec = env.spec  # how long an episode is, where that is registered

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start an episode; the info has zero costs, so that its keys never change."""
        super().reset(seed=seed)
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "cost": 0.0, "costs": dict.fromkeys(self.cost_names, 0.0)}

    def take(self, action: Any) -> Any:
        """`action` as `step` will take it: checked, and clipped to the bounds of the action space."""
        return checked_action(action, self.action_space)

    def step(self, action: Any) -> Step:
        """One step; `action` is checked and clipped first, see `take`."""
        observation, reward, terminated, truncated, info = self.env.step(self.take(action))
        named: Mapping[str, float] = info["costs"]
        costs = {name: named[name] for name in self.cost_names}
        return observation, float(reward), terminated, truncated, {**info, "costs": costs}

    def close(self) -> None:
        """Close the simulator."""
        self.env.close()

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of this, or of the simulator."""
        return super().get_wrapper_attr(name) if hasattr(self, name) else self.env.get_wrapper_attr(name)
