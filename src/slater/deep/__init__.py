"""The neural world: offline constrained learning with JAX. `train` is the verb; algorithms are parts.

All that an algorithm of another package needs is here; the modules behind it may move. `docs/howto/extend.md`
says how an extension is made.
"""

from slater.errors import InputError

try:
    from slater.deep.algorithms.base import (
        Algorithm,
        Config,
        LastIterate,
        Member,
        fit_phases,
        fit_preparation,
    )
    from slater.deep.algorithms.registry import (
        algorithms,
        find,
        make_algorithm,
        make_config,
        preset_names,
        register,
    )
    from slater.deep.batches import Batch, Data, draw, draw_keys, on_device, prepare
    from slater.deep.engine.training import DivergedError, Watcher, resume, train
    from slater.deep.game.bellman import advantage, bellman_error, residual, squared_bellman_error
    from slater.deep.game.critics import Critics, CriticsState, Lagrangian
    from slater.deep.game.dual import (
        PID,
        DualPlayer,
        DualState,
        ExcessPlayer,
        ExponentiatedGradient,
        Outcome,
        ProjectedGradient,
        relative_excess,
    )
    from slater.deep.game.primal import NaturalGradient, PolicyGradient, Primal, PrimalState
    from slater.deep.game.thresholds import thresholds
    from slater.deep.nets.critic import Critic, make_critic, make_critics
    from slater.deep.nets.mlp import MLP, polyak
    from slater.deep.nets.policy import Exportable, PolicyNetwork, make_policy
    from slater.deep.ope.base import Check, Tick
    from slater.deep.task import Task, state_task
    from slater.runs import Result, Run, read_run
except ModuleNotFoundError as error:
    if error.name not in ("jax", "equinox", "optax"):
        raise
    raise InputError(
        f"training needs {error.name}; install it with: pip install 'slater-rl[deep]'"
    ) from error

__all__ = [
    "MLP",
    "PID",
    "Algorithm",
    "Batch",
    "Check",
    "Config",
    "Critic",
    "Critics",
    "CriticsState",
    "Data",
    "DivergedError",
    "DualPlayer",
    "DualState",
    "ExcessPlayer",
    "ExponentiatedGradient",
    "Exportable",
    "InputError",
    "Lagrangian",
    "LastIterate",
    "Member",
    "NaturalGradient",
    "Outcome",
    "PolicyGradient",
    "PolicyNetwork",
    "Primal",
    "PrimalState",
    "ProjectedGradient",
    "Result",
    "Run",
    "Task",
    "Tick",
    "Watcher",
    "advantage",
    "algorithms",
    "bellman_error",
    "draw",
    "draw_keys",
    "find",
    "fit_phases",
    "fit_preparation",
    "make_algorithm",
    "make_config",
    "make_critic",
    "make_critics",
    "make_policy",
    "on_device",
    "polyak",
    "prepare",
    "preset_names",
    "read_run",
    "register",
    "relative_excess",
    "residual",
    "resume",
    "squared_bellman_error",
    "state_task",
    "thresholds",
    "train",
]
