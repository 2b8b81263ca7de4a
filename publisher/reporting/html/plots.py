"""The plots of a report, and what each shows in words for those who cannot see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from publisher.ledger.books import TargetHistory
from publisher.model.text import NO_VO, plural
from publisher.reporting.html import svg
from publisher.reporting.html.columns import (
    LAG_EDGES_MIN,
    LAG_NAMES,
    UNKNOWN,
    WAIT_EDGES_MIN,
    WAIT_NAMES,
    all_waits,
    spread,
)
from publisher.reporting.html.svg import OTHERS, Bar, Labels, Say, Series
from publisher.reporting.html.values import (
    day_text,
    hours_text,
    minutes_text,
    number_text,
    share_text,
    size_text,
)
from publisher.reporting.report import Report
from publisher.reporting.usage import DAY_S, Used, by_weight, merged

_MOST_DAYS: Final = 62  # in a plot or table of days; of a longer period they are months
_BARS: Final = 12
_GOOD, _BAD = 2, 1  # colours: of what went well, and what did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot: SVG with everything from users escaped, its title, and what it shows in words.

    `legend` has the series of a plot with several, each with its colour.
    """

    name: str
    title: str
    text: str
    svg: str
    legend: Sequence[Series]


def _plot(name: str, labels: Labels, drawn: str, series: Sequence[Series] = ()) -> Plot:
    legend = series if len(series) > 1 else ()
    return Plot(name=name, title=labels.title, text=labels.text, svg=drawn, legend=legend)


def report_plots(report: Report) -> Mapping[str, Plot]:
    """By name."""
    usage = report.usage
    found = [
        _usage_over_time(report),
        _jobs_over_time(report),
        _months(report),
        _ranked("vos", "Core hours by VO", _named_vos(usage.vos), 0),
        _ranked("queues", "Core hours by queue", usage.queues, 3),
        _ranked("users", "Core hours by user", usage.users, 4),
        _ranked("projects", "Core hours by project", usage.projects, 5),
        *_allocated(report),
        _mix(report),
        _waits(report),
        *_deliveries(report),
    ]
    return {one.name: one for one in found}


def shows_days(report: Report) -> bool:
    """Whether a period is shown by days, or by months: a year has too many days to look at."""
    return len(_days(report)) <= _MOST_DAYS


def _days(report: Report) -> range:
    """Nothing in the future."""
    first = (report.window.start or 0) // DAY_S
    end = min((report.window.end or 0) - 1, int(report.made_at.timestamp()))
    return range(first, max([end // DAY_S, first, *report.usage.days]) + 1)


class _Steps:
    """Intervals of time from left to right, and the place of each day among them."""

    def __init__(self, report: Report) -> None:
        days = _days(report)
        self.word = "day" if shows_days(report) else "month"
        if self.word == "day":
            self.names = [day_text(day)[5:] for day in days]
            self.places = {day: at for at, day in enumerate(days)}
        else:
            self.names = list(dict.fromkeys(day_text(day)[:7] for day in days))
            places = {month: at for at, month in enumerate(self.names)}
            self.places = {day: places[day_text(day)[:7]] for day in days}

    @property
    def axis(self) -> str:
        return f"{self.word} in which jobs ended, UTC"

    def empty(self) -> list[float]:
        return [0.0] * len(self.names)


def _usage_over_time(report: Report) -> Plot:
    steps, usage = _Steps(report), report.usage
    ranked = [name for name, _ in by_weight(usage.vos)]
    shown = ranked[:OTHERS] if len(ranked) <= OTHERS else ranked[: OTHERS - 1]
    heights = {name: steps.empty() for name in [*shown, None]}
    for (day, vo), wall_core_s in usage.wall_core_s_by_vo.items():
        heights[vo if vo in shown else None][steps.places[day]] += wall_core_s / 3600
    series = [Series(name or NO_VO, at, heights[name]) for at, name in enumerate(shown)]
    if len(ranked) > len(shown):
        series.append(Series(f"{len(ranked) - len(shown)} others", OTHERS, heights[None]))
    most = _most(by_weight(_named_vos(usage.vos)))
    text = f"{hours_text(usage.total.wall_core_s)} core hours in all. {most}"
    title = f"Core hours by {steps.word} and VO"
    labels = Labels(title, text, steps.axis, f"core hours a {steps.word}")
    drawn = svg.stacked(labels, steps.names, series, number_text)
    return _plot("usage_over_time", labels, drawn, series)


def _jobs_over_time(report: Report) -> Plot:
    steps, total = _Steps(report), report.usage.total
    good, bad = steps.empty(), steps.empty()
    for day, used in report.usage.days.items():
        good[steps.places[day]] += used.jobs - used.failed
        bad[steps.places[day]] += used.failed
    text = f"{plural(total.jobs, 'job')} ended in the period"
    if total.failed_share is not None:
        text += f", {share_text(total.failed_share)} of them failed"
    labels = Labels(f"Jobs by {steps.word}", f"{text}.", steps.axis, f"jobs a {steps.word}")
    series = [Series("not failed", _GOOD, good), Series("failed", _BAD, bad)]
    drawn = svg.stacked(labels, steps.names, series, number_text)
    return _plot("jobs_over_time", labels, drawn, series)


def _months(report: Report) -> Plot:
    months = [
        (one.name if one.is_whole else f"{one.name} (part)", one.used.wall_core_s)
        for one in report.months
    ]
    texts = [f"{name}: {hours_text(core_s)} core hours" for name, core_s in months]
    text, title = "; ".join(texts) or "There were no jobs.", "Core hours, month against month"
    labels = Labels(title, text, "month, UTC", "core hours a month")
    names, heights = [name for name, _ in months], [core_s / 3600 for _, core_s in months]
    series = [Series("core hours", 0, heights)]
    return _plot("months", labels, svg.stacked(labels, names, series, number_text))


def _named_vos(vos: Mapping[str, Used]) -> Mapping[str, Used]:
    return {name or NO_VO: used for name, used in vos.items()}


def _ranked(name: str, title: str, parts: Mapping[str, Used], colour: int) -> Plot:
    ranked = by_weight(parts)
    shown = ranked if len(ranked) <= _BARS else ranked[: _BARS - 1]
    bars = list(shown)
    if len(shown) < len(ranked):
        rest = merged(dict(ranked[len(shown) :]))
        bars.append((f"{len(ranked) - len(shown):,} others", rest))
    drawn = [Bar(part, used.wall_core_s / 3600, _hours_and_efficiency(used)) for part, used in bars]
    labels = Labels(title, _most(ranked), "core hours, and CPU efficiency", "")
    return _plot(name, labels, svg.ranking(labels, drawn, colour=colour))


def _in_words(name: str, used: Used) -> str:
    text = f"{name or '(none)'} {hours_text(used.wall_core_s)} core hours"
    if used.efficiency is None:
        return text
    return f"{text} at a CPU efficiency of {share_text(used.efficiency)}"


def _hours_and_efficiency(used: Used) -> str:
    hours = f"{hours_text(used.wall_core_s)} h"
    return hours if used.efficiency is None else f"{hours}, {share_text(used.efficiency)}"


def _most(ranked: Sequence[tuple[str, Used]]) -> str:
    """The three largest, in words."""
    if not ranked:
        return "There were no jobs."
    labels = (_in_words(name, used) for name, used in ranked[:3])
    largest = f"The largest of {len(ranked):,}: " if len(ranked) > 3 else "Largest first: "
    return f"{largest}{'; '.join(labels)}."


def _allocated(report: Report) -> list[Plot]:
    if not report.allocations:
        return []
    now = report.made_at.timestamp()
    bars = []
    for one in report.allocations[:_BARS]:
        note = f"{share_text(one.share)} of {number_text(float(one.granted))} {one.unit}"
        bars.append(Bar(one.project, min(one.share, 1.2), note))
        start, end = one.window.start or 0, one.window.end or now
        passed = min(max((now - start) / ((end - start) or 1), 0.0), 1.0)
        bars.append(Bar("its time", passed, f"{share_text(passed)} has passed", is_grey=True))
    shown = report.allocations[:_BARS]
    text = "; ".join(f"{one.project} has used {share_text(one.share)}" for one in shown)
    title = "Used of allocations, and the part of their time that has passed"
    labels = Labels(title, f"{text}.", "share of the whole", "")
    return [_plot("allocations", labels, svg.ranking(labels, bars, colour=0, largest=1.2))]


def _mix(report: Report) -> Plot:
    total = report.usage.total.wall_core_s
    bars = [
        (name or "none known", used.wall_core_s / total if total else 0.0)
        for name, used in by_weight(report.usage.benchmarks)[:_BARS]
    ]
    text = "; ".join(f"{name}: {share_text(share)}" for name, share in bars)
    text = text or "There were no jobs."
    labels = Labels("Share of core hours by benchmark", text, "share of all core hours", "")
    drawn = [Bar(name, share, share_text(share)) for name, share in bars]
    return _plot("benchmarks", labels, svg.ranking(labels, drawn, colour=0))


def _waits(report: Report) -> Plot:
    waits = all_waits(report.usage.waits.values())
    counts = spread(waits, WAIT_EDGES_MIN, WAIT_NAMES)
    half, most = (minutes_text(waits.quantile_min(part)) for part in (0.5, 0.9))
    text = (
        f"Half waited no longer than {half}, nine of ten no longer than {most}. "
        f"Of {waits.unknown + waits.negative:,} jobs it is not known."
    )
    names, jobs = [name for name, _ in counts], [jobs for _, jobs in counts]
    labels = Labels("Jobs by time from submission to true start", text, "time waited", "jobs")
    drawn = svg.beside(labels, names, [Series("jobs", 0, jobs)], grey=UNKNOWN)
    return _plot("waits", labels, drawn)


def _deliveries(report: Report) -> list[Plot]:
    past = [(one.target, one.history) for one in report.targets if one.history is not None][:OTHERS]
    steps = _Steps(report)
    messages, sizes = [], []
    for at, (target, history) in enumerate(past):
        counts, amounts = steps.empty(), steps.empty()
        for (day, _), sums in history.days.items():
            counts[steps.places[day]] += sums.messages
            amounts[steps.places[day]] += sums.bytes
        messages.append(Series(target, at, counts))
        sizes.append(Series(target, at, amounts))
    return [
        _lags(past),
        *_delivered("messages", "Messages", steps, messages, number_text),
        *_delivered("bytes", "Bytes", steps, sizes, size_text),
    ]


def _lags(past: Sequence[tuple[str, TargetHistory]]) -> Plot:
    spreads = [dict(spread(history.lags, LAG_EDGES_MIN, LAG_NAMES)) for _, history in past]
    names = [*LAG_NAMES]
    if any(UNKNOWN in one for one in spreads):
        names.append(UNKNOWN)
    lags = []
    for at, ((target, _), jobs) in enumerate(zip(past, spreads, strict=True)):
        lags.append(Series(target, at, [jobs.get(name, 0) for name in names]))
    medians = [f"{target} {minutes_text(one.lags.quantile_min(0.5))}" for target, one in past]
    text = "Nothing was delivered in the period."
    if medians:
        text = f"Half took no longer than: {'; '.join(medians)}."
    title = "Jobs by time from their end to acceptance"
    labels = Labels(title, text, "time until accepted", "jobs")
    return _plot("lags", labels, svg.beside(labels, names, lags), lags)


def _delivered(
    name: str, what: str, steps: _Steps, series: Sequence[Series], say: Say
) -> list[Plot]:
    if not any(map(any, (one.heights for one in series))):
        return []
    text = "; ".join(f"{one.name}: {say(sum(one.heights))}" for one in series)
    title, axis = f"{what} accepted, by {steps.word}", f"{steps.word} of acceptance, UTC"
    labels = Labels(title, text, axis, f"{what.lower()} a {steps.word}")
    return [_plot(name, labels, svg.stacked(labels, steps.names, series, say), series)]
