"""Jobs that were set aside, in the publishing database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.sql.parts.opened import LedgerPart
from publisher.model.job import JobId, JobKey, RowRef, SkippedJob

_QUARANTINED = """
SELECT quarantine.id, target.name, file, record_id, job_id, local_id, ended_at, rule, reason,
       fingerprint, hold, policy_digest, since, key
FROM quarantine JOIN target ON target.id = quarantine.target"""
_LISTED = f"""{_QUARANTINED}
WHERE quarantine.id > :after AND (CAST(:name AS TEXT) IS NULL OR target.name = :name)
ORDER BY quarantine.id LIMIT :limit"""
_OF_JOB = _QUARANTINED + " WHERE job_id = :job_id ORDER BY quarantine.id"
_PORTION = 1000
_HELD = _QUARANTINED + " WHERE quarantine.target = :target AND key = :key"
_ANY_HELD = "SELECT EXISTS (SELECT 1 FROM quarantine WHERE target = :target)"
_HOLD = "UPDATE quarantine SET hold = :hold WHERE id = :id AND hold <> :hold"


class SqlQuarantine(LedgerPart):
    """`Quarantine` of a publishing database."""

    def held(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Quarantined]:
        number = self._opened.number(target)
        with self._database.reading():
            if not self._database.execute(_ANY_HELD, {"target": number}).fetchone()[0]:
                return {}
            asked = [{"target": number, "key": key} for key in keys]
            rows = [row for one in asked for row in self._database.execute(_HELD, one)]
        return {held.key: held for held in map(_quarantined, rows)}

    def listed(self, target: str | None = None) -> Iterator[Quarantined]:
        after = 0
        while True:
            with self._database.reading():
                asked = {"name": target, "after": after, "limit": _PORTION}
                rows = self._database.execute(_LISTED, asked).fetchall()
            if not rows:
                return
            yield from map(_quarantined, rows)
            after = rows[-1][0]

    def of_job(self, job_id: JobId) -> Sequence[Quarantined]:
        with self._database.reading():
            rows = self._database.execute(_OF_JOB, {"job_id": job_id}).fetchall()
        return list(map(_quarantined, rows))

    def release(self, numbers: Iterable[int]) -> int:
        return self._set_hold(numbers, Hold.RELEASED)

    def drop(self, numbers: Iterable[int]) -> int:
        return self._set_hold(numbers, Hold.DROPPED)

    def _set_hold(self, numbers: Iterable[int], hold: Hold) -> int:
        asked = [{"id": number, "hold": hold} for number in numbers]
        with self._database.atomic():
            return sum(self._database.execute(_HOLD, one).rowcount for one in asked)


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
