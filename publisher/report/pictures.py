"""Which plots a report has, and what each shows in words for those who do not see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from publisher.model.usage import Used, by_weight
from publisher.report import plots
from publisher.report.columns import UNKNOWN, day_text, hours_text, minutes_text, share_text, size_text, spread
from publisher.report.delivery_tables import LAG_EDGES_MIN, LAG_NAMES
from publisher.report.plots import OTHERS, Plot
from publisher.report.tables import WAIT_EDGES_MIN, WAIT_NAMES
from publisher.reporting import Report
from publisher.tallying import all_waits

_DAY_S: Final = 86_400
_MOST_DAYS: Final = 140  # more would be thinner than a line: then months
_BARS: Final = 12
_GOOD, _BAD = 2, 1  # colours: of what went well, and what did not


def pictures(report: Report) -> Mapping[str, Plot]:
    """By the name of the table that each stands above."""
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
    """Stretches of time from left to right, and the place of each day among them; nothing that is still to come."""
    first = (report.window.start or 0) // _DAY_S
    end = min((report.window.end or 0) - 1, int(report.made_at.timestamp()))
    last = max([end // _DAY_S, first, *report.usage.days])
    days = range(first, last + 1)
    if len(days) <= _MOST_DAYS:
        return [day_text(day)[5:] for day in days], {day: at for at, day in enumerate(days)}
    months = list(dict.fromkeys(day_text(day)[:7] for day in days))
    places = {month: at for at, month in enumerate(months)}
    return months, {day: places[day_text(day)[:7]] for day in days}


def _per(report: Report) -> str:
    return "day" if len(_steps(report)[0]) == len(_steps(report)[1]) else "month"


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
    says = f"{hours_text(usage.total.wall_core_s)} core hours in all. {_most(by_weight(usage.vos))}"
    title = f"Wall × cores in hours, by {_per(report)} and VO"
    return plots.over_time("usage_by_day", title, says, steps, series, plots.whole)


def _jobs_by_day(report: Report) -> Plot:
    steps, places = _steps(report)
    total = report.usage.total
    good, bad = [0.0] * len(steps), [0.0] * len(steps)
    for day, used in report.usage.days.items():
        good[places[day]] += used.jobs - used.failed
        bad[places[day]] += used.failed
    share = "" if total.failed_share is None else f", {share_text(total.failed_share)} of them failed"
    title = f"Jobs by {_per(report)}"
    says = f"{total.jobs:,} jobs ended in the period{share}."
    return plots.over_time(
        "jobs_by_day", title, says, steps, [("not failed", _GOOD, good), ("failed", _BAD, bad)], plots.whole
    )


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
    return plots.ranking(name, title, _most(ranked), bars, plots.whole, colour=colour)


def _efficiency(used: Used) -> str:
    return "" if used.efficiency is None else share_text(used.efficiency)


def _most(ranked: Sequence[tuple[str, Used]]) -> str:
    """The three largest, in words."""
    if not ranked:
        return "There were no jobs."
    said = (
        f"{name or '(none)'} {hours_text(used.wall_core_s)} h, CPU efficiency {_efficiency(used) or 'unknown'}"
        for name, used in ranked[:3]
    )
    return f"The largest of {len(ranked):,}: {'; '.join(said)}."


def _mix(report: Report) -> Plot:
    total = report.usage.total.wall_core_s
    bars = [
        (name or "none known", used.wall_core_s / total if total else 0.0)
        for name, used in by_weight(report.usage.benchmarks)[:_BARS]
    ]
    says = "; ".join(f"{name}: {share_text(share)}" for name, share in bars) or "There were no jobs."
    drawn = [(name, share * 100, share_text(share)) for name, share in bars]
    title = "Share of wall × cores by benchmark"
    return plots.ranking("benchmarks", title, says, drawn, lambda value: f"{value:.0f} %", colour=0)


def _waits(report: Report) -> Plot:
    waits = all_waits(report.usage.waits.values())
    counts = spread(waits, WAIT_EDGES_MIN, WAIT_NAMES)
    says = (
        f"Half waited no longer than {minutes_text(waits.quantile_min(0.5))}, nine of ten no longer than "
        f"{minutes_text(waits.quantile_min(0.9))}. Of {waits.unknown + waits.negative:,} jobs it is not known."
    )
    return plots.spread(
        "waits",
        "Jobs by time from submission to true start",
        says,
        [name for name, _ in counts],
        [("jobs", 0, [jobs for _, jobs in counts])],
        grey=UNKNOWN,
    )


def _deliveries(report: Report) -> list[Plot]:
    past = [(one.target, one.history) for one in report.targets if one.history is not None][:OTHERS]
    steps, places = _steps(report)
    spreads = [dict(spread(history.lags, LAG_EDGES_MIN, LAG_NAMES)) for _, history in past]
    names = [*LAG_NAMES, *([UNKNOWN] if any(UNKNOWN in one for one in spreads) else [])]
    lags = [
        (target, at, [jobs.get(name, 0) for name in names])
        for at, ((target, _), jobs) in enumerate(zip(past, spreads, strict=True))
    ]
    medians = (f"{target} {minutes_text(history.lags.quantile_min(0.5))}" for target, history in past)
    messages, sizes = [], []
    for at, (target, history) in enumerate(past):
        counts, heights = [0.0] * len(steps), [0.0] * len(steps)
        for (day, _), sums in history.days.items():
            counts[places[day]] += sums.messages
            heights[places[day]] += sums.bytes
        messages.append((target, at, counts))
        sizes.append((target, at, heights))
    said = [f"{name}: {sum(counts):,.0f}" for name, _, counts in messages]
    amounts = [f"{name}: {size_text(sum(heights))}" for name, _, heights in sizes]
    nothing = "Nothing was delivered in the period."
    return [
        plots.spread(
            "lags",
            "Jobs by time from their end to acceptance",
            f"Half took no longer than: {'; '.join(medians)}.",
            names,
            lags,
        ),
        plots.over_time(
            "messages",
            f"Messages accepted, by {_per(report)}",
            "; ".join(said) or nothing,
            steps,
            messages,
            plots.whole,
        ),
        plots.over_time(
            "bytes", f"Bytes accepted, by {_per(report)}", "; ".join(amounts) or nothing, steps, sizes, size_text
        ),
    ]
