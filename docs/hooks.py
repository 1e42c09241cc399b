"""Pages made from the code when the site is built: every command's help, every algorithm's settings."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any

from mkdocs.structure.files import File, Files


def said(*arguments: str) -> str:
    """What `slater ARGUMENTS` prints, as plain text."""
    from slater.cli import main

    os.environ["COLUMNS"] = "100"
    os.environ["NO_COLOR"] = "1"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(list(arguments))
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).rstrip()
    if not text:
        raise RuntimeError(f"slater {' '.join(arguments)} printed nothing: its page would be empty")
    return text


def commands_page() -> str:
    """The help of every command."""
    from slater.cli import COMMANDS

    parts = ["# Commands\n\nWhat `slater COMMAND --help` prints, for every command."]
    for name, (_, line) in COMMANDS.items():
        parts.append(
            f"## slater {name}\n\n{line[0].upper()}{line[1:]}.\n\n```text\n{said(name, '--help')}\n```"
        )
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """The settings of every algorithm."""
    from slater.deep import algorithms

    parts = [
        "# Settings\n\nWhat `slater train ALGORITHM --settings` prints: each setting with its default, and "
        "what it means. Change one with `--set NAME=VALUE`, or by name in `slater.train`."
    ]
    parts += [f"## {name}\n\n```text\n{said('train', name, '--settings')}\n```" for name in algorithms()]
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for path, content in (
        ("reference/commands.md", commands_page()),
        ("reference/settings.md", settings_page()),
    ):
        files.append(File.generated(config, path, content=content))
    return files
