"""Environments in which the best behaviour is plain, and learned in seconds."""

import gymnasium as gym
import numpy as np


class Pay(gym.Env):
    """Reward is the action, in [-1, 1]; an action above 0 costs 1. Ten steps."""

    def __init__(self, discrete=False):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), dtype=np.float64)
        self.discrete = discrete
        self.action_space = (
            gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        )
        self.cost_names = ("pay", "extreme")

    def _seen(self):
        return self.np_random.uniform(-1, 1, 2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        value = float(action) - 1.0 if self.discrete else float(action[0])
        self.time += 1
        costs = {"pay": float(value > 0.0), "extreme": float(abs(value) > 0.9)}
        info = {"costs": costs, "cost": costs["pay"]}
        return self._seen(), value, False, self.time >= 10, info
