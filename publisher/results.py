"""Results of commands as JSON objects and as rows of tables. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from publisher.commands import TargetStatus, Traced, exit_status
from publisher.ledger.base import Quarantined
from publisher.model.benchmark import wall_said
from publisher.model.job import Epoch, job_key
from publisher.model.lost import LostJobs
from publisher.model.months import HeldMonth, gone_lines

if TYPE_CHECKING:  # `status` starts sooner without a whole round
    from publisher.outcome import Outcome
    from publisher.retiring import SourceFile

Json = Mapping[str, Any]


def publish_json(outcomes: Sequence[Outcome]) -> Json:
    return {
        "targets": {
            outcome.target: {
                "messages": outcome.messages,
                "records": outcome.records,
                "bytes": outcome.bytes,
                "quarantined": outcome.quarantined,
                "shed": outcome.shed,
                "kept": outcome.kept,
                "arex_default_benchmarks": outcome.arex_default_benchmarks,
                "arex_default_wall_s": sum(outcome.arex_default_wall_s.values()),
                "arex_default_queues": sorted(outcome.arex_default_wall_s),
                "warnings": dict(outcome.warnings),
                "outcome": outcome.outcome,
                "reason": outcome.reason or None,
                "shadow": outcome.shadow,
                "held": [held_json(month) for month in outcome.held],
                "gone": dict(outcome.gone),
                "lost": None if outcome.lost is None else lost_json(outcome.lost),
            }
            for outcome in outcomes
        },
        "exit": exit_status(outcomes),
    }


def held_json(held: HeldMonth) -> Json:
    return {
        "month": held.name,
        "lost_jobs": held.lost_jobs,
        "emptied": held.emptied,
        "stale": [
            {"row": total.key.text, "jobs": total.jobs, "wall_s": total.wall_s, "cpu_s": total.cpu_s}
            for total in held.stale
        ],
    }


def lost_json(lost: LostJobs) -> Json:
    return {
        "certain": lost.certain,
        "perhaps": lost.perhaps,
        "jobs": [{"job": one.job_id, "end_time": when(one.ended_at), "certain": one.certain} for one in lost.jobs],
    }


def ticket(site: str, outcome: Outcome) -> list[str]:
    """What to write to the accounting team, so that they delete the rows that would stay behind."""
    stale = [(held.name, total) for held in outcome.held if not held.emptied for total in held.stale]
    if not stale:
        return []
    lines = [
        "",
        f"Text for a ticket to the APEL team, to be sent before --accept-key-change ({outcome.target}):",
        "",
        f"  Site {site} is about to republish {', '.join(dict.fromkeys(month for month, _ in stale))} under other keys.",
        "  Please delete these rows, which the new ones do not replace:",
    ]
    lines += [
        f"  {month}: {total.key.text}: {total.jobs} jobs, {total.wall_s} s wall, {total.cpu_s} s CPU"
        for month, total in stale
    ]
    return [*lines, ""]


def publish_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    return [
        (
            outcome.target,
            outcome.outcome,
            f"{outcome.messages:,}",
            f"{outcome.records:,}",
            f"{outcome.bytes:,}",
            f"{outcome.quarantined:,}",
        )
        for outcome in outcomes
    ]


def publish_notes(outcome: Outcome) -> list[str]:
    """What an administrator must know of a round beside its counts."""
    notes = []
    if outcome.shadow:
        notes.append(f"{outcome.target}: a shadow: everything was done and written down, nothing was sent")
    if outcome.lost is not None:
        notes += outcome.lost.lines
    if outcome.reason:
        notes.append(f"{outcome.target}: {outcome.reason}")
    if outcome.quarantined:
        notes.append(f"{outcome.target}: {outcome.quarantined} set aside; `publisher quarantine list` says why")
    if outcome.warnings:
        odd = ", ".join(f"{name} {count:,}" for name, count in outcome.warnings.items())
        done = "sent all the same" if outcome.messages else "counted"
        notes.append(f"{outcome.target}: {done}, but odd: {odd}; `publisher explain JOB` tells of a job")
    if outcome.shed:
        notes.append(
            f"{outcome.target}: {outcome.shed} sent without their file transfers, with which they were too large"
        )
    if outcome.kept:
        notes.append(
            f"{outcome.target}: {outcome.kept} changed after delivery; the receiver takes no corrections, it keeps the first"
        )
    notes += [f"{outcome.target}: {line}" for line in gone_lines(outcome.gone)]
    if outcome.arex_default_benchmarks:
        which = f"{outcome.arex_default_benchmarks:,} records with {wall_said(outcome.arex_default_wall_s)}"
        notes.append(
            f"{outcome.target}: {which} carry HEPSPEC:1.0, which A-REX writes where no benchmark is configured; set one in "
            "arc.conf, or records.distrust_default with records.benchmark here"
        )
    return notes


PUBLISH_COLUMNS = ("target", "outcome", "messages", "records", "bytes", "set aside")


def status_json(found: Iterable[TargetStatus]) -> Json:
    return {
        "targets": {
            one.target: {
                "last_success": when(one.last_success),
                "last_published_end_time": when(one.last_published_end),
                "delivered": one.delivered,
                "pending": one.pending,
                "late": one.late,
                "in_doubt": one.in_doubt,
                "quarantined": one.quarantined,
                "held": one.held,
                "missing_databases": [missing.file for missing in one.missing],
            }
            for one in found
        }
    }


STATUS_COLUMNS = (
    "target",
    "last success",
    "last published end",
    "delivered",
    "pending",
    "late",
    "in doubt",
    "quarantined",
    "held months",
)


def status_rows(found: Iterable[TargetStatus]) -> list[tuple[str, ...]]:
    return [
        (
            one.target,
            when(one.last_success) or "never",
            when(one.last_published_end) or "-",
            *map(_count, (one.delivered, one.pending, one.late, one.in_doubt, one.quarantined, one.held)),
        )
        for one in found
    ]


def trace_json(traced: Traced) -> Json:
    local_ids = {job_key(row.job_id, row.local_id)[8:]: row.local_id for row in traced.rows or ()}
    return {
        "job": traced.job_id,
        "deliveries": [
            {
                "target": one.target,
                "message_id": one.message_id or None,
                "state": str(one.state),
                "remote_id": one.remote_id or None,
                "row_id": one.row_id or None,
                "sent": when(one.settled_at),
                "prepared": when(one.made_at),
                "format": one.format or None,
                "digest": one.digest or None,
                "records": one.records,
                "end_time": when(one.ended_at),
                "run": one.run.hex(),
                "local_id": local_ids.get(one.run),
                "reason": one.reason or None,
            }
            for one in traced.deliveries
        ],
        "quarantined": [quarantined_json(held) for held in traced.quarantined],
        "rows": None
        if traced.rows is None
        else [
            {
                "database": row.row.database,
                "record_id": row.row.record_id,
                "status": row.status,
                "local_id": row.local_id,
                "end_time": when(row.ended_at),
            }
            for row in traced.rows
        ],
    }


TRACE_COLUMNS = ("target", "state", "sent", "message id", "remote id", "row id", "end time", "digest")


def trace_rows(traced: Traced) -> list[tuple[str, ...]]:
    return [
        (
            one.target,
            str(one.state),
            when(one.settled_at) or "-",
            one.message_id or "-",
            one.remote_id or "-",
            one.row_id or "-",
            when(one.ended_at) or "-",
            one.digest[:16] or "-",
        )
        for one in traced.deliveries
    ]


def trace_notes(traced: Traced) -> list[str]:
    """What the table of messages does not tell."""
    notes = [
        f"in quarantine of {held.target} since {when(held.since)}: {held.job.rule}: {held.job.reason} ({held.hold})"
        for held in traced.quarantined
    ]
    notes += [
        f"now in {row.row.database}, row {row.row.record_id}: {row.status}, ended {when(row.ended_at)}"
        for row in traced.rows or ()
    ]
    if not (traced.deliveries or notes or traced.trouble):
        notes.append(f"job {traced.job_id} has not finished, or cannot be read yet; nothing was sent of it")
    return notes


def sources_json(found: Iterable[SourceFile]) -> Json:
    return {
        "databases": [
            {"file": one.file, "last_seen": when(one.seen), "retired": when(one.retired), "there": one.there}
            for one in found
        ]
    }


SOURCE_COLUMNS = ("database", "last seen", "state")


def source_rows(found: Iterable[SourceFile]) -> list[tuple[str, ...]]:
    return [(one.file, when(one.seen) or "-", _source_state(one)) for one in found]


def _source_state(one: SourceFile) -> str:
    if one.retired is not None:
        return f"retired {when(one.retired)}"
    return "read" if one.there else "missing"


def quarantined_json(held: Quarantined) -> Json:
    return {
        "number": held.number,
        "target": held.target,
        "job": held.job.job_id,
        "local_id": held.job.local_id,
        "end_time": when(held.job.ended_at),
        "rule": held.job.rule,
        "reason": held.job.reason,
        "hold": str(held.hold),
        "since": when(held.since),
        "database": held.job.row.database,
        "record_id": held.job.row.record_id,
    }


QUARANTINE_COLUMNS = ("number", "target", "job", "rule", "reason", "hold", "since")


def quarantine_rows(found: Iterable[Quarantined]) -> list[tuple[str, ...]]:
    return [
        (
            str(held.number),
            held.target,
            held.job.job_id or f"row {held.job.row.record_id} of {held.job.row.database}",
            held.job.rule,
            held.job.reason,
            str(held.hold),
            when(held.since) or "",
        )
        for held in found
    ]


def when(moment: datetime | Epoch | None) -> str | None:
    """ISO 8601 with Z; an end time outside the calendar is shown as its number of seconds."""
    if moment is None:
        return None
    if isinstance(moment, int):
        try:
            moment = datetime.fromtimestamp(moment, UTC)
        except (OverflowError, OSError, ValueError):
            return f"{moment} s"
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
