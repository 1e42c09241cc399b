"""The one kind of error that a user's input can cause, and the one kind of warning that data can."""

from __future__ import annotations

__all__ = ["DataWarning", "InputError"]


class InputError(ValueError):
    """Input that cannot be used: one sentence that names the value and says what to do.

    The command line prints the sentence and exits with code 2; it never shows a traceback for it.
    """


class DataWarning(UserWarning):
    """Something in data that can be used, but that a person should know: rows left out, a cost below 0.

    `slater.data.load` gives one for each; the command line prints it as a line.
    """
