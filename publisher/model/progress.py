"""How far a target has read a source: what the ledger remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass

from publisher.model.job import Epoch, JobKey, RowRef, SkippedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRow:
    """A row to look at again: its job is still running, or finished but with side rows still to come.

    `finished_seen_at` is when it was first seen finished without them: the hold-off counts from there, because A-REX may
    write a row hours after the job's EndTime (arc-database facts, section 3).
    """

    row: RowRef
    finished_seen_at: Epoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a database was read: every row up to `record_id` was dealt with or is open.

    `anchor` is the JobID of that row. When it is another one, the rows were renumbered (`rotate`, `migrate`, a restored
    file) and everything is read again; what was delivered is known by job, not by row.
    """

    database: str
    record_id: int
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMark:
    """How far an errand (a window to republish) has come: everything up to this end time and row is written down."""

    errand: str
    ended_at: Epoch
    row: RowRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the ledger may forget to look at, and what it must remember, once everything before it is written down."""

    cursors: tuple[Cursor, ...] = ()
    opened: tuple[OpenRow, ...] = ()
    closed: tuple[RowRef, ...] = ()
    skipped: tuple[SkippedJob, ...] = ()
    left_quarantine: tuple[JobKey, ...] = ()  # not wanted any more
    window_mark: WindowMark | None = None

    def __add__(self, other: Progress) -> Progress:
        """`other` comes later: a row that was closed may be open by then, when it got the number of another (`rotate`)."""
        closed = self.closed
        if closed and other.opened:
            open_again = {one.row for one in other.opened}
            closed = tuple(row for row in closed if row not in open_again)
        return Progress(
            cursors=tuple({at.database: at for at in self.cursors + other.cursors}.values()),
            opened=self.opened + other.opened,
            closed=closed + other.closed,
            skipped=self.skipped + other.skipped,
            left_quarantine=self.left_quarantine + other.left_quarantine,
            window_mark=other.window_mark or self.window_mark,
        )
