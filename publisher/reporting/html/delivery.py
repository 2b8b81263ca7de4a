"""Tables about delivery: targets, delays, messages, jobs set aside, differences."""

from __future__ import annotations

from typing import Final

from publisher.reporting.html.columns import DAY, CellKind, Table, TableColumn, Value, count, minutes, spread, text
from publisher.reporting.report import CountDrift, Report

LAG_EDGES_MIN: Final = (60, 3 * 60, 6 * 60, 12 * 60, 24 * 60, 2 * 24 * 60, 7 * 24 * 60, 31 * 24 * 60)


LAG_NAMES: Final = ("< 1 h", "1-3 h", "3-6 h", "6-12 h", "12-24 h", "1-2 days", "2-7 days", "7-31 days", "> 31 days")


TARGET: Final = text("target", "Target", "Name of the target in the configuration.")


def delivery_tables(report: Report) -> list[Table]:
    """All of them, in the order in which they are told."""
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
