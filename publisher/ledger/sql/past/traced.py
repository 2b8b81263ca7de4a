"""Every message that carried a job, found by the entries of its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from publisher.ledger.answers import Delivery
from publisher.ledger.sql import remote_ids
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.messages import STATES
from publisher.model.job import JOB_OF_RUN, Epoch, JobId, RunKey, run_key
from publisher.model.message import MessageId
from publisher.model.time import moment

_LAST_OF_JOB: Final = b"\xff" * 4
_DIGEST: Final = slice(4, JOB_OF_RUN.stop)  # of the JobID
_ENTRY: Final = """
SELECT entry.run, entry.receiver, entry.posting, entry.local_id, entry.ended_at, row_key.month,
       posting.target, target.name
FROM entry JOIN posting ON posting.id = entry.posting JOIN row_key ON row_key.id = entry.row_key
    JOIN target ON target.id = posting.target
WHERE {which} ORDER BY entry.run, entry.receiver, entry.posting"""
_OF_JOB: Final = _ENTRY.format(
    which="entry.receiver IN (SELECT id FROM receiver) AND entry.run >= :first"
    " AND entry.run <= :last"
)
_EVERYWHERE: Final = _ENTRY.format(which="entry.receiver > 0 AND substr(entry.run, 5, 7) = :digest")
_MESSAGE: Final = """
SELECT id, message_id, state, format, records, digest, made_at, settled_at, remote_id, reason,
       remote_ids
FROM message"""
_OF_POSTING: Final = f"{_MESSAGE} WHERE posting = :posting ORDER BY id"
# What was sent of totals before the run was in them, or after it was in others, does not tell it.
_OF_MONTH: Final = f"""{_MESSAGE}
WHERE id IN (SELECT message FROM month_message WHERE target = :target AND month = :month)
    AND receiver = :receiver
    AND id >= :first AND (CAST(:following AS BIGINT) IS NULL OR id < :following) ORDER BY id"""
_FIRST_OF_POSTING: Final = "SELECT min(id) FROM message WHERE posting = :posting"
_IS_OF_MONTHS: Final = """
SELECT EXISTS (SELECT 1 FROM month_message JOIN message ON message.id = month_message.message
               WHERE message.posting = :posting)"""


def deliveries(database: Database, job_id: JobId, runs: Collection[RunKey]) -> Sequence[Delivery]:
    """Return every message that carried a run of the job, oldest first.

    The job's entries are those of the given runs' jobs; without any, all are looked through.
    """
    found: list[Any] = []
    for job in {run[JOB_OF_RUN] for run in runs}:
        bounds = {"first": job, "last": job + _LAST_OF_JOB}
        found += database.execute(_OF_JOB, bounds).fetchall()
    if not found:
        digest = run_key(0, job_id, "")[_DIGEST]
        found = database.execute(_EVERYWHERE, {"digest": digest}).fetchall()
    carried = [
        one
        for _, entries in groupby(sorted(found), itemgetter(0, 1))
        for one in _of_run(database, job_id, list(entries))
    ]
    return [one for _, one in sorted(carried, key=itemgetter(0))]


def _of_run(
    database: Database, job_id: JobId, entries: Sequence[Any]
) -> Iterator[tuple[int, Delivery]]:
    """Yield each message that carried a run to a receiver, with its number.

    `entries` are all that the receiver has of the run, in order.
    """
    for place, row in enumerate(entries):
        run, receiver, posting, local_id, ended_at, month, target, name = row
        asked = {"posting": posting}
        if database.execute(_IS_OF_MONTHS, asked).fetchone()[0]:
            later = (entry[2] for entry in entries[place + 1 :])
            firsts = (database.execute(_FIRST_OF_POSTING, {"posting": one}) for one in later)
            numbers = (cursor.fetchone()[0] for cursor in firsts)
            rows = database.execute(
                _OF_MONTH,
                {
                    "receiver": receiver,
                    "target": target,
                    "month": month,
                    "first": database.execute(_FIRST_OF_POSTING, asked).fetchone()[0],
                    "following": next((number for number in numbers if number), None),
                },
            )
        else:
            rows = database.execute(_OF_POSTING, asked)
        its_id = "" if local_id == job_id else local_id
        for row in rows.fetchall():
            yield row[0], _delivery(name, run, its_id, ended_at, row)


def _delivery(
    target: str, run: RunKey, local_id: str, ended_at: int, row: Sequence[Any]
) -> Delivery:
    return Delivery(
        target=target,
        run=run,
        local_id=local_id,
        ended_at=Epoch(ended_at),
        message_id=MessageId(row[1]),
        state=STATES[row[2]],
        format=row[3],
        records=row[4],
        digest=row[5].hex(),
        made_at=datetime.fromtimestamp(row[6], UTC),
        settled_at=moment(row[7]),
        remote_id=row[8] or "",
        row_id=remote_ids.find(row[10], run),
        reason=row[9] or "",
    )
