"""The entries of `source` and their last readings, as `source list`, `status` and others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from publisher.cli.logs import error_line, notice
from publisher.cli.output import Json, Part, TextTable, moment_text
from publisher.model.errors import LedgerError, SourceError
from publisher.model.text import plural
from publisher.model.totals import month_name
from publisher.publishing.databases.batch_systems import SourceStatus, readings
from publisher.publishing.databases.known import missed_at
from publisher.publishing.site import Site
from publisher.sources.base import LastReading

if TYPE_CHECKING:
    from publisher.publishing.databases.retired import NeverSent

_COLUMNS = ("source", "type", "last read", "newest job ended", "set aside", "state")


def sources_json(found: Sequence[SourceStatus]) -> Json:
    return {
        one.name: {"type": one.type, "database": ", ".join(one.databases), **_reading_json(one)}
        for one in found
    }


def _reading_json(one: SourceStatus) -> Json:
    last = one.last
    return {
        "last_read": moment_text(last.ended) if last else None,
        "last_success": moment_text(last.succeeded) if last else None,
        "failing_since": moment_text(last.failing_since) if last else None,
        **_newest_json(one),
        "set_aside": last.bad_lines if last else None,
        "damaged": list(last.damaged) if last else [],
        "notices": list(last.notices) if last else [],
        "trouble": one.trouble or None,
        "alarm": one.alarm or None,
        "silence": one.silence or None,
        "waiting_for_ces": _waiting_json(last),
    }


def _waiting_json(last: LastReading | None) -> list[Json]:
    return [
        {
            "ce": each.name,
            "jobs": each.jobs,
            "since": moment_text(each.since),
            "last_written": moment_text(each.written),
        }
        for each in (last.awaited if last else ())
    ]


def _newest_json(one: SourceStatus) -> Json:
    if one.newest is None:
        names = ("newest_end_time", "jobs_in_four_weeks", "cpu_unknown_in_four_weeks")
        return dict.fromkeys(names)
    return {
        "newest_end_time": moment_text(one.newest.ended_at),
        "jobs_in_four_weeks": one.newest.four_weeks,
        "cpu_unknown_in_four_weeks": one.newest.cpu_unknown,
    }


def never_sent_json(found: Sequence[NeverSent]) -> list[Json]:
    return [
        {
            "target": one.target,
            "database": one.file,
            "retired": moment_text(one.retired),
            "month": month_name(month),
            "jobs": jobs,
        }
        for one in found
        for month, jobs in sorted(one.months.items())
    ]


def sources_text(found: Sequence[SourceStatus]) -> Iterator[Part]:
    """Yield a table of sources and what must be known of them; nothing where there are none."""
    if found:
        yield TextTable(_COLUMNS, list(map(_row, found)))
    for one in found:
        for notice_ in one.last.notices if one.last else ():
            yield f"{one.name}: {notice_}"
        if one.newest is not None and (unknown := one.newest.cpu_unknown):
            of_all = f"{unknown:,} of {plural(one.newest.four_weeks, 'job')}"
            yield f"{one.name}: CPU time unknown: {of_all} in the four weeks up to its newest one"


def _row(one: SourceStatus) -> tuple[str, ...]:
    last = one.last
    newest = "unknown" if one.newest is None else moment_text(one.newest.ended_at) or "-"
    if one.in_place:
        return one.name, one.type, "in place", newest, "-", _state(one, last)
    if last is None:
        return one.name, one.type, "unknown", newest, "unknown", _state(one, last)
    read = moment_text(last.succeeded) or "never"
    return one.name, one.type, read, newest, f"{last.bad_lines:,}", _state(one, last)


def _state(one: SourceStatus, last: LastReading | None) -> str:
    """Return a word or two: `warnings_of` has the reasons."""
    if one.trouble:
        return "failing"
    if last is not None and last.ended is None:
        return "never read"
    if one.alarm or one.silence or one.waiting:
        return "silent" if one.silence else "waiting" if one.waiting else "not read"
    return f"ok, but skipped: {'; '.join(last.damaged)}" if last and last.damaged else "ok"


def warnings_of(one: SourceStatus) -> Sequence[str]:
    """Return what is wrong with a source, each once, as lines for people."""
    trouble = f"source {one.name}: {one.trouble}" if one.trouble else ""
    alarm = one.alarm or trouble
    return [line for line in dict.fromkeys((alarm, one.silence, one.waiting)) if line]


def failing_now(found: Sequence[SourceStatus]) -> list[str]:
    """Return a line for each source of which the last reading failed."""
    return [one.alarm for one in found if one.trouble]


def incomplete(site: Site, *, sources_shown: bool = False) -> int:
    """Print what the accounting data lacks: databases that are missing, sources that fail.

    `sources_shown`: the answer itself has the sources. Returns the exit status; 0 for nothing.
    """
    failing = failing_now(readings(site))
    lacking = [] if sources_shown else list(failing)
    try:
        lacking += [one.reason for one in missed_at(site)]
    except LedgerError as error:  # the answer itself does not come from the ledger
        notice(f"cannot tell whether an accounting database is missing: {error}")
    for reason in lacking:
        error_line(f"the answer is not complete: {reason}")
    return SourceError.exit_status if lacking or failing else 0
