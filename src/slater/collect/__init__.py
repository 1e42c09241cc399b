"""Making datasets: policies trained by SAC on R - lambda*C, recorded with names and densities."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slater.collect.behaviour import Behaviour, load_behaviour, save_behaviour
from slater.collect.benchmark import benchmark
from slater.collect.recording import Recording, record_behaviour

if TYPE_CHECKING:
    from slater.collect.collecting import CollectionPlan, collect
    from slater.collect.sac import SACConfig
    from slater.collect.training import Recipe, train

__all__ = [
    "Behaviour",
    "CollectionPlan",
    "Recipe",
    "Recording",
    "SACConfig",
    "benchmark",
    "collect",
    "load_behaviour",
    "record_behaviour",
    "save_behaviour",
    "train",
]

#: names that need JAX -> their module; recording does not need it
_TRAINING = {
    "CollectionPlan": "collecting",
    "collect": "collecting",
    "SACConfig": "sac",
    "Recipe": "training",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"slater.collect.{_TRAINING[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "equinox", "optax"):
            raise
        from slater.errors import InputError

        raise InputError("training policies needs JAX; run: pip install 'slater-rl[deep]'") from None
