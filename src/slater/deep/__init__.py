"""The neural world: offline constrained learning with JAX. `train` is the verb; algorithms are parts."""

from slater.errors import InputError

try:
    from slater.deep.algorithms.base import Algorithm, Config, Member
    from slater.deep.algorithms.registry import (
        algorithms,
        find,
        make_algorithm,
        make_config,
        preset_names,
        register,
    )
    from slater.deep.engine.training import DivergedError, Watcher, resume, train
    from slater.runs import Result, Run, read_run
except ModuleNotFoundError as error:
    if error.name not in ("jax", "equinox", "optax"):
        raise
    raise InputError(
        f"training needs {error.name}; install it with: pip install 'slater-rl[deep]'"
    ) from error

__all__ = [
    "Algorithm",
    "Config",
    "DivergedError",
    "Member",
    "Result",
    "Run",
    "Watcher",
    "algorithms",
    "find",
    "make_algorithm",
    "make_config",
    "preset_names",
    "read_run",
    "register",
    "resume",
    "train",
]
