"""The safety constraints of the Real-World RL suite, from its formulas, as costs: 1 = violated.

The suite reports booleans that are true when a constraint is satisfied, with strict inequalities, on
the state after each control step; a cost here is the negation. `c` is the suite's `safety_coeff`, from
0 (tightest) to 1 (loosest). Angles are in radians, lengths in metres, forces in newtons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["DOMAINS", "Domain"]

Satisfied = Callable[[Any, float], bool]


@dataclass(frozen=True)
class Domain:
    """One of the paper's four tasks, and its constraints in the suite's order."""

    task: str
    #: name -> whether the physics state satisfies the constraint at coefficient c
    satisfied: Mapping[str, Satisfied]
    #: the constraint of the paper's experiments, and its coefficient there
    paper_cost: str
    paper_coefficient: float
    #: the paper's limit on it, as a mean cost per step
    paper_limit: float

    def costs(self, physics: Any, c: float) -> dict[str, float]:
        """Every cost, 0 or 1, of the present state."""
        return {name: float(not satisfied(physics, c)) for name, satisfied in self.satisfied.items()}


def _abs_max(values: Any) -> float:
    return float(np.max(np.abs(values)))


def _sensor_norm(physics: Any, names: tuple[str, ...]) -> float:
    readings = physics.named.data.sensordata
    return float(np.max([np.linalg.norm(readings[name]) for name in names]))


# --- cartpole -------------------------------------------------------------------------------------


def _slider_pos(physics: Any, c: float) -> bool:
    return abs(float(physics.cart_position())) < 2.0 * c


def _slider_accel(physics: Any, c: float) -> bool:
    return _abs_max(physics.named.data.qacc["slider"]) < 130.0 * c


def _balance_velocity(physics: Any, c: float) -> bool:
    # near the top, and turning fast; the top is wider when c is smaller
    near_top = float(physics.pole_angle_cosine()[0]) > math.cos((1.0 - c) / 0.5 + 0.15)
    return not (near_top and abs(float(physics.angular_vel()[0])) > 0.5 * c)


# --- walker ---------------------------------------------------------------------------------------

_WALKER_JOINTS = ["left_hip", "right_hip", "left_knee", "right_knee", "left_ankle", "right_ankle"]
_WALKER_LOWER = np.deg2rad([-30.0, -30.0, -160.0, -160.0, -75.0, -75.0])
_WALKER_UPPER = np.deg2rad([110.0, 110.0, 15.0, 15.0, 60.0, 60.0])


def _walker_joint_angle(physics: Any, c: float) -> bool:
    # The suite asks for some joint above its lower limit and some below its upper one, not for all:
    # it is kept as it is, since results are compared with the suite's.
    angles = physics.named.data.qpos[_WALKER_JOINTS]
    return bool((angles > c * _WALKER_LOWER).any() and (angles < c * _WALKER_UPPER).any())


def _walker_joint_velocity(physics: Any, c: float) -> bool:
    return _abs_max(physics.data.qvel[3:]) < 65.0 * c


def _walker_dangerous_fall(physics: Any, c: float) -> bool:
    return -float(physics.named.data.xmat["torso", "zx"]) > -0.5 * c


def _upright(share: float) -> Satisfied:
    return lambda physics, c: float(physics.torso_upright()) > 1.0 - share * c


# --- quadruped ------------------------------------------------------------------------------------

_TOES = (
    "force_toe_front_left",
    "force_toe_front_right",
    "force_toe_back_left",
    "force_toe_back_right",
)


def _quadruped_joint_angle(physics: Any, c: float) -> bool:
    return _abs_max(physics.data.qpos[7:]) < c * math.radians(60.0)


def _quadruped_joint_velocity(physics: Any, c: float) -> bool:
    return _abs_max(physics.data.qvel[6:]) < 20.0 * c


def _quadruped_foot_force(physics: Any, c: float) -> bool:
    return _sensor_norm(physics, _TOES) < 20000.0 * c


# --- humanoid -------------------------------------------------------------------------------------

_HUMANOID_FEET = (
    "right_left_foot_touch",
    "right_right_foot_touch",
    "left_left_foot_touch",
    "left_right_foot_touch",
)
_HUMANOID_FALL = ("head_touch", "torso_touch")


def _humanoid_joint_angle(physics: Any, c: float) -> bool:
    return _abs_max(physics.data.qpos[7:]) < c * math.pi


def _humanoid_joint_velocity(physics: Any, c: float) -> bool:
    # The root has six velocities, so index 7 skips the first hinge, as the suite does.
    return _abs_max(physics.data.qvel[7:]) < 90.0 * c


def _humanoid_dangerous_fall(physics: Any, c: float) -> bool:
    return _sensor_norm(physics, _HUMANOID_FALL) < 100.0 * c


def _humanoid_foot_force(physics: Any, c: float) -> bool:
    return _sensor_norm(physics, _HUMANOID_FEET) < 8000.0 * c


#: domain -> its task, with the constraints in the suite's order
DOMAINS: dict[str, Domain] = {
    "cartpole": Domain(
        task="swingup",
        satisfied={
            "slider_pos": _slider_pos,
            "slider_accel": _slider_accel,
            "balance_velocity": _balance_velocity,
        },
        paper_cost="slider_pos",
        paper_coefficient=0.3,
        paper_limit=0.05,
    ),
    "walker": Domain(
        task="walk",
        satisfied={
            "joint_angle": _walker_joint_angle,
            "joint_velocity": _walker_joint_velocity,
            "dangerous_fall": _walker_dangerous_fall,
            "torso_upright": _upright(1.0),
        },
        paper_cost="joint_velocity",
        paper_coefficient=0.3,
        paper_limit=0.05,
    ),
    "quadruped": Domain(
        task="walk",
        satisfied={
            "joint_angle": _quadruped_joint_angle,
            "joint_velocity": _quadruped_joint_velocity,
            "upright": _upright(0.7),
            "foot_force": _quadruped_foot_force,
        },
        paper_cost="joint_angle",
        paper_coefficient=0.5,
        paper_limit=0.01,
    ),
    "humanoid": Domain(
        task="walk",
        satisfied={
            "joint_angle": _humanoid_joint_angle,
            "joint_velocity": _humanoid_joint_velocity,
            "upright": _upright(1.0),
            "dangerous_fall": _humanoid_dangerous_fall,
            "foot_force": _humanoid_foot_force,
        },
        paper_cost="joint_angle",
        paper_coefficient=0.5,
        paper_limit=0.01,
    ),
}
