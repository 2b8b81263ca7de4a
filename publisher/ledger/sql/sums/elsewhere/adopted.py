"""What is believed to be sent of a month without an entry here: entries that count.

Another publisher sent it, or this one before the ledger was restored. They are in a posting of
their own, with a message that stands for what was sent, and is not known.
Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import message_rows, month_sums, postings
from publisher.ledger.sql.sums.settlement import Settling
from publisher.model.totals import BY_JURA, InheritedMonth

# A number of `message.state`, as schema.py lists them.
_MESSAGE: Final = """
SELECT message.id, message.posting
FROM month_message JOIN message ON message.id = month_message.message
JOIN posting ON posting.id = message.posting
WHERE message.receiver = :receiver AND month_message.target = :target AND month = :month
    AND posting.settings = :settings AND message.state = 4 AND message.format = :format"""
_ENTER_MESSAGE: Final = """
INSERT INTO message (target, receiver, posting, message_id, state, format, records, bytes, digest,
                     made_at, settled_at, reason)
VALUES (:target, :receiver, :posting, '', 4, :format, 0, 0, :no_digest, :at, :at, :reason)"""
_ADD_RECORDS: Final = "UPDATE message SET records = records + :records WHERE id = :message"
_IS_SENT: Final = """
UPDATE balance SET sent_jobs = jobs, sent_wall_s = wall_s, sent_cpu_s = cpu_s, sent_by = :message
WHERE row_key = :row_key"""


def adopt(
    database: Database,
    numbers: entries.Numbers,
    target: int,
    receiver: int,
    inherited: InheritedMonth,
) -> None:
    """Let what was sent of a month count; totals of a month may come in parts.

    A run that has an entry already keeps it. Rows of totals of another publisher are said once more
    by us, as it may have missed some of their runs.
    """
    known = entries.recorded(database, receiver, [entry.run for entry in inherited.entries])
    new = {entry.run: entry for entry in inherited.entries if entry.run not in known}
    if not new:
        return
    at = _message(database, receiver, target, inherited)
    rows = entries.constants(database, numbers, receiver, new.values())
    is_ours = inherited.by != BY_JURA
    enter(database, receiver, at, rows, totals=inherited.totals, is_ours=is_ours)


def _message(
    database: Database, receiver: int, target: int, inherited: InheritedMonth
) -> tuple[int, int]:
    """Return the message and the posting of a month, which are entered with its first part."""
    month, form = inherited.month, inherited.format
    is_theirs = inherited.by == BY_JURA
    asked = {"receiver": receiver, "target": target, "month": month, "format": form}
    of_theirs = asked | {"settings": BY_JURA}
    if is_theirs and (found := database.execute(_MESSAGE, of_theirs).fetchone()):
        return found[0], found[1]
    at = max(entry.record.ended_at for entry in inherited.entries)
    of_records = not inherited.totals
    of_month = entries.Posting(receiver, target, inherited.by, at, of_records)
    reason = None if is_theirs else inherited.by
    message, posting = unknown_message(database, of_month, form, reason)
    message_rows.link(database, target, message, [month])
    return message, posting


def unknown_message(
    database: Database, of: entries.Posting, form: str, reason: str | None = None
) -> tuple[int, int]:
    """Enter an empty posting, with a message that is not known here; return number of both."""
    posting = entries.post(database, of, [], sealed=True)
    made = {"target": of.target, "receiver": of.receiver, "posting": posting, "format": form}
    values = made | {"no_digest": b"", "at": of.made_at, "reason": reason}
    return database.insert_returning_id(_ENTER_MESSAGE, values), posting


def enter(
    database: Database,
    receiver: int,
    at: tuple[int, int],
    rows: Sequence[tuple[Any, ...]],
    *,
    totals: bool,
    is_ours: bool = False,
) -> None:
    """Let entries with these constants count; `at`: the message and posting of them.

    `is_ours`: this publisher has delivered them, and no other one.
    """
    message, posting = at
    postings.add(database, receiver, posting, rows)
    settling = Settling(database, posting)
    settling.count(settling.of_run(run) for run, *_ in rows)
    if is_ours:
        settling.write()
    else:
        settling.write_sums()
    database.execute(_ADD_RECORDS, {"message": message, "records": len(rows)})
    if totals:
        of_rows = sorted({row[1] for row in rows})
        database.execute_many(_IS_SENT, [{"message": message, "row_key": row} for row in of_rows])
        month_sums.go_on_as(database, message)
