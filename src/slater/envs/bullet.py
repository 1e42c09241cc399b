"""Bullet Safety Gym (PyPI 1.4.0, the version behind the DSRL datasets), made to behave.

What the adapter repairs, each with a test in tests/envs/test_bullet.py:

- the package silences PyBullet by duplicating the file descriptors of `sys.stdout` and `sys.stderr`,
  which fails wherever these are not real files: under pytest, in notebooks, with redirected output;
- PyBullet prints a line to standard output when it is imported, in the middle of a program's own output;
- `reset(seed=...)` is ignored: starts are drawn from NumPy's global generator;
- motor commands and contact points survive `reset`, so an episode depends on the one before it: always
  for Car and Drone, now and then for Ball. Freeing every motor and lifting the agent off the ground
  first makes each episode, bit for bit, the first episode of a new environment;
- `info` gains and loses keys from step to step.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from slater.envs.install import BULLET
from slater.errors import InputError

#: name of a cost -> the key of the simulator's info that is present when it is 1
_KEYS = {"boundary": "cost_outside_bounds", "speed": "cost_velocity_violation"}


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Send what C and Python print to nowhere, whatever `sys.stdout` and `sys.stderr` are."""
    libc = ctypes.CDLL(None)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    libc.fflush(None)
    # A stream opened by descriptor has an integer name, which the package leaves alone.
    with open(os.open(os.devnull, os.O_WRONLY), "w") as nowhere:
        kept = {}
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # the descriptor may be closed: nothing to silence
                kept[descriptor] = os.dup(descriptor)
                os.dup2(nowhere.fileno(), descriptor)
        try:
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
        finally:
            libc.fflush(None)
            for descriptor, copy in kept.items():
                os.dup2(copy, descriptor)
                os.close(copy)


@contextlib.contextmanager
def _global_generator(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator for the simulator, and give it back as it was."""
    state = np.random.get_state()  # noqa: NPY002  the simulator draws from nothing else
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


@functools.cache  # descriptors are process-wide: redirect them once, not for every environment
def _import_simulator() -> None:
    for package in ("pybullet", "bullet_safety_gym"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{package} is not installed; run: {BULLET}")
    with _silenced():
        from bullet_safety_gym.envs import builder

    # PyBullet also prints when a client connects; the package asks for its stream to be silenced then.
    builder.RedirectStream = lambda stream: _silenced()


class BulletEnv(gym.Wrapper[Any, Any, Any, Any]):
    """One Bullet Safety Gym task: seeded, without memory of earlier episodes, with named costs.

    `cost` is the simulator's own, 0 or 1; `boundary` and, in Run tasks, `speed` are its parts.
    """

    default_costs = ("cost",)
    #: what a step costs at most, of any cost
    largest_step_cost = 1.0

    def __init__(self, task: str) -> None:
        _import_simulator()
        with _global_generator(0), warnings.catch_warnings():
            # the observation box casts its bounds with a harmless overflow
            warnings.filterwarnings("ignore", message="overflow encountered in cast")
            # the checker would build the environment's info anew and warn about its keys
            super().__init__(gym.make(f"Safety{task}-v0", disable_env_checker=True))
        self.available_costs = ("cost", "speed", "boundary") if task.endswith("Run") else ("cost", "boundary")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode that depends on `seed` alone, or on the last seed if there is none now."""
        if seed is not None:
            gym.Env.reset(self.unwrapped, seed=seed)
        self._forget()
        with _global_generator(int(self.unwrapped.np_random.integers(2**32))):
            observation, _ = self.env.reset(options=options)
        return observation, {}

    def _forget(self) -> None:
        """Undo what the simulator's own reset leaves behind: motor commands and contact points."""
        simulator: Any = self.unwrapped
        for joint in simulator.agent.joint_list:
            joint.init_motor()
        simulator.agent.set_position(np.array([0.0, 0.0, 100.0]))  # where it touches nothing
        simulator.bc.performCollisionDetection()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; a cost is 1 when the state after the step violates it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(info["cost"])
        costs = {"cost": cost} | {
            name: float(info.get(_KEYS[name], 0.0)) for name in self.available_costs if name in _KEYS
        }
        return observation, float(reward), bool(terminated), bool(truncated), {"cost": cost, "costs": costs}
