"""Bounds and verdicts: whether a policy keeps its limits, and how sure that is.

`slater.certify` is this package and the function `certify` at once: importing a part of a package puts the
package in the place of any name that its parent has, so the function could not stand there by itself.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["Certificate", "LoggedProbability", "certify"]


class _Callable(ModuleType):
    """The package, which can be called as `slater.certify.judge.certify`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from slater.certify.judge import certify

        return certify(*args, **options)


def __getattr__(name: str) -> Any:
    # on first use: reading a certificate or a bound loads neither data readers nor policies
    if name == "certify":
        from slater.certify.judge import certify

        return certify
    if name == "Certificate":
        from slater.certify.verdict import Certificate

        return Certificate
    if name == "LoggedProbability":
        from slater.certify.subjects import LoggedProbability

        return LoggedProbability
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Callable
