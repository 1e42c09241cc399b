"""Slater: offline constrained reinforcement learning.

Policies from logged data that maximise reward while keeping every expected cost under its limit.

    data = slater.load(slater.data.sample())
    result = slater.train(data, "pdca", limits=20)
    actions = result.policy.predict(data.observations[:3])

Names are loaded when they are first used: `import slater` is quick and loads no JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slater.errors import InputError

if TYPE_CHECKING:
    from slater.certify.judge import certify
    from slater.data import load
    from slater.front import evaluate, load_policy, train
    from slater.limits import Limit
    from slater.plotting import plot

__all__ = [
    "InputError",
    "Limit",
    "__version__",
    "certify",
    "data",
    "evaluate",
    "load",
    "load_policy",
    "plot",
    "train",
]
__version__ = "0.1.0"

#: name -> the module that has it
_LAZY = {
    "Limit": "slater.limits",
    "certify": "slater.certify",
    "data": "slater.data",
    "evaluate": "slater.front",
    "load": "slater.data",
    "load_policy": "slater.front",
    "plot": "slater.plotting",
    "train": "slater.front",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'slater' has no attribute {name!r}")
    module = import_module(_LAZY[name])
    # `slater.data` is a package, `slater.certify` one that can be called
    value = module if module.__name__ == f"slater.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
