"""Who works on a target, and which runs of charges are alive: PostgreSQL's advisory locks.

They end with their connection.

Beside the lock of a target stands its *lease*: who holds it, when the holder last gave a sign of
life, and its fencing number. A holder that hangs, was stopped, or is cut off keeps its lock as long
as the server believes in its connection. Whoever waits for the lock ends that connection when the
holder was silent for `LEASE_S`; the server then undoes what it had not committed. Every transaction
of a holder first looks whether the lease still has its number, and before another attempt at a
message it looks whether it is still the holder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from threading import Event, Thread
from typing import Final

from publisher.ledger.sql.database import ANOTHER_CHARGES, Database
from publisher.model.errors import Busy, LedgerError

LEASE_S: Final = 20.0
_RENEW_S: Final = 4.0
_GONE_S: Final = 0.1  # until the server has ended a connection

_TAKE = """
WITH attempt AS MATERIALIZED (SELECT pg_try_advisory_lock(CAST(:key AS BIGINT)) AS locked)
INSERT INTO lease (target, holder, renewed_at)
SELECT :target, :holder, clock_timestamp() FROM attempt WHERE locked
ON CONFLICT (target) DO UPDATE
SET fence = DEFAULT, holder = excluded.holder, renewed_at = excluded.renewed_at
RETURNING fence"""
_LEAVE = "DELETE FROM lease WHERE fence = :fence"
_LOCK = "SELECT pg_advisory_lock(CAST(:key AS BIGINT))"
_TRY = "SELECT pg_try_advisory_lock(CAST(:key AS BIGINT))"
_UNLOCK = "SELECT pg_advisory_unlock(CAST(:key AS BIGINT))"
_RENEW = "UPDATE lease SET renewed_at = clock_timestamp() WHERE fence = :fence"
_HOLDER = "SELECT holder FROM lease WHERE target = :target"
_STILL_MINE = "SELECT EXISTS (SELECT 1 FROM lease WHERE fence = :fence)"
# The last sign of life is the renewal, or what the connection did last; one at work lives.
_END_SILENT = """
SELECT pg_terminate_backend(activity.pid)
FROM pg_locks JOIN pg_stat_activity AS activity ON activity.pid = pg_locks.pid
  JOIN lease ON lease.target = :target
WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND activity.datname = current_database()
  AND pg_locks.database = activity.datid
  AND CAST(classid AS BIGINT) = :high AND CAST(objid AS BIGINT) = :low
  AND greatest(lease.renewed_at, activity.state_change)
    < clock_timestamp() - make_interval(secs => :lease)
  AND (activity.state <> 'active' OR activity.wait_event_type = 'Client')"""
_WAIT = "SELECT pg_sleep(:seconds)"


class Leases:
    """The targets that a connection works on. `name`: of this instance, among the server's."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._fences: dict[str, int] = {}

    @contextmanager
    def hold(self, target: str, patience: Callable[[], bool]) -> Iterator[None]:
        """Hold lock and lease. Raises: Busy when another has it and patience ends; LedgerError."""
        key = _key(self._name, target)
        with self._database.reading():
            fence = self._take(target, key, patience)
        self._fences[target] = fence
        released = Event()
        name = f"{target}: lease"
        renewal = Thread(target=self._renew, args=(fence, released), name=name, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            released.set()
            renewal.join()
            del self._fences[target]
            # A connection that ended holds nothing.
            with suppress(LedgerError), self._database.reading():
                self._database.execute(_LEAVE, {"fence": fence})
                self._database.execute(_UNLOCK, {"key": key})

    def check(self) -> None:
        """In every transaction. Raises: LedgerError when another works on what this one held."""
        for target, fence in self._fences.items():
            if not self._database.execute(_STILL_MINE, {"fence": fence}).fetchone()[0]:
                raise LedgerError(
                    f"target {target}: another publisher works on it now, because this one was "
                    "silent for too long; nothing is lost: what was on its way is sent again "
                    "under the same id"
                )

    def _take(self, target: str, key: int, patience: Callable[[], bool]) -> int:
        asked = {"target": target, "key": key, "holder": _this_process()}
        while True:
            taken = self._database.execute(_TAKE, asked).fetchone()
            if taken is None and self._end_silent(target, key):
                continue
            if taken is not None:
                return int(taken[0])
            if not patience():
                found = self._database.execute(_HOLDER, {"target": target}).fetchone()
                holder = found[0] if found else "another publisher"
                raise Busy(f"target {target}: {holder} is at work on it; this one leaves it alone")

    def _end_silent(self, target: str, key: int) -> bool:
        """Whether a holder that was silent for too long was ended."""
        asked = {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF, "lease": LEASE_S}
        if not self._database.execute(_END_SILENT, asked | {"target": target}).fetchone():
            return False
        self._database.execute(_WAIT, {"seconds": _GONE_S})
        return True

    def _renew(self, fence: int, released: Event) -> None:
        """In a thread of its own: the one that works may wait for a receiver for minutes."""
        with suppress(LedgerError):  # the next transaction tells
            while not released.wait(_RENEW_S):
                with self._database.reading():
                    self._database.execute(_RENEW, {"fence": fence})


def waiting_at_work(
    wait: Callable[[float], bool], opens: Callable[[], Database], target: str
) -> Callable[[float], bool]:
    """A `wait` that asks for a stop, too, when this process may not hold the target any more.

    What another has sent since must not be overtaken by what this one tries again.
    """
    return lambda seconds: wait(seconds) or not _is_held_here(opens, target)


def _is_held_here(opens: Callable[[], Database], target: str) -> bool:
    """By another connection than that of the work; False where the server cannot be asked."""
    with suppress(LedgerError), closing(opens()) as database, database.reading():
        found = database.execute(_HOLDER, {"target": target}).fetchone()
        return found is not None and bool(found[0] == _this_process())
    return False


def _this_process() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


class AdvisoryChargeLocks:
    """`ChargeLocks`, those of one connection."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._mine: set[int] = set()

    def hold(self, run: int) -> None:
        with self._database.reading():
            self._database.execute(_LOCK, {"key": self._key(run)})
        self._mine.add(run)

    def work(self, patience: Callable[[], bool]) -> None:
        while not self._try(_AT_WORK):
            if not patience():
                raise Busy(ANOTHER_CHARGES)
        self._mine.add(_AT_WORK)

    def leave(self, run: int) -> None:
        for number in {run, _AT_WORK} & self._mine:
            self._mine.discard(number)
            with suppress(LedgerError), self._database.reading():
                self._database.execute(_UNLOCK, {"key": self._key(number)})

    def is_alive(self, run: int) -> bool:
        if run in self._mine:
            return True
        free = self._try(run)
        if free:
            with self._database.reading():
                self._database.execute(_UNLOCK, {"key": self._key(run)})
        return not free

    def close(self) -> None:
        """The locks end with the connection."""

    def _try(self, run: int) -> bool:
        with self._database.reading():
            return bool(self._database.execute(_TRY, {"key": self._key(run)}).fetchone()[0])

    def _key(self, run: int) -> int:
        return _key(self._name, f"+charge {run}")


_AT_WORK: Final = 0


def _key(*names: str) -> int:
    return int.from_bytes(sha256(repr(names).encode()).digest()[:8], "big", signed=True)
