"""Environments that are not ours: a Gymnasium id, or `module:callable` that returns an environment.

Where the costs come from, in this order:

1. a step of six values `(observation, reward, cost, terminated, truncated, info)`, as in Safety Gymnasium;
2. `info["costs"]`, a mapping from name to cost, or a vector in the order of the environment's `cost_names`;
3. one entry of `info` for each name.

The names are the option `costs`, else the environment's attribute `cost_names`, else those of `info["costs"]`
in a first step that is taken to see them, where there is no `info["cost"]`, else just `"cost"`. The scalar
`info["cost"]` is the environment's own, or the sum of the costs where it gives none.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from slater.envs.constrained import chosen_costs
from slater.errors import InputError


class ForeignEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Turns either kind of step into Gymnasium's five values, with `cost` and `costs` in the info."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str, costs: Any) -> None:
        super().__init__(env)
        self._env_id = env_id
        declared = getattr(env.unwrapped, "cost_names", None)
        asked = declared if costs is None else costs
        self.available_costs = chosen_costs(env_id, _seen_costs(env) if asked is None else asked)
        self._declared = None if declared is None else tuple(declared)

    def _named(self, given: Any, info: Mapping[str, Any]) -> dict[str, float]:
        """The costs of one step; `given` is the third of six values, or None."""
        source = info.get("costs") if given is None else given
        known = {**info, **source} if isinstance(source, Mapping) else dict(info)
        if source is not None and not isinstance(source, Mapping):
            vector = np.atleast_1d(np.asarray(source, dtype=np.float64))
            order = self._declared or self.available_costs
            if vector.shape != (len(order),):
                raise InputError(
                    f"{self._env_id} gave costs of shape {vector.shape}, but has the cost names "
                    f"{', '.join(order)}; give one cost for each name."
                )
            known |= dict(zip(order, vector, strict=True))
        costs = {}
        for name in self.available_costs:
            if name not in known:
                raise InputError(
                    f"{self._env_id} gave no cost {name!r} in a step; put it in info[{name!r}] or "
                    "info['costs'], or make the environment with costs=() if it has no constraint."
                )
            try:
                costs[name] = float(np.asarray(known[name], dtype=np.float64).item())
            except (TypeError, ValueError):
                raise InputError(
                    f"{self._env_id} gave the cost {name!r} the value {known[name]!r}, which is no number."
                ) from None
            if not np.isfinite(costs[name]):
                raise InputError(f"{self._env_id} gave the cost {name!r} the value {costs[name]}.")
        return costs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of five values, whichever kind the environment takes."""
        values: Any = self.env.step(action)
        if len(values) == 6:
            observation, reward, given, terminated, truncated, info = values
        elif len(values) == 5:
            observation, reward, terminated, truncated, info = values
            given = None
        else:
            raise InputError(
                f"{self._env_id} returned {len(values)} values from step; Slater takes Gymnasium's five, "
                "or six with the cost after the reward."
            )
        costs = self._named(given, info)
        scalar = costs["cost"] if "cost" in costs else info.get("cost", sum(costs.values()))
        info = {**info, "cost": float(scalar), "costs": costs}
        return observation, float(reward), bool(terminated), bool(truncated), info


def _seen_costs(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """The costs that an environment names by giving them in its first step, which is taken to see them."""
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    try:
        _, info = env.reset(seed=0)
        if "costs" not in info:
            info = env.step(actions.sample())[-1]
        found = info.get("costs")
    except Exception:  # whatever is wrong with it, an episode will say
        return ("cost",)
    named = tuple(map(str, found)) if isinstance(found, Mapping) else ()
    return named if named and "cost" not in info else ("cost",)


class _FlatFloat(gym.ObservationWrapper[NDArray[np.float64], Any, Any]):
    """Observations as float64 vectors, whatever the space: a number becomes one-hot, a dict is joined."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        size = gym.spaces.flatdim(env.observation_space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def observation(self, observation: Any) -> NDArray[np.float64]:
        try:
            flat = gym.spaces.flatten(self.env.observation_space, observation)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            space = self.env.observation_space
            raise InputError(
                f"an observation does not fit the environment's space {space} ({error})."
            ) from None
        return np.asarray(flat, dtype=np.float64)


def _call(env_id: str, options: Mapping[str, Any]) -> tuple[Any, int | None]:
    """The bare environment and its time limit, from `module:callable` or a Gymnasium id."""
    module_name, colon, name = env_id.partition(":")
    if colon:
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())  # a console script does not look where the user stands
        try:
            module = importlib.import_module(module_name)
        except (ImportError, TypeError, ValueError) as error:  # a path is no module, and not found as one
            raise InputError(
                f"the module {module_name!r} of {env_id!r} cannot be imported: {error}."
            ) from None
        factory = getattr(module, name, None)
        if callable(factory):
            try:
                inspect.signature(factory).bind(**options)
            except TypeError as error:
                raise InputError(f"{env_id} cannot be called with the options given: {error}.") from None
            return factory(**options), None
    registered = name if colon else env_id  # `module:id`, as in Gymnasium: the import registered it
    try:
        spec = gym.spec(registered)
        # -1: no time limit yet, because its wrapper takes only steps of five values
        env = gym.make(spec, max_episode_steps=-1, disable_env_checker=True, **options)
    except TypeError as error:
        raise InputError(f"{env_id} cannot be made with the options given: {error}.") from None
    except gym.error.Error as error:
        hint = f"{module_name!r} has no callable {name!r}, and " if colon else ""
        raise InputError(
            f"there is no environment {env_id!r}: {hint}Gymnasium says: {str(error).strip().rstrip('.')}."
        ) from None
    return env, spec.max_episode_steps


def load(
    env_id: str, *, costs: Any = None, max_episode_steps: int | None = None, **options: Any
) -> tuple[gym.Env[Any, Any], Any]:
    """The environment with flat observations, and the names of its costs.

    `max_episode_steps` truncates episodes (default: the registered limit); the other options go to the
    environment itself.
    """
    bare, registered = _call(env_id, options)
    if not isinstance(bare, gym.Env):
        raise InputError(f"{env_id} returned a {type(bare).__name__}; it must return a gymnasium.Env.")
    foreign = ForeignEnv(bare, env_id, costs)
    limit = registered if max_episode_steps is None else max_episode_steps
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise InputError(
            f"max_episode_steps of {env_id} is {limit!r}; it must be a whole number, at least 1."
        )
    limited: Any = gym.wrappers.TimeLimit(foreign, limit) if limit else foreign
    return _FlatFloat(limited), foreign.available_costs
