"""The one kind of error that a user's input can cause, and the one kind of warning."""

from __future__ import annotations

__all__ = ["InputError", "InputWarning"]


class InputError(ValueError):
    """Input that cannot be used: one sentence that names the value and says what to do.

    The command line prints the sentence and exits with code 2; it never shows a traceback for it.
    """


class InputWarning(UserWarning):
    """Input that can be used, but of which a person should know something: rows left out, a cost below 0.

    `slater.data.load` gives one for each thing that its checks found; the command line prints it as a line.
    """
