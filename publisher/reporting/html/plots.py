"""The plots of a report as SVG, and what each shows in words for those who cannot see it.

Text stays text, and colours are the page's, for light and dark.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from io import StringIO
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from publisher.ledger.books import TargetHistory
from publisher.model.text import plural, visible
from publisher.reporting.html.columns import LAG_EDGES_MIN, LAG_NAMES, UNKNOWN, WAIT_EDGES_MIN, WAIT_NAMES, spread
from publisher.reporting.html.values import day_text, hours_text, minutes_text, share_text, size_text
from publisher.reporting.report import DAY_S, Report, all_waits
from publisher.sources.statistics import Used, by_weight

SERIES: Final = 7  # colours; the last one is for what is left over
OTHERS: Final = SERIES - 1
_MOST_DAYS: Final = 140  # more would be thinner than a line: then months
_BARS: Final = 12
_GOOD, _BAD = 2, 1  # colours: of what went well, and what did not
_WIDTH_IN, _HEIGHT_IN = 6.0, 3.1
_ROW_IN: Final = 0.27
_LABEL: Final = 30  # letters of a name beside a bar
_LEGEND: Final = 16  # and above a plot, where there are four side by side
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
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": _INK,
    "legend.handlelength": 1,
    "legend.columnspacing": 1.2,
}
_PROLOGUE: Final = re.compile(r"^.*?(?=<svg )|<metadata>.*?</metadata>\s*", re.DOTALL)
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')
_IDS: Final = re.compile(r' id="[a-zA-Z0-9.]+_[0-9]+"')
_FONT: Final = re.compile(r"font: ([0-9.]+)px [^;\"]*")
_FAMILY: Final = re.compile(r" font-family: [^;\"]*;|<style [^>]*>[^<]*</style>")  # the page has its own

Say = Callable[[float], str]
Series = tuple[str, int, Sequence[float]]  # name, colour, and a height for each step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot for the page: SVG without anything that came from users unescaped, its title, and what it shows in words."""

    name: str
    title: str
    text: str
    svg: str


@mpl.rc_context(_STYLE)
def over_time(name: str, title: str, text: str, steps: Sequence[str], series: Sequence[Series], unit: Say) -> Plot:
    """Bars upon one another, a step of time each. `series` have a height for each step."""
    figure, axes = _figure(_HEIGHT_IN)
    below = [0.0] * len(steps)
    for label, colour, heights in series:
        axes.bar(range(len(steps)), heights, 0.86, bottom=below, color=_colour(colour), label=_short(label, _LEGEND))
        below = [low + height for low, height in zip(below, heights, strict=True)]
    ticks = range(0, len(steps), max(1, -(-len(steps) // 6)))
    axes.set_xticks(list(ticks), [steps[at] for at in ticks])
    axes.grid(visible=False, axis="x")
    _measured(axes.yaxis, unit)
    _legend(axes, len(series))
    return _plot(name, title, text, figure)


@mpl.rc_context(_STYLE)
def ranking(
    name: str, title: str, text: str, bars: Sequence[tuple[str, float, str]], unit: Say, *, colour: int
) -> Plot:
    """Bars beside one another, the first one on top. `bars` are name, length and what is written behind it."""
    figure, axes = _figure(0.9 + _ROW_IN * max(len(bars), 2))
    places = range(len(bars))
    drawn = axes.barh(places, [length for _, length, _ in bars], 0.72, color=_colour(colour))
    axes.bar_label(drawn, labels=[label for *_, label in bars], padding=4, color=_INK, fontsize=9)
    axes.set_yticks(list(places), [_short(label) for label, *_ in bars])
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    axes.margins(x=0.28)
    axes.grid(visible=False, axis="y")
    _measured(axes.xaxis, unit)
    return _plot(name, title, text, figure)


@mpl.rc_context(_STYLE)
def spread_plot(
    name: str, title: str, text: str, steps: Sequence[str], series: Sequence[Series], grey: str = ""
) -> Plot:
    """How many took how long: bars beside one another for each interval of time; the series `grey` is not a time."""
    figure, axes = _figure(_HEIGHT_IN)
    width = 0.84 / max(len(series), 1)
    for number, (label, colour, counts) in enumerate(series):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(steps))]
        colours = [_colour(OTHERS if step == grey else colour) for step in steps]
        axes.bar(places, counts, width * 0.94, color=colours, label=_short(label, _LEGEND))
    axes.set_xticks(range(len(steps)), steps, rotation=35, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    _measured(axes.yaxis, whole)
    _legend(axes, len(series))
    return _plot(name, title, text, figure)


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


def _legend(axes: Any, series: int) -> None:
    """Above the plot, so that it hides nothing."""
    if series > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=4)


def _measured(axis: Any, unit: Say) -> None:
    axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=2))
    axis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))


def _colour(number: int) -> str:
    return f"#0b0b{number:02x}"


def _short(label: str, most: int = _LABEL) -> str:
    """A name for a place beside a bar; of a DN, the end says more.

    The invisible blank keeps a name that begins with an underscore in matplotlib's legend.
    """
    label = visible(label) or "(none)"
    if len(label) > most:
        label = f"…{label[1 - most :]}" if label.startswith("/") else f"{label[: most - 1]}…"
    return f"\u200b{label}" if label.startswith("_") else label


def _plot(name: str, title: str, text: str, figure: Figure) -> Plot:
    drawn = StringIO()
    # Names of users in letters that the font lacks: the page's font has them.
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from (current )?font")
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return Plot(name=name, title=title, text=text, svg=_for_the_page(name, title, text, drawn.getvalue()))


def _for_the_page(name: str, title: str, text: str, svg: str) -> str:
    mark = sha256(name.encode()).hexdigest()[:8]

    def head(found: re.Match[str]) -> str:
        return (
            f'<svg viewBox="{found[1]}" role="img" aria-labelledby="t{mark} d{mark}" xmlns:xlink="http://www.w3.org/1999/xlink">'
            f'<title id="t{mark}">{escape(visible(title))}</title><desc id="d{mark}">{escape(visible(text))}</desc>'
        )

    svg = _SIZE.sub(head, _PROLOGUE.sub("", svg), count=1)
    svg = _FAMILY.sub("", _FONT.sub(r"font-size: \1px", _IDS.sub("", svg)))
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    for number in range(SERIES):
        svg = svg.replace(_colour(number), f"var(--s{number})")
    return svg


def report_plots(report: Report) -> Mapping[str, Plot]:
    """By the name of the table that each is above."""
    usage = report.usage
    found = [
        _usage_by_day(report),
        _jobs_by_day(report),
        _ranked("vos", "Wall × cores by VO", usage.vos, 0),
        _ranked("queues", "Wall × cores by queue", usage.queues, 3),
        _ranked("users", "Wall × cores by user", usage.users, 4),
        _ranked("projects", "Wall × cores by project", usage.projects, 5),
        _mix(report),
        _waits(report),
        *_deliveries(report),
    ]
    return {one.name: one for one in found}


def _steps(report: Report) -> tuple[list[str], dict[int, int]]:
    """Intervals of time from left to right, and the place of each day among them; nothing in the future."""
    first = (report.window.start or 0) // DAY_S
    end = min((report.window.end or 0) - 1, int(report.made_at.timestamp()))
    last = max([end // DAY_S, first, *report.usage.days])
    days = range(first, last + 1)
    if len(days) <= _MOST_DAYS:
        return [day_text(day)[5:] for day in days], {day: at for at, day in enumerate(days)}
    months = list(dict.fromkeys(day_text(day)[:7] for day in days))
    places = {month: at for at, month in enumerate(months)}
    return months, {day: places[day_text(day)[:7]] for day in days}


def _per(report: Report) -> str:
    steps, places = _steps(report)
    return "day" if len(steps) == len(places) else "month"


def _usage_by_day(report: Report) -> Plot:
    steps, places = _steps(report)
    usage = report.usage
    ranked = [name for name, _ in by_weight(usage.vos)]
    shown = ranked[:OTHERS] if len(ranked) <= OTHERS else ranked[: OTHERS - 1]
    heights = {name: [0.0] * len(steps) for name in [*shown, None]}
    for (day, vo), wall_core_s in usage.wall_core_s_by_vo.items():
        heights[vo if vo in shown else None][places[day]] += wall_core_s / 3600
    series = [(name, at, heights[name]) for at, name in enumerate(shown)]
    if len(ranked) > len(shown):
        series.append((f"{len(ranked) - len(shown)} others", OTHERS, heights[None]))
    text = f"{hours_text(usage.total.wall_core_s)} core hours in all. {_most(by_weight(usage.vos))}"
    title = f"Wall × cores in hours, by {_per(report)} and VO"
    return over_time("usage_by_day", title, text, steps, series, whole)


def _jobs_by_day(report: Report) -> Plot:
    steps, places = _steps(report)
    total = report.usage.total
    good, bad = [0.0] * len(steps), [0.0] * len(steps)
    for day, used in report.usage.days.items():
        good[places[day]] += used.jobs - used.failed
        bad[places[day]] += used.failed
    share = "" if total.failed_share is None else f", {share_text(total.failed_share)} of them failed"
    title = f"Jobs by {_per(report)}"
    text = f"{plural(total.jobs, 'job')} ended in the period{share}."
    return over_time("jobs_by_day", title, text, steps, [("not failed", _GOOD, good), ("failed", _BAD, bad)], whole)


def _ranked(name: str, title: str, parts: Mapping[str, Used], colour: int) -> Plot:
    ranked = by_weight(parts)
    shown = ranked if len(ranked) <= _BARS else ranked[: _BARS - 1]
    bars = [(part, used.wall_core_s / 3600, _efficiency(used)) for part, used in shown]
    if len(shown) < len(ranked):
        rest = Used()
        for _, used in ranked[len(shown) :]:
            rest.merge(used)
        bars.append((f"{len(ranked) - len(shown):,} others", rest.wall_core_s / 3600, _efficiency(rest)))
    title = f"{title}, in hours, with CPU efficiency"
    return ranking(name, title, _most(ranked), bars, whole, colour=colour)


def _efficiency(used: Used) -> str:
    return "" if used.efficiency is None else share_text(used.efficiency)


def _most(ranked: Sequence[tuple[str, Used]]) -> str:
    """The three largest, in words."""
    if not ranked:
        return "There were no jobs."
    labels = (
        f"{name or '(none)'} {hours_text(used.wall_core_s)} h, CPU efficiency {_efficiency(used) or 'unknown'}"
        for name, used in ranked[:3]
    )
    return f"The largest of {len(ranked):,}: {'; '.join(labels)}."


def _mix(report: Report) -> Plot:
    total = report.usage.total.wall_core_s
    bars = [
        (name or "none known", used.wall_core_s / total if total else 0.0)
        for name, used in by_weight(report.usage.benchmarks)[:_BARS]
    ]
    text = "; ".join(f"{name}: {share_text(share)}" for name, share in bars) or "There were no jobs."
    drawn = [(name, share * 100, share_text(share)) for name, share in bars]
    title = "Share of wall × cores by benchmark"
    return ranking("benchmarks", title, text, drawn, lambda value: f"{value:.0f} %", colour=0)


def _waits(report: Report) -> Plot:
    waits = all_waits(report.usage.waits.values())
    counts = spread(waits, WAIT_EDGES_MIN, WAIT_NAMES)
    text = (
        f"Half waited no longer than {minutes_text(waits.quantile_min(0.5))}, nine of ten no longer than "
        f"{minutes_text(waits.quantile_min(0.9))}. Of {waits.unknown + waits.negative:,} jobs it is not known."
    )
    names, jobs = [name for name, _ in counts], [jobs for _, jobs in counts]
    title = "Jobs by time from submission to true start"
    return spread_plot("waits", title, text, names, [("jobs", 0, jobs)], grey=UNKNOWN)


def _deliveries(report: Report) -> list[Plot]:
    past = [(one.target, one.history) for one in report.targets if one.history is not None][:OTHERS]
    steps, places = _steps(report)
    messages, sizes = [], []
    for at, (target, history) in enumerate(past):
        counts, amounts = [0.0] * len(steps), [0.0] * len(steps)
        for (day, _), sums in history.days.items():
            counts[places[day]] += sums.messages
            amounts[places[day]] += sums.bytes
        messages.append((target, at, counts))
        sizes.append((target, at, amounts))
    return [
        _lags(past),
        _delivered("messages", "Messages", report, messages, whole, "{:,.0f}".format),
        _delivered("bytes", "Bytes", report, sizes, size_text, size_text),
    ]


def _lags(past: Sequence[tuple[str, TargetHistory]]) -> Plot:
    spreads = [dict(spread(history.lags, LAG_EDGES_MIN, LAG_NAMES)) for _, history in past]
    names = [*LAG_NAMES, *([UNKNOWN] if any(UNKNOWN in one for one in spreads) else [])]
    lags = [(past[at][0], at, [jobs.get(name, 0) for name in names]) for at, jobs in enumerate(spreads)]
    medians = (f"{target} {minutes_text(history.lags.quantile_min(0.5))}" for target, history in past)
    text = f"Half took no longer than: {'; '.join(medians)}."
    return spread_plot("lags", "Jobs by time from their end to acceptance", text, names, lags)


def _delivered(name: str, title: str, report: Report, series: Sequence[Series], unit: Say, total: Say) -> Plot:
    text = "; ".join(f"{target}: {total(sum(heights))}" for target, _, heights in series)
    title = f"{title} accepted, by {_per(report)}"
    return over_time(name, title, text or "Nothing was delivered in the period.", _steps(report)[0], series, unit)
