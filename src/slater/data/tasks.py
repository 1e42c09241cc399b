"""The published DSRL tasks: file names, episode lengths and widths.

The extremes of returns that normalise scores are in `slater.envs.scores`.

A file name says the cap on episode cost and the number of trajectories: SafetyBallRun-v0-80-940.hdf5.
"""

from __future__ import annotations

from dataclasses import dataclass

from slater.data.metadata import Metadata


@dataclass(frozen=True)
class PublishedTask:
    """One published dataset.

    name: as in DSRL, e.g. "BallRun". file: its name on the server. horizon: steps of an episode.
    trajectories: how many episodes the file holds. observation_dim, action_dim: widths, where known.
    env_id: name for `slater.envs.make`, where there is one.
    """

    name: str
    file: str
    horizon: int
    trajectories: int
    observation_dim: int | None = None
    action_dim: int | None = None
    env_id: str | None = None

    def metadata(self) -> Metadata:
        """What is known of the file before reading it."""
        bounds = None if self.action_dim is None else (1.0,) * self.action_dim
        return Metadata(
            env_id=self.env_id or self.file.rsplit("-", 2)[0],
            horizon=self.horizon,
            action_low=None if bounds is None else tuple(-x for x in bounds),
            action_high=bounds,
        )


def _bullet(name: str, cap: int, trajectories: int, horizon: int, obs: int, act: int) -> PublishedTask:
    file = f"Safety{name}-v0-{cap}-{trajectories}.hdf5"
    return PublishedTask(name, file, horizon, trajectories, obs, act, f"bullet/{name}")


def _gymnasium(
    name: str, cap: int, trajectories: int, horizon: int = 1000, version: int = 0
) -> PublishedTask:
    return PublishedTask(
        name, f"Safety{name}Gymnasium-v{version}-{cap}-{trajectories}.hdf5", horizon, trajectories
    )


_ALL = (
    _bullet("BallRun", 80, 940, 100, 7, 2),
    _bullet("CarRun", 40, 651, 200, 7, 2),
    _bullet("DroneRun", 140, 1990, 200, 17, 4),
    _bullet("AntRun", 150, 1816, 200, 33, 8),
    _bullet("BallCircle", 80, 886, 200, 8, 2),
    _bullet("CarCircle", 100, 1450, 300, 8, 2),
    _bullet("DroneCircle", 100, 1923, 300, 18, 4),
    _bullet("AntCircle", 200, 5728, 500, 34, 8),
    _gymnasium("CarButton1", 250, 2656),
    _gymnasium("CarButton2", 300, 3755),
    _gymnasium("CarCircle1", 250, 1271, 500),
    _gymnasium("CarCircle2", 400, 940, 500),
    _gymnasium("CarGoal1", 120, 1671),
    _gymnasium("CarGoal2", 200, 4105),
    _gymnasium("CarPush1", 200, 2871),
    _gymnasium("CarPush2", 250, 4407),
    _gymnasium("PointButton1", 200, 2268),
    _gymnasium("PointButton2", 250, 3288),
    _gymnasium("PointCircle1", 200, 1098, 500),
    _gymnasium("PointCircle2", 300, 895, 500),
    _gymnasium("PointGoal1", 100, 2022),
    _gymnasium("PointGoal2", 200, 3442),
    _gymnasium("PointPush1", 150, 2379),
    _gymnasium("PointPush2", 200, 3242),
    _gymnasium("AntVelocity", 250, 2249, version=1),
    _gymnasium("HalfCheetahVelocity", 250, 2495, version=1),
    _gymnasium("HopperVelocity", 250, 2240, version=1),
    _gymnasium("SwimmerVelocity", 200, 1686, version=1),
    _gymnasium("Walker2dVelocity", 300, 2729, version=1),
    *(
        PublishedTask(name, f"SafeMetaDrive-{name}-v0-{50 if 'medium' in name else 85}-1000.hdf5", 1000, 1000)
        for level in ("easy", "medium", "hard")
        for name in (f"{level}sparse", f"{level}mean", f"{level}dense")
    ),
)

#: task name -> task
TASKS: dict[str, PublishedTask] = {task.name: task for task in _ALL}


def task_of_file(name: str) -> PublishedTask | None:
    """The task whose published file has this name, or None."""
    return next((task for task in _ALL if task.file == name), None)
