"""Small environments and policies with sums that can be worked out by hand, importable by workers."""

import os
from dataclasses import dataclass

import gymnasium as gym
import numpy as np


class Line(gym.Env):
    """A walk on a line: reward is the position, the two costs are its sign; ends after `steps`."""

    def __init__(self, style="info", steps=7, discrete=False, crash_at=None):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), dtype=np.float64)
        self.action_space = (
            gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
        )
        self.style, self.steps, self.crash_at = style, steps, crash_at
        if style == "vector":
            self.cost_names = ("left", "right")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = float(self.np_random.normal()), 0
        return np.array([self.position]), {}

    def step(self, action):
        move = action - 1 if isinstance(self.action_space, gym.spaces.Discrete) else float(action[0])
        self.position += move
        self.time += 1
        left, right = float(self.position < 0.0), float(self.position > 0.0)
        done, out = self.time >= self.steps, np.array([self.position])
        if self.time == self.crash_at:
            return out, float("nan"), done, False, {"cost": left}
        if self.style == "six":
            return out, self.position, left, done, False, {}
        info = {
            "info": {"cost": left},
            "mapping": {"costs": {"left": left, "right": right, "other": 5.0}},
            "keys": {"left": left, "right": right},
            "vector": {"costs": np.array([left, right]), "cost": 2.0 * left},
            "none": {},
            "infinite": {"cost": float("inf")},
        }[self.style]
        return out, self.position, done, False, info


class Grid(gym.Env):
    """A numbered state and a dict observation, neither of which is a flat vector of floats."""

    def __init__(self, numbered=True):
        self.observation_space = (
            gym.spaces.Discrete(4)
            if numbered
            else gym.spaces.Dict({"a": gym.spaces.Box(0, 1, (2, 2)), "b": gym.spaces.Discrete(2)})
        )
        self.action_space = gym.spaces.Discrete(2)

    def _seen(self):
        if isinstance(self.observation_space, gym.spaces.Discrete):
            return 2
        return {"a": np.full((2, 2), 0.5, np.float32), "b": 1}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 1.0, False, False, {"cost": 0.5}


def not_an_environment():
    return 3


gym.register(id="SlaterSix-v0", entry_point=Line, kwargs={"style": "six", "steps": 1000}, max_episode_steps=5)


class Actor:
    """Asks its policy; remembers what it was told."""

    def __init__(self, act, observe=None):
        self.act = act
        self._observe = observe

    def observe(self, reward, costs):
        assert isinstance(reward, float)
        assert costs.dtype == np.float64
        if self._observe:
            self._observe(reward, costs)


@dataclass(frozen=True)
class Noisy:
    """Draws an action per step from the episode's generator; deterministic: a half."""

    size: int = 1

    def act(self, observations, *, rng, deterministic=False):
        if deterministic:
            return np.full((len(observations), self.size), 0.5)
        return rng.uniform(-1, 1, (len(observations), self.size))

    def begin(self, *, rng, deterministic=False):
        return Actor(lambda observation: self.act(observation[None], rng=rng, deterministic=deterministic)[0])


@dataclass(frozen=True)
class TwoMembers:
    """A mixture: one of two constant members, drawn when an episode begins."""

    def act(self, observations, *, rng, deterministic=False):
        raise NotImplementedError("a mixture draws its member in begin")

    def begin(self, *, rng, deterministic=False):
        member = float(rng.choice([-1.0, 1.0]))
        return Actor(lambda observation: np.array([member]))


@dataclass(frozen=True)
class Broken:
    """Fails in the way it is told, at its third step."""

    how: str

    def act(self, observations, *, rng, deterministic=False):
        raise NotImplementedError

    def begin(self, *, rng, deterministic=False):
        if self.how == "begin":
            raise KeyError("no members")
        steps = []

        def act(observation):
            steps.append(observation)
            if len(steps) < 3:
                return np.zeros(1)
            if self.how == "act":
                raise RuntimeError("out of ideas")
            if self.how == "exit":
                os._exit(7)
            return {
                "shape": np.zeros(4),
                "scalar": 0.0,
                "nan": np.array([np.nan]),
                "text": np.array(["left"]),
                "observe": np.zeros(1),
            }[self.how]

        def observe(reward, costs):
            if self.how == "observe" and len(steps) == 3:
                raise ValueError("cannot remember")

        return Actor(act, observe)


@dataclass(frozen=True)
class Index:
    """The same discrete action always."""

    action: object

    def act(self, observations, *, rng, deterministic=False):
        return np.full(len(observations), self.action)

    def begin(self, *, rng, deterministic=False):
        return Actor(lambda observation: self.action)


@dataclass(frozen=True)
class Threads:
    """Acts with a tenth of the threads that numerical libraries are allowed in this process."""

    def act(self, observations, *, rng, deterministic=False):
        raise NotImplementedError

    def begin(self, *, rng, deterministic=False):
        allowed = [int(os.environ.get(name, 99)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
        return Actor(lambda observation: np.array([max(allowed) / 10.0]))
