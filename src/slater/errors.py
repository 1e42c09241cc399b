"""The one kind of error that a user's input can cause."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """Input that cannot be used: one sentence that names the value and says what to do.

    The command line prints the sentence and exits with code 2; it never shows a traceback for it.
    """
