"""ARC's `publishing.db`: how far its publisher came with each target, and where ours goes on.

It has one row a target: the latest end time of what was published (LastEndTime) and when that last
was done (LastReport). ARC takes the jobs with EndTime > LastEndTime, and stores the latest end it
saw. So of the jobs up to LastEndTime

- those are published that were in the accounting database, complete, when their run came;
- those are lost that were written there later: jobs of the very same second, and late rows
  (see `publishing/takeover/jura.py`).

Job formats start *at* LastEndTime, not a second later: the jobs of that second are sent, perhaps
again. That harms nothing, because receivers keep one record of a job (APEL replaces by site,
LocalJobId and end time; SGAS keeps the row it has by record id), and APEL sums it up in the row
where it was: jobs up to `jura_until` are counted as jura-ng sent them. A second later would lose
what that second lost.

Summary formats start with the first of the month of LastEndTime: a month is always sent whole,
replaces the row of the same key, and so fixes what was lost of that month. Earlier months are as
jura-ng left them; it sent the month before again each time.

A LastEndTime in the future comes from one job with a wrong clock. From then on nothing was
published, and when that was can be read off LastReport only, which is local time written as UTC: a
day before it is early enough in every zone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError
from publisher.model.job import Epoch
from publisher.model.time import iso, month_of
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile

_QUESTION: Final = (
    "SELECT TargetID, LastEndTime, LastReport FROM AccountingTargets ORDER BY TargetID LIMIT 1000"
)
_TABLES: Final = "SELECT count(*) FROM sqlite_master WHERE name = 'AccountingTargets'"
_BEYOND_ZONES: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcProgress:
    """A target's row. None where it is not a time after 1970 (ARC takes 0 for never)."""

    last_end: Epoch | None
    last_report: Epoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverStart:
    """The `start` of a target, None for the default, and why. `trouble` needs a hand.

    `last_end` is where ARC stopped, None where that is not known or lies in the future.
    """

    at: datetime | None
    why: str
    last_end: Epoch | None = None
    trouble: str = ""

    def text(self, *, summary: bool) -> str:
        """As the configuration has it."""
        if self.at is None:
            return "month"
        return str(month_of(self.at)) if summary else iso(self.at)


def read_publishing_state(path: Path, copies_below: Path) -> Mapping[str, ArcProgress]:
    """ARC's publishing state by block, such as `arex/jura/apel:egi`. Raises: SourceError."""
    copies = CopyDirectory(copies_below)
    try:
        file = ReadOnlyFile(str(path), copies)
        try:
            rows = file.ask(lambda connection: _rows(connection, path))
        finally:
            file.close()
    finally:
        copies.close()
    found = {}
    for target, last_end, last_report in rows:
        block = ":".join(map(str.strip, str(target).split(":", 1)))
        found[block] = ArcProgress(last_end=_moment(last_end), last_report=_moment(last_report))
    return found


def begin(stopped: ArcProgress | None, *, summary: bool, now: datetime) -> TakeoverStart:
    """Where publishing continues."""
    if stopped is None or stopped.last_end is None:
        why = "ARC never published to this target: publishing.db has no end time for it"
        return TakeoverStart(at=None, why=why)
    last = _time(stopped.last_end)
    if last is not None and last <= now:
        why = "the last end time in publishing.db"
        if summary:
            why = f"the month of {iso(last)}, {why}"
        else:
            why += "; the jobs of that second are sent again"
        return TakeoverStart(at=_rounded(last, summary), why=why, last_end=stopped.last_end)
    report = None if stopped.last_report is None else _time(stopped.last_report)
    last_text = "beyond the calendar" if last is None else iso(last)
    trouble = (
        f"publishing.db has its last end time in the future ({last_text}), "
        "from a job with a wrong clock; ARC published nothing since"
    )
    if report is None or report > now + _BEYOND_ZONES:
        trouble += ", and does not say since when; set start by what the receiver has"
        return TakeoverStart(at=None, why="", trouble=trouble)
    return TakeoverStart(
        at=_rounded(report - _BEYOND_ZONES, summary),
        why="a day before ARC's last report",
        trouble=f"{trouble}; check start against what the receiver has",
    )


def _rounded(moment: datetime, summary: bool) -> datetime:
    """Summaries begin with a whole month."""
    return month_of(moment).start if summary else moment


def _rows(connection: sqlite3.Connection, path: Path) -> list[tuple[object, object, object]]:
    (known,) = connection.execute(_TABLES).fetchone()
    if not known:
        what = "holds no table AccountingTargets: this is not ARC's publishing.db"
        raise SourceError(f"{path}: {what}")
    connection.text_factory = lambda stored: stored.decode("utf-8", "backslashreplace")
    return connection.execute(_QUESTION).fetchall()


def _moment(stored: object) -> Epoch | None:
    return Epoch(stored) if isinstance(stored, int) and stored > 0 else None


def _time(moment: Epoch) -> datetime | None:
    try:
        return datetime.fromtimestamp(moment, UTC)
    except (OverflowError, OSError, ValueError):
        return None
