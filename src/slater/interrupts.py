"""Ctrl-C: heard wherever it falls, and kept until it suits where stopping in the middle would harm."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: seconds until an interrupt that Python swallowed is sent again; by then its collector has gone on
AGAIN = 0.05


@contextmanager
def on_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C and a polite kill set the event rather than stop in the middle; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handler(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def none_swallowed() -> Iterator[None]:
    """Send again each Ctrl-C that fell where Python swallows what is raised.

    These are callbacks of the garbage collector (JAX has one) and of weak references, and `__del__`:
    Python prints the exception and goes on, so that a command would run to its end in spite of Ctrl-C.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        again = threading.Timer(AGAIN, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
