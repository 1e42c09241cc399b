"""What a training run acts in and learns from: environments side by side, and a memory of their rows."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.collect.sac import NStepBatch, SACConfig, Spaces
from slater.envs.constrained import ConstrainedEnv


def spaces_of(env: ConstrainedEnv) -> Spaces:
    """The spaces of an environment, as the learner wants them; `make` gives flat observations."""
    space: Any = env.action_space
    discrete = hasattr(space, "n")
    size = int(space.n if discrete else space.shape[0])
    return Spaces(int(env.observation_space.shape[0]), size, discrete, len(env.cost_names))  # type: ignore[index]


class Memory:
    """Transitions in one packed float32 array: s, a, r, costs, discount, s'."""

    def __init__(self, spaces: Spaces) -> None:
        self.cuts = np.cumsum([spaces.observations, spaces.actions, 1, spaces.costs, 1])
        self.rows = np.empty((1024, int(self.cuts[-1]) + spaces.observations), np.float32)
        self.size = 0

    def append(self, rows: list[NDArray[Any]]) -> None:
        """Add rows."""
        while self.size + len(rows) > len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        if rows:
            self.rows[self.size : self.size + len(rows)] = rows
        self.size += len(rows)

    def draw(self, count: int, batch_size: int, rng: np.random.Generator) -> NStepBatch:
        """`count` minibatches, drawn with replacement."""
        picked = self.rows.take(rng.integers(self.size, size=(count, batch_size)), axis=0)
        s, a, r, c, discount, s_next = np.split(picked, self.cuts, axis=-1)
        return NStepBatch(s, a, r[..., 0], c, discount[..., 0], s_next)  # type: ignore[arg-type]


class Stream:
    """One environment: its running episode, and the rows that wait for their returns of several steps."""

    def __init__(self, env: ConstrainedEnv, config: SACConfig) -> None:
        self.env, self.config = env, config
        self.space: Any = env.action_space
        self.waiting: deque[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = deque()
        self.ended: list[tuple[float, float, int]] = []

    def begin(self, seed: list[int]) -> None:
        """Begin a segment with a new episode; what is drawn depends on `seed` alone."""
        self.seed, self.count = seed, 0
        self.ended = []
        self.waiting.clear()
        self._reset()

    def _reset(self) -> None:
        drawn = np.random.SeedSequence([*self.seed, self.count]).generate_state(1)[0]
        self.observation = np.asarray(self.env.reset(seed=int(drawn))[0], np.float32)
        self.sums = np.zeros(3)
        self.count += 1

    def step(self, action: NDArray[Any]) -> list[NDArray[Any]]:
        """Take `action`, in [-1, 1] or a number; the rows that are complete now."""
        if hasattr(self.space, "n"):
            taken: Any = int(self.space.start + action)
            action = np.eye(self.space.n, dtype=np.float32)[action]
        else:
            taken = self.space.low + (action + 1.0) * 0.5 * (self.space.high - self.space.low)
        observation, reward, terminated, truncated, info = self.env.step(taken)
        after = np.asarray(observation, np.float32)
        self.sums += np.array([reward, info["cost"], 1.0])
        self.waiting.append((self.observation, action, np.array([reward, *info["costs"].values()])))
        self.observation = after
        rows = []
        if len(self.waiting) == self.config.returns_over:
            rows.append(self._oldest(after, terminated))
        if terminated or truncated:
            while self.waiting:
                rows.append(self._oldest(after, terminated))
            self.ended.append((self.sums[0], self.sums[1], int(self.sums[2])))
            self._reset()
        return rows

    def _oldest(self, last: NDArray[Any], terminated: bool) -> NDArray[Any]:
        gamma = self.config.gamma
        # from 0, one after the other: the roundings of the behaviours that ship
        sums = sum(gamma**k * gained for k, (_, _, gained) in enumerate(self.waiting))
        discount = 0.0 if terminated else gamma ** len(self.waiting)
        observation, action, _ = self.waiting.popleft()
        return np.concatenate([observation, action, np.asarray(sums), [discount], last])
