"""A charging site at a workplace, in the simulator EV2Gym: an operator sets the power of all chargers.

    observation  hour of the day; price now and mean price of the next two hours (EUR/kWh); power that the
                 transformer has left after offices and solar panels (kW); cars connected; energy that they
                 still want (kWh); the part of it that has to flow at once for a car to be full in time (kWh)
    action       power for all cars together (kW), in [0, 90], held for a quarter of an hour; it goes to the
                 cars that have least time to spare
    reward       minus what the energy costs (EUR)
    costs        overload: energy above what the transformer may carry (kWh); unmet: the shares of their
                 energy that cars did not have when they left, added up (cars)

`make("charging:Site")` runs a working day from 5:00, 64 quarters of an hour. The two costs are the parts of
EV2Gym's own cost function, in units. EV2Gym 2.0.0 needs packages that it does not declare:

    pip install ev2gym pandapower numba psutil multicopula
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ev2gym
import gymnasium
import numpy as np
import yaml
from ev2gym.models.ev2gym_env import EV2Gym
from ev2gym.utilities.loaders import load_transformers
from numpy.typing import NDArray

__all__ = ["HORIZON", "RULES", "Operator", "Site"]

HORIZON, CHARGERS, MOST = 64, 15, 90.0
HOURS = 0.25
PACKAGE = Path(ev2gym.__file__).parent


def _config(folder: str) -> str:
    """EV2Gym's own scenario of a workplace with offices and solar panels, smaller, without discharging."""
    config = yaml.safe_load((PACKAGE / "example_config_files" / "V2GProfitPlusLoads.yaml").read_text())
    config |= {
        "simulation_length": HORIZON, "number_of_charging_stations": CHARGERS, "v2g_enabled": False,
        "spawn_multiplier": 10, "ev_specs_file": str(PACKAGE / "data" / "ev_specs_v2g_enabled2024.json"),
    }  # fmt: skip
    config["transformer"]["max_power"] = 45
    config["demand_response"]["include"] = False
    path = Path(folder) / "site.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def _money(simulator: Any, money: float, *_: Any) -> float:
    return money


class Site(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """One working day."""

    observation_space = gymnasium.spaces.Box(-1e3, 1e3, (7,), np.float64)
    action_space = gymnasium.spaces.Box(0.0, MOST, (1,), np.float64)
    cost_names = ("overload", "unmet")

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.simulator = EV2Gym(
                _config(folder), seed=0, reward_function=_money, cost_function=self._parts
            )  # fmt: skip

    def _parts(self, simulator: Any, money: float, satisfaction: list[float], *_: Any) -> float:
        """Called in a step: the costs of it."""
        above = sum(one.get_how_overloaded() for one in simulator.transformers)
        self.costs = {
            "overload": HOURS * float(above),
            "unmet": float(sum(1.0 - one for one in satisfaction)),
        }
        return sum(self.costs.values())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Another day: its cars, prices, offices and sun."""
        super().reset(seed=seed)
        day = int(self.np_random.integers(2**31 - 1))
        before = np.random.get_state()  # noqa: NPY002  the simulator draws from the global generator
        self.simulator.done, self.simulator.tr_rng = False, np.random.default_rng(day)
        self.simulator.reset(seed=day)
        self.simulator.transformers = load_transformers(self.simulator)
        for transformer in self.simulator.transformers:
            transformer.reset(step=0)
        np.random.set_state(before)  # noqa: NPY002
        return self._seen(), {}

    def _cars(self) -> list[tuple[int, float, float, float]]:
        """Of each car: its charger, energy that it wants (kWh), its largest power (kW), hours to spare."""
        cars = []
        for number, charger in enumerate(self.simulator.charging_stations):
            car = charger.evs_connected[0]
            if car is not None:
                wanted = max(car.desired_capacity - car.current_capacity, 0.0)
                power = min(charger.get_max_power(), car.max_ac_charge_power)
                stays = HOURS * (car.time_of_departure - self.simulator.current_step + 1)
                cars.append((number, wanted, power, stays - wanted / power))
        return cars

    def _seen(self) -> NDArray[np.float64]:
        now = min(self.simulator.current_step, HORIZON - 1)
        prices = -self.simulator.charge_prices[0]
        transformer = self.simulator.transformers[0]
        # what solar panels give is below 0
        left = transformer.max_power[now] - transformer.inflexible_load[now] - transformer.solar_power[now]
        cars = self._cars()
        urgent = sum(min(wanted, HOURS * power) for _, wanted, power, spare in cars if spare < 2 * HOURS)
        hour = 5.0 + HOURS * self.simulator.current_step
        total = sum(wanted for _, wanted, _, _ in cars)
        return np.array([hour, prices[now], prices[now : now + 8].mean(), left, len(cars), total, urgent])

    def step(
        self, action: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """A quarter of an hour: the power goes to the cars that have least time to spare."""
        left = float(np.clip(action[0], 0.0, MOST))
        shares = np.zeros(CHARGERS)
        for number, wanted, power, _ in sorted(self._cars(), key=lambda car: car[3]):
            given = min(left, power, wanted / HOURS)
            shares[number] = given / self.simulator.charging_stations[number].get_max_power()
            left -= given
        _, money, ended, _, _ = self.simulator.step(shares)
        return self._seen(), float(money), False, bool(ended), {"costs": self.costs}


def _as_fast_as_possible(seen: NDArray[np.float64], share: float) -> float:
    return share * MOST


def _within_the_transformer(seen: NDArray[np.float64], share: float) -> float:
    return share * max(float(seen[3]), 0.0)


def _in_cheap_hours(seen: NDArray[np.float64], share: float) -> float:
    _, price, later, _, _, _, urgent = seen
    return share * MOST if price <= later else float(urgent) / HOURS


def _at_the_last_moment(seen: NDArray[np.float64], share: float) -> float:
    return share * float(seen[6]) / HOURS


#: what operators go by; each day one of them, with a share of its own
RULES = (_as_fast_as_possible, _within_the_transformer, _in_cheap_hours, _at_the_last_moment)


class Operator:
    """One operator's day: a rule, how far it is followed, and an unsteady hand (4 kW)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.rule, self.share = rng, RULES[rng.integers(len(RULES))], rng.uniform(0.5, 1.1)

    def act(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Power in kW, shape `(1,)`."""
        power = self.rule(seen, self.share) + 4.0 * self.rng.standard_normal()
        return np.clip([power], 0.0, MOST)
