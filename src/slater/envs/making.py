"""`make`: from an id to an environment."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from slater.envs.install import GYMNASIUM
from slater.errors import InputError

if TYPE_CHECKING:
    from slater.envs.constrained import ConstrainedEnv

_BULLET_TASKS = tuple(
    f"{agent}{task}" for agent in ("Ball", "Car", "Drone", "Ant") for task in ("Run", "Circle")
)
_CLASSES = {"bullet": "BulletEnv", "rwrl": "RWRLEnv"}
_RWRL_DOMAINS = ("cartpole", "walker", "quadruped", "humanoid")

#: The environments with a name of ours; any Gymnasium id and any `module:callable` work too.
IDS: tuple[str, ...] = (
    *(f"bullet/{task}" for task in _BULLET_TASKS),
    *(f"rwrl/{domain}" for domain in _RWRL_DOMAINS),
)


def split_id(env_id: str) -> tuple[str, dict[str, Any]]:
    """`"rwrl/walker?safety_coeff=0.5"` as `("rwrl/walker", {"safety_coeff": 0.5})`.

    Values are read as JSON where they are JSON, else as text.
    """
    name, _, query = env_id.partition("?")
    options: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return name, options


def make(env_id: str, **options: Any) -> ConstrainedEnv:
    """A Gymnasium environment with named costs.

    - `"bullet/BallRun"` and the other Bullet tasks; option `costs=("speed", "boundary")` for Run tasks.
    - `"rwrl/cartpole"`, `walker`, `quadruped`, `humanoid`; options `safety_coeff` in [0, 1] and `costs`.
    - `"module:callable"` or a Gymnasium id; options `costs`, `max_episode_steps`, and the environment's own.

    Options may also stand in the id: `"rwrl/walker?safety_coeff=0.5&costs=joint_velocity"`. The environments
    with a name of ours are `gymnasium.make("slater/BallRun-v0")` and so on too, once this is imported.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise InputError(f"gymnasium is not installed; run: {GYMNASIUM}")
    from slater.envs.constrained import ConstrainedEnv, chosen_costs

    name, options_in_id = split_id(env_id)
    options = {**options_in_id, **options}
    costs = options.pop("costs", None)
    family, _, task = name.partition("/")
    env: Any
    if name in IDS:
        source = getattr(importlib.import_module(f"slater.envs.{family}"), _CLASSES[family])
        unknown = sorted(set(options) - set(inspect.signature(source).parameters))
        if unknown:
            raise InputError(f"{name} has no option {unknown[0]!r}.")
        env = source(task, **options)
        names = chosen_costs(name, env.default_costs if costs is None else costs, env.available_costs)
    elif family in ("bullet", "rwrl"):
        known = _BULLET_TASKS if family == "bullet" else _RWRL_DOMAINS
        raise InputError(
            f"there is no environment {name!r}; after {family}/ comes one of {', '.join(known)}."
        )
    else:
        from slater.envs import foreign

        env, names = foreign.load(name, costs=costs, **options)
    made = ConstrainedEnv(env, env_id, names)
    if name in IDS:
        import gymnasium

        made.spec = gymnasium.spec(gymnasium_id(name))
        made.spec.kwargs = {"env_id": env_id, **({} if costs is None else {"costs": costs}), **options}
    return made


def gymnasium_id(env_id: str) -> str:
    """`"slater/BallRun-v0"` for `"bullet/BallRun"`."""
    return f"slater/{env_id.partition('/')[2]}-v0"


def register() -> None:
    """Make the environments of ours known to Gymnasium, where it is installed."""
    if importlib.util.find_spec("gymnasium") is None:
        return
    import gymnasium

    for env_id in IDS:
        if gymnasium_id(env_id) not in gymnasium.registry:
            # they check actions and cut episodes themselves: what is made is what `make` gives
            gymnasium.register(
                gymnasium_id(env_id), f"{__name__}:make", order_enforce=False, disable_env_checker=True,
                kwargs={"env_id": env_id},
            )  # fmt: skip
