"""The command line: find the subcommand, parse, call the library, print.

Each subcommand is a function in a module of `slater.commands`, imported only when it is called, so
that `slater tabular` never waits for a deep-learning framework and `slater --help` is instant.
"""

from __future__ import annotations

import errno
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slater import __version__
from slater.errors import InputError, InputWarning
from slater.interrupts import none_swallowed

#: subcommand -> (module of `slater.commands` with a function `run(args: list[str]) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "a first look: PDCA on the data that come with it, ending with a figure"),
    "tabular": ("tabular", "one algorithm on one finite problem, beside the exact optimum"),
    "reproduce": ("reproduce", "the paper's experiments: figure1, rates, verdicts, table2, figure2"),
    "data": ("data", "look at a dataset, check it, convert it"),
    "train": ("train", "learn a policy from data under cost limits"),
    "tune": ("tune", "choose an algorithm's settings by estimates from held-out data"),
    "evaluate": ("evaluate", "run a trained policy in an environment"),
    "certify": ("certify", "say whether a policy keeps its limits: pass, fail or abstain"),
    "frontier": ("frontier", "what another limit would cost, without training again"),
    "mix": ("mix", "the best mixture of the policies of several runs within limits"),
    "collect": ("collect", "make a dataset by training and recording policies in an environment"),
    "behaviours": ("behaviours", "the project's datasets: train their policies, record them, check them"),
    "runs": ("runs", "a table of runs"),
    "report": ("report", "a run, or several beside each other, as one HTML page"),
    "export": ("export", "a policy as an ONNX file"),
    "compare": ("compare", "several runs side by side: estimates, and what was measured"),
    "policy": ("policy", "what a policy file says about itself"),
}

#: of the disk, not of the program: full, over quota, read-only, broken
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
PATH_FAULTS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP)
BAD_INPUT = 2
INTERRUPTED = 130


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print what is to be said of the input as a line, once each, without a place in the code."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, InputWarning):
                print(f"slater: warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *place, **more)

        warnings.filterwarnings("default", category=InputWarning)
        warnings.showwarning = show
        yield


def _overview() -> str:
    width = max((len(name) for name in COMMANDS), default=0)
    rows = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
    return (
        f"slater {__version__}: offline constrained reinforcement learning\n\n"
        f"usage: slater COMMAND [OPTIONS]      (slater COMMAND --help explains each option, with units)\n\n"
        f"{rows}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run `slater COMMAND ...`; return the exit code (0 done, 2 bad input, 130 interrupted)."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(_overview(), end="")
        return 0
    if args[0] in ("-V", "--version"):
        print(__version__)
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"slater: error: there is no command {name!r}; choose one of {known}.", file=sys.stderr)
        return BAD_INPUT
    try:
        with none_swallowed(), warnings_as_lines():
            command = importlib.import_module(f"slater.commands.{COMMANDS[name][0]}")
            return int(command.run(rest))
    except InputError as error:
        print(f"slater: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("slater: stopped.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader (head, less) went away: not an error of ours
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno in PATH_FAULTS and error.filename:
            print(f"slater: error: {error.filename} cannot be used ({error.strerror}).", file=sys.stderr)
            return BAD_INPUT
        if error.errno not in DISK_FAULTS:
            raise
        where = f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
        print(
            f"slater: error: {where} ({error.strerror}); make room, and give the same command again: "
            "what was whole is kept.",
            file=sys.stderr,
        )
        return BAD_INPUT


if __name__ == "__main__":
    raise SystemExit(main())
