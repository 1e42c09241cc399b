"""Options from a dataclass, with its whole docstring, examples included, as the help text."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
from collections.abc import Iterator
from typing import TypeVar

import tyro

from slater.errors import InputError

__all__ = ["one_sentence", "parse"]

Options = TypeVar("Options")


def parse(options: type[Options], args: list[str], command: str) -> Options:
    """The options of `slater COMMAND` from its arguments; wrong ones raise one sentence."""
    text = inspect.cleandoc(options.__doc__ or "")
    with one_sentence(command):
        return tyro.cli(options, args=args, prog=f"slater {command}", description=text)


@contextlib.contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """Turn the parser's box of several lines about a wrong option into one `InputError`.

    The box is `title, message, a rule, hints`; the message is kept and its frame dropped.
    """
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            yield
    except SystemExit as stop:
        if stop.code != 2:
            raise
        body = iter(shown.getvalue().splitlines()[1:])
        rule = re.compile(r"[│╰╯╭╮\s─-]*")
        # on a terminal without box characters a rule stands under the title as well
        kept = itertools.dropwhile(rule.fullmatch, body)
        message = " ".join(
            line.strip("│ ") for line in itertools.takewhile(lambda x: not rule.fullmatch(x), kept)
        )
        message = " ".join(message.split()).rstrip(".")
        raise InputError(f"{message or 'wrong options'}; see slater {command} --help.") from None
