"""Who works on a receiver and a target, and runs of charges: PostgreSQL's advisory locks.

They end with their connection.

Beside the lock of a receiver or target stands its *lease*: who holds it, when the holder last gave
a sign of life, and its fencing number. A holder that hangs, was stopped, or is cut off keeps its
lock as long as the server believes in its connection. Whoever waits for the lock ends that
connection when the holder was silent for `LEASE_S`; the server then undoes what it had not
committed. Every transaction of a holder first looks whether the lease still has its number, and
before another attempt at a message it looks whether it is still the holder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from threading import Event, Thread
from typing import Final

from publisher.ledger.sql.database import (
    ANOTHER_CHARGES,
    Database,
    receiver_is_busy,
    receiver_lock,
)
from publisher.ledger.sql.sums import receivers
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
    """What a connection works on: targets and receivers, each by the name of its lock.

    `name` is that of this instance, among the server's.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._targets: dict[int, str] = {}  # that are worked on, by the fences of their leases

    @contextmanager
    def hold(self, target: str, patience: Callable[[], bool]) -> Iterator[None]:
        """Hold a target's lock and lease.

        Raises: Busy when another has it and patience ends; LedgerError.
        """

        def busy(holder: str) -> str:
            at_work = f"{holder or 'another publisher'} is at work on it"
            return f"target {target}: {at_work}; this one leaves it alone"

        with self._held(target, _this_process(), target, patience, busy):
            yield

    @contextmanager
    def hold_receiver(
        self, receiver: int, place: str, target: str, patience: Callable[[], bool]
    ) -> Iterator[None]:
        """Hold a receiver's lock and lease for the work on a target. Raises: Busy, LedgerError."""

        def busy(holder: str) -> str:
            return receiver_is_busy(target, place, holder)

        with self._held(receiver_lock(receiver), _worker_on(target), target, patience, busy):
            yield

    @contextmanager
    def _held(
        self,
        lock: str,
        holder: str,
        target: str,
        patience: Callable[[], bool],
        busy: Callable[[str], str],
    ) -> Iterator[None]:
        key = _key(self._name, lock)
        with self._database.reading():
            fence = self._take(lock, key, holder, patience, busy)
        self._targets[fence] = target
        released = Event()
        name = f"{lock}: lease"
        renewal = Thread(target=self._renew, args=(fence, released), name=name, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            released.set()
            renewal.join()
            del self._targets[fence]
            # A connection that ended holds nothing.
            with suppress(LedgerError), self._database.reading():
                self._database.execute(_LEAVE, {"fence": fence})
                self._database.execute(_UNLOCK, {"key": key})

    def check(self) -> None:
        """In every transaction. Raises: LedgerError when another works on what this one held."""
        for fence, target in self._targets.items():
            if not self._database.execute(_STILL_MINE, {"fence": fence}).fetchone()[0]:
                raise LedgerError(
                    f"target {target}: another publisher works on it now, because this one was "
                    "silent for too long; nothing is lost: what was on its way is sent again "
                    "under the same id"
                )

    def _take(
        self,
        lock: str,
        key: int,
        holder: str,
        patience: Callable[[], bool],
        busy: Callable[[str], str],
    ) -> int:
        """Return the fence of the lease."""
        asked = {"target": lock, "key": key, "holder": holder}
        while True:
            taken = self._database.execute(_TAKE, asked).fetchone()
            if taken is None and self._end_silent(lock, key):
                continue
            if taken is not None:
                return int(taken[0])
            if not patience():
                found = self._database.execute(_HOLDER, {"target": lock}).fetchone()
                at_work = found[0] if found else ""
                raise Busy(busy(at_work))

    def _end_silent(self, lock: str, key: int) -> bool:
        """Whether a holder that was silent for too long was ended."""
        asked = {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF, "lease": LEASE_S}
        if not self._database.execute(_END_SILENT, asked | {"target": lock}).fetchone():
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
    wait: Callable[[float], bool], opens: Callable[[], Database], target: str, place: str
) -> Callable[[float], bool]:
    """A `wait` that asks for a stop, too, when this process may not hold the target any more.

    Nor its receiver, `place`. What another has sent since must not be overtaken by what this one
    tries again.
    """
    return lambda seconds: wait(seconds) or not _are_held_here(opens, target, place)


def _are_held_here(opens: Callable[[], Database], target: str, place: str) -> bool:
    """Return whether this process holds both, by another connection; False if that fails."""
    with suppress(LedgerError), closing(opens()) as database, database.reading():
        if (receiver := receivers.at(database, place)) is None:
            return False
        holders = {target: _this_process(), receiver_lock(receiver.number): _worker_on(target)}
        for lock, holder in holders.items():
            found = database.execute(_HOLDER, {"target": lock}).fetchone()
            if found is None or found[0] != holder:
                return False
        return True
    return False


def _this_process() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


def _worker_on(target: str) -> str:
    return f"{_this_process()}, target {target}"


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
