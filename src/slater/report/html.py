"""One self-contained HTML file: tables that read without scripts, figures that answer to the mouse.

Plotly's script is part of the file, so that it opens from a disk without a network; where scripts are off,
the figures' pictures stand in their place.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slater.report.pages import page


@dataclass(frozen=True)
class Table:
    """A table: header, rows of texts; `**text**` marks a cost above its limit."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report: sentences, a figure (Plotly) with its picture (PNG), tables, a list."""

    title: str
    sentences: Sequence[str] = ()
    figure: Any = None
    picture: Path | None = None
    tables: Sequence[Table] = field(default=())
    items: Sequence[str] = ()
    code: Sequence[str] = ()


def write_report(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the report to `path`."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    script_needed = True
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [f"<p>{html.escape(text)}</p>" for text in section.sentences]
        if section.figure is not None:
            body.append(
                section.figure.to_html(
                    full_html=False, include_plotlyjs=script_needed, config={"displaylogo": False}
                )
            )
            script_needed = False
        if section.picture is not None:
            data = base64.b64encode(section.picture.read_bytes()).decode()
            image = f'<img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}">'
            body.append(f"<noscript>{image}</noscript>" if section.figure is not None else image)
        body += [_table(table) for table in section.tables]
        if section.items:
            body.append("<ul>" + "".join(f"<li>{html.escape(x)}</li>" for x in section.items) + "</ul>")
        if section.code:
            rows = "".join(f"<li><code>{html.escape(x)}</code></li>" for x in section.code)
            body.append(f"<details><summary>{len(section.code)} commands</summary><ul>{rows}</ul></details>")
    path.write_text(page(title, "".join(body)), encoding="utf-8")


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in table.header)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    caption = f"<p>{html.escape(table.caption)}</p>" if table.caption else ""
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'{caption}<div class="scroll">{whole}</div>'


def _cell(text: str) -> str:
    plain = text.replace("**", "")
    kinds = [] if plain[:1] not in "-0123456789" else ["number"]
    kinds += ["over"] if text.startswith("**") else []
    return f'<td class="{" ".join(kinds)}">{html.escape(plain)}</td>'
