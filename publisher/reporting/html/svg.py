"""Bar charts as SVG: axes with titles and units, a legend, and each bar's value to hover over.

Colours are classes of the page's style sheet, for light and dark; text stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from html import escape
from itertools import accumulate
from math import ceil, floor, log10
from typing import Final, NamedTuple

from publisher.model.text import visible
from publisher.reporting.html.values import number_text

SERIES: Final = 7  # colours; the last one is for what is left over
OTHERS: Final = SERIES - 1
Say = Callable[[float], str]

_WIDTH: Final = 560.0
_PLOT: Final = 190.0  # height between the axes
_LEFT, _RIGHT, _BELOW = 66.0, 10.0, 46.0
_SLANTED: Final = 74.0  # below, where the labels of the steps are long
_LINE: Final = 18.0
_LETTER: Final = 6.4  # width of one, on average
_ROW: Final = 24.0  # of a ranking
_NAMES: Final = 196.0  # beside its bars
_LABEL: Final = 30  # letters of a name
_MOST_LABELS: Final = 7


class Series(NamedTuple):
    """A name, a colour, and a height for each step."""

    name: str
    colour: int
    heights: Sequence[float]


class Bar(NamedTuple):
    """A bar of a ranking, and what is written behind it."""

    name: str
    length: float
    note: str
    is_grey: bool = False  # set beside another one


class Labels(NamedTuple):
    """What a chart says: its title, what it shows in words, and its axes with their units."""

    title: str
    text: str
    x: str
    y: str


def stacked(labels: Labels, steps: Sequence[str], series: Sequence[Series], say: Say) -> str:
    """Bars upon one another, for each step of time."""
    tops = list(accumulate((one.heights for one in series), _added, initial=[0.0] * len(steps)))
    axis = _Axis(max(tops[-1], default=0.0), say)
    width = _step_width(steps)
    bars = [
        _bar(
            _LEFT + (at + 0.06) * width,
            axis.place(tops[number + 1][at]),
            width * 0.88,
            axis.length(height),
            one.colour,
            f"{steps[at]} · {_name(one.name)}: {say(height)}",
        )
        for number, one in enumerate(series)
        for at, height in enumerate(one.heights)
        if height > 0
    ]
    return _columns(labels, steps, series, axis, bars, slanted=False)


def beside(
    labels: Labels, steps: Sequence[str], series: Sequence[Series], *, grey: str = ""
) -> str:
    """How many took how long: bars side by side for each step; the step `grey` is no time."""
    axis = _Axis(
        max((height for one in series for height in one.heights), default=0.0), number_text
    )
    width = _step_width(steps)
    each = width * 0.84 / max(len(series), 1)
    colours = {grey: OTHERS}
    bars = [
        _bar(
            _LEFT + (at + 0.08) * width + number * each,
            axis.place(height),
            each * 0.94,
            axis.length(height),
            colours.get(steps[at], one.colour),
            f"{steps[at]} · {_name(one.name)}: {number_text(height)}",
        )
        for number, one in enumerate(series)
        for at, height in enumerate(one.heights)
        if height > 0
    ]
    return _columns(labels, steps, series, axis, bars, slanted=True)


def ranking(
    labels: Labels, bars: Sequence[Bar], *, colour: int, largest: float | None = None
) -> str:
    """Bars below one another, the first one on top. `largest` is what they are parts of."""
    longest = max([bar.length for bar in bars], default=0.0) if largest is None else largest
    scale = (_WIDTH - _NAMES) * 0.56 / (longest or 1.0)
    height = _ROW * max(len(bars), 1) + 26
    drawn = []
    for at, bar in enumerate(bars):
        top, middle = at * _ROW + 3, at * _ROW + _ROW / 2 + 4
        drawn.append(_text(_NAMES - 6, middle, _name(bar.name, _LABEL), "end"))
        fill = OTHERS if bar.is_grey else colour
        drawn.append(
            _bar(_NAMES, top, bar.length * scale, _ROW - 6, fill, f"{_name(bar.name)}: {bar.note}")
        )
        drawn.append(_text(_NAMES + bar.length * scale + 5, middle, bar.note, "start"))
    drawn.append(_line(_NAMES, 0, _NAMES, height - 26))
    drawn.append(_text(_NAMES, height - 6, labels.x, "start", "axis"))
    return _svg(labels, height, drawn)


class _Axis:
    """The vertical one: where a value stands, and round numbers beside it."""

    def __init__(self, largest: float, say: Say) -> None:
        step = _round_step(largest / 4)
        self.top = max(ceil(largest / step), 1) * step
        self.ticks = [step * at for at in range(round(self.top / step) + 1)]
        self.say = say

    def place(self, value: float) -> float:
        """From the top of the area between the axes."""
        return _PLOT - self.length(value)

    def length(self, value: float) -> float:
        return value / self.top * _PLOT


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    if least <= 0:
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def _added(below: Sequence[float], heights: Sequence[float]) -> list[float]:
    return [low + height for low, height in zip(below, heights, strict=True)]


def _step_width(steps: Sequence[str]) -> float:
    return (_WIDTH - _LEFT - _RIGHT) / max(len(steps), 1)


def _columns(
    labels: Labels,
    steps: Sequence[str],
    series: Sequence[Series],
    axis: _Axis,
    bars: Sequence[str],
    *,
    slanted: bool,
) -> str:
    """Axes, a legend above them so that it hides nothing, and the bars."""
    legend, above = _legend(series)
    below = _SLANTED if slanted else _BELOW
    width = _step_width(steps)
    drawn = [*legend, f'<g transform="translate(0 {above:g})">']
    for tick in axis.ticks:
        drawn.append(_line(_LEFT, axis.place(tick), _WIDTH - _RIGHT, axis.place(tick)))
        drawn.append(_text(_LEFT - 6, axis.place(tick) + 4, axis.say(tick), "end"))
    every = 1 if slanted else max(1, ceil(len(steps) / _MOST_LABELS))
    for at in range(0, len(steps), every):
        middle = _LEFT + (at + 0.5) * width
        if slanted:
            drawn.append(_text(middle + 4, _PLOT + 14, steps[at], "end", turn=-35))
        else:
            drawn.append(_text(middle, _PLOT + 17, steps[at], "middle"))
    drawn += bars
    drawn.append(_text((_LEFT + _WIDTH) / 2, _PLOT + below - 8, labels.x, "middle", "axis"))
    drawn.append(_text(12, _PLOT / 2, labels.y, "middle", "axis", turn=-90))
    drawn.append("</g>")
    return _svg(labels, above + _PLOT + below, drawn)


def _legend(series: Sequence[Series]) -> tuple[list[str], float]:
    """What stands above the plot, and how high it is; nothing for a single series."""
    if len(series) < 2:
        return [], 10.0
    drawn, left, top = [], _LEFT, 4.0
    for one in series:
        label = _name(one.name, _LABEL)
        width = 20 + len(label) * _LETTER + 12
        if left + width > _WIDTH and left > _LEFT:
            left, top = _LEFT, top + _LINE
        drawn.append(
            f'<rect class="s{one.colour}" x="{left:g}" y="{top:g}" width="12" height="12"/>'
        )
        drawn.append(_text(left + 17, top + 10.5, label, "start"))
        left += width
    return drawn, top + _LINE + 8


def _bar(left: float, top: float, width: float, height: float, colour: int, tooltip: str) -> str:
    size = f'width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}"'
    place = f'class="s{colour}" x="{left:.1f}" y="{top:.1f}" {size}'
    return f"<rect {place}><title>{escape(tooltip)}</title></rect>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "", *, turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(text)}</text>'
    )


def _name(name: str, most: int = 70) -> str:
    """Of a DN that is too long, the end says more."""
    name = visible(name) or "(none)"
    if len(name) <= most:
        return name
    return f"…{name[1 - most :]}" if name.startswith("/") else f"{name[: most - 1]}…"


def _svg(labels: Labels, height: float, drawn: Iterator[str] | Sequence[str]) -> str:
    mark = sha256(labels.title.encode()).hexdigest()[:8]
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-labelledby="t{mark} d{mark}">'
        f'<title id="t{mark}">{escape(visible(labels.title))}</title>'
        f'<desc id="d{mark}">{escape(visible(labels.text))}</desc>{"".join(drawn)}</svg>'
    )
