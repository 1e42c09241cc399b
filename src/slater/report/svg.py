"""Small pictures as inline SVG, for pages that need no script and no network; the same as PNG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"pass": "#117a65", "fail": "#b03a2e", "abstain": "#b7950b", "ink": "#1b2631", "line": "#1b4f72"}
#: one colour per thing that is compared, told apart on light and dark grounds
SERIES = ("#2e86c1", "#d35400", "#1e8449", "#a569bd", "#c0392b", "#7f8c8d", "#b7950b", "#148f77")
AXIS = "#888"
#: at most so many logged episodes are drawn
EPISODES = 400

XY = tuple[float, float]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((1, 2, 5, 10), key=lambda k: abs(k * power - raw))
    first = math.ceil(low / step - 1e-9) * step
    return [float(x) for x in np.arange(first, high + 1e-9 * step, step)]


class Plot:
    """A frame with two linear axes, to which shapes with hover texts are added."""

    def __init__(
        self, x: XY, y: XY, *, width: int = 760, height: int = 400, labels: tuple[str, str] = ("", ""),
        y_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.width, self.height, self.labels, self.y_names = width, height, labels, y_names
        self.left, self.right, self.top, self.bottom = (230 if y_names else 84), 16, 30, 50
        self._x, self._y = _span(x), _span(y)
        #: of every shape: the element, and what draws it into axes of matplotlib
        self._shapes: list[tuple[str, Callable[[Any], object]]] = []

    def _place(self, x: float, y: float) -> XY:
        """Pixels from the left and from the top."""
        share_x, share_y = (
            (min(max(value, low), high) - low) / (high - low)
            for value, (low, high) in ((x, self._x), (y, self._y))
        )
        across, upwards = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + share_x * across, self.height - self.bottom - share_y * upwards

    def _add(self, element: str, paint: Callable[[Any], object] = lambda axis: None) -> None:
        self._shapes.append((element, paint))

    def segment(
        self, start: XY, stop: XY, colour: str, title: str = "", *, width: float = 2.0, dashed: bool = False
    ) -> None:
        """A line between two points of the plot."""
        ends, dashes = (*self._place(*start), *self._place(*stop)), "5 4" if dashed else None
        self._add(
            _line(*ends, colour, title, stroke_width=width, stroke_dasharray=dashes),
            lambda axis: axis.plot(
                *zip(start, stop, strict=True), color=colour, lw=0.7 * width, ls="--" if dashed else "-"
            ),
        )

    def mark_limit(self, limit: float, name: str = "limit") -> None:
        """The limit on what the x-axis shows: a dashed line from top to bottom, with its name above."""
        self.segment((limit, self._y[0]), (limit, self._y[1]), COLOURS["fail"], dashed=True)
        room = 4.5 * len(name) + 30
        x = min(max(self._place(limit, 0)[0], self.left + room), self.width - self.right - room)
        self._add(_text(x, self.top - 10, f"{name} {limit:.4g}", "middle", fill=COLOURS["fail"]))

    def diamond(
        self, x: float, y: float, colour: str, title: str = "", *, hollow: bool = False, radius: float = 9
    ) -> None:
        """A point that stands out."""
        (u, v), r, fill = self._place(x, y), radius, "none" if hollow else colour
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in ((u, v - r), (u + r, v), (u, v + r), (u - r, v)))
        self._add(
            _tag("polygon", title=title, points=points, fill=fill, stroke=colour, stroke_width=2.5),
            lambda axis: axis.plot(x, y, "D", color=colour, mfc=fill, ms=radius),
        )

    def dot(
        self, x: float, y: float, colour: str, title: str = "", *, radius: float = 4, alpha: float = 1
    ) -> None:
        """A point."""
        u, v = self._place(x, y)
        self._add(
            _tag("circle", title=title, cx=u, cy=v, r=radius, fill=colour, fill_opacity=alpha),
            lambda axis: axis.plot(x, y, "o", color=colour, ms=1.4 * radius, alpha=alpha),
        )

    def box(self, x: XY, y: XY, colour: str, title: str = "", alpha: float = 1.0) -> None:
        """A filled rectangle."""
        (left, below), (right, top) = self._place(x[0], y[0]), self._place(x[1], y[1])
        self._add(
            _tag(
                "rect", title=title, x=left, y=top, width=max(right - left, 0.5),
                height=max(below - top, 0.5), fill=colour, fill_opacity=alpha, shape_rendering="crispEdges",
            ),
            lambda axis: axis.fill((x[0], x[1], x[1], x[0]), (y[0], y[0], y[1], y[1]), color=colour),
        )  # fmt: skip

    def svg(self) -> str:
        """The picture as an element of a page."""
        return _tag(
            "svg", "".join([*self._frame(), *(element for element, _ in self._shapes)]),
            viewBox=f"0 0 {self.width} {self.height}", width=self.width, role="img",
            font_family="sans-serif", font_size=12,
        )  # fmt: skip

    def _frame(self) -> Iterator[str]:
        """Axes, their numbers or names, their labels."""
        base, end = self.height - self.bottom, self.width - self.right
        yield _line(self.left, base, end, base, AXIS)
        yield _line(self.left, self.top, self.left, base, AXIS)
        for value in ticks(*self._x):
            x, _ = self._place(value, 0)
            yield _line(x, base, x, base + 5, AXIS)
            yield _text(x, base + 18, f"{value:g}", "middle")
        rows = [(value, f"{value:g}") for value in ticks(*self._y)]
        for value, name in rows if self.y_names is None else enumerate(self.y_names):
            _, y = self._place(0, value)
            if self.y_names is None:
                yield _line(self.left - 5, y, self.left, y, AXIS)
            yield _text(self.left - 8, y + 4, name, "end")
        yield _text((self.left + end) / 2, self.height - 8, self.labels[0], "middle")
        if self.labels[1]:
            y = (self.top + base) / 2
            yield _text(16, y, self.labels[1], "middle", transform=f"rotate(-90 16 {y:.1f})")

    def save_png(self, path: Path, signs: Iterable[tuple[str, str, str]], title: str = "") -> None:
        """The picture as a PNG file, with what `pages.key` has below it, and a title."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width / 100, self.height / 100), layout="constrained")
        axis = figure.add_subplot(xlim=self._x, ylim=self._y, title=title)
        axis.set(xlabel=self.labels[0], ylabel=self.labels[1])
        for _, paint in self._shapes:
            paint(axis)
        for _, colour, words in signs:
            axis.plot([], [], "s", color=colour, label=words)
        figure.legend(loc="outside lower left", fontsize=8, ncols=2, frameon=False)
        figure.savefig(path, dpi=130)


def _tag(name: str, inside: str = "", title: str = "", **values: Any) -> str:
    """An element with a hover text; a name's underscores are hyphens, None is left out."""
    given = ((key.replace("_", "-"), value) for key, value in values.items() if value is not None)
    written = "".join(
        f' {key}="{value:.1f}"' if isinstance(value, float) else f' {key}="{value}"' for key, value in given
    )
    element = f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"
    return f"<g><title>{escape(title)}</title>{element}</g>" if title else element


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, title: str = "", **more: Any) -> str:
    x1, y1, x2, y2 = map(float, (x1, y1, x2, y2))
    return _tag("line", title=title, x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **more)


def _text(x: float, y: float, text: str, anchor: str, **more: Any) -> str:
    return _tag("text", escape(text), x=float(x), y=float(y), text_anchor=anchor, **more)


def _span(ends: XY) -> XY:
    low, high = ends
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def thinned(count: int, most: int = EPISODES) -> list[int]:
    """At most `most` numbers below `count`, evenly spaced."""
    places: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    return places
