"""A family of random small tasks whose truth is known: `task_of(number)` is the same task for ever.

Eight kinds of system: linear, queue, reservoir, inventory, heating, charging, dosing, hauling. The number
draws everything else: the system's parameters, its horizon (10 to 100 steps), one or two costs and their
shape (crossing a level, excess over it, rare events of one size, rare events with heavy tails), how operators
differ (a spectrum, a few, one alone, two modes each), discrete or continuous actions, contexts drawn once an
episode, autocorrelated disturbances, and in one task of ten that the disturbance is not seen.

Levels are quantiles of what a pilot log shows, and so are limits: between 15% and 60% of its episodes' costs,
so that they bind. No algorithm has a say in them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slater.experiments.small_worlds import F64, Rng, State, World

#: episodes of the pilot log that sets levels and limits
PILOT = 400
SHAPES = ("crossing", "excess", "rare", "heavy")
CREWS = ("spectrum", "spectrum", "few", "one", "modes")


class RandomTask(World):
    """A task of the family; a kind of system says `draw`, `first`, `seen`, `reading` and `move`.

    number: draws all of it; episodes: of the log that is meant, 100 to 300, some 4,000 to 12,000 rows in all;
    hidden: whether the disturbance is not seen, so that the past matters
    """

    #: numbers that an action has where it is continuous, and what of the state is seen, unless `seen` says
    dims: ClassVar[int] = 1
    sees: ClassVar[tuple[str, ...]] = ()

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng([2026, number])
        self.horizon = round(float(np.exp(rng.uniform(np.log(10), np.log(100)))))
        self.episodes = int(np.clip(rng.uniform(4_000, 12_000) / self.horizon, 100, 300))
        self.actions = int(rng.integers(3, 8)) if rng.random() < 0.35 else None
        self.hidden = bool(rng.random() < 0.1)
        # an autocorrelated disturbance, Gaussian or with heavy tails, and a context of the episode
        self.memory = float(rng.uniform(0.75, 0.95) if self.hidden else rng.choice([0.0, 0.5, 0.8, 0.95]))
        self.heavy_noise = bool(rng.random() < 0.25)
        self.context = float(rng.uniform(0.3, 0.9)) if rng.random() < 0.5 else 0.0
        self.unit = float(np.exp(rng.normal()))
        self._crew_of(rng)
        self.draw(rng)
        count = 1 + int(rng.random() < 0.4)
        self.order = rng.permutation(2)[:count]
        self.shapes = [str(rng.choice(SHAPES)) for _ in range(count)]
        self.chance, self.size = rng.uniform(0.01, 0.05, count), np.exp(rng.uniform(0.0, 2.5, count))
        self._price_by_pilot(rng)

    # --- what a kind of system says

    @abstractmethod
    def draw(self, rng: Rng) -> None:
        """Its parameters."""

    @abstractmethod
    def first(self, n: int, rng: Rng) -> State:
        """First states, without context `c` and disturbance `w`."""

    def seen(self, s: State) -> list[NDArray[Any]]:
        """Columns of the observation, (n,) or (n, k) each, the one that operators react to first."""
        return [s[name] for name in self.sees]

    @abstractmethod
    def reading(self, o: F64) -> F64:
        """What operators react to, of the order of 1, (n, dims), from observations."""

    @abstractmethod
    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Moves the state by actions (n, dims) in -1 to 1; reward, two signals that costs watch (n, 2)."""

    # --- the world

    def start(self, n: int, rng: Rng) -> State:
        """First states, with a context and a disturbance."""
        s = {"c": self.context * rng.normal(size=n), "w": rng.normal(size=n), "t": 0}
        return s | self.first(n, rng)

    def observe(self, s: State) -> F64:
        """What is seen of the system, then context and disturbance where there are any."""
        columns = [np.asarray(x, np.float64).reshape(len(s["c"]), -1) for x in self.seen(s)]
        columns += [s["c"][:, None]] if self.context else []
        columns += [s["w"][:, None]] if self.memory and not self.hidden else []
        return np.concatenate(columns, axis=1)

    def operators(self, n: int, rng: Rng) -> Any:
        """(n, 5): aim, other aim, chance of the other aim, gain and noise of each episode's operator."""
        if self.crew == "few":
            return self.people[rng.integers(0, len(self.people), n)]
        if self.crew == "one":
            return np.repeat(self.people[:1], n, axis=0)
        return self._people(n, rng)

    def behave(self, o: NDArray[Any], th: Any, rng: Rng) -> NDArray[Any]:
        """The aim, moved by what is read, with noise; one of a grid where actions are discrete."""
        n, seen = len(o), np.asarray(o, np.float64)
        aim = np.where(rng.random(n) < th[:, 2], th[:, 1], th[:, 0])[:, None]
        want = aim + th[:, 3:4] * self.reading(seen)
        if self.actions:
            away = (self._grid()[None] - want[:, :1]) / np.maximum(th[:, 4:5], 0.15)
            return np.asarray((-0.5 * away**2 + rng.gumbel(size=away.shape)).argmax(axis=1))
        return np.clip(want + th[:, 4:5] * rng.normal(size=(n, self.dims)), -1, 1)

    def step(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        """Reward and costs; moves the state, context and disturbance."""
        reward, signals = self._moved(s, a, rng)
        x = (signals[:, self.order] - self.level) / self.scale
        return reward, np.stack([self._cost(k, x[:, k], rng) for k in range(len(self.order))], axis=1)

    def _moved(self, s: State, a: NDArray[Any], rng: Rng) -> tuple[F64, F64]:
        lever = self._grid()[np.asarray(a, int)][:, None] if self.actions else np.clip(a, -1, 1)
        lever = np.repeat(lever, self.dims, axis=1) if lever.shape[1] < self.dims else lever
        reward, signals = self.move(s, np.asarray(lever, np.float64), rng)
        n = len(reward)
        kick = rng.standard_t(3, n) / np.sqrt(3.0) if self.heavy_noise else rng.normal(size=n)
        s["w"] = np.clip(self.memory * s["w"] + np.sqrt(1 - self.memory**2) * kick, -6, 6)
        s["t"] += 1
        return self.unit * reward, signals

    def _cost(self, k: int, x: F64, rng: Rng) -> F64:
        """The cost of shape k at signals x, in standard deviations above its level."""
        if self.shapes[k] == "crossing":
            return (x > 0).astype(np.float64)
        if self.shapes[k] == "excess":
            return self.size[k] * np.maximum(x, 0.0)
        hit = rng.random(len(x)) < np.clip(self.chance[k] * np.exp(np.clip(1.5 * x, -4.0, 2.5)), 0.0, 0.5)
        severity = np.exp(0.9 * rng.normal(size=len(x))) if self.shapes[k] == "heavy" else 1.0
        return 3.0 * self.size[k] * hit * severity

    def _grid(self) -> F64:
        assert self.actions is not None
        return np.linspace(-1.0, 1.0, self.actions)

    # --- operators, levels and limits, all drawn by the number

    def _crew_of(self, rng: Rng) -> None:
        self.crew = str(rng.choice(CREWS))
        self.gain, self.noise = float(rng.uniform(-0.6, 0.9)), float(np.exp(rng.uniform(-2.3, -0.8)))
        self.low, self.high = np.sort(rng.uniform(-0.9, 0.9, 2) + np.array([-0.3, 0.3]))
        self.people = self._people(int(rng.integers(2, 6)), rng)
        if self.crew == "one":  # who tries out, or nothing could be learned
            self.people[:, 4] = np.maximum(self.people[:, 4], 0.4)

    def _people(self, n: int, rng: Rng) -> F64:
        aim = rng.uniform(self.low, self.high, n)
        other = self.low + self.high - aim if self.crew == "modes" else aim
        if self.crew == "modes":
            aim, other = aim + 0.3 * np.sign(aim - other), other - 0.3 * np.sign(aim - other)
        gain = self.gain + 0.3 * rng.normal(size=n)
        noise = self.noise * np.exp(0.3 * rng.normal(size=n))
        return np.stack([aim, other, rng.uniform(0.1, 0.9, n), gain, noise], axis=1)

    def _price_by_pilot(self, rng: Rng) -> None:
        """Levels and scales of signals, then limits, from two pilot logs of the operators."""

        def pilot(step: Any) -> F64:
            s, crew = self.start(PILOT, rng), self.operators(PILOT, rng)
            steps = range(self.horizon)
            return np.stack([step(s, self.behave(self.observe(s), crew, rng), rng)[1] for _ in steps], axis=1)

        signals = pilot(self._moved)[..., self.order].reshape(-1, len(self.order))
        levels = np.array([np.quantile(column, rng.uniform(0.5, 0.9)) for column in signals.T])
        # a signal that is often at its largest never exceeds that: its mean then
        self.level = np.where(levels < signals.max(axis=0), levels, signals.mean(axis=0))
        self.scale = np.maximum(signals.std(axis=0), 1e-6)
        sums = pilot(self.step).sum(axis=1)
        least = 0.15 if len(self.order) == 1 else 0.35  # two limits at once
        # where hardly any episode has a cost, quantiles are 0: a share of the mean then
        self.limits = tuple(
            float(max(np.quantile(column, rng.uniform(least, 0.6)), rng.uniform(0.4, 0.8) * column.mean()))
            for column in sums.T
        )


class Linear(RandomTask):
    """A stable linear system of two to five states; watched: how far it leaves the middle, and effort."""

    sees: ClassVar[tuple[str, ...]] = ("x",)
    dims: ClassVar[int] = 2

    def draw(self, rng: Rng) -> None:
        k = int(rng.integers(2, 6))
        raw = rng.normal(size=(k, k))
        self.A = raw * rng.uniform(0.6, 0.95) / np.abs(np.linalg.eigvals(raw)).max()
        self.B = 0.4 * rng.normal(size=(k, 2))
        self.aim, self.watch = rng.normal(size=k), rng.normal(size=k)
        self.spread = rng.uniform(0.05, 0.4)

    def first(self, n: int, rng: Rng) -> State:
        return {"x": 0.5 * rng.normal(size=(n, len(self.A)))}

    def reading(self, o: F64) -> F64:
        return np.tanh(o[:, :2])

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Next: A x + B a + noise, pushed by the disturbance."""
        push = 0.3 * (s["w"] + s["c"])[:, None] * self.B[:, 0]
        noise = self.spread * rng.normal(size=s["x"].shape)
        s["x"] = np.clip(s["x"] @ self.A.T + a @ self.B.T + push + noise, -10, 10)
        reward = np.tanh(s["x"] @ self.aim) + 0.4 * a.mean(axis=1)
        return reward, np.stack([np.abs(s["x"] @ self.watch), (a**2).sum(axis=1)], axis=1)


class Service(RandomTask):
    """A queue served at a rate; watched: the backlog and energy."""

    sees: ClassVar[tuple[str, ...]] = ("q",)

    def draw(self, rng: Rng) -> None:
        self.arrivals, self.fastest = rng.uniform(1.0, 4.0), rng.uniform(4.0, 8.0)

    def first(self, n: int, rng: Rng) -> State:
        return {"q": rng.poisson(self.arrivals, n).astype(np.float64)}

    def reading(self, o: F64) -> F64:
        return np.tanh(o[:, :1] / self.arrivals - 1.5)

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Serves, then takes arrivals."""
        rate = self.fastest * (1 + a[:, 0]) / 2
        served = np.minimum(s["q"], rate)
        came = rng.poisson(self.arrivals * np.exp(0.3 * s["w"] + 0.3 * s["c"] - 0.09))
        s["q"] = np.minimum(s["q"] - served + came, 30.0)
        return served - 0.05 * s["q"], np.stack([s["q"], rate**1.5], axis=1)


class Reservoir(RandomTask):
    """Water that is held and released; watched: floods and releases that are too small."""

    sees: ClassVar[tuple[str, ...]] = ("v",)

    def draw(self, rng: Rng) -> None:
        self.inflow, self.gust, self.asked = rng.uniform([0.1, 0.3, 0.4], [0.2, 0.9, 1.0])

    def first(self, n: int, rng: Rng) -> State:
        return {"v": rng.uniform(0.3, 0.7, n)}

    def reading(self, o: F64) -> F64:
        return 3 * (o[:, :1] - 0.5)

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Releases up to what is there; power is head times release."""
        out = np.minimum(s["v"], 0.3 * (1 + a[:, 0]) / 2)
        came = self.inflow * np.exp(self.gust * (s["w"] + s["c"]) / 2 + 0.2 * rng.normal(size=len(a)))
        power = 10 * out * (0.3 + s["v"])
        s["v"] = np.clip(s["v"] - out + came, 0.0, 1.5)
        return power, np.stack([s["v"], self.asked - 5 * out], axis=1)


class Stock(RandomTask):
    """Orders that arrive a step later, demand by the week; watched: unmet demand and what lies about."""

    def draw(self, rng: Rng) -> None:
        self.demand, self.season = rng.uniform(2.0, 6.0), rng.uniform(0.0, 0.5)
        self.largest = self.demand * rng.uniform(1.8, 3.0)

    def first(self, n: int, rng: Rng) -> State:
        return {"x": rng.uniform(1.0, 2.0, n) * self.demand, "pipe": np.zeros(n)}

    def seen(self, s: State) -> list[NDArray[Any]]:
        angle = np.full(len(s["x"]), 2 * np.pi * (s["t"] % 7) / 7)
        return [s["x"], s["pipe"], np.sin(angle), np.cos(angle)]

    def reading(self, o: F64) -> F64:
        return np.tanh((2 * self.demand - o[:, :1] - o[:, 1:2]) / self.demand)

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Sells what is there."""
        rate = self.demand * np.exp(self.season * np.sin(2 * np.pi * (s["t"] % 7) / 7))
        asked = rng.poisson(rate * np.exp(0.25 * s["w"] + 0.25 * s["c"])).astype(np.float64)
        s["x"] = s["x"] + s["pipe"]
        sold = np.minimum(s["x"], asked)
        s["x"], s["pipe"] = np.minimum(s["x"] - sold, 60.0), self.largest * (1 + a[:, 0]) / 2
        return sold - 0.02 * s["x"], np.stack([asked - sold, s["x"]], axis=1)


class Heating(RandomTask):
    """A room and its walls; watched: energy and overheating."""

    sees: ClassVar[tuple[str, ...]] = ("x", "wall")

    def draw(self, rng: Rng) -> None:
        self.loss, self.wall, self.power = rng.uniform([0.05, 0.1, 1.0], [0.2, 0.4, 3.0])

    def first(self, n: int, rng: Rng) -> State:
        return {"x": 18 + rng.normal(size=n), "wall": 15 + rng.normal(size=n)}

    def reading(self, o: F64) -> F64:
        return np.tanh((20 - o[:, :1]) / 2)

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Heat goes in, to the wall, and out."""
        heat, outside = self.power * (1 + a[:, 0]) / 2, 6 + 4 * s["w"] + 3 * s["c"]
        s["x"] = s["x"] + heat - self.wall * (s["x"] - s["wall"]) + 0.2 * rng.normal(size=len(a))
        s["wall"] = s["wall"] + 0.3 * self.wall * (s["x"] - s["wall"]) - self.loss * (s["wall"] - outside) / 3
        return 2 - np.abs(s["x"] - 21) / 2, np.stack([heat * (1 + 0.2 * s["w"]), s["x"]], axis=1)


class Charging(RandomTask):
    """A battery that trades at a price; watched: deep discharge and heat."""

    sees: ClassVar[tuple[str, ...]] = ("price", "soc", "heat")

    def draw(self, rng: Rng) -> None:
        self.speed, self.cooling = rng.uniform(0.05, 0.25), rng.uniform(0.6, 0.9)
        self.price = rng.uniform(0.2, 0.6)

    def first(self, n: int, rng: Rng) -> State:
        return {"soc": rng.uniform(0.3, 0.9, n), "heat": np.zeros(n), "price": rng.normal(size=n)}

    def reading(self, o: F64) -> F64:
        return np.tanh(o[:, :1])

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Sells at a > 0 while there is charge."""
        flow = np.clip(self.speed * a[:, 0], s["soc"] - 1, s["soc"])
        reward = 5 * flow * (0.5 + self.price * s["price"])
        s["soc"] = np.clip(s["soc"] - flow + 0.01 * rng.normal(size=len(a)), 0, 1)
        s["heat"] = self.cooling * s["heat"] + np.abs(flow) / self.speed + 0.05 * (s["w"] + s["c"])
        s["price"] = 0.7 * s["price"] + 0.7 * rng.normal(size=len(a))
        return reward, np.stack([1 - s["soc"], s["heat"]], axis=1)


class Dosing(RandomTask):
    """Patients who get better by doses; watched: load on the frail, and doses."""

    sees: ClassVar[tuple[str, ...]] = ("ill", "load")

    def draw(self, rng: Rng) -> None:
        self.effect, self.clears = rng.uniform(0.05, 0.25), rng.uniform(0.4, 0.85)
        self.relapse = rng.uniform(0.05, 0.2)

    def first(self, n: int, rng: Rng) -> State:
        return {"ill": rng.gamma(2.0, 1.0, n), "load": np.zeros(n)}

    def reading(self, o: F64) -> F64:
        return np.tanh((o[:, :1] - 1.5) / 1.5)

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """Effects saturate."""
        dose = 1 + a[:, 0]
        s["load"] = self.clears * s["load"] + dose
        s["ill"] = s["ill"] * (1 - self.effect * np.sqrt(dose)) + self.relapse * rng.gamma(1.0, 1.0, len(a))
        strain = s["load"] * np.exp(0.5 * s["c"] + 0.2 * s["w"])
        return 1 - 0.4 * s["ill"], np.stack([strain, dose * s["ill"]], axis=1)


class Hauling(RandomTask):
    """A vehicle on a road that is wet or dry; watched: speed in the wet, and fuel."""

    sees: ClassVar[tuple[str, ...]] = ("wet", "v")

    def draw(self, rng: Rng) -> None:
        self.inertia, self.rain, self.slip = rng.uniform([0.3, 0.1, 0.5], [0.9, 0.5, 3.0])

    def first(self, n: int, rng: Rng) -> State:
        return {"v": np.zeros(n), "wet": (rng.random(n) < self.rain).astype(np.float64)}

    def reading(self, o: F64) -> F64:
        return 0.5 - o[:, :1]

    def move(self, s: State, a: F64, rng: Rng) -> tuple[F64, F64]:
        """The speed follows the pedal; the weather turns now and then."""
        n, push = len(a), 1 + a[:, 0]
        s["v"] = self.inertia * s["v"] + (1 - self.inertia) * push * (1 + 0.1 * s["w"])
        danger = s["v"] ** 2 * (1 + self.slip * s["wet"]) * np.exp(0.3 * s["c"])
        s["wet"] = np.where(rng.random(n) < 0.1, rng.random(n) < self.rain, s["wet"]).astype(np.float64)
        return s["v"] + 0.1 * rng.normal(size=n), np.stack([danger, push**2], axis=1)


#: kinds of system, in turn by the number
KINDS: tuple[type[RandomTask], ...] = (
    Linear, Service, Reservoir, Stock, Heating, Charging, Dosing, Hauling,
)  # fmt: skip


def task_of(number: int) -> RandomTask:
    """Task `number` of the family, 0 or more."""
    return KINDS[number % len(KINDS)](number)
