"""The four Real-World RL tasks of the paper, on plain dm_control: cartpole, walker, quadruped, humanoid.

Rewards, physics, observations and the 1000-step episodes are dm_control's own. What the suite adds is
the safety constraints (`slater.envs.constraints`) and one other start: its quadruped stands upright at
a random heading, where dm_control's is dropped in any orientation.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from slater.envs.constraints import DOMAINS
from slater.envs.install import RWRL
from slater.errors import InputError


@functools.cache
def _suite(domain: str) -> Any:
    # Physics needs no graphics, and dm_control fails at import where it finds no display.
    os.environ.setdefault("MUJOCO_GL", "disabled")
    try:
        return importlib.import_module(f"dm_control.suite.{domain}")
    except ImportError as error:
        raise InputError(f"dm_control cannot be imported ({error}); run: {RWRL}") from None


def _upright_quadruped(random: np.random.RandomState) -> Any:
    """dm_control's quadruped walk, started as the Real-World RL suite starts it."""
    quadruped = _suite("quadruped")
    from dm_control.rl import control
    from dm_control.suite import base

    class UprightMove(quadruped.Move):  # type: ignore[misc,name-defined]  # a base known only at run time
        def initialize_episode(self, physics: Any) -> None:
            yaw = self.random.uniform(0.0, 2.0 * np.pi)
            heading = np.array([0.0, 0.0, 0.0, np.cos(yaw / 2.0), 0.0, 0.0, np.sin(yaw / 2.0)])
            contacts = True
            while contacts:  # up from inside the floor, a centimetre at a time
                try:
                    with physics.reset_context():
                        physics.named.data.qpos["root"][:] = heading
                except control.PhysicsError:
                    pass  # deep in the floor the contact buffer overflows: higher up it does not
                contacts = physics.data.ncon > 0
                heading[2] += 0.01
            base.Task.initialize_episode(self, physics)

    plain = quadruped.walk(random=random)
    return control.Environment(
        plain.physics,
        UprightMove(desired_speed=0.5, random=random),
        time_limit=20.0,
        control_timestep=plain.control_timestep(),
    )


def _flat(observation: dict[str, Any]) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float64)


class RWRLEnv(gym.Env[NDArray[np.float64], NDArray[np.float32]]):
    """One task with all constraints of its domain; `info["cost"]` is the paper's one.

    `safety_coeff`, in [0, 1], scales every constraint; 1 is loosest; the default is the paper's.
    """

    #: what a step costs at most, of any cost
    largest_step_cost = 1.0

    def __init__(self, domain: str, safety_coeff: float | None = None) -> None:
        self._domain = DOMAINS[domain]
        self.safety_coeff = self._domain.paper_coefficient if safety_coeff is None else safety_coeff
        if not isinstance(self.safety_coeff, int | float) or not 0.0 <= self.safety_coeff <= 1.0:
            raise InputError(f"safety_coeff is {safety_coeff!r}; it must be a number from 0 to 1.")
        self.available_costs = self.default_costs = tuple(self._domain.satisfied)
        self._random = np.random.RandomState()  # dm_control's kind of generator
        self.dm_env: Any = self._build(domain)
        bounds = self.dm_env.action_spec()
        self.action_space = gym.spaces.Box(
            bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32), dtype=np.float32
        )
        size = sum(int(np.prod(part.shape)) for part in self.dm_env.observation_spec().values())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), dtype=np.float64)

    def _build(self, domain: str) -> Any:
        try:
            if domain == "quadruped":
                return _upright_quadruped(self._random)
            return getattr(_suite(domain), self._domain.task)(random=self._random)
        except AttributeError as error:  # how a release of MuJoCo that dm_control does not know shows itself
            raise InputError(
                f"dm_control cannot load {domain} with the installed mujoco ({error}); run: {RWRL}"
            ) from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start an episode that depends on `seed` alone, or on the last seed if there is none now."""
        super().reset(seed=seed)
        self._random.seed(int(self.np_random.integers(2**32)))
        return _flat(self.dm_env.reset().observation), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """One control step; costs are of the state after it. The time limit truncates."""
        step = self.dm_env.step(np.asarray(action, dtype=np.float64))
        costs = self._domain.costs(self.dm_env.physics, self.safety_coeff)
        info = {"cost": costs[self._domain.paper_cost], "costs": costs}
        return _flat(step.observation), float(step.reward), False, bool(step.last()), info
