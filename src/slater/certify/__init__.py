"""Bounds and verdicts: whether a policy keeps its limits, and how sure that is.

`slater.certify` is this package and the function `certify` at once: importing a part of a package puts the
package in the place of any name that its parent has, so the function could not stand there by itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: name -> the module that it is from, loaded on first use: reading a certificate loads no readers of data
_PLACES = {"Certificate": "verdict", "LoggedProbability": "subjects", "certify": "judge"}

__all__ = ["Certificate", "LoggedProbability", "certify"]


class _Callable(ModuleType):
    """The package, which can be called as `slater.certify.judge.certify`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return __getattr__("certify")(*args, **options)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


sys.modules[__name__].__class__ = _Callable
