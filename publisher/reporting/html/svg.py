"""Bar charts as SVG: axes with titles and units, and each bar's value to hover over.

Colours are classes of the page's style sheet, for light and dark; text stays text. There is room
for letters of 18 units, which phones show: there the whole is drawn smaller.
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
_TOP, _RIGHT, _BELOW = 12.0, 10.0, 58.0
_SLANTED: Final = 92.0  # below, where the labels of the steps are long
_TITLE: Final = 40.0  # at the left, for the title of the axis
_LETTER: Final = 11.0  # width of a digit, where letters are largest
_ROW: Final = 44.0  # of a ranking: a name, and its bar below
_BAR: Final = 14.0  # height of its bar
_LABEL: Final = 46  # letters of a name
_MOST_LABELS: Final = 6


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
    width = axis.step_width(steps)
    bars = [
        _bar(
            axis.left + (at + 0.06) * width,
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
    return _columns(labels, steps, axis, bars, slanted=False)


def beside(
    labels: Labels, steps: Sequence[str], series: Sequence[Series], *, grey: str = ""
) -> str:
    """How many took how long: bars side by side for each step; the step `grey` is no time."""
    axis = _Axis(
        max((height for one in series for height in one.heights), default=0.0), number_text
    )
    width = axis.step_width(steps)
    each = width * 0.84 / max(len(series), 1)
    colours = {grey: OTHERS}
    bars = [
        _bar(
            axis.left + (at + 0.08) * width + number * each,
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
    return _columns(labels, steps, axis, bars, slanted=True)


def ranking(
    labels: Labels, bars: Sequence[Bar], *, colour: int, largest: float | None = None
) -> str:
    """Bars below one another, the first one on top; each has its name above and its note behind.

    `largest` is what they are parts of.
    """
    longest = max([bar.length for bar in bars], default=0.0) if largest is None else largest
    notes = max((len(bar.note) for bar in bars), default=0) * _LETTER
    scale = max(_WIDTH - notes - 8, _WIDTH / 4) / (longest or 1.0)
    height = _ROW * max(len(bars), 1) + 26
    drawn = []
    for at, bar in enumerate(bars):
        top = at * _ROW
        drawn.append(_text(0, top + 16, _name(bar.name, _LABEL), "start"))
        fill, tooltip = OTHERS if bar.is_grey else colour, f"{_name(bar.name)}: {bar.note}"
        drawn.append(_bar(0, top + 22, bar.length * scale, _BAR, fill, tooltip))
        drawn.append(_text(bar.length * scale + 6, top + 34, bar.note, "start", "axis"))
    drawn.append(_text(0, height - 6, labels.x, "start", "axis"))
    return _svg(labels, height, drawn)


class _Axis:
    """The vertical one: where a value stands, and round numbers beside it."""

    def __init__(self, largest: float, say: Say) -> None:
        step = _round_step(largest / 4)
        self.top = max(ceil(largest / step), 1) * step
        self.ticks = [step * at for at in range(round(self.top / step) + 1)]
        self.labels = [_short(step, say) for step in self.ticks]
        self.left = _TITLE + max(map(len, self.labels)) * _LETTER

    def step_width(self, steps: Sequence[str]) -> float:
        """Return the room of one of the steps from left to right."""
        return (_WIDTH - self.left - _RIGHT) / max(len(steps), 1)

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


def _short(value: float, say: Say) -> str:
    """Return a round number in few letters: `250k`, `1.5M`."""
    if say is not number_text or value < 10_000:
        return say(value)
    thousands, letter = (value / 1e6, "M") if value >= 1e6 else (value / 1e3, "k")
    return f"{thousands:,.15g}{letter}"


def _columns(
    labels: Labels,
    steps: Sequence[str],
    axis: _Axis,
    bars: Sequence[str],
    *,
    slanted: bool,
) -> str:
    """Return the axes and the bars."""
    below = _SLANTED if slanted else _BELOW
    left, width = axis.left, axis.step_width(steps)
    drawn = [f'<g transform="translate(0 {_TOP:g})">']
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        drawn.append(_line(left, axis.place(tick), _WIDTH - _RIGHT, axis.place(tick)))
        drawn.append(_text(left - 6, axis.place(tick) + 4, label, "end"))
    every = 1 if slanted else max(1, ceil(len(steps) / _MOST_LABELS))
    for at in range(0, len(steps), every):
        middle = left + (at + 0.5) * width
        if slanted:
            drawn.append(_text(middle + 4, _PLOT + 14, steps[at], "end", turn=-35))
        else:
            drawn.append(_text(middle, _PLOT + 22, steps[at], "middle"))
    drawn += bars
    drawn.append(_text((left + _WIDTH) / 2, _PLOT + below - 8, labels.x, "middle", "axis"))
    drawn.append(_text(18, _PLOT / 2, labels.y, "middle", "axis", turn=-90))
    drawn.append("</g>")
    return _svg(labels, _TOP + _PLOT + below, drawn)


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
