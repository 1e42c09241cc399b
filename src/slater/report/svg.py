"""Small pictures as inline SVG: pages that need no script, no network and no plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

COLOURS = {"pass": "#117a65", "fail": "#b03a2e", "abstain": "#b7950b", "ink": "#1b2631", "line": "#1b4f72"}
#: one colour per thing that is compared, told apart on light and dark grounds
SERIES = ("#2e86c1", "#d35400", "#1e8449", "#a569bd", "#c0392b", "#7f8c8d", "#b7950b", "#148f77")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((1, 2, 5, 10), key=lambda k: abs(k * power - raw))
    first = math.ceil(low / step - 1e-9) * step
    return [float(x) for x in np.arange(first, high + 1e-9 * step, step)]


class Plot:
    """A frame with two linear axes, to which shapes with hover texts are added."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, width: int = 760, height: int = 400,
        labels: tuple[str, str] = ("", ""), y_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = (230 if y_names else 84), 16, 30, 50
        self._x, self._y = _span(x), _span(y)
        self.parts: list[str] = []
        self._axes(labels, y_names)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        share = (min(max(value, self._x[0]), self._x[1]) - self._x[0]) / (self._x[1] - self._x[0])
        return self.left + share * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        share = (min(max(value, self._y[0]), self._y[1]) - self._y[0]) / (self._y[1] - self._y[0])
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def _axes(self, labels: tuple[str, str], y_names: Sequence[str] | None) -> None:
        base, end = self.height - self.bottom, self.width - self.right
        self._line(self.left, base, end, base, "#888")
        self._line(self.left, self.top, self.left, base, "#888")
        for value in ticks(*self._x):
            self._line(self.x(value), base, self.x(value), base + 5, "#888")
            self._text(self.x(value), base + 18, f"{value:g}", "middle")
        if y_names is None:
            for value in ticks(*self._y):
                self._line(self.left - 5, self.y(value), self.left, self.y(value), "#888")
                self._text(self.left - 8, self.y(value) + 4, f"{value:g}", "end")
        else:
            for index, name in enumerate(y_names):
                self._text(self.left - 8, self.y(index) + 4, name, "end")
        self._text((self.left + end) / 2, self.height - 8, labels[0], "middle")
        if labels[1]:
            middle = (self.top + base) / 2
            self.parts.append(
                f'<text x="16" y="{middle:.1f}" transform="rotate(-90 16 {middle:.1f})" '
                f'text-anchor="middle">{escape(labels[1])}</text>'
            )

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'
        )

    def _text(self, x: float, y: float, text: str, anchor: str, colour: str = "") -> None:
        fill = f' fill="{colour}"' if colour else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{escape(text)}</text>')

    def segment(
        self, start: tuple[float, float], stop: tuple[float, float], colour: str, title: str = "",
        *, width: float = 2.0, dashed: bool = False,
    ) -> None:  # fmt: skip
        """A line between two points of the plot."""
        extra = f'stroke-width="{width}"' + (' stroke-dasharray="5 4"' if dashed else "")
        self._hover(
            title,
            lambda: self._line(
                self.x(start[0]), self.y(start[1]), self.x(stop[0]), self.y(stop[1]), colour, extra
            ),
        )

    def mark_limit(self, limit: float, name: str = "limit") -> None:
        """The limit on what the x-axis shows: a dashed line from top to bottom, with its name above."""
        x = self.x(limit)
        self._line(
            x, self.top, x, self.height - self.bottom, COLOURS["fail"],
            'stroke-width="2" stroke-dasharray="5 4"',
        )  # fmt: skip
        room = 4.5 * len(name) + 30
        self._text(
            min(max(x, self.left + room), self.width - self.right - room), self.top - 10,
            f"{name} {limit:.4g}", "middle", COLOURS["fail"],
        )  # fmt: skip

    def diamond(
        self, x: float, y: float, colour: str, title: str = "", *, hollow: bool = False, radius: float = 9
    ) -> None:
        """A point that stands out."""

        def draw() -> None:
            a, b, r = self.x(x), self.y(y), radius
            fill = "none" if hollow else colour
            corners = " ".join(
                f"{u:.1f},{v:.1f}" for u, v in ((a, b - r), (a + r, b), (a, b + r), (a - r, b))
            )
            self.parts.append(
                f'<polygon points="{corners}" fill="{fill}" stroke="{colour}" stroke-width="2.5"/>'
            )

        self._hover(title, draw)

    def dot(
        self, x: float, y: float, colour: str, title: str = "", *, radius: float = 4, alpha: float = 1
    ) -> None:
        """A point."""

        def draw() -> None:
            self.parts.append(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" fill="{colour}" '
                f'fill-opacity="{alpha}"/>'
            )

        self._hover(title, draw)

    def box(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, title: str = "", alpha: float = 1.0
    ) -> None:
        """A filled rectangle."""

        def draw() -> None:
            self.parts.append(
                f'<rect x="{self.x(x[0]):.1f}" y="{self.y(y[1]):.1f}" '
                f'width="{max(self.x(x[1]) - self.x(x[0]), 0.5):.1f}" '
                f'height="{max(self.y(y[0]) - self.y(y[1]), 0.5):.1f}" '
                f'fill="{colour}" fill-opacity="{alpha}" shape-rendering="crispEdges"/>'
            )

        self._hover(title, draw)

    def _hover(self, title: str, draw: Callable[[], None]) -> None:
        if title:
            self.parts.append(f"<g><title>{escape(title)}</title>")
        draw()
        if title:
            self.parts.append("</g>")

    def svg(self) -> str:
        """The picture."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" role="img" '
            f'font-family="sans-serif" font-size="12">{"".join(self.parts)}</svg>'
        )


def _span(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return (low, high) if high > low else (low - 0.5, low + 0.5)
