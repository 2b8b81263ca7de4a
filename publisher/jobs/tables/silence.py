"""When each CE in front of a batch system wrote last: one that is silent may have much to tell yet.

A CE writes down the number of a job when it has seen the end. While it writes nothing, and has a
job in progress, that may be any run of the batch system which began later than it. A CE that writes
again after a silence gets time to write down what it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from publisher.jobs.reader import StoreReader
from publisher.jobs.store import JobStore
from publisher.jobs.tables.batch_runs import APART_S, BatchRuns

_LOST_S: Final = 90 * 86_400  # rows of jobs that A-REX lost stay in progress for ever

_SOURCES: Final = "SELECT id, name FROM source"
# Only what ended or was submitted after what is known: of a CE that writes these are few rows.
_WRITTEN: Final = """SELECT max(ended_at) FROM job
WHERE ended_at > :written AND ended_at <= :now AND source = :source
UNION ALL SELECT max(submitted_at) FROM job
WHERE run > :after AND submitted_at <= :now AND source = :source
UNION ALL SELECT max(ended_at) FROM partial WHERE source = :source AND ended_at <= :now
UNION ALL SELECT max(submitted_at) FROM partial WHERE source = :source AND submitted_at <= :now
UNION ALL SELECT max(ended_at) FROM skipped WHERE source = :source AND ended_at <= :now
UNION ALL SELECT max(submitted_at) FROM skipped WHERE source = :source AND submitted_at <= :now"""
_FIRST_OPEN: Final = """SELECT min(submitted_at) FROM partial
WHERE source = :source AND is_in_progress AND local_id = '' AND submitted_at > :lost"""
_STATES: Final = "SELECT name, written, returned, before FROM ce WHERE source = ?"
_KEEP: Final = "INSERT OR REPLACE INTO ce VALUES (?, ?, ?, ?, ?, 0, NULL)"
_NOBODY_WAITS: Final = "UPDATE ce SET waiting = 0, since = NULL WHERE source = ?"
_WAITS_FOR: Final = "UPDATE ce SET waiting = ?, since = ? WHERE source = ? AND name = ?"


class _Ce(NamedTuple):
    """A CE. `horizon`: of jobs that ended before, it would have written by now."""

    name: str
    horizon: int
    first_open: int | None  # the submission of the first of its jobs that are not over

    def may_claim(self, started_at: int, ended_at: int) -> bool:
        has_open = self.first_open is not None and self.first_open - APART_S <= started_at
        return has_open and ended_at > self.horizon


class SilentCes:
    """The CEs in front of one batch system, as they are in the store. Raises: sqlite3.Error."""

    def __init__(self, store: JobStore, system: str, *, wait_s: int, outage_s: int) -> None:
        self._execute = store.connection.execute
        self._system = system
        self._number: int = store.number_of(system)
        self._wait_s = wait_s
        self._outage_s = max(wait_s, outage_s)
        self._ces: Sequence[_Ce] = ()

    def look(
        self,
        stores: Sequence[StoreReader],
        databases: Collection[str],
        ce_of: Callable[[str], str | None],
        now: int,
    ) -> None:
        """See what CEs have written last to databases that were loaded; inside a transaction."""
        states = {name: state for name, *state in self._execute(_STATES, (self._number,))}
        found: dict[str, list[tuple[StoreReader, int]]] = {}
        for store in stores:
            for number, name in store.connection.execute(_SOURCES).fetchall():
                ce = ce_of(name) if name in databases else None
                if ce is not None:
                    found.setdefault(ce, []).append((store, number))
        self._ces = [self._ce(ce, of_ce, states, now) for ce, of_ce in sorted(found.items())]

    def _ce(
        self,
        name: str,
        databases: Sequence[tuple[StoreReader, int]],
        states: Mapping[str, Sequence[int]],
        now: int,
    ) -> _Ce:
        known = states.get(name, (0, 0, 0))[0]
        newest = max(_written(*one, known, now) for one in databases)
        written, returned, before = states.get(name, (newest, 0, 0))
        if newest - written > self._wait_s:  # it may have much to write down
            returned, before = now, before if now < returned + self._wait_s else written
        written = max(written, newest)
        self._execute(_KEEP, (self._number, name, written, returned, before))
        all_written = before if now < returned + self._wait_s else written
        horizon = max(all_written - self._wait_s, now - self._outage_s)
        opens = [_first_open(*one, now) for one in databases]
        first_open = min((one for one in opens if one is not None), default=None)
        return _Ce(name, horizon, first_open)

    def may_claim(self, started_at: int, ended_at: int) -> bool:
        """Return whether a CE may yet write that a run of these times is its own."""
        return any(ce.may_claim(started_at, ended_at) for ce in self._ces)

    def keep_waiting(self, runs: BatchRuns, now: int) -> None:
        """Keep how many runs wait for each CE longer than runs do; inside a transaction."""
        self._execute(_NOBODY_WAITS, (self._number,))
        for ce in self._ces if self._wait_s else ():
            if ce.first_open is not None:
                asked = ce.horizon, now - self._wait_s, ce.first_open - APART_S
                waiting, ended_at = runs.waiting_for(self._system, *asked)
                since = None if ended_at is None else ended_at + self._wait_s
                self._execute(_WAITS_FOR, (waiting, since, self._number, ce.name))


def _written(store: StoreReader, source: int, known: int, now: int) -> int:
    """Return the last time that stands in a CE's database, if it is later than a known one."""
    after = max(0, min(known, 0xFFFFFFFF)).to_bytes(4, "big")  # a run key begins so
    asked = {"source": source, "written": known, "after": after, "now": now}
    times = [time for (time,) in store.connection.execute(_WRITTEN, asked)]
    return max((time for time in times if time is not None), default=0)


def _first_open(store: StoreReader, source: int, now: int) -> int | None:
    first: int | None
    asked = {"source": source, "lost": now - _LOST_S}
    (first,) = store.connection.execute(_FIRST_OPEN, asked).fetchone()
    return first
