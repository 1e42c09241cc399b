"""What the site takes from the code when it is built: commands, settings, what algorithms can do."""

from __future__ import annotations

import contextlib
import io
import os
import re
import textwrap
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


def wrapped(line: str, width: int = 92) -> str:
    """A line that fits a page; what goes on is indented like its beginning."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False) if line else ""


def settings(name: str) -> str:
    """The settings of an algorithm, as `slater train NAME --settings` prints them."""
    text = "\n".join(map(wrapped, said("train", name, "--settings").splitlines()))
    return f"```text\n{text}\n```"


def algorithms_table() -> str:
    """What every algorithm takes and gives, from its class."""
    from slater.deep import algorithms
    from slater.deep.algorithms.base import LastIterate
    from slater.deep.algorithms.registry import find

    rows = [
        "| | actions | costs | output | serves | data larger than memory |", "|---|---|---|---|---|---|"
    ]  # fmt: skip
    for name in algorithms():
        kind = find(name)
        rows.append(
            f"| [`{name}`](../algorithms/{name}.md) | {' and '.join(kind.actions)} "
            f"| {'any number' if kind.most_costs is None else kind.most_costs} "
            f"| {'one policy' if issubclass(kind, LastIterate) or kind.serves_all_limits else 'a mixture'} "
            f"| {'any limit, chosen when it acts' if kind.serves_all_limits else 'the limit of its run'} "
            f"| {'yes' if kind.streams else 'no'} |"
        )
    return "\n".join(rows)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code alone."""
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """A picture that stands alone becomes a figure: its words below it, and itself at full size behind it."""
    path = page.file.src_uri
    del page, config, files

    def figure(found: re.Match[str]) -> str:
        tag, words, source = found.group(1), found.group(2), found.group(3)
        return f'<figure><a href="{source}">{tag}</a><figcaption>{words}.</figcaption></figure>'

    html = re.sub(r'<p>(<img alt="([^"]+)" src="([^"]+)" ?/?>)</p>', figure, html)
    if path != "reference/python.md":
        return html
    # docstrings say `name: what it is`, one to a line: so does the page
    named = r"(?m)(<p>|^)((?:[a-z_]+|\*\*[a-z_]+)(?:, [a-z_]+)*): "
    return re.sub(
        r"<p>.*?</p>",
        lambda found: re.sub(
            named, lambda x: f"{x.group(1) or '<br>'}<code>{x.group(2)}</code>: ", found.group(0)
        ),
        html,
        flags=re.S,
    )


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in what a page takes from the code, where a comment asks: `settings NAME`, `algorithms table`."""
    path = page.file.src_uri
    del page, config, files

    def filled(found: re.Match[str]) -> str:
        what, which = found.group(1), found.group(2)
        if what == "settings":
            return settings(which)
        return algorithms_table()

    if "{{" in re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$", "", markdown, flags=re.S):
        raise RuntimeError(
            f"{path}: write <!-- settings NAME --> below a sentence, not {{{{settings NAME}}}}"
        )

    # why the tests do not run a block is for them, not for readers
    markdown = re.sub(r'^(```\w+) title="not run[^"]*"$', r"\1", markdown, flags=re.M)
    return re.sub(r"^<!-- (settings|algorithms) ([\w-]+) -->$", filled, markdown, flags=re.M)
