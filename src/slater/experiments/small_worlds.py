"""Small worlds whose truth is known, and bare logs of them: no names of sources, no propensities.

Most often every episode is by an operator of its own. They are noisy, their costs rare or heavy-tailed,
in two modes, in conflict, hidden: what logs of machines and people are like, and smooth simulators are not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Rng = np.random.Generator
State = dict[str, Any]


class World(ABC):
    """n episodes at once; horizon in steps, limits per episode, actions: None where they are continuous."""

    horizon: int = 50
    limits: tuple[float, ...] = (0.0,)
    actions: int | None = None

    @abstractmethod
    def start(self, n: int, rng: Rng) -> State:
        """First states, a dict of arrays (n, ...)."""

    @abstractmethod
    def observe(self, s: State) -> F64:
        """What is seen, (n, obs_dim)."""

    def operators(self, n: int, rng: Rng) -> Any:
        """What operators differ in, one per episode; nothing by default."""
        return None

    @abstractmethod
    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        """What operators do."""

    @abstractmethod
    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        """Reward (n,) and costs (n, I); moves the state."""


def _chance(z: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-z))


class Wear(World):
    """Acting in the first 30 steps wears, which is not seen; costs come at steps 40 to 49."""

    horizon, limits = 50, (6.0,)

    def start(self, n: int, rng: Rng) -> State:
        return {"t": 0, "load": rng.normal(size=n), "wear": np.zeros(n), "x": rng.normal(size=n)}

    def observe(self, s: State) -> F64:
        return np.stack([np.full(len(s["load"]), s["t"] / self.horizon), s["load"], s["x"]], 1)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        return np.tanh(0.3 * o[:, 1:2] + 0.4 * rng.normal(size=(len(o), 1)))

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        a, n = np.clip(a[:, 0], -1, 1), len(a)
        reward = 1 + a * (0.5 + 0.3 * s["load"]) + 0.1 * rng.normal(size=n)
        if s["t"] < 30:
            s["wear"] = s["wear"] + 0.5 + 0.5 * a
        cost = ((rng.random(n) < _chance((s["wear"] - 15) / 2)) & (s["t"] >= 40)).astype(float)
        s["load"], s["x"], s["t"] = 0.8 * s["load"] + 0.6 * rng.normal(size=n), rng.normal(size=n), s["t"] + 1
        return reward, cost[:, None]


class WearSeen(Wear):
    """The same with the wear in the observation: nothing is hidden."""

    def observe(self, s: State) -> F64:
        return np.concatenate([super().observe(s), s["wear"][:, None] / 10], 1)


class Resonance(World):
    """Operators run below or above a forbidden band of speeds; the mean of both is inside it."""

    horizon, limits = 40, (3.0,)
    thin: ClassVar[float] = 0.01

    def start(self, n: int, rng: Rng) -> State:
        return {"t": 0, "load": rng.normal(size=n)}

    def observe(self, s: State) -> F64:
        return np.stack([s["load"], np.full(len(s["load"]), s["t"] / self.horizon)], 1)

    def operators(self, n: int, rng: Rng) -> Any:
        return rng.normal(size=n) * 0.7

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        n = len(o)
        up = rng.random(n) < _chance(0.8 * o[:, 0] + th)
        a = np.where(up, 0.7, -0.7) + 0.08 * rng.normal(size=n)
        return np.clip(np.where(rng.random(n) < self.thin, rng.uniform(-1, 1, n), a), -1, 1)[:, None]

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        a, n = np.clip(a[:, 0], -1, 1), len(a)
        reward, cost = 1 + 0.5 * a + 0.2 * rng.normal(size=n), (np.abs(a) < 0.35).astype(float)
        s["load"], s["t"] = 0.9 * s["load"] + 0.4 * rng.normal(size=n), s["t"] + 1
        return reward, cost[:, None]


class ResonanceNever(Resonance):
    """The same; the band was entered in a handful of rows."""

    thin: ClassVar[float] = 0.0007


class Spectrum(World):
    """Boldness from 0 to 1; incidents are rare, lognormal in severity, six times as likely in the wet."""

    horizon, limits = 40, (2.0,)

    def start(self, n: int, rng: Rng) -> State:
        return {"wet": (rng.random(n) < 0.4).astype(float), "z": rng.normal(size=n), "v": np.zeros(n)}

    def observe(self, s: State) -> F64:
        return np.stack([s["wet"] + 0.1 * s["z"], s["z"], s["v"]], 1)

    def operators(self, n: int, rng: Rng) -> Any:
        return np.stack([rng.random(n), rng.uniform(0.05, 0.5, n), rng.normal(size=n)], 1)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        m = 2 * th[:, 0] - 1 - 0.6 * th[:, 0] * (o[:, 0] > 0.5) * (th[:, 2] > 0)
        return np.clip(m + th[:, 1] * rng.normal(size=len(o)), -1, 1)[:, None]

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        n = len(a)
        s["v"] = 0.6 * s["v"] + 0.4 * (np.clip(a[:, 0], -1, 1) + 1)
        hit = rng.random(n) < np.where(s["wet"] > 0, 0.04, 0.006) * s["v"] ** 2
        cost = hit * np.exp(0.8 + 0.9 * rng.normal(size=n))
        reward = s["v"] + 0.1 * rng.normal(size=n)
        s["wet"] = np.where(rng.random(n) < 0.1, rng.random(n) < 0.4, s["wet"]).astype(float)
        s["z"] = rng.normal(size=n)
        return reward, cost[:, None]


class Rare(World):
    """A flag is up in 1.5% of the steps; acting (a > 0) under it costs 25. Operators differ in eagerness."""

    horizon, limits = 40, (2.0,)

    def start(self, n: int, rng: Rng) -> State:
        return {"f": (rng.random(n) < 0.015).astype(float), "x": rng.normal(size=(n, 2))}

    def observe(self, s: State) -> F64:
        return np.concatenate([s["x"], s["f"][:, None]], 1)

    def operators(self, n: int, rng: Rng) -> Any:
        return rng.uniform(-0.7, 0.3, n)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        return np.clip(th + 0.2 * o[:, 0] + 0.35 * rng.normal(size=len(o)) - 0.3 * o[:, 2], -1, 1)[:, None]

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        a, n = np.clip(a[:, 0], -1, 1), len(a)
        reward, cost = 1 + a + 0.1 * rng.normal(size=n), 25.0 * ((a > 0) & (s["f"] > 0))
        s["f"] = (rng.random(n) < 0.015).astype(float)
        s["x"] = 0.7 * s["x"] + 0.7 * rng.normal(size=(n, 2))
        return reward, cost[:, None]


class Queue(World):
    """Six service rates; cost 1: backlog above 5, cost 2: energy above the free rate. They conflict."""

    horizon, limits, actions = 40, (4.0, 12.0), 6

    def start(self, n: int, rng: Rng) -> State:
        return {"q": rng.integers(0, 6, n).astype(float), "d": rng.uniform(1, 3, n)}

    def observe(self, s: State) -> F64:
        return np.stack([s["q"] / 5, s["d"]], 1)

    def operators(self, n: int, rng: Rng) -> Any:
        return rng.uniform(-1.5, 2.0, n)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        z = -((np.arange(6)[None] - (o[:, 1] + th + 0.3 * o[:, 0])[:, None]) ** 2) / 1.5
        return (z + rng.gumbel(size=z.shape)).argmax(1)

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        served, arrived = np.minimum(s["q"], a), rng.poisson(s["d"])
        costs = np.stack([s["q"] > 5, 0.5 * np.maximum(a - 2, 0)], 1).astype(float)
        reward = served - 0.1 * s["q"]
        s["q"] = np.minimum(s["q"] - served + arrived, 15.0)
        s["d"] = np.clip(s["d"] + 0.2 * rng.normal(size=len(a)), 0.5, 3.5)
        return reward, costs


class Days(World):
    """A context drawn once an episode, and seen: on easy days everybody is cheap."""

    horizon, limits = 30, (3.0,)

    def start(self, n: int, rng: Rng) -> State:
        return {"h": rng.normal(size=n), "x": rng.normal(size=n), "u": np.zeros(n)}

    def observe(self, s: State) -> F64:
        return np.stack([s["h"], s["x"], s["u"]], 1)

    def operators(self, n: int, rng: Rng) -> Any:
        return np.stack([rng.uniform(-0.9, 0.6, n), rng.uniform(0.0, 0.3, n)], 1)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        return np.clip(th[:, 0] - th[:, 1] * o[:, 0] + 0.3 * rng.normal(size=len(o)), -1, 1)[:, None]

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        a, n = np.clip(a[:, 0], -1, 1), len(a)
        s["u"] = 0.7 * s["u"] + 0.3 * a
        reward = 1 + a + 0.1 * s["x"] + 0.1 * rng.normal(size=n)
        cost = np.maximum(0, s["u"] + 0.8 * s["h"] + 0.1 * rng.normal(size=n)) * 0.5
        s["x"] = 0.5 * s["x"] + rng.normal(size=n)
        return reward, cost[:, None]


class Gamble(World):
    """Action > 0 pays 1 and costs 1 with probability .25, action < 0 pays .3. Luck is not safety."""

    horizon, limits = 20, (1.0,)

    def start(self, n: int, rng: Rng) -> State:
        return {"x": rng.normal(size=(n, 3))}

    def observe(self, s: State) -> F64:
        return np.asarray(s["x"])

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        return rng.uniform(-1, 1, (len(o), 1))

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        bold, n = a[:, 0] > 0, len(a)
        s["x"] = rng.normal(size=(n, 3))
        return np.where(bold, 1.0, 0.3), (bold & (rng.random(n) < 0.25)).astype(float)[:, None]


#: by name
WORLDS: dict[str, type[World]] = {
    c.__name__.lower(): c
    for c in (
        Wear, WearSeen, Resonance, ResonanceNever, Spectrum, Rare, Queue, Days, Gamble,
    )
}  # fmt: skip
