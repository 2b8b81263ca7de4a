"""The tables of a report: the page, the terminal and the CSV files show these.

Each column has a name, a definition, and a form of its values for people and for programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from publisher.reporting.html.columns import DAY, CellKind, Table, TableColumn, Value, count, minutes, spread, text
from publisher.reporting.report import CountDrift, Report
from publisher.sources.statistics import Used, by_weight

WAIT_EDGES_MIN: Final = (1, 5, 15, 60, 4 * 60, 12 * 60, 24 * 60, 3 * 24 * 60)
WAIT_NAMES: Final = (
    "< 1 min",
    "1-5 min",
    "5-15 min",
    "15-60 min",
    "1-4 h",
    "4-12 h",
    "12-24 h",
    "1-3 days",
    "> 3 days",
)


JOBS: Final = count("jobs", "Jobs", "Finished jobs that ended in the period, whatever their status, each once.")
USED: Final = (
    JOBS,
    count("failed", "Failed", "Those of them whose status is failed."),
    TableColumn(
        key="failed_share", title="Failed share", kind=CellKind.SHARE, means="Failed jobs over all jobs, from 0 to 1."
    ),
    TableColumn(
        key="wall_s",
        title="Wall h",
        kind=CellKind.SECONDS,
        means="Raw wall time of the jobs, in seconds (on the page: hours), cores not counted.",
    ),
    TableColumn(
        key="wall_core_s",
        title="Wall × cores h",
        kind=CellKind.SECONDS,
        means="Raw wall time times the job's number of cores, in seconds (on the page: hours), not scaled by any "
        "benchmark. A job whose number of cores is unknown counts as one core.",
    ),
    TableColumn(
        key="cpu_s",
        title="CPU h",
        kind=CellKind.SECONDS,
        means="CPU time, user and kernel, in seconds (on the page: hours), not scaled by any benchmark.",
    ),
    TableColumn(
        key="cpu_efficiency",
        title="CPU efficiency",
        kind=CellKind.SHARE,
        means="cpu_s over wall_core_s; empty where there was no wall time.",
    ),
)


def tables(report: Report) -> list[Table]:
    """All of them, in the order in which they are shown."""
    usage, total = report.usage, report.usage.total
    kinds = sorted(total.scaled)
    identity = {
        "plain": "as the accounting data has them",
        "withheld": "withheld by records.identity",
        "pseudonym": "pseudonyms by records.identity",
    }
    return [
        _used("days", "By day", DAY, sorted(usage.days.items()), total, kinds),
        _used(
            "vos",
            "By VO",
            text("vo", "VO", "VO as the site's settings derive it."),
            by_weight(usage.vos),
            total,
            kinds,
        ),
        _used(
            "queues",
            "By queue",
            text("queue", "Queue", "Queue of the batch system."),
            by_weight(usage.queues),
            total,
            kinds,
        ),
        _used(
            "users",
            "By user",
            text("user", "User", f"Users, {identity[report.identity]}."),
            by_weight(usage.users),
            total,
            kinds,
            f"Users are {identity[report.identity]}.",
        ),
        _used(
            "projects",
            "Top projects",
            text("project", "Project", "First project of the job."),
            by_weight(usage.projects),
            total,
            kinds,
        ),
        _used(
            "statuses",
            "By status",
            text("status", "Status", "Status of the job."),
            by_weight(usage.statuses),
            total,
            kinds,
        ),
        _benchmarks(report, kinds),
        _waits(report),
        _quantiles(report),
        _charges(report),
        *delivery_tables(report),
    ]


def _scaled(kind: str) -> TableColumn:
    return TableColumn(
        key=f"scaled_wall_core_{kind.lower()}_s",
        title=f"Scaled, {kind} h",
        kind=CellKind.SCALED,
        means=f"Wall time x cores x {kind} value of the job, in {kind} seconds (on the page: hours). Only jobs with a "
        f"benchmark of this type; types cannot be added up; empty where no job has one. The raw time is wall_core_s.",
    )


def _row(used: Used, kinds: Sequence[str]) -> tuple[Value, ...]:
    return (
        *(used.jobs, used.failed, used.failed_share, used.wall_s, used.wall_core_s, used.cpu_s, used.efficiency),
        *(used.scaled.get(kind) for kind in kinds),
    )


def _used(
    name: str,
    title: str,
    first: TableColumn,
    parts: Sequence[tuple[Value, Used]],
    total: Used,
    kinds: Sequence[str],
    *notes: str,
) -> Table:
    return Table(
        name=name,
        title=title,
        columns=(first, *USED, *map(_scaled, kinds)),
        rows=[(part, *_row(used, kinds)) for part, used in parts],
        total=("All", *_row(total, kinds)),
        notes=notes,
    )


def _benchmarks(report: Report, kinds: Sequence[str]) -> Table:
    total = report.usage.total
    share = TableColumn(
        key="wall_core_share",
        title="Share of wall × cores",
        kind=CellKind.SHARE,
        means="Part of all wall time x cores, from 0 to 1.",
    )
    first = text("benchmark", "Benchmark", "Type and value that a core second is worth; empty: none is known.")
    rows = [
        (name, used.wall_core_s / total.wall_core_s if total.wall_core_s else None, *_row(used, kinds))
        for name, used in by_weight(report.usage.benchmarks)
    ]
    return Table(
        name="benchmarks", title="Benchmark mix", columns=(first, share, *USED, *map(_scaled, kinds)), rows=rows
    )


def _waits(report: Report) -> Table:
    return Table(
        name="waits",
        title="Waiting times",
        columns=(
            text("queue", "Queue", "Queue of the batch system."),
            text("waited", "Waited", "Time from submission to the true start of the run; unknown is not zero."),
            JOBS,
        ),
        rows=[
            (queue, name, jobs)
            for queue, waits in sorted(report.usage.waits.items())
            for name, jobs in spread(waits, WAIT_EDGES_MIN, WAIT_NAMES)
        ],
    )


def _quantiles(report: Report) -> Table:
    return Table(
        name="waits_by_queue",
        title="Waiting by queue",
        columns=(
            text("queue", "Queue", "Queue of the batch system."),
            count("known", "Start known", "Jobs whose true start is known."),
            count("unknown", "Start unknown", "Jobs whose true start is not known; they are in no other column."),
            count(
                "negative", "Start before submission", "Jobs that started before they were submitted: clocks disagreed."
            ),
            minutes("median_min", "Median", "Half of the jobs with a known start waited no longer."),
            minutes("p90_min", "90 %", "Nine of ten jobs with a known start waited no longer."),
        ),
        rows=[
            (queue, one.known, one.unknown, one.negative, one.quantile_min(0.5), one.quantile_min(0.9))
            for queue, one in sorted(report.usage.waits.items())
        ],
    )


def _charges(report: Report) -> Table:
    return Table(
        name="charges",
        title="Charges",
        columns=(
            text("project", "Project", "Who pays: the first project of the job."),
            text("group", "Group", "Local group of the job; empty where users are not named."),
            text("unit", "Unit", "Unit of the amount, as the rule of records.charges has it."),
            count("jobs", "Jobs", "Jobs that ended in the period and have a charge that is kept."),
            TableColumn(key="amount", title="Amount", kind=CellKind.AMOUNT, means="Sum of their charges, exact."),
        ),
        rows=[
            (one.project, one.group, one.unit, one.jobs, one.amount)
            for one in sorted(report.charges, key=lambda one: (one.unit, -one.amount, one.project, one.group))
        ],
        notes=("Charges are those that `publisher charge` has computed and kept.",),
    )


def definitions(of: Sequence[Table]) -> Table:
    """Every column of every table, with its meaning and unit."""
    units: Mapping[CellKind, str] = {
        CellKind.TEXT: "text",
        CellKind.DAY: "date",
        CellKind.COUNT: "number",
        CellKind.MINUTES: "min",
        CellKind.SECONDS: "s",
        CellKind.SCALED: "benchmark unit x s",
        CellKind.SHARE: "fraction",
        CellKind.BYTES: "bytes",
        CellKind.AMOUNT: "decimal",
    }
    return Table(
        name="definitions",
        title="Definitions",
        columns=(
            text("file", "File", "CSV file."),
            text("column", "Column", "Its column."),
            text("unit", "Unit", "Unit of its values."),
            text("meaning", "Meaning", "What it holds."),
        ),
        rows=[
            (f"{table.name}.csv", column.key, units[column.kind], column.means)
            for table in of
            for column in table.columns
        ],
    )


LAG_EDGES_MIN: Final = (60, 3 * 60, 6 * 60, 12 * 60, 24 * 60, 2 * 24 * 60, 7 * 24 * 60, 31 * 24 * 60)


LAG_NAMES: Final = ("< 1 h", "1-3 h", "3-6 h", "6-12 h", "12-24 h", "1-2 days", "2-7 days", "7-31 days", "> 31 days")


TARGET: Final = text("target", "Target", "Name of the target in the configuration.")


def delivery_tables(report: Report) -> list[Table]:
    """All of them, in the order in which they are shown."""
    return [_delivery(report), _lags(report), _messages(report), _set_aside(report), _drift(report)]


def _delivery(report: Report) -> Table:
    rows: list[tuple[Value, ...]] = []
    for one in report.targets:
        status, past = one.status, one.history
        now = (
            (status.delivered, status.pending, status.late, status.quarantined, status.in_doubt, status.held)
            if status
            else (0, None, None, sum(one.set_aside.values()), 0, 0)
        )
        lags = (past.lags.quantile_min(0.5), past.lags.quantile_min(0.9)) if past else (None, None)
        when = "" if status is None or status.last_success is None else f"{status.last_success:%Y-%m-%dT%H:%M:%SZ}"
        rows.append((one.target, one.format, when, *now, past.rejected if past else 0, *lags))
    return Table(
        name="delivery",
        title="Delivery by target",
        columns=(
            TARGET,
            text("format", "Format", "Format of the target's records."),
            text("last_success", "Last success", "When the last round went through, in UTC; empty: never."),
            count("delivered", "Delivered", "Jobs that the target has accepted ever, each once."),
            count("pending", "Pending", "Jobs that the next round would send; empty before the first round."),
            count("late", "Late", "Those of the pending ones that ended before the last published end."),
            count("quarantined", "Set aside", "Jobs in quarantine now, dropped ones not counted."),
            count("in_doubt", "In doubt", "Records that were sent and whose answer was lost."),
            count("held_months", "Months held", "Months of summaries that the last round held back."),
            count("rejected_messages", "Rejected messages", "Messages that the receiver refused in the period."),
            minutes(
                "lag_median_min",
                "Median lag",
                "From the end of a job of the period to its acceptance: half took no longer.",
            ),
            minutes("lag_p90_min", "90 % lag", "Nine of ten took no longer."),
        ),
        rows=rows,
        notes=("State of each target at the moment of the report; lag and rejected messages are of the period.",),
    )


def _lags(report: Report) -> Table:
    return Table(
        name="lags",
        title="From job end to acceptance",
        columns=(
            TARGET,
            text("lag", "Lag", "From the end of a job to the first acceptance of a message that tells of it."),
            count("jobs", "Jobs", "Jobs that ended in the period; unknown: not accepted yet."),
        ),
        rows=[
            (one.target, name, jobs)
            for one in report.targets
            if one.history is not None
            for name, jobs in spread(one.history.lags, LAG_EDGES_MIN, LAG_NAMES)
        ],
    )


def _messages(report: Report) -> Table:
    return Table(
        name="messages",
        title="Messages by day",
        columns=(
            DAY,
            TARGET,
            text("format", "Format", "Format of what was delivered; apel-sync-0.1 tells counts of jobs."),
            count("messages", "Messages", "Messages that the target accepted on that day."),
            count("records", "Records", "Records in them: of jobs, of months, or counts."),
            TableColumn(
                key="bytes",
                title="Bytes",
                kind=CellKind.BYTES,
                means="Bytes of the payloads, before signing and encoding.",
            ),
        ),
        rows=[
            (day, one.target, name, sums.messages, sums.records, sums.bytes)
            for one in report.targets
            if one.history is not None
            for (day, name), sums in one.history.days.items()
        ],
    )


def _set_aside(report: Report) -> Table:
    return Table(
        name="set_aside",
        title="Set aside",
        columns=(
            TARGET,
            text("rule", "Rule", "Rule that the jobs broke; publisher(1) lists them."),
            count("jobs", "Jobs", "Jobs in quarantine now, dropped ones not counted."),
        ),
        rows=[(one.target, rule, jobs) for one in report.targets for rule, jobs in sorted(one.set_aside.items())],
    )


def verdict(row: CountDrift) -> str:
    """A remark on a month, for people."""
    notes = []
    if row.missing > 0:
        notes.append(f"{row.missing:,} not delivered")
    if row.missing < 0:
        notes.append(f"{-row.missing:,} delivered that the database no longer has")
    if row.unreported:
        notes.append("nothing reported" if row.reported is None else f"reported {row.reported:,}")
    return "; ".join(notes) or "agrees"


def _drift(report: Report) -> Table:
    left_out = f"Not compared, because the period holds only a part of them: {', '.join(report.partial)}."
    return Table(
        name="drift",
        title="Drift",
        columns=(
            TARGET,
            text("month", "Month", "Calendar month in UTC; only months that the period holds whole."),
            text("submit_host", "Submit host", "As sync spells it."),
            count("database", "Database", "Finished jobs in the accounting data that the target wants."),
            count("delivered", "Delivered", "Jobs that its records carry, by the ledger."),
            count("before", "Before us", "Jobs that another publisher delivered before our start."),
            count("told", "Reported", "The count that sync sent last; empty where none was sent."),
            text("finding", "Finding", "Whether these agree."),
        ),
        rows=[
            (
                row.target,
                row.month,
                row.submit_host,
                row.database,
                row.delivered,
                row.before,
                row.reported,
                verdict(row),
            )
            for row in report.drift
        ],
        notes=(
            "`publisher sync --check` checks each job and names the command that fixes a difference.",
            *((left_out,) if report.partial else ()),
        ),
    )
