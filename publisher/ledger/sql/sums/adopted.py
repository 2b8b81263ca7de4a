"""What another publisher is believed to have sent of a month: entries that count.

They are in a posting of their own, with a message that was never ours and stands for its totals.
Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from typing import Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import message_rows, postings
from publisher.ledger.sql.sums.settlement import Settling
from publisher.model.totals import BY_JURA, InheritedMonth

# A number of `message.state`, as schema.py lists them.
_MESSAGE: Final = """
SELECT message.id, message.posting
FROM month_message JOIN message ON message.id = month_message.message
WHERE month_message.target = :target AND month = :month
    AND message.state = 4 AND message.format = :format"""
_ENTER_MESSAGE: Final = """
INSERT INTO message (target, posting, message_id, state, format, records, bytes, digest, made_at,
                     settled_at)
VALUES (:target, :posting, '', 4, :format, 0, 0, :no_digest, :at, :at)"""
_ADD_RECORDS: Final = "UPDATE message SET records = records + :records WHERE id = :message"
_RECEIVER: Final = "SELECT receiver FROM target WHERE id = :target"
_IS_SENT: Final = """
UPDATE balance SET sent_jobs = jobs, sent_wall_s = wall_s, sent_cpu_s = cpu_s, sent_by = :message
WHERE row_key = :row_key"""


def adopt(
    database: Database,
    numbers: entries.Numbers,
    name: str,
    target: int,
    inherited: InheritedMonth,
) -> None:
    """Let what another publisher sent of a month count; totals of a month may come in parts.

    A run that has an entry already keeps it. Rows of totals are said once more by us, as the other
    publisher may have missed some of their runs.
    """
    known = entries.recorded(database, name, [entry.run for entry in inherited.entries])
    new = {entry.run: entry for entry in inherited.entries if entry.run not in known}
    if not new:
        return
    (receiver,) = database.execute(_RECEIVER, {"target": target}).fetchone()
    message, posting = _message(database, receiver, target, inherited)
    rows = entries.constants(database, numbers, receiver, new.values())
    postings.add(database, receiver, posting, rows)
    settling = Settling(database, posting)
    settling.count(settling.of_run(run) for run in new)
    settling.write_sums()
    database.execute(_ADD_RECORDS, {"message": message, "records": len(rows)})
    if not inherited.totals:
        return
    of_rows = sorted({row[1] for row in rows})
    database.execute_many(_IS_SENT, [{"message": message, "row_key": row} for row in of_rows])


def _message(
    database: Database, receiver: int, target: int, inherited: InheritedMonth
) -> tuple[int, int]:
    """Return the message and the posting of a month, which are entered with its first part."""
    month, form = inherited.month, inherited.format
    asked = {"target": target, "month": month, "format": form}
    if found := database.execute(_MESSAGE, asked).fetchone():
        return found[0], found[1]
    at = max(entry.record.ended_at for entry in inherited.entries)
    of_month = entries.Posting(receiver, target, BY_JURA, at)
    posting = entries.post(database, of_month, [], sealed=True)
    made = {"target": target, "posting": posting, "format": form, "no_digest": b"", "at": at}
    message = database.insert_returning_id(_ENTER_MESSAGE, made)
    message_rows.link(database, target, message, [month])
    return message, posting
