"""The tables of a report, which the page, the terminal and the CSV files show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from publisher.jobs.sums import LOCAL_NAMES
from publisher.model.time import iso, iso_epoch
from publisher.reporting.html.columns import (
    JOBS,
    KINDS,
    LAG_EDGES_MIN,
    LAG_NAMES,
    ON_PAGE,
    REASONS,
    WAIT_EDGES_MIN,
    WAIT_NAMES,
    CellKind,
    Table,
    TableColumn,
    Value,
    amount,
    count,
    minutes,
    seconds,
    share,
    spread,
    text,
    used_columns,
    used_values,
)
from publisher.reporting.html.values import exit_advice, exit_text, window_text
from publisher.reporting.report import Report
from publisher.reporting.usage import Used, by_weight

_DAY_COLUMN: Final = TableColumn("day", "Day", CellKind.DAY, "Day in UTC.")
_QUEUE: Final = text("queue", "Queue", "Queue of the batch system.")
_VO: Final = text("vo", "VO", "VO as the site's settings derive it.")
_PROJECT: Final = text("project", "Project", "First project of the job.")
_STATUS: Final = text("status", "Status", "Status of the job.")
_TARGET: Final = text("target", "Target", "Name of the target in the configuration.")
_QUARANTINED: Final = "Jobs in quarantine now, dropped ones not counted."
IDENTITIES: Final[Mapping[str, str]] = {
    "plain": "as the accounting data has them",
    "withheld": "withheld by the site's settings",
    "pseudonym": "pseudonyms",
    "numbered": "numbers in the order of this report's core hours",
}


def tables(report: Report) -> list[Table]:
    """All of them, in the order in which they are shown."""
    usage = report.usage
    shown = IDENTITIES[report.identity]
    user = text("user", "User", f"Users, {shown}.")
    return [
        _months(report),
        _used(report, "days", "By day", _DAY_COLUMN, sorted(usage.days.items())),
        _used(report, "vos", "By VO", _VO, by_weight(usage.vos)),
        _used(report, "queues", "By queue", _QUEUE, by_weight(usage.queues)),
        _used(
            report, "users", "By user", user, by_weight(usage.users), *_user_notes(report, shown)
        ),
        *(_by_local_name(report, name) for name in LOCAL_NAMES if name in report.by),
        _reasons(report),
        _failures(report),
        _used(report, "statuses", "By status", _STATUS, by_weight(usage.statuses)),
        _gpu_models(report),
        _benchmarks(report),
        _waits(report),
        _quantiles(report),
        _charges(report),
        _allocations(report),
        _sources(report),
        _delivery(report),
        _lags(report),
        _messages(report),
        _set_aside(report),
        _drift(report),
    ]


def _months(report: Report) -> Table:
    columns = [
        text("month", "Month", "Calendar month in UTC in which jobs ended."),
        TableColumn(
            "change",
            "Change",
            CellKind.CHANGE,
            "Core hours against the month before; empty: one of them is not whole or has none.",
        ),
        *used_columns(report),
    ]
    rows = [(one.name, one.change, *used_values(report, one.used)) for one in report.months]
    notes = []
    if report.month_before is not None:
        notes.append("The first one is before the period, to compare with.")
    if parts := [one.name for one in report.months if not one.is_whole]:
        notes.append(f"Only a part of {', '.join(parts)} is in it.")
    return Table("months", "Month against month", columns, rows, notes=notes)


def _reasons(report: Report) -> Table:
    failed = report.usage.total.failed or 1
    rows: list[tuple[Value, ...]] = []
    for code, jobs, core_s, ((vo, in_vo), *_), ((queue, in_queue), *_) in report.failure_reasons:
        places = (vo, in_vo / jobs, queue, in_queue / jobs)
        rows.append(
            (code, exit_text(code), exit_advice(code), jobs, jobs / failed, core_s, *places)
        )
    return Table("failure_reasons", "Failed jobs by reason", REASONS, rows)


def _failures(report: Report) -> Table:
    columns = [
        _VO,
        _QUEUE,
        count("exit_code", "Exit code", "Of the job; empty: not known."),
        text("meaning", "Meaning", "What such an exit code says."),
        count("jobs", "Jobs", "Jobs whose status is failed."),
        seconds("wall_core_s", "Core hours", f"What they used, {ON_PAGE}."),
    ]
    rows = [
        (one.vo, one.queue, one.exit_code, exit_text(one.exit_code), used.jobs, used.wall_core_s)
        for one, used in report.failures
    ]
    return Table("failures", "Failed jobs by VO, queue and exit code", columns, rows)


def _used(
    report: Report,
    name: str,
    title: str,
    first: TableColumn,
    parts: Sequence[tuple[Value, Used]],
    *notes: str,
) -> Table:
    return Table(
        name,
        title,
        [first, *used_columns(report)],
        [(part, *used_values(report, used)) for part, used in parts],
        total=("All", *used_values(report, report.usage.total)),
        notes=notes,
    )


def _user_notes(report: Report, shown: str) -> Iterator[str]:
    yield f"Users are {shown}."
    if "" in report.usage.users and "local-user" not in report.by:
        yield "Of some jobs no certificate or token is known."


def _by_local_name(report: Report, name: str) -> Table:
    usage = report.usage
    match name:
        case "project":
            return _used(report, "projects", "Top projects", _PROJECT, by_weight(usage.projects))
        case "account":
            account = text(
                "account", "Account", "Account, or local group, of the job in the batch system."
            )
            return _used(report, "accounts", "By account", account, by_weight(usage.accounts))
    user = text("local_user", "Local user", "Whom the job ran as.")
    return _used(report, "local_users", "By local user", user, by_weight(usage.local_users))


def _gpu_models(report: Report) -> Table:
    jobs, its_jobs = report.usage.total.jobs, report.usage.gpu_model_jobs
    its_s = report.usage.gpu_model_s
    models = sorted(its_s, key=lambda model: (-its_s[model], model))
    return Table(
        "gpu_models",
        "By GPU model",
        [
            text("gpu_model", "GPU model", "Model of the GPUs; empty where it is not known."),
            count(
                "gpu_jobs",
                "GPU jobs",
                "Jobs with GPUs of the model; one with several models is in each.",
            ),
            share("gpu_share", "GPU share", "Those over all jobs, from 0 to 1."),
            seconds("gpu_s", "GPU hours", f"Wall time times GPUs of the model, {ON_PAGE}."),
        ],
        [
            (model or None, its_jobs[model], its_jobs[model] / jobs, its_s[model])
            for model in models
        ],
        notes=("A-REX records no GPUs; those of other sources are known.",),
    )


def _benchmarks(report: Report) -> Table:
    total = report.usage.total.wall_core_s
    columns = [
        text(
            "benchmark",
            "Benchmark",
            "Type and value that a core second is worth; empty: none is known.",
        ),
        share(
            "wall_core_share", "Share of core hours", "Part of all wall time x cores, from 0 to 1."
        ),
        *used_columns(report),
    ]
    rows = [
        (name, used.wall_core_s / total if total else None, *used_values(report, used))
        for name, used in by_weight(report.usage.benchmarks)
    ]
    return Table("benchmarks", "Benchmark mix", columns, rows)


def _waits(report: Report) -> Table:
    columns = [
        _QUEUE,
        text(
            "waited",
            "Waited",
            "Time from submission to the true start of the run; unknown is not zero.",
        ),
        JOBS,
    ]
    rows = [
        (queue, name, jobs)
        for queue, waits in sorted(report.usage.waits.items())
        for name, jobs in spread(waits, WAIT_EDGES_MIN, WAIT_NAMES)
    ]
    return Table("waits", "Waiting times", columns, rows)


def _quantiles(report: Report) -> Table:
    columns = [
        _QUEUE,
        count("known", "Start known", "Jobs whose true start is known."),
        count(
            "unknown",
            "Start unknown",
            "Jobs whose true start is not known; they are in no other column.",
        ),
        count(
            "negative",
            "Start before submission",
            "Jobs that started before they were submitted: clocks disagreed.",
        ),
        minutes("median_min", "Median", "Half of the jobs with a known start waited no longer."),
        minutes("p90_min", "90 %", "Nine of ten jobs with a known start waited no longer."),
    ]
    rows = [
        (queue, one.known, one.unknown, one.negative, one.quantile_min(0.5), one.quantile_min(0.9))
        for queue, one in sorted(report.usage.waits.items())
    ]
    return Table("waits_by_queue", "Waiting by queue", columns, rows)


def _charges(report: Report) -> Table:
    columns = [
        text("project", "Project", "Who pays: the first project of the job."),
        text("group", "Group", "Local group of the job; empty where users are not named."),
        text("unit", "Unit", "Unit of the amount, as the site's charge rule names it."),
        count("jobs", "Jobs", "Jobs that ended in the period and have a charge that is kept."),
        amount("amount", "Amount", "Sum of their charges, exact."),
    ]
    largest_first = sorted(
        report.charges, key=lambda one: (one.unit, -one.amount, one.project, one.group)
    )
    rows = [(one.project, one.group, one.unit, one.jobs, one.amount) for one in largest_first]
    return Table("charges", "Charges", columns, rows, notes=[_charges_note(report)])


def _charges_note(report: Report) -> str:
    """Return which jobs have charges."""
    if not report.has_charge_rules:
        return "The site has no charge rules."
    if not report.charges:
        return "No charges of this period were ever computed."
    return "Charges as last computed."


def definitions(of: Sequence[Table]) -> Table:
    """Every column of every table, with its meaning and unit."""
    columns = [
        text("file", "File", "CSV file."),
        text("column", "Column", "Its column."),
        text("unit", "Unit", "Unit of its values."),
        text("meaning", "Meaning", "What it holds."),
    ]
    rows = [
        (f"{table.name}.csv", column.key, KINDS[column.kind][0], column.means)
        for table in of
        for column in table.columns
        if column.in_files
    ]
    return Table("definitions", "Definitions", columns, rows)


def _allocations(report: Report) -> Table:
    columns = [
        _PROJECT,
        text("period", "Period", "When its jobs end."),
        text("unit", "Unit", "Unit of the charge, or GPUh for hours of GPUs."),
        amount("granted", "Granted", "What the project may use in that time."),
        amount("used", "Used", "What its jobs that ended in that time have used until now."),
        share("share", "Share", "Used over granted."),
    ]
    rows = [
        (one.project, window_text(one.window), one.unit, one.granted, one.used, one.share)
        for one in report.allocations
    ]
    note = "The whole of every allocation of which the period has a part."
    return Table("allocations", "Allocations", columns, rows, notes=[note])


def _sources(report: Report) -> Table:
    columns = [
        text("source", "Source", "Name of the entry of `source` in the configuration."),
        text("type", "Type", "Kind of accounting database, or batch system."),
        text(
            "last_read",
            "Last read",
            "When all of the batch system was last read, in UTC; empty: never, or read in place.",
        ),
        text(
            "newest_job_ended",
            "Newest job ended",
            "When its newest job ended, in UTC; empty: unknown, or it has none.",
        ),
        count(
            "jobs_in_four_weeks",
            "Jobs in four weeks",
            "Jobs that ended in the four weeks up to its newest job.",
        ),
        count(
            "set_aside_lines", "Bad lines", "Lines of its accounting that could not be understood."
        ),
    ]
    rows: list[tuple[Value, ...]] = []
    for one in report.sources:
        last, newest = one.last, one.newest
        read = iso(last.succeeded) if last and last.succeeded else ""
        ended = iso_epoch(newest.ended_at) if newest and newest.ended_at else ""
        jobs, lines = newest.four_weeks if newest else None, last.bad_lines if last else None
        rows.append((one.name, one.type, read, ended, jobs, lines))
    note = "State of each source at the moment of the report."
    return Table("sources", "Sources", columns, rows, notes=[note])


def _delivery(report: Report) -> Table:
    rows: list[tuple[Value, ...]] = []
    for one in report.targets:
        status, past = one.status, one.history
        period = report.delivered_of(one.target)
        now: tuple[int | None, ...] = (None, None, sum(one.set_aside.values()), 0, 0)
        when = ""
        if status:
            now = (status.pending, status.late, status.quarantined, status.in_doubt, status.held)
            when = iso(status.last_success) if status.last_success else ""
        lags = (past.lags.quantile_min(0.5), past.lags.quantile_min(0.9)) if past else (None, None)
        counts = (None, None) if period is None else (period.wanted, period.delivered)
        rows.append(
            (one.target, one.format, when, *counts, *now, past.rejected if past else 0, *lags)
        )
    columns = [
        _TARGET,
        text("format", "Format", "Format of the target's records."),
        text(
            "last_success",
            "Last success",
            "When the last round went through, in UTC; empty: never.",
        ),
        count(
            "wanted",
            "Wanted",
            "Jobs of the period's whole months that the target wants; empty: not known.",
        ),
        count(
            "delivered",
            "Delivered",
            "Those of them that it has accepted, each once, from us or before us.",
        ),
        count(
            "pending",
            "Pending",
            "Jobs that the next round would send; empty before the first round.",
        ),
        count(
            "late", "Late", "Those of the pending ones that ended before the last published end."
        ),
        count("quarantined", "Set aside", _QUARANTINED),
        count("in_doubt", "In doubt", "Records that were sent and whose answer was lost."),
        count("held_months", "Months held", "Months of which something is held back."),
        count(
            "rejected_messages",
            "Rejected messages",
            "Messages that the receiver refused in the period.",
        ),
        minutes(
            "lag_median_min",
            "Median lag",
            "From the end of a job of the period to its acceptance: half took no longer.",
        ),
        minutes("lag_p90_min", "90 % lag", "Nine of ten took no longer."),
    ]
    note = (
        "Wanted, delivered, rejected messages and lag are of the period; "
        "the rest is the state at the moment of the report."
    )
    inexact = [one.target for one in report.targets if one.status and not one.status.exact]
    notes = [note, *([f"Pending and late at most: {', '.join(inexact)}."] if inexact else [])]
    return Table("delivery", "Delivery by target", columns, rows, notes=notes)


def _lags(report: Report) -> Table:
    columns = [
        _TARGET,
        text(
            "lag",
            "Lag",
            "From the end of a job to the first acceptance of a message that reports it.",
        ),
        count("jobs", "Jobs", "Jobs that ended in the period; unknown: not accepted yet."),
    ]
    rows = [
        (one.target, name, jobs)
        for one in report.targets
        if one.history is not None
        for name, jobs in spread(one.history.lags, LAG_EDGES_MIN, LAG_NAMES)
    ]
    return Table("lags", "From job end to acceptance", columns, rows)


def _messages(report: Report) -> Table:
    columns = [
        _DAY_COLUMN,
        _TARGET,
        text(
            "format",
            "Format",
            "Format of what was delivered; apel-sync-0.1 carries counts of jobs.",
        ),
        count("messages", "Messages", "Messages that the target accepted on that day."),
        count("records", "Records", "Records in them: of jobs, of months, or counts."),
        TableColumn(
            "bytes", "Bytes", CellKind.BYTES, "Bytes of the payloads, before signing and encoding."
        ),
    ]
    rows = [
        (day, one.target, name, sums.messages, sums.records, sums.bytes)
        for one in report.targets
        if one.history is not None
        for (day, name), sums in one.history.days.items()
    ]
    return Table("messages", "Messages by day", columns, rows)


def _set_aside(report: Report) -> Table:
    columns = [
        _TARGET,
        text("rule", "Rule", "Rule that the jobs broke; publisher(1) lists them."),
        count("jobs", "Jobs", _QUARANTINED),
    ]
    rows = [
        (one.target, rule, jobs)
        for one in report.targets
        for rule, jobs in sorted(one.set_aside.items())
    ]
    return Table("set_aside", "Set aside", columns, rows)


def _drift(report: Report) -> Table:
    columns = [
        _TARGET,
        text("month", "Month", "Calendar month in UTC; only months that the period holds whole."),
        text("submit_host", "Submit host", "As sync spells it."),
        count(
            "database", "Database", "Finished jobs in the accounting data that the target wants."
        ),
        count("delivered", "Delivered", "Jobs that its records carry, by the ledger."),
        count("before", "Before us", "Jobs that another publisher delivered before our start."),
        count("told", "Reported", "The count that sync sent last; empty where none was sent."),
        text("finding", "Finding", "Whether these agree."),
    ]
    counted = attrgetter(
        *("target", "month", "submit_host", "database", "delivered", "before", "reported")
    )
    rows = [(*counted(one), one.remark) for one in report.drift]
    parts = ", ".join(report.partial)
    why = "Not compared, because the period holds only a part of them"
    notes = [f"{why}: {parts}."] if parts else []
    return Table("drift", "Drift", columns, rows, notes=notes)
