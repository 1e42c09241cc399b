"""Processes for tests that kill, starve or interrupt one: forks of a server that has imported everything.

A fork begins within milliseconds where a new interpreter imports for seconds. The server computes nothing, so
a child's JAX starts as in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["slater.deep", "slater.commands.train", "slater.data.formats.tables"])


def start(work: Callable[..., Any], *args: Any) -> ForkServerProcess:
    """A process that does `work(*args)`, a function of a module; exit code 0, or 1 after an exception."""
    child = _context.Process(target=work, args=args)
    child.start()
    return child


def start_command(words: Sequence[object], said: Path | None = None) -> ForkServerProcess:
    """`slater WORDS...` as a process; what it prints goes to the file `said`, or nowhere."""
    return start(_command, [str(word) for word in words], said)


def _command(words: list[str], said: Path | None) -> None:
    with open(os.devnull if said is None else said, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from slater import cli

    sys.exit(cli.main(words))


def ended(child: ForkServerProcess) -> int | None:
    """The exit code of a process, once it has ended."""
    child.join()
    return child.exitcode
