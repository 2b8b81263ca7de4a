"""The ledger's questions: statements that only read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from publisher.ledger.checks import damaged_in_sample, disagreements
from publisher.ledger.contract import (
    Delivery,
    Hold,
    HostCounts,
    KnownDatabase,
    MessageState,
    Outstanding,
    Quarantined,
    TargetState,
)
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql import entries
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.database import Database, Parameters
from publisher.ledger.sql.messages import MessageSummary
from publisher.ledger.sql.past import traced
from publisher.ledger.sql.sums import consents, counts, earlier, message_rows, receivers
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.entry import (
    EarlierRuns,
    MonthTotals,
    ReceiverName,
    Recorded,
    RecordKey,
    RowTotal,
    RunKey,
)
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, JobKey, RowRef, SkippedJob
from publisher.model.message import (
    Cursor,
    LearntLimit,
    MessageId,
    OpenRow,
    WindowMark,
)
from publisher.model.receiver import ChangedAddress, KnownReceiver, Loss, ReceiverSums
from publisher.model.time import moment
from publisher.model.totals import (
    AcceptedChange,
)

STATES: Final = (
    MessageState.PREPARED,
    MessageState.IN_DOUBT,
    MessageState.SENT,
    MessageState.REJECTED,
    MessageState.COUNTED,
)
_OF_TARGET = "target = (SELECT id FROM target WHERE name = :name)"
_LATEST_POSTING = f"SELECT coalesce(max(id), 0) FROM posting WHERE {_OF_TARGET}"
_SETTINGS_SINCE = f"SELECT DISTINCT settings FROM posting WHERE {_OF_TARGET} AND id > :posting"
_TOOK_OVER = "SELECT took_over FROM target WHERE name = :name"
_TARGET = "SELECT id FROM target WHERE name = :name"
_TARGETS = "SELECT id, name FROM target ORDER BY name"
_STATE = """
SELECT start_rule, start_at, last_round, last_success, last_end, swept, delivered,
       (SELECT CAST(coalesce(sum(records), 0) AS BIGINT) FROM message
        WHERE message.target = target.id AND message.receiver = target.receiver
            AND state < 2 AND state = 0),
       (SELECT CAST(coalesce(sum(records), 0) AS BIGINT) FROM message
        WHERE message.target = target.id AND message.receiver = target.receiver
            AND state < 2 AND state = 1),
       (SELECT count(*) FROM quarantine WHERE quarantine.target = target.id AND hold <> 'dropped'),
       checked_digest, held
FROM target WHERE name = :name"""
_RECEIVER = "SELECT receiver FROM target WHERE name = :target"
_SYNC_STATE = "SELECT last_sync, before_basis FROM target WHERE id = :target"
_CURSOR = "SELECT file, record_id, anchor FROM reading WHERE target = :target AND file = :file"
_KNOWN_DATABASES = """
SELECT target.name, file, inode, seen_at, retired_at, never_sent
FROM source_file JOIN target ON target.id = source_file.target
WHERE CAST(:name AS TEXT) IS NULL OR target.name = :name ORDER BY file, target.name"""
_WINDOW_PROGRESS = """
SELECT ended_at, file, record_id FROM window_progress WHERE target = :target AND name = :name"""
_LIMIT = "SELECT payload_bytes, wire, learnt_at FROM learnt_limit WHERE target = :target"
_OPEN_ROWS = """
SELECT file, record_id, finished_at FROM open_row WHERE target = :target ORDER BY file, record_id"""
_QUARANTINED = """
SELECT quarantine.id, target.name, file, record_id, job_id, local_id, ended_at, rule, reason,
       fingerprint, hold, policy_digest, since, key
FROM quarantine JOIN target ON target.id = quarantine.target"""
_QUARANTINE = f"""{_QUARANTINED}
WHERE quarantine.id > :after AND (CAST(:name AS TEXT) IS NULL OR target.name = :name)
ORDER BY quarantine.id LIMIT :limit"""
_QUARANTINED_JOB = _QUARANTINED + " WHERE job_id = :job_id ORDER BY quarantine.id"
_QUARANTINE_PORTION = 1000
_HELD = _QUARANTINED + " WHERE quarantine.target = :target AND key = :key"
_ANY_HELD = "SELECT EXISTS (SELECT 1 FROM quarantine WHERE target = :target)"


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Where values are no longer what was written. Raises: LedgerError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise LedgerError(
            f"the ledger is damaged: {what} cannot be read; restore the last sound backup"
        ) from error


def _target_state(target: str, row: Sequence[Any]) -> TargetState:
    return TargetState(
        target=target,
        start_rule=row[0],
        start=row[1],
        last_round=moment(row[2]),
        last_success=moment(row[3]),
        last_published_end=row[4],
        swept=moment(row[5]),
        delivered=row[6],
        prepared=row[7],
        in_doubt=row[8],
        quarantined=row[9],
        checked_digest=row[10],
        held=tuple(map(int, row[11].split())),
    )


def _known_database(
    target: str, file: str, inode: int, seen: int, retired: int | None, never_sent: str
) -> KnownDatabase:
    if not isinstance(file, str):  # a damaged page may have a number there
        raise TypeError(file)
    seen_at, lost = datetime.fromtimestamp(seen, UTC), json.loads(never_sent).items()
    by_month = {int(month): None if jobs is None else int(jobs) for month, jobs in lost}
    return KnownDatabase(target, file, inode, seen_at, moment(retired), by_month)


class LedgerReader:
    """All parts of `Ledger`, as far as they only read."""

    def __init__(self, database: Database, guard: StateGuard | None = None) -> None:
        self._database = database
        self._guard = guard
        self._numbers: dict[str, int] = {}  # of targets, which keep theirs
        self._receivers: dict[str, int] = {}  # of targets that are worked on
        # Prepared last.
        self._on_its_way: tuple[int, MessageId, MessageSummary] = 0, MessageId(""), MessageSummary()

    def target(self, target: str) -> TargetState | None:
        row = self._first(_STATE, {"name": target})
        if row is None:
            return None
        with _sound(f"the row of target {target}"):
            return _target_state(target, row)

    def targets(self) -> Sequence[str]:
        with self._database.reading():
            return [name for _, name in self._database.execute(_TARGETS)]

    def took_over(self, target: str) -> Epoch | None:
        row = self._first(_TOOK_OVER, {"name": target})
        return None if row is None or row[0] is None else Epoch(row[0])

    def recorded(self, target: str, runs: Collection[RunKey]) -> Mapping[RunKey, Recorded]:
        with self._database.reading():
            return entries.recorded(self._database, self._receiver(target), runs)

    def held(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Quarantined]:
        number = self._number(target)
        with self._database.reading():
            if not self._database.execute(_ANY_HELD, {"target": number}).fetchone()[0]:
                return {}
            asked = [{"target": number, "key": key} for key in keys]
            rows = [row for one in asked for row in self._database.execute(_HELD, one)]
        return {held.key: held for held in map(_quarantined, rows)}

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        receiver = self._receiver(target)
        passed = 0
        while True:
            row = self._first(rows.OUTSTANDING, {"receiver": receiver, "passed": passed})
            if row is None:
                return None
            if row[1] not in besides:
                with _sound(f"message {row[1]} of target {row[-1]}"):
                    return rows.outstanding(row, STATES)
            passed += 1

    def _receiver(self, target: str) -> int | None:
        """Return the receiver of a target: as it is worked on, or else as it last was."""
        if target in self._receivers:
            return self._receivers[target]
        row = self._first(_RECEIVER, {"target": target})
        return None if row is None else row[0]

    def receiver_of(self, target: str) -> KnownReceiver | None:
        with self._database.reading():
            return receivers.of_target(self._database, target)

    def changed_address(self, target: str, receiver: ReceiverName) -> ChangedAddress | None:
        with self._database.reading():
            return receivers.changed(self._database, target, receiver)

    def receivers(self) -> Sequence[ReceiverSums]:
        with self._database.reading(), _sound("the receivers"):
            return receivers.listed(self._database)

    def cursor(self, target: str, database: str) -> Cursor | None:
        row = self._first(_CURSOR, {"target": self._number(target), "file": database})
        return None if row is None else Cursor(database=row[0], record_id=row[1], anchor=row[2])

    def known_databases(self, target: str | None = None) -> Sequence[KnownDatabase]:
        with self._database.reading():
            rows = self._database.execute(_KNOWN_DATABASES, {"name": target}).fetchall()
        with _sound("the accounting databases that rounds have found"):
            return [_known_database(*row) for row in rows]

    def window_progress(self, target: str, name: str) -> WindowMark | None:
        found = self._first(_WINDOW_PROGRESS, {"target": self._number(target), "name": name})
        if found is None:
            return None
        ended_at, *row = found
        return WindowMark(window_progress=name, ended_at=Epoch(ended_at), row=RowRef(*row))

    def limit(self, target: str) -> LearntLimit | None:
        row = self._first(_LIMIT, {"target": self._number(target)})
        if row is None:
            return None
        learnt_at = datetime.fromtimestamp(row[2], UTC)
        return LearntLimit(payload_bytes=row[0], wire=row[1], learnt_at=learnt_at)

    def open_rows(self, target: str) -> Sequence[OpenRow]:
        with self._database.reading():
            rows = self._database.execute(_OPEN_ROWS, {"target": self._number(target)}).fetchall()
        return [
            OpenRow(row=RowRef(database=file, record_id=number), finished_seen_at=seen)
            for file, number, seen in rows
        ]

    def quarantine(self, target: str | None = None) -> Iterator[Quarantined]:
        after = 0
        while True:
            with self._database.reading():
                asked = {"name": target, "after": after, "limit": _QUARANTINE_PORTION}
                rows = self._database.execute(_QUARANTINE, asked).fetchall()
            if not rows:
                return
            yield from map(_quarantined, rows)
            after = rows[-1][0]

    def quarantined(self, job_id: JobId) -> Sequence[Quarantined]:
        with self._database.reading():
            rows = self._database.execute(_QUARANTINED_JOB, {"job_id": job_id}).fetchall()
        return list(map(_quarantined, rows))

    def trace(self, job_id: JobId, runs: Collection[RunKey] = ()) -> Sequence[Delivery]:
        with self._database.reading(), _sound("what carried a job"):
            return traced.deliveries(self._database, job_id, runs)

    def rows(self, target: str, month: int) -> Sequence[RowTotal]:
        with self._database.reading():
            return message_rows.rows(self._database, self._receiver(target), month)

    def months(self, target: str) -> Sequence[MonthTotals]:
        with self._database.reading():
            return message_rows.months(self._database, self._receiver(target))

    def settings_since(self, target: str, posting: int) -> tuple[int, frozenset[str]]:
        asked = {"name": target, "posting": posting}
        with self._database.reading():
            (latest,) = self._database.execute(_LATEST_POSTING, asked).fetchone()
            found = self._database.execute(_SETTINGS_SINCE, asked).fetchall()
        return int(latest), frozenset(settings for (settings,) in found)

    def earlier(self, target: str, settings: str) -> EarlierRuns:
        number = self._number(target)
        with self._database.reading():
            return earlier.earlier(self._database, number, settings)

    def owners(self, target: str, ends: Collection[Epoch]) -> Sequence[tuple[RunKey, RecordKey]]:
        with self._database.reading():
            return entries.owners(self._database, self._receiver(target), ends)

    def counted_from(self, target: str, source: str) -> Mapping[tuple[int, str], int]:
        with self._database.reading():
            return entries.counted_from(self._database, self._receiver(target), source)

    def accepted_changes(self, target: str) -> Sequence[AcceptedChange]:
        with self._database.reading():
            of = self._number(target), self._receiver(target)
            return consents.accepted_changes(self._database, *of)

    def losses(self, target: str) -> Sequence[Loss]:
        with self._database.reading():
            return losses.held(self._database, self._receiver(target))

    def counts(self, target: str) -> HostCounts:
        number, receiver = self._number(target), self._receiver(target)
        with self._database.reading():
            row = self._database.execute(_SYNC_STATE, {"target": number}).fetchone() or (None, "")
            return HostCounts(
                delivered=counts.delivered(self._database, receiver),
                before=counts.before(self._database, number),
                reported=counts.reported(self._database, receiver),
                last_reported_at=moment(row[0]),
                before_basis=row[1],
            )

    def damage(self, on: datetime | None = None) -> Sequence[str]:
        if on is None:
            return [one.what for one in disagreements(self._database, quick=True)]
        return [one.what for one in damaged_in_sample(self._database, on)]

    def state_trouble(self, place: str) -> str:
        return "" if self._guard is None else self._guard.trouble(self._database, place)

    def close(self) -> None:
        self._database.close()

    def _first(self, statement: str, values: Parameters) -> Any:
        """The first row that is found; None where there is none."""
        with self._database.reading():
            return self._database.execute(statement, values).fetchone()

    def _number(self, target: str) -> int | None:
        if target not in self._numbers:
            row = self._first(_TARGET, {"name": target})
            if row is None:
                return None
            with _sound(f"the row of target {target}"):
                self._numbers[target] = int(row[0])
        return self._numbers[target]


def _quarantined(row: Sequence[Any]) -> Quarantined:
    number, name, file, record_id, job_id, local_id, ended_at, rule, reason, fingerprint = row[:10]
    hold, digest, since, key = row[10:]
    at = RowRef(database=file, record_id=record_id)
    job = SkippedJob(
        at, job_id, local_id, ended_at, rule=rule, reason=reason, fingerprint=fingerprint
    )
    return Quarantined(
        number=number,
        target=name,
        key=key,
        job=job,
        hold=Hold(hold),
        policy_digest=digest,
        since=datetime.fromtimestamp(since, UTC),
    )
