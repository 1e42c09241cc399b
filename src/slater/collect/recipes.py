"""The behaviours of the twelve tasks: how each was trained, and the limits that its datasets are read at."""

from __future__ import annotations

from dataclasses import replace

from slater.collect.sac import SACConfig
from slater.collect.training import Recipe
from slater.errors import InputError

_ONE_STEP = SACConfig(returns_over=1)
_BULLET_TARGETS = (40.0, 20.0, 10.0, 1.0)
#: with a penalty that grows in small steps: the walk is kept while its cost comes down
_LOOSE = (400.0, 200.0, 100.0, 50.0, 20.0, 10.0, 2.0)


def _ball_or_car(name: str, horizon: int, steps: int) -> Recipe:
    return Recipe(f"bullet/{name}", horizon, steps, _BULLET_TARGETS, config=_ONE_STEP)


def _falling(name: str, horizon: int, rounds: int, steps: int) -> Recipe:
    return Recipe(f"bullet/{name}", horizon, steps, _BULLET_TARGETS, free=0.5, environments=2, rounds=rounds)


def _real_world(domain: str, cost: str, limit: float, steps: int) -> Recipe:
    """limit: cost per episode of 1000 steps."""
    return Recipe(
        f"rwrl/{domain}?costs={cost}", 1000, steps, (2 * limit, limit, limit / 2, limit / 10), free=0.5,
        penalty_rate=0.15, environments=2,
    )  # fmt: skip


#: name of a dataset -> how its behaviours are trained, the cheapest first
RECIPES: dict[str, Recipe] = {
    "ballrun": _ball_or_car("BallRun", 100, 40_000),
    "ballcircle": _ball_or_car("BallCircle", 200, 60_000),
    "carrun": _ball_or_car("CarRun", 200, 40_000),
    "carcircle": _ball_or_car("CarCircle", 300, 80_000),
    "cartpole": _real_world("cartpole", "slider_pos", 50.0, 120_000),
    "dronerun": _falling("DroneRun", 200, 3, 60_000),
    "dronecircle": _falling("DroneCircle", 300, 3, 60_000),
    "antrun": _falling("AntRun", 200, 3, 100_000),
    "walker": _real_world("walker", "joint_velocity", 50.0, 240_000),
    "antcircle": _falling("AntCircle", 500, 2, 60_000),
    "quadruped": replace(
        _real_world("quadruped", "joint_angle", 0.0, 250_000), targets=_LOOSE, free=0.3, penalty_rate=0.06
    ),
    "humanoid": _real_world("humanoid", "joint_angle", 10.0, 40_000),
}


def recipe(name: str) -> Recipe:
    """The recipe of a dataset, by its name."""
    if name not in RECIPES:
        raise InputError(f"there is no dataset {name!r}; choose from {', '.join(RECIPES)}.")
    return RECIPES[name]
