"""The batch systems of `source`: read before a round, and how old what is there has become. Nothing here prints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from publisher.model.errors import PublisherError, SourceError, UsageError
from publisher.model.text import plural
from publisher.pipeline.site import Site
from publisher.sources.base import BatchEntry, LastReading

if TYPE_CHECKING:
    from publisher.sources.importers import BadLine

log = logging.getLogger("publisher")

_TOO_LONG: Final = timedelta(days=1)
_LOGGED_BAD: Final = 10
_SHOWN_BAD: Final = 1_000


class SourceStatus(NamedTuple):
    """An entry of `source` that rounds read, and its last reading; None where that cannot be told. `trouble` is its, or why."""

    name: str
    type: str
    database: str
    last: LastReading | None
    trouble: str
    alarm: str  # what an administrator must do now, or ''


class SetAside(NamedTuple):
    """A line of a source that could not be understood."""

    source: str
    line: BadLine


def read_sources(site: Site) -> Sequence[str]:
    """Read what is new of each batch system, before a round; one's trouble stops nobody. Tells what went wrong, by name."""
    return [line for entry in _in_rounds(site) for line in _read(site, entry)]


def _read(site: Site, entry: BatchEntry) -> Sequence[str]:
    try:
        report = site.read_entry(entry)
    except PublisherError as error:
        return [f"source {entry.name}: {error}"]
    except Exception as error:  # the boundary: a bug in reading one source must not stop what is there from going out
        log.critical("source %s: a bug in publisher: %s", entry.name, error, exc_info=True)
        return [f"source {entry.name}: a bug in publisher ({type(error).__name__}: {error}); please report it"]
    if report is None:
        return ()
    log.info("source %s: %s imported, %s updated", entry.name, plural(report.imported, "job"), f"{report.updated:,}")
    for line in report.bad_lines[:_LOGGED_BAD]:
        log.warning("source %s: set aside: %s, byte %s: %s", entry.name, line.path, line.offset, line.reason)
    if report.bad > _LOGGED_BAD:
        log.warning(
            "source %s: %s set aside; `publisher source bad-lines` has all", entry.name, plural(report.bad, "line")
        )
    for damaged in report.damaged:
        log.warning("source %s: passed over: %s", entry.name, damaged)
    for note in report.notes:
        log.info("source %s: %s", entry.name, note)
    return [f"source {entry.name}: {trouble}" for trouble in report.failures]


def source_status(site: Site) -> Sequence[SourceStatus]:
    """Only reads."""
    return [_status(site, entry) for entry in _in_rounds(site)]


def set_aside(site: Site, name: str | None) -> tuple[Sequence[SetAside], int]:
    """The first lines of one source, or of each, and how many there are.

    Raises: UsageError for a name that is not configured, SourceError.
    """
    entries = _in_rounds(site)
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if name is not None and not chosen:
        known = ", ".join(entry.name for entry in entries) or "none"
        raise UsageError(f"{name}: is no batch system of `source`; there are: {known}")
    lines = [SetAside(entry.name, line) for entry in chosen for line in site.bad_lines(entry, _SHOWN_BAD)]
    return lines, sum(site.last_reading(entry).bad_lines for entry in chosen)


def _in_rounds(site: Site) -> Sequence[BatchEntry]:
    return [entry for entry in site.batch_entries if entry.in_rounds]


def _status(site: Site, entry: BatchEntry) -> SourceStatus:
    last, trouble = None, ""
    try:
        last = site.last_reading(entry)
    except SourceError as error:
        trouble = str(error)
    alarm = f"source {entry.name}: {trouble}" if last is None else _alarm(entry.name, last, site.clock())
    return SourceStatus(entry.name, entry.type, str(entry.database), last, last.trouble if last else trouble, alarm)


def _alarm(name: str, last: LastReading, now: datetime) -> str:
    """Of what was not read for longer than a day, whether it failed or nobody tried. A clock that went back raises none."""
    since = last.succeeded or last.failing_since
    if since is None or now - since <= _TOO_LONG:
        return ""
    what = "has never been read" if last.succeeded is None else f"was last read at {since:%Y-%m-%dT%H:%M:%SZ}"
    why = last.trouble or "no round ran since; see whether the timer or the daemon does"
    return f"source {name}: {what}: {why}"
