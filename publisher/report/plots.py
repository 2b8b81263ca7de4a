"""Plots of a report as SVG that belongs to its page: text stays text, and colours are the page's, for light and dark."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from io import StringIO
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from publisher.report.columns import printable

SERIES: Final = 7  # colours; the last one is for what is left over
OTHERS: Final = SERIES - 1
_WIDTH_IN, _HEIGHT_IN = 6.0, 3.1
_ROW_IN: Final = 0.27
_LABEL: Final = 30  # letters of a name beside a bar
_LEGEND: Final = 16  # and above a plot, where four stand side by side
# matplotlib draws in colours that nobody else uses; the page's take their place.
_INK: Final = "#0a0a01"
_GRID: Final = "#0a0a02"
_STYLE: Final[Any] = {  # its type in matplotlib is a list of all settings that this version has
    "svg.fonttype": "none",
    "text.parse_math": False,  # a VO may be called `$x$`
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.constrained_layout.use": True,
}
_PROLOGUE: Final = re.compile(r"^.*?(?=<svg )|<metadata>.*?</metadata>\s*", re.DOTALL)
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')
_IDS: Final = re.compile(r' id="[a-zA-Z0-9.]+_[0-9]+"')
_FONT: Final = re.compile(r"font: ([0-9.]+)px [^;\"]*")
_FAMILY: Final = re.compile(r" font-family: [^;\"]*;|<style [^>]*>[^<]*</style>")  # the page has its own

Say = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot for the page: SVG without anything that came from users unescaped, its title, and what it shows in words."""

    name: str
    title: str
    says: str
    svg: str


@mpl.rc_context(_STYLE)
def over_time(
    name: str,
    title: str,
    says: str,
    steps: Sequence[str],
    series: Sequence[tuple[str, int, Sequence[float]]],
    unit: Say,
) -> Plot:
    """Bars upon one another, a step of time each. `series` are name, colour and a height for each step."""
    figure, axes = _figure(_HEIGHT_IN)
    below = [0.0] * len(steps)
    for label, colour, heights in series:
        axes.bar(range(len(steps)), heights, 0.86, bottom=below, color=_colour(colour), label=_short(label, _LEGEND))
        below = [low + height for low, height in zip(below, heights, strict=True)]
    ticks = range(0, len(steps), max(1, -(-len(steps) // 6)))
    axes.set_xticks(list(ticks), [steps[at] for at in ticks])
    axes.grid(visible=False, axis="x")
    _measured(axes.yaxis, unit)
    if len(series) > 1:
        _legend(axes)
    return _plot(name, title, says, figure)


@mpl.rc_context(_STYLE)
def ranking(
    name: str, title: str, says: str, bars: Sequence[tuple[str, float, str]], unit: Say, *, colour: int
) -> Plot:
    """Bars beside one another, the first one on top. `bars` are name, length and what is written behind it."""
    figure, axes = _figure(0.9 + _ROW_IN * max(len(bars), 2))
    places = range(len(bars))
    drawn = axes.barh(places, [length for _, length, _ in bars], 0.72, color=_colour(colour))
    axes.bar_label(drawn, labels=[said for *_, said in bars], padding=4, color=_INK, fontsize=9)
    axes.set_yticks(list(places), [_short(label) for label, *_ in bars])
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    axes.margins(x=0.28)
    axes.grid(visible=False, axis="y")
    _measured(axes.xaxis, unit)
    return _plot(name, title, says, figure)


@mpl.rc_context(_STYLE)
def spread(
    name: str,
    title: str,
    says: str,
    steps: Sequence[str],
    series: Sequence[tuple[str, int, Sequence[int]]],
    grey: str = "",
) -> Plot:
    """How many took how long: bars beside one another for each stretch of time. The one called `grey` is none."""
    figure, axes = _figure(_HEIGHT_IN)
    width = 0.84 / max(len(series), 1)
    for number, (label, colour, counts) in enumerate(series):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(steps))]
        colours = [_colour(OTHERS if step == grey else colour) for step in steps]
        axes.bar(places, counts, width * 0.94, color=colours, label=_short(label, _LEGEND))
    axes.set_xticks(range(len(steps)), steps, rotation=35, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    _measured(axes.yaxis, whole)
    if len(series) > 1:
        _legend(axes)
    return _plot(name, title, says, figure)


def whole(value: float) -> str:
    """`1,500`, `25 k`, `1.2 M`, for the numbers beside an axis."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scaled = value / (1e3 if letter == "k" else limit)
            return f"{scaled:,.1f}".removesuffix(".0") + f" {letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2g}"


def _figure(height_in: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _legend(axes: Any) -> None:
    """Above the plot, so that it hides nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1),
        ncols=4,
        frameon=False,
        fontsize=9,
        labelcolor=_INK,
        handlelength=1,
        columnspacing=1.2,
    )


def _measured(axis: Any, unit: Say) -> None:
    axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=2))
    axis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))


def _colour(number: int) -> str:
    return f"#0b0b{number:02x}"


def _short(label: str, most: int = _LABEL) -> str:
    """A name for a place beside a bar; of a DN, the end tells more. What begins with an underscore has no legend else."""
    label = printable(label) or "(none)"
    if len(label) > most:
        label = f"…{label[1 - most :]}" if label.startswith("/") else f"{label[: most - 1]}…"
    return f"\u200b{label}" if label.startswith("_") else label


def _plot(name: str, title: str, says: str, figure: Figure) -> Plot:
    drawn = StringIO()
    # Names of users in letters that the font lacks: the page's font has them.
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return Plot(name=name, title=title, says=says, svg=_for_the_page(name, title, says, drawn.getvalue()))


def _for_the_page(name: str, title: str, says: str, svg: str) -> str:
    svg = _PROLOGUE.sub("", svg)
    mark = sha256(name.encode()).hexdigest()[:8]
    head = (
        f'<svg viewBox="\\1" role="img" aria-labelledby="t{mark} d{mark}" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="t{mark}">{escape(printable(title))}</title><desc id="d{mark}">{escape(printable(says))}</desc>'
    ).replace("\\1", "@@")
    found = _SIZE.search(svg)
    svg = _SIZE.sub(lambda match: head.replace("@@", match[1]), svg, count=1) if found else svg
    svg = _FAMILY.sub("", _FONT.sub(r"font-size: \1px", _IDS.sub("", svg)))
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    for number in range(SERIES):
        svg = svg.replace(_colour(number), f"var(--s{number})")
    return svg
