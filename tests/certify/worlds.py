"""Small worlds of known truth, and a real run on the log of one, for tests of verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import slater
from slater.data import Dataset, Metadata, save

#: steps of an episode
T = 10
#: settings with which a run takes a second or two
QUICK: dict[str, Any] = {"steps": 2, "hidden": (8,), "batch_size": 16}


class Blow(gym.Env[np.ndarray, Any]):
    """Ten steps. Now and then the first costs `large`; every other one costs 1 with probability `rate`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, chance: float = 1 / 75, large: float = 600.0, rate: float = 0.0) -> None:
        self.chance, self.large, self.rate, self.time = chance, large, rate, 0

    def _seen(self) -> np.ndarray:
        return self.np_random.standard_normal(2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.time == 0:
            cost = self.large * (self.np_random.random() < self.chance)
        else:
            cost = float(self.np_random.random() < self.rate)
        self.time += 1
        return self._seen(), 1.0, False, False, {"cost": cost}


gym.register("SlaterBlow-v0", entry_point=Blow, max_episode_steps=T)
BLOW = "SlaterBlow-v0"
#: mean cost of an episode of `Blow`
BLOW_COST = 8.0


def log_of(costs: np.ndarray, seed: int = 0, *, terminal: bool = False, **fields: Any) -> Dataset:
    """Episodes with these costs of steps, (E, steps): continuous observations, two actions at random."""
    rng = np.random.default_rng([77, seed])
    episodes, steps = costs.shape
    size = episodes * steps
    ends = np.arange(size) % steps == steps - 1
    fields = {
        "actions": rng.integers(0, 2, size), "metadata": Metadata(horizon=T, num_actions=2),
        "propensity": np.full(size, 0.5), **fields,
    }  # fmt: skip
    return Dataset.from_arrays(
        observations=rng.standard_normal((size, 2)), rewards=rng.random(size), costs=costs.reshape(size, 1),
        terminals=ends & terminal, timeouts=ends & (not terminal),
        next_observations=rng.standard_normal((size, 2)), **fields,
    )  # fmt: skip


def blow_log(episodes: int, seed: int = 0) -> Dataset:
    """Episodes as `Blow` gives them; the first has the large cost, so that a log is known to have it."""
    rng = np.random.default_rng([78, seed])
    costs = np.zeros((episodes, T))
    costs[:, 0] = 600.0 * (rng.random(episodes) < 1 / 75)
    costs[0, 0] = 600.0
    return log_of(costs, seed)


def trained(
    place: Path, limit: str = "3", episodes: int = 100, log: Dataset | None = None, **options: Any
) -> Path:
    """The folder of a finished run of `bc` on episodes of `Blow`; the log is `log.npz` beside it."""
    place.mkdir(parents=True, exist_ok=True)
    save(blow_log(episodes) if log is None else log, place / "log.npz")
    slater.train(
        place / "log.npz", "bc", [limit], out=place / "run", progress=False, estimate=False, **QUICK,
        **options,
    )  # fmt: skip
    return place / "run"
