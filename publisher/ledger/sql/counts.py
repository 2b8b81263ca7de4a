"""How many jobs each target's records carry, by submit host and month, and what the receiver was last told of it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from publisher.model.job import Epoch
from publisher.model.totals.summary import month_number, sync_host

HostMonth = tuple[int, str]  # 12 x year + month - 1, and the submit host

_ADD = """
INSERT INTO delivered_count (target, month, host, jobs) VALUES (:target, :month, :host, :jobs)
ON CONFLICT (target, month, host) DO UPDATE SET jobs = jobs + excluded.jobs"""
_LOOK_AGAIN = """
UPDATE target SET before_basis = '' WHERE id = :target AND start_at > :earliest AND before_basis <> ''"""
_DELIVERED = "SELECT month, host, jobs FROM delivered_count WHERE target = :target"
_ACCEPTED = "SELECT month, accepted_hosts FROM month WHERE target = :target AND accepted_hosts IS NOT NULL"
_BEFORE = "SELECT month, host, jobs FROM count_before WHERE target = :target"
_TOLD = "SELECT month, host, told FROM sync_count WHERE target = :target AND told IS NOT NULL"
_TELL = """
INSERT INTO sync_count (target, month, host, telling, message) VALUES (:target, :month, :host, :jobs, :message)
ON CONFLICT (target, month, host) DO UPDATE SET telling = excluded.telling, message = excluded.message"""
_HEARD = "UPDATE sync_count SET told = telling, told_at = :now WHERE message = :message"
_ADOPT = """
INSERT INTO sync_count (target, month, host, told) VALUES (:target, :month, :host, :jobs)
ON CONFLICT (target, month, host) DO UPDATE SET told = excluded.told"""
_IS_SYNC = "SELECT EXISTS (SELECT 1 FROM sync_count WHERE message = :message)"


def add(connection: sqlite3.Connection, target: int, ended: Iterable[tuple[Epoch, str]]) -> None:
    """Jobs that a message delivered for the first time: their end times and submit hosts."""
    # A list: from a generator it takes twice the time.
    jobs = Counter([(month_number(ended_at), sync_host(host)) for ended_at, host in ended])
    connection.executemany(
        _ADD, [{"target": target, "month": month, "host": host, "jobs": count} for (month, host), count in jobs.items()]
    )


def delivered(connection: sqlite3.Connection, target: int | None) -> dict[HostMonth, int]:
    """What the target's records carry: single records as they were delivered, months as they were accepted."""
    counts = Counter({(month, host): jobs for month, host, jobs in connection.execute(_DELIVERED, {"target": target})})
    for month, accepted in connection.execute(_ACCEPTED, {"target": target}):
        for host, jobs in json.loads(accepted).items():
            counts[month, host] += jobs
    return dict(counts)


def before(connection: sqlite3.Connection, target: int | None) -> dict[HostMonth, int]:
    """Eligible jobs of the month of the start that another publisher delivered before us."""
    return {(month, host): jobs for month, host, jobs in connection.execute(_BEFORE, {"target": target})}


def told(connection: sqlite3.Connection, target: int | None) -> dict[HostMonth, int]:
    """What the receiver accepted last."""
    return {(month, host): jobs for month, host, jobs in connection.execute(_TOLD, {"target": target})}


def set_before(connection: sqlite3.Connection, target: int, counts: Mapping[HostMonth, int], basis: str) -> None:
    connection.execute("UPDATE target SET before_basis = ? WHERE id = ?", (basis, target))
    connection.execute("DELETE FROM count_before WHERE target = ?", (target,))
    connection.executemany(
        "INSERT INTO count_before (target, month, host, jobs) VALUES (?, ?, ?, ?)",
        [(target, month, host, jobs) for (month, host), jobs in counts.items()],
    )


def look_before_again(connection: sqlite3.Connection, target: int, ended: Iterable[Epoch]) -> None:
    """Jobs go out that ended before the start: they do not count as another's any more."""
    connection.execute(_LOOK_AGAIN, {"target": target, "earliest": min(ended, default=None)})


def replace(
    connection: sqlite3.Connection, target: int, months: Iterable[int], counts: Mapping[HostMonth, int]
) -> None:
    """Months were sent whole as single records, or as totals: so many of their jobs were delivered one by one."""
    connection.executemany(
        "DELETE FROM delivered_count WHERE target = ? AND month = ?", [(target, month) for month in months]
    )
    connection.executemany(
        _ADD,
        [{"target": target, "month": month, "host": host, "jobs": jobs} for (month, host), jobs in counts.items()],
    )


def tell(connection: sqlite3.Connection, target: int, message: int, counts: Sequence[tuple[HostMonth, int]]) -> None:
    """What a message that is about to be sent says."""
    connection.executemany(
        _TELL,
        [
            {"target": target, "month": month, "host": host, "jobs": jobs, "message": message}
            for (month, host), jobs in counts
        ],
    )


def adopt(connection: sqlite3.Connection, target: int, hosts: Mapping[HostMonth, int]) -> None:
    """Another publisher told these counts: under hosts that we spell otherwise they are to be told as 0."""
    connection.executemany(
        _ADOPT,
        [{"target": target, "month": month, "host": host, "jobs": jobs} for (month, host), jobs in hosts.items()],
    )


def take_back(connection: sqlite3.Connection, message: int) -> None:
    """A message of counts was never sent. Nothing happens to one of another kind."""
    connection.execute("DELETE FROM sync_count WHERE message = ? AND told IS NULL", (message,))
    connection.execute("UPDATE sync_count SET telling = NULL, message = NULL WHERE message = ?", (message,))


def heard(connection: sqlite3.Connection, message: int, now: int) -> bool:
    """A message of counts was accepted. False for a message of another kind."""
    if not is_sync(connection, message):
        return False
    connection.execute(_HEARD, {"message": message, "now": now})
    return True


def is_sync(connection: sqlite3.Connection, message: int) -> bool:
    return bool(connection.execute(_IS_SYNC, {"message": message}).fetchone()[0])


def move(connection: sqlite3.Connection, whole: int, half: int, hosts: Iterable[HostMonth]) -> None:
    """A half of a message of counts says some of them now."""
    connection.executemany(
        "UPDATE sync_count SET message = ? WHERE message = ? AND month = ? AND host = ?",
        [(half, whole, month, host) for month, host in hosts],
    )
