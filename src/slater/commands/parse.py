"""Options from a dataclass, with its whole docstring, examples included, as the help text."""

from __future__ import annotations

import inspect
from typing import TypeVar

import tyro

__all__ = ["parse"]

Options = TypeVar("Options")


def parse(options: type[Options], args: list[str], command: str) -> Options:
    """The options of `slater COMMAND` from its arguments; wrong ones end with a message and exit code 2."""
    text = inspect.cleandoc(options.__doc__ or "")
    return tyro.cli(options, args=args, prog=f"slater {command}", description=text)
