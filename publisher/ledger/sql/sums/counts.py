"""How many jobs each target's records carry, by submit host and month, and what was reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from publisher.ledger.sql.database import Database
from publisher.model.job import Epoch
from publisher.model.totals import month_number, sync_host

HostMonth = tuple[int, str]  # 12 x year + month - 1, and the submit host

_ADD = """
INSERT INTO delivered_count (target, month, host, jobs) VALUES (:target, :month, :host, :jobs)
ON CONFLICT (target, month, host) DO UPDATE SET jobs = delivered_count.jobs + excluded.jobs"""
_LOOK_AGAIN = """
UPDATE target SET before_basis = ''
WHERE id = :target AND start_at > :earliest AND before_basis <> ''"""
# Whichever target of the receiver sent them.
_DELIVERED = """
SELECT month, host, CAST(sum(jobs) AS BIGINT)
FROM target JOIN target AS sender ON sender.receiver = target.receiver
JOIN delivered_count ON delivered_count.target = sender.id
WHERE target.id = :target GROUP BY month, host HAVING sum(jobs) > 0"""
_BEFORE = "SELECT month, host, jobs FROM count_before WHERE target = :target"
_REPORTED = """
SELECT month, host, reported FROM sync_count WHERE target = :target AND reported IS NOT NULL"""
_SENDING = """
INSERT INTO sync_count (target, month, host, reporting, message)
VALUES (:target, :month, :host, :jobs, :message)
ON CONFLICT (target, month, host) DO UPDATE SET
    reporting = excluded.reporting, message = excluded.message"""
_ACCEPTED_COUNTS = """
UPDATE sync_count SET reported = reporting, reported_at = :now WHERE message = :message"""
_ADOPT = """
INSERT INTO sync_count (target, month, host, reported) VALUES (:target, :month, :host, :jobs)
ON CONFLICT (target, month, host) DO UPDATE SET reported = excluded.reported"""
_SET_BASIS = "UPDATE target SET before_basis = :basis WHERE id = :target"
_SET_BEFORE = """
INSERT INTO count_before (target, month, host, jobs) VALUES (:target, :month, :host, :jobs)"""
_FORGET_BEFORE = "DELETE FROM count_before WHERE target = :target"
_FORGET_MONTH = "DELETE FROM delivered_count WHERE target = :target AND month = :month"
_DELETE_UNREPORTED = "DELETE FROM sync_count WHERE message = :message AND reported IS NULL"
_TAKE_BACK = "UPDATE sync_count SET reporting = NULL, message = NULL WHERE message = :message"
_MOVE = """
UPDATE sync_count SET message = :half
WHERE message = :whole AND month = :month AND host = :host"""
_IS_SYNC = "SELECT EXISTS (SELECT 1 FROM sync_count WHERE message = :message)"


def add(database: Database, target: int, ended: Iterable[tuple[Epoch, str]]) -> None:
    """Jobs that a message delivered for the first time: their end times and submit hosts."""
    found = Counter([(month_number(ended_at), host) for ended_at, host in ended])
    jobs: Counter[HostMonth] = Counter()
    for (month, host), count in found.items():
        jobs[month, sync_host(host)] += count
    database.execute_many(_ADD, _rows(target, jobs))


def change(database: Database, jobs: Mapping[tuple[int, int, str], int]) -> None:
    """Add jobs, by target, month and host as sync spells it; less than 0 are taken away."""
    names = "target", "month", "host", "jobs"
    rows = [dict(zip(names, (*at, jobs[at]), strict=True)) for at in sorted(jobs) if jobs[at]]
    database.execute_many(_ADD, rows)


def _rows(target: int, counts: Mapping[HostMonth, int]) -> list[dict[str, object]]:
    return [
        {"target": target, "month": month, "host": host, "jobs": jobs}
        for (month, host), jobs in counts.items()
    ]


def _by_host_and_month(
    database: Database, question: str, target: int | None
) -> dict[HostMonth, int]:
    found = database.execute(question, {"target": target})
    return {(month, host): jobs for month, host, jobs in found}


def delivered(database: Database, target: int | None) -> dict[HostMonth, int]:
    """Return what the target's receiver has, each run once."""
    return _by_host_and_month(database, _DELIVERED, target)


def before(database: Database, target: int | None) -> dict[HostMonth, int]:
    """Eligible jobs of the month of the start that another publisher delivered before us."""
    return _by_host_and_month(database, _BEFORE, target)


def reported(database: Database, target: int | None) -> dict[HostMonth, int]:
    """What the receiver accepted last."""
    return _by_host_and_month(database, _REPORTED, target)


def set_before(
    database: Database, target: int, counts: Mapping[HostMonth, int], basis: str
) -> None:
    database.execute(_SET_BASIS, {"target": target, "basis": basis})
    database.execute(_FORGET_BEFORE, {"target": target})
    database.execute_many(_SET_BEFORE, _rows(target, counts))


def look_before_again(database: Database, target: int, ended: Iterable[Epoch]) -> None:
    """Jobs go out that ended before the start: they do not count as another's any more."""
    database.execute(_LOOK_AGAIN, {"target": target, "earliest": min(ended, default=None)})


def replace(
    database: Database, target: int, months: Iterable[int], counts: Mapping[HostMonth, int]
) -> None:
    """Months were sent whole: so many of their jobs, 0 of totals, were delivered one by one."""
    database.execute_many(_FORGET_MONTH, [{"target": target, "month": month} for month in months])
    database.execute_many(_ADD, _rows(target, counts))


def record_sending(
    database: Database, target: int, message: int, counts: Sequence[tuple[HostMonth, int]]
) -> None:
    """What a message that is about to be sent says."""
    rows = [row | {"message": message} for row in _rows(target, dict(counts))]
    database.execute_many(_SENDING, rows)


def adopt(database: Database, target: int, hosts: Mapping[HostMonth, int]) -> None:
    """Another publisher reported these: of hosts that we spell otherwise, 0 is to be reported."""
    database.execute_many(_ADOPT, _rows(target, hosts))


def take_back(database: Database, message: int) -> None:
    """A message of counts was never sent. Nothing happens to one of another kind."""
    database.execute(_DELETE_UNREPORTED, {"message": message})
    database.execute(_TAKE_BACK, {"message": message})


def accept(database: Database, message: int, now: int) -> bool:
    """A message of counts was accepted. False for a message of another kind."""
    if not is_sync(database, message):
        return False
    database.execute(_ACCEPTED_COUNTS, {"message": message, "now": now})
    return True


def is_sync(database: Database, message: int) -> bool:
    return bool(database.execute(_IS_SYNC, {"message": message}).fetchone()[0])


def move(database: Database, whole: int, half: int, hosts: Iterable[HostMonth]) -> None:
    """A half of a message of counts says some of them now."""
    database.execute_many(
        _MOVE,
        [{"half": half, "whole": whole, "month": month, "host": host} for month, host in hosts],
    )
