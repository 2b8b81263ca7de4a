"""How many jobs each receiver has, by submit host and month, and what was reported to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from publisher.ledger.sql.database import Database
from publisher.model.job import Epoch

HostMonth = tuple[int, str]  # 12 x year + month - 1, and the submit host

_ADD = """
INSERT INTO delivered_count (receiver, month, host, jobs) VALUES (:receiver, :month, :host, :jobs)
ON CONFLICT (receiver, month, host) DO UPDATE SET jobs = delivered_count.jobs + excluded.jobs"""
_LOOK_AGAIN = """
UPDATE target SET before_basis = ''
WHERE id = :target AND start_at > :earliest AND before_basis <> ''"""
_DELIVERED = """
SELECT month, host, jobs FROM delivered_count WHERE receiver = :receiver AND jobs > 0"""
_BEFORE = "SELECT month, host, jobs FROM count_before WHERE target = :target"
_REPORTED = """
SELECT month, host, reported FROM sync_count
WHERE receiver = :receiver AND reported IS NOT NULL"""
_SENDING = """
INSERT INTO sync_count (receiver, month, host, reporting, message)
VALUES (:receiver, :month, :host, :jobs, :message)
ON CONFLICT (receiver, month, host) DO UPDATE SET
    reporting = excluded.reporting, message = excluded.message"""
_ACCEPTED_COUNTS = """
UPDATE sync_count SET reported = reporting WHERE message = :message"""
_ADOPT = """
INSERT INTO sync_count (receiver, month, host, reported) VALUES (:receiver, :month, :host, :jobs)
ON CONFLICT (receiver, month, host) DO UPDATE SET reported = excluded.reported"""
_SET_BASIS = "UPDATE target SET before_basis = :basis WHERE id = :target"
_SET_BEFORE = """
INSERT INTO count_before (target, month, host, jobs) VALUES (:target, :month, :host, :jobs)"""
_FORGET_BEFORE = "DELETE FROM count_before WHERE target = :target"
_DELETE_UNREPORTED = "DELETE FROM sync_count WHERE message = :message AND reported IS NULL"
_TAKE_BACK = "UPDATE sync_count SET reporting = NULL, message = NULL WHERE message = :message"
_MOVE = """
UPDATE sync_count SET message = :half
WHERE message = :whole AND month = :month AND host = :host"""
_IS_SYNC = "SELECT EXISTS (SELECT 1 FROM sync_count WHERE message = :message)"


def change(database: Database, receiver: int, jobs: Mapping[HostMonth, int]) -> None:
    """Add jobs of a receiver, by host as sync spells it; less than 0 are taken away."""
    changed = {at: jobs[at] for at in sorted(jobs) if jobs[at]}
    database.execute_many(_ADD, _rows(changed, receiver=receiver))


def _rows(counts: Mapping[HostMonth, int], **of: int) -> list[dict[str, object]]:
    return [
        {**of, "month": month, "host": host, "jobs": jobs} for (month, host), jobs in counts.items()
    ]


def _by_host_and_month(database: Database, question: str, **of: int | None) -> dict[HostMonth, int]:
    found = database.execute(question, of)
    return {(month, host): jobs for month, host, jobs in found}


def delivered(database: Database, receiver: int | None) -> dict[HostMonth, int]:
    """Return what a receiver has, each run once."""
    return _by_host_and_month(database, _DELIVERED, receiver=receiver)


def before(database: Database, target: int | None) -> dict[HostMonth, int]:
    """Eligible jobs of the month of the start that another publisher delivered before us."""
    return _by_host_and_month(database, _BEFORE, target=target)


def reported(database: Database, receiver: int | None) -> dict[HostMonth, int]:
    """What a receiver accepted last."""
    return _by_host_and_month(database, _REPORTED, receiver=receiver)


def set_before(
    database: Database, target: int, counts: Mapping[HostMonth, int], basis: str
) -> None:
    database.execute(_SET_BASIS, {"target": target, "basis": basis})
    database.execute(_FORGET_BEFORE, {"target": target})
    database.execute_many(_SET_BEFORE, _rows(counts, target=target))


def look_before_again(database: Database, target: int, ended: Iterable[Epoch]) -> None:
    """Jobs go out that ended before the start: they do not count as another's any more."""
    database.execute(_LOOK_AGAIN, {"target": target, "earliest": min(ended, default=None)})


def record_sending(
    database: Database, receiver: int, message: int, counts: Sequence[tuple[HostMonth, int]]
) -> None:
    """What a message that is about to be sent to a receiver says."""
    rows = _rows(dict(counts), receiver=receiver, message=message)
    database.execute_many(_SENDING, rows)


def adopt(database: Database, receiver: int, hosts: Mapping[HostMonth, int]) -> None:
    """Another publisher reported these: of hosts that we spell otherwise, 0 is to be reported."""
    database.execute_many(_ADOPT, _rows(hosts, receiver=receiver))


def take_back(database: Database, message: int) -> None:
    """A message of counts was never sent. Nothing happens to one of another kind."""
    database.execute(_DELETE_UNREPORTED, {"message": message})
    database.execute(_TAKE_BACK, {"message": message})


def accept(database: Database, message: int) -> bool:
    """A message of counts was accepted. False for a message of another kind."""
    if not is_sync(database, message):
        return False
    database.execute(_ACCEPTED_COUNTS, {"message": message})
    return True


def is_sync(database: Database, message: int) -> bool:
    return bool(database.execute(_IS_SYNC, {"message": message}).fetchone()[0])


def move(database: Database, whole: int, half: int, hosts: Iterable[HostMonth]) -> None:
    """A half of a message of counts says some of them now."""
    database.execute_many(
        _MOVE,
        [{"half": half, "whole": whole, "month": month, "host": host} for month, host in hosts],
    )
