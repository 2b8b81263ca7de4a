"""`trace`: whether a job was sent, and every message that carried it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from publisher.cli.commands import Context
from publisher.cli.commands.quarantine import quarantined_json
from publisher.cli.logs import error_line
from publisher.cli.output import Json, Part, TextTable, moment_text, print_result
from publisher.cli.parser import add_all_instances, add_job, add_json
from publisher.ledger.answers import Delivery, MessageState
from publisher.model.errors import SourceError
from publisher.model.job import JobRecord
from publisher.publishing.databases import trace as tracing
from publisher.publishing.databases.trace import Traced, closed_text

_COLUMNS = ("target", "state", "sent", "message id", "remote id", "row id", "end time", "digest")
_ANSWERS: Final = {
    MessageState.SENT: "accepted by",
    MessageState.COUNTED: "counted at",
    MessageState.REJECTED: "refused by",
    MessageState.PREPARED: "about to be sent to",
    MessageState.IN_DOUBT: "sent without an answer to",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    add_all_instances(parser)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site, everywhere = context.load(), arguments.all_instances
    traced = tracing.trace(site, arguments.job, all_instances=everywhere)
    print_result(traced, _as_json, _as_text, form=arguments.form, rows="deliveries")
    if traced.trouble:
        error_line(traced.trouble)
        return SourceError.exit_status
    return 0


def _as_json(traced: Traced) -> Json:
    return {
        "job": traced.job_id,
        "deliveries": list(map(_delivery_json, traced.deliveries)),
        "quarantined": list(map(quarantined_json, traced.quarantined)),
        "closed_before": str(max(traced.closed.values())) if traced.closed else None,
        "rows": None if traced.rows is None else [_row_json(row) for row in traced.rows],
    }


def _delivery_json(one: Delivery) -> Json:
    return {
        "target": one.target,
        "message_id": one.message_id or None,
        "state": str(one.state),
        "remote_id": one.remote_id or None,
        "row_id": one.row_id or None,
        "sent": moment_text(one.settled_at),
        "prepared": moment_text(one.made_at),
        "format": one.format or None,
        "digest": one.digest or None,
        "records": one.records,
        "end_time": moment_text(one.ended_at),
        "run": one.run.hex(),
        "local_id": one.local_id,
        "reason": one.reason or None,
    }


def _row_json(row: JobRecord) -> Json:
    return {
        "database": row.row.database,
        "record_id": row.row.record_id,
        "status": row.status,
        "local_id": row.local_id,
        "end_time": moment_text(row.ended_at),
    }


def _as_text(traced: Traced) -> Iterator[Part]:
    if traced.deliveries:
        yield _answer(traced)
    yield TextTable(_COLUMNS, list(map(_cells, traced.deliveries)))
    notes = [
        f"in quarantine of {held.target} since {moment_text(held.since)}: "
        f"{held.job.rule}: {held.job.reason} ({held.hold})"
        for held in traced.quarantined
    ]
    notes += [
        f"target {one.target}: {one.state}: {one.reason}"
        for one in traced.deliveries
        if one.state is MessageState.COUNTED and one.reason
    ]
    notes += [
        f"now in {row.row.database}, row {row.row.record_id}: {row.status}, "
        f"ended {moment_text(row.ended_at)}"
        for row in traced.rows or ()
    ]
    yield from notes
    if not traced.deliveries:
        yield from map(closed_text, traced.closed, traced.closed.values())
    if not (traced.deliveries or notes or traced.trouble or traced.closed):
        yield f"job {traced.job_id} has not finished, or cannot be read yet; nothing was sent of it"


def _answer(traced: Traced) -> str:
    """Return whether the job was sent, and where to, in a line."""
    found: dict[str, list[str]] = {}
    for one in traced.deliveries:
        targets = found.setdefault(_ANSWERS[one.state], [])
        if one.target not in targets:
            targets.append(one.target)
    answers = [f"{answer} {', '.join(targets)}" for answer, targets in found.items()]
    return f"job {traced.job_id}: {'; '.join(answers)}"


def _cells(one: Delivery) -> list[str]:
    sent, ended = moment_text(one.settled_at), moment_text(one.ended_at)
    ids = (one.message_id, one.remote_id, one.row_id)
    cells = (one.target, str(one.state), sent, *ids, ended, one.digest[:16])
    return [cell or "-" for cell in cells]
