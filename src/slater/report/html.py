"""The report of a benchmark as one HTML file: tables, pictures, commands; no script, no network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from slater.report.curves import markdown_table
from slater.report.pages import page


@dataclass(frozen=True)
class Table:
    """A table: header, rows of texts; `**text**` marks a cost above its limit."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """The caption, where there is one, and the table."""
        return "\n\n".join([self.caption] * bool(self.caption) + [markdown_table(self.header, self.rows)])

    def html(self) -> str:
        """The same as a part of a page."""
        head = "".join(f"<th>{escape(text)}</th>" for text in self.header)
        rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in self.rows)
        whole = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'<p>{escape(self.caption)}</p><div class="scroll">{whole}</div>'


def _cell(text: str) -> str:
    plain = text.replace("**", "")
    kinds = ["number"] * (plain[:1] in "-0123456789") + ["over"] * text.startswith("**")
    return f'<td class="{" ".join(kinds)}">{escape(plain)}</td>'


def write_report(
    path: Path, title: str, said: Iterable[str], tables: Mapping[str, Table], pictures: Mapping[str, Path],
    commands: Sequence[str],
) -> None:  # fmt: skip
    """Write the report to `path`: sentences, tables by heading, pictures (SVG) by heading, commands."""
    body = f"<h1>{escape(title)}</h1>{_list(said)}"
    for heading, table in tables.items():
        body += f"<h2>{escape(heading)}</h2>{table.html()}"
    for heading, picture in pictures.items():
        data = base64.b64encode(picture.read_bytes()).decode()
        body += f'<h2>{escape(heading)}</h2><img alt="{escape(heading)}" '
        body += f'src="data:image/svg+xml;base64,{data}">'
    again = "".join(f"<li><code>{escape(text)}</code></li>" for text in commands)
    body += f"<details><summary>{len(commands)} commands, one for every cell</summary><ul>{again}</ul>"
    path.write_text(page(title, f"{body}</details>"), encoding="utf-8")


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
