"""Whole pages of plain HTML, with tables and keys that fit a phone; no script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from slater.report.svg import COLOURS

#: words that give a cell the colour of a verdict
VERDICTS = {
    "pass": "pass", "fail": "fail", "abstain": "abstain",
    "within": "pass", "above": "fail", "not known": "abstain",
}  # fmt: skip
#: for colours of `COLOURS`, what is as easily seen on a dark ground
DARK = {"pass": "#48c9b0", "fail": "#ec7063", "abstain": "#f4d03f", "ink": "#e5e8e8", "line": "#7fb3d5"}
#: letters beside each other on a screen of 390 pixels, in words that are not broken
PHONE = 42
STYLE = """
:root{color-scheme:light dark;--ink:#1b2631;--rule:#ddd;--ground:#fff;--pass:#117a65;--fail:#b03a2e;
  --abstain:#8a6d0a;--line:#1b4f72}
@media(prefers-color-scheme:dark){:root{--ink:#e5e8e8;--rule:#444;--ground:#17202a;--pass:#48c9b0;
  --fail:#ec7063;--abstain:#f4d03f;--line:#7fb3d5}}
body{font-family:sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:var(--ink);
  background:var(--ground);line-height:1.5;overflow-wrap:break-word}
h1{overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
svg{width:100%;height:auto}svg text:not([fill]){fill:var(--ink)}code,pre{overflow-wrap:anywhere}
.small{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(26rem,100%),1fr));gap:0 1rem}
.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.key span{text-shadow:0 0 1px var(--ink)}
.scale{display:flex;justify-content:space-between;flex-wrap:wrap}.scale div{width:100%}
.scale .colours{height:1rem}
.pass{color:var(--pass)}.fail{color:var(--fail)}.abstain{color:var(--abstain)}.line{color:var(--line)}
.said::first-letter{text-transform:uppercase}
.scroll{overflow-x:auto}.scroll td,.scroll th{white-space:nowrap}
td.number{text-align:right;font-variant-numeric:tabular-nums}td.over{color:var(--fail);font-weight:600}
img{max-width:100%}
@media(max-width:500px){
  /* a wide picture shrinks on a phone: its words must not; a table of many columns becomes a card per row */
  svg[width='760'] text{font-size:20px}
  td,th{font-size:.9rem;padding-right:.45rem}
  .cards tr:first-child{display:none}.cards,.cards tbody,.cards tr{display:block}
  .cards tr{border-bottom:1px solid var(--rule);padding:.4rem 0}
  .cards td{display:grid;grid-template-columns:8.5rem 1fr;border:0;padding:.05rem 0;overflow-wrap:anywhere}
  .cards td::before{content:attr(data-name);opacity:.75;color:var(--ink)}.cards td:empty{display:none}
}
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts; one too wide for a phone is a card per row there."""
    rows = list(rows)
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>" + "".join(_cell(name, text) for name, text in zip(header, row, strict=True)) + "</tr>"
        for row in rows
    )
    columns = zip(header, *rows, strict=True)
    width = sum(max(len(word) for text in column for word in [*text.split(), ""]) for column in columns)
    kind = " class='cards'" if len(header) > 5 or width > PHONE else ""
    return f"<table{kind}><tr>{head}</tr>{body}</table>"


def _cell(name: str, text: str) -> str:
    said = [VERDICTS[part] for part in text.split(", ") if part in VERDICTS]
    mark = f" class='{said[0]}'" if said else ""
    return f"<td data-name='{escape(name)}'{mark}>{escape(text)}</td>"


def key(rows: Iterable[tuple[str, str, str]]) -> str:
    """What the signs of a picture mean: sign (HTML), colour, words."""
    named = {colour: name for name, colour in COLOURS.items()}
    items = "".join(
        "<li><span "
        + (f"class='{named[colour]}'" if colour in named else f"style='color:{colour}'")
        + f">{sign}</span> {escape(words)}</li>"
        for sign, colour, words in rows
    )
    return f"<ul class='key'>{items}</ul>"


def _in_the_dark() -> str:
    """Rules that give every colour of a picture its counterpart; they overrule the attributes."""
    return "".join(
        f"svg [{what}='{colour}']{{{what}:{DARK[name]}}}"
        for name, colour in COLOURS.items()
        for what in ("stroke", "fill")
    )


def page(title: str, body: str) -> str:
    """A whole HTML page, self-contained."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        # an empty icon: browsers ask a server for one otherwise
        "<meta name='viewport' content='width=device-width'><link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{STYLE}"
        f"@media(prefers-color-scheme:dark){{{_in_the_dark()}}}</style></head><body>{body}</body></html>\n"
    )
