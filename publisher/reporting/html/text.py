"""The report as text: main numbers, what is not as it should be, tables, CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from publisher.model.rates import wall_text
from publisher.model.text import NO_VO, plural
from publisher.publishing.databases.retired import NeverSent
from publisher.reporting.html.columns import Table, TableColumn, Value, all_waits
from publisher.reporting.html.plots import shows_days
from publisher.reporting.html.tables import definitions, tables
from publisher.reporting.html.values import (
    change_text,
    days_text,
    exit_text,
    hours_text,
    minutes_text,
    number_text,
    share_text,
    thousands_text,
    window_text,
)
from publisher.reporting.report import DeliveredJobs, FailureReason, Report, TargetReport
from publisher.reporting.usage import Used, by_weight

_MOST_ROWS: Final = 20
_BAR: Final = 24
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LOCAL: Final = ("projects", "accounts", "local_users")
# The column whose size each table's bars show.
_BARS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("days", "months", "vos", "queues", "users", *_LOCAL, "statuses", "benchmarks"),
        "wall_core_s",
    ),
    **dict.fromkeys(("waits", "lags"), "jobs"),
    "gpu_models": "gpu_s",
    **dict.fromkeys(("failure_reasons", "failures"), "jobs"),
    "messages": "bytes",
    "charges": "amount",
}
# Too wide for a terminal beside the rest.
_LEFT_OUT: Final = frozenset({"wall_s", "wall_core_days", "advice"})
_ANSWERS: Final = 5  # bars of each answer


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name, and what more there is to say of it."""

    name: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Highlight:
    """Something that is well, or `bad`; with what the site's administrator can do about it."""

    about: str
    text: str
    bad: bool
    advice: str = ""


@dataclass(frozen=True, slots=True)
class AnswerBar:
    """A bar of an answer: what it is of, its length from 0 to 1, and what is beside it."""

    name: str
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """One of the questions with which people open a report."""

    question: str
    text: str
    bad: bool
    parts: list[AnswerBar]
    advice: str = ""


def answers(report: Report) -> list[KeyAnswer]:
    return [_who(report), _failed(report), _delivered(report)]


def _who(report: Report) -> KeyAnswer:
    total = report.usage.total
    ranked = by_weight(report.usage.vos)
    whole = total.wall_core_s or 1
    parts = [
        AnswerBar(
            name or NO_VO,
            used.wall_core_s / whole,
            f"{hours_text(used.wall_core_s)} core hours, {share_text(used.wall_core_s / whole)}",
        )
        for name, used in ranked[:_ANSWERS]
    ]
    text = f"{hours_text(total.wall_core_s)} core hours in {plural(total.jobs, 'job')}"
    if (change := _change(report)) is not None:
        text += f"; {change}"
    return KeyAnswer("Who used what?", f"{text}.", bad=False, parts=parts)


def _change(report: Report) -> str | None:
    """The last whole month against the one before it."""
    changes = [
        f"{one.name}: {change_text(one.change)}" for one in report.months if one.change is not None
    ]
    return f"{changes[-1]} against the month before" if changes else None


def _failed(report: Report) -> KeyAnswer:
    total = report.usage.total
    if not total.failed or total.failed_share is None:
        return KeyAnswer("What failed, and why?", "No job failed.", bad=False, parts=[])
    lost = sum(used.wall_core_s for _, used in report.failures)
    parts = [
        AnswerBar(
            _exit(one.exit_code),
            one.jobs / total.failed,
            f"{plural(one.jobs, 'job')}, {share_text(one.jobs / total.failed)}; {_places(one)}",
        )
        for one in report.failure_reasons[:_ANSWERS]
    ]
    text = (
        f"{total.failed:,} of {plural(total.jobs, 'job')}, {share_text(total.failed_share)}, "
        f"with {hours_text(lost)} core hours. {_main_reason(report, total.failed)}"
    )
    return KeyAnswer("What failed, and why?", text, bad=True, parts=parts)


def _main_reason(report: Report, failed: int) -> str:
    """Return the exit code that most of the failed jobs have, of all queues and VOs."""
    main = report.failure_reasons[0]
    return f"{_exit(main.exit_code)}: {share_text(main.jobs / failed)} of them."


def _places(one: FailureReason) -> str:
    """Return the VO and the queue with most of the jobs."""
    (vo, in_vo), (queue, in_queue) = one.vos[0], one.queues[0]
    places = [(vo or NO_VO, in_vo), (f"queue {queue or '(none)'}", in_queue)]
    return ", ".join(f"{share_text(jobs / one.jobs)} in {name}" for name, jobs in places)


def _exit(code: int | None) -> str:
    return "Exit code not known" if code is None else f"Exit code {code} ({exit_text(code)})"


def _delivered(report: Report) -> KeyAnswer:
    found = [(one, report.delivered_of(one.target)) for one in report.targets]
    compared = [jobs for one, jobs in found if jobs is not None and one.status is not None]
    missing, known = sum(jobs.missing for jobs in compared), len(compared) == len(found)
    lost = [each for one in report.targets for each in report.lost_of(one)]
    text = _lost_text(lost) if lost and not missing else ""
    text = text or _delivered_text(missing, known=known, targets=len(found))
    if report.partial:
        text += f" Left out: {', '.join(report.partial)}, of which the period has only a part."
    bars = [_delivered_bar(one, jobs) for one, jobs in found]
    is_bad = bool(missing or lost or not known)
    advice = "`publisher sync --check` names the cure" if missing else ""
    return KeyAnswer("Was it all delivered?", text, bad=is_bad, parts=bars, advice=advice)


def _lost_text(lost: Sequence[NeverSent]) -> str:
    jobs = sum(one.jobs or 0 for one in lost)
    if not jobs:
        return "Not known: jobs may be lost with retired databases."
    return f"No: {plural(jobs, 'job is', 'jobs are')} lost with retired databases."


def _delivered_text(missing: int, *, known: bool, targets: int) -> str:
    if missing:
        jobs = plural(missing, "job is", "jobs are")
        return f"No: {jobs} missing."
    if not known:
        compared = "only whole months and targets that had a round can be compared"
        return f"Not known of every target: {compared}."
    return "Yes, every job that a target wants." if targets else "There are no targets."


def _delivered_bar(one: TargetReport, jobs: DeliveredJobs | None) -> AnswerBar:
    if one.status is None:
        return AnswerBar(one.target, 0.0, "never had a round")
    if jobs is None:
        return AnswerBar(one.target, 0.0, "not known of this period")
    there = jobs.wanted - jobs.missing
    share = there / jobs.wanted if jobs.wanted else 1.0
    return AnswerBar(one.target, share, f"{there:,} of {plural(jobs.wanted, 'job')}")


def figures(report: Report) -> list[Figure]:
    total = report.usage.total
    waits = all_waits(report.usage.waits.values())
    efficiency = "unknown" if total.efficiency is None else share_text(total.efficiency)
    failed = "–" if total.failed_share is None else share_text(total.failed_share)
    waited = f"of {waits.known:,} jobs; {waits.unknown + waits.negative:,} unknown"
    return [
        Figure("Jobs", f"{total.jobs:,}", "ended in the period"),
        Figure(
            "Core hours", hours_text(total.wall_core_s), f"{days_text(total.wall_core_s)} core days"
        ),
        *(
            Figure(
                f"{kind} hours", hours_text(sum_ / 1000), f"{days_text(sum_ / 1000)} {kind} days"
            )
            for kind, sum_ in sorted(total.scaled.items())
        ),
        Figure("CPU efficiency", efficiency, f"{hours_text(total.cpu_s)} CPU hours"),
        *_gpu_figure(total),
        *(_energy_figures(total) if report.has_energy else ()),
        Figure("Failed", failed, plural(total.failed, "job")),
        Figure("Median waiting time", minutes_text(waits.quantile_min(0.5)), waited),
    ]


def _gpu_figure(total: Used) -> list[Figure]:
    if not total.gpu_jobs or total.gpu_share is None:
        return []
    text = f"of {plural(total.gpu_jobs, 'job')}, {share_text(total.gpu_share)} of all"
    return [Figure("GPU hours", hours_text(total.gpu_s), text)]


def _energy_figures(total: Used) -> list[Figure]:
    whole = total.measured_wh + total.estimated_wh
    share = (
        f"{share_text(float(total.measured_wh / whole))} measured, the rest estimated"
        if whole
        else "nothing is known"
    )
    carbon = f"{thousands_text(total.carbon_g)} kg CO₂e"
    return [Figure("Energy", f"{thousands_text(whole)} kWh", f"{share}; {carbon}")]


def findings(report: Report) -> list[Highlight]:
    """Every target once, well or not; and of the jobs what is odd."""
    return [
        *(_of_target(report, one) for one in report.targets),
        *_of_databases(report),
        *_of_sources(report),
        *_of_drift(report),
        *_of_allocations(report),
        *_of_charges(report),
        *_of_jobs(report),
    ]


def _of_target(report: Report, one: TargetReport) -> Highlight:
    about = f"Target {one.target}{' (shadow, sends nothing)' if one.shadow else ''}"
    if one.status is None:
        return Highlight(about, "it never had a round, so nothing was delivered", bad=True)
    status = one.status
    trouble = {
        "set aside": status.quarantined,
        "in doubt": status.in_doubt,
        "months held back": status.held,
        "messages rejected": one.history.rejected if one.history else 0,
    }
    pending, late = (_at_most(each, exact=status.exact) for each in (status.pending, status.late))
    found = report.delivered_of(one.target)
    delivered = f"{status.delivered:,} delivered in all, of this period not known"
    if found is not None:
        delivered = f"{found.delivered:,} delivered of this period"
    notes = [delivered, f"{pending} pending", *([f"{late} late"] if status.late else [])]
    notes += [f"{count:,} {name}" for name, count in trouble.items() if count]
    return Highlight(about, ", ".join(notes), bad=any((status.late, *trouble.values())))


def _at_most(jobs: int | None, *, exact: bool) -> str:
    if jobs is None:
        return "unknown"
    return f"{jobs:,}" if exact or not jobs else f"at most {jobs:,}"


def _of_databases(report: Report) -> Iterator[Highlight]:
    for reason in sorted(
        {lost.reason for one in report.targets if one.status for lost in one.status.missing}
    ):
        yield Highlight("Incomplete", reason, bad=True)
    for one in report.targets:
        for each in report.lost_of(one):
            yield Highlight("Lost", f"{one.target}: {each.text}", bad=True)


def _of_sources(report: Report) -> Iterator[Highlight]:
    for one in report.sources:
        if look := one.alarm or one.silence or one.waiting:
            text, _, check = look.removeprefix("source ").partition("; check ")
            yield Highlight("Source", text, bad=True, advice=check and f"check {check}")


def _of_drift(report: Report) -> Iterator[Highlight]:
    odd = [row for row in report.drift if row.is_difference]
    if purged := {row.month for row in report.drift if row.missing < 0}:
        what = "jobs were delivered that the database no longer has"
        where = f"of {plural(len(purged), 'month')} {what}"
        advice = "`publisher sync --check` compares each job"
        yield Highlight("Drift", where, bad=False, advice=advice)
    elif report.drift and not odd:
        months = plural(len({row.month for row in report.drift}), "month")
        yield Highlight("Drift", f"none in {months}: database, ledger and counts agree", bad=False)
    for row in odd[:3]:
        where = f"{row.target}, {row.month}, {row.submit_host or '(no submit host)'}"
        yield Highlight("Drift", f"{where}: {row.remark}", bad=True)
    if len(odd) > 3:
        yield Highlight("Drift", f"{len(odd) - 3:,} more differences, below", bad=True)


def _of_allocations(report: Report) -> Iterator[Highlight]:
    for project in dict.fromkeys(report.uncharged):
        text = f"the charges of {project} were never computed"
        yield Highlight("Allocation", text, bad=True, advice="run `publisher charge`")
    for one in report.allocations:
        if one.share >= 1:
            granted = f"{number_text(float(one.granted))} {one.unit} of {window_text(one.window)}"
            yield Highlight(
                "Allocation",
                f"{one.project} has used {share_text(one.share)} of {granted}",
                bad=True,
            )


def _of_charges(report: Report) -> Iterator[Highlight]:
    if report.has_charge_rules and not report.charges and report.usage.total.jobs:
        text = "those of this period were never computed"
        advice = f"`{report.charge_command}` computes them"
        yield Highlight("Charges", text, bad=True, advice=advice)


def _of_jobs(report: Report) -> Iterator[Highlight]:
    usage = report.usage
    for about, count, text in (
        ("Unreadable", usage.unreadable, "values that cannot be read, and are in no other number"),
        ("Benchmark", usage.total.without_benchmark, "none, and are in no scaled number"),
        ("Energy", usage.total.meters_rejected, "a meter value that cannot be, which is in no sum"),
        (
            "Energy",
            usage.total.energy_unknown,
            "neither a meter value nor a power rule, and are in no sum",
        ),
        (
            "CO₂e",
            usage.total.carbon_unknown - usage.total.energy_unknown,
            "energy, but no known carbon per kWh",
        ),
    ):
        if count:
            yield Highlight(about, f"{plural(count, 'job has', 'jobs have')} {text}", bad=True)
    if usage.arex_default_wall_s:
        text = (
            f"jobs with {wall_text(usage.arex_default_wall_s)} carry HEPSPEC:1.0, "
            "which A-REX writes where none is configured: they count too little"
        )
        yield Highlight("Benchmark", text, bad=True)
    if usage.total.cpu_unknown:
        without = plural(usage.total.cpu_unknown, "job has", "jobs have")
        text = f"{without} none that was measured; the efficiency is of the others"
        yield Highlight("CPU time", text, bad=True)
    if usage.total.cores_unknown:
        jobs = plural(usage.total.cores_unknown, "job has", "jobs have")
        text = f"{jobs} an unknown number; each counts as one core"
        yield Highlight("Cores", text, bad=True)


def headlines(report: Report) -> Iterator[str]:
    """The numbers to see first, and what to look at."""
    for answer in answers(report):
        yield f"{answer.question} {_with_advice(answer)}"
        for part in answer.parts:
            yield f"  {_bar(part.share):<{_BAR}}  {part.name}: {part.text}"
        yield ""
    for figure in figures(report):
        yield f"{figure.name:<22}{figure.value}  ({figure.text})"
    yield ""
    for finding in findings(report):
        yield f"{'! ' if finding.bad else 'ok '}{finding.about}: {_with_advice(finding)}"


def _with_advice(one: Highlight | KeyAnswer) -> str:
    """Return its text and the advice, which is not for the readers of a page."""
    return f"{one.text.removesuffix('.')}; {one.advice}" if one.advice else one.text


def hints(report: Report) -> Iterator[str]:
    """Yield what the site's administrator can do, which the page does not say to its readers."""
    if report.identity == "numbered":
        yield "users are numbered; --name-users names them"
    if "" in report.usage.users and "local-user" not in report.by:
        yield "some jobs have no certificate or token; --by local-user shows whom they ran as"
    for one in answers(report):
        if one.advice:
            yield f"{one.question} {_with_advice(one)}"
    for finding in findings(report):
        if finding.advice:
            yield f"{finding.about}: {_with_advice(finding)}"


def drawn(report: Report) -> Iterator[tuple[str, list[str], list[tuple[str, ...]]]]:
    """Each table with rows, for a terminal: title, headings, cells; a bar ends each row."""
    for table in _shown_tables(report):
        shown = [
            (at, column) for at, column in enumerate(table.columns) if column.key not in _LEFT_OUT
        ]
        heads = [column.title for _, column in shown]
        rows = [_cells(row, shown) for row in table.rows[:_MOST_ROWS]]
        if bars := _bars(table):
            heads.append("")
            rows = [(*row, bar) for row, bar in zip(rows, bars, strict=False)]
        yield _title(table), heads, rows


def _cells(row: Sequence[Value], shown: Sequence[tuple[int, TableColumn]]) -> tuple[str, ...]:
    return tuple(column.shown(row[at]) for at, column in shown)


def _shown_tables(report: Report) -> Iterator[Table]:
    for table in tables(report):
        if table.rows and (table.name != "days" or shows_days(report)):
            yield table


def _title(table: Table) -> str:
    more = len(table.rows) - _MOST_ROWS
    return f"{table.title}, the first {_MOST_ROWS}; {more:,} more" if more > 0 else table.title


def files(report: Report) -> Iterator[tuple[str, str]]:
    """Name and content of every CSV file, the definitions of their columns last."""
    made = tables(report)
    for table in [*made, definitions(made)]:
        yield f"{table.name}.csv", table.csv()


def _bars(table: Table) -> list[str]:
    """A bar for each row, the longest for the largest; none where no column is to show."""
    measured = _BARS.get(table.name)
    place = next((at for at, column in enumerate(table.columns) if column.key == measured), None)
    if place is None:
        return []
    sizes = [float(row[place] or 0) for row in table.rows]
    largest = max(sizes) or 1.0
    return [_bar(size / largest) for size in sizes]


def _bar(share: float) -> str:
    eighths = round(max(share, 0.0) * _BAR * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
