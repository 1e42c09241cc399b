"""The one kind of error that a user's input can cause, and the one kind of warning."""

from __future__ import annotations

from typing import Any


class InputError(ValueError):
    """Input that cannot be used: one sentence that names the value and says what to do.

    The command line prints the sentence and exits with code 2; it never shows a traceback for it.
    """


class InputWarning(UserWarning):
    """Input that can be used, but of which a person should know something: rows left out, a cost below 0.

    `slater.data.load` gives one for each thing that its checks found; the command line prints it as a line.
    """


def optional(package: str, needed: str, extra: str) -> Any:
    """A package that Slater can do without, by its name; where it is not installed, the line that does it.

    needed: the beginning of that sentence, as "the engine ray needs Ray"; extra: of `slater-rl`.
    """
    try:
        return __import__(package)
    except ModuleNotFoundError:
        raise InputError(f"{needed}; install it with: pip install 'slater-rl[{extra}]'") from None
