"""The batch systems: map files, last readings, what was set aside, and who has no jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from publisher.doctor.findings import Finding, Question, not_asked, split_advice
from publisher.model.errors import ConfigError, LedgerError, SourceError
from publisher.model.text import plural
from publisher.model.time import iso, iso_epoch
from publisher.publishing.databases.batch_systems import SourceStatus, source_status
from publisher.publishing.site import Site
from publisher.sources.base import BatchEntry, NewestJob
from publisher.sources.importers import BatchSystems
from publisher.sources.sqlite_reader import check_arc_database


def check_sources(site: Site) -> Iterator[Finding]:
    broken = set()
    for entry in site.batch_systems.entries:
        own = [_maps(site.batch_systems, entry), *_arc_databases(entry)]
        yield from own
        broken |= {entry.name for each in own if each.exit_status}
    for one in source_status(site):
        if not one.in_place:
            yield _reading(one, is_broken=one.name in broken)
        if one.newest is not None or (one.in_place and not one.trouble):
            yield _newest(one, one.newest)  # else a finding above says why
        if one.last is not None and one.last.bad_lines:
            yield _set_aside(one, one.last.bad_lines)
        if one.last is not None:
            yield from _notices(one, one.last.notices)


def _reading(one: SourceStatus, *, is_broken: bool) -> Finding:
    """`is_broken`: a finding of its own has why it cannot be read."""
    question = Question("last reading", one.name, "what is not read is not published")
    advice = "`publisher publish --force` reads it, and shows what is wrong"
    if is_broken:
        return not_asked(question, "what it needs cannot be read")
    if one.last is None:
        found, advice = split_advice(one.trouble)
        return question.failure(found, advice, LedgerError.exit_status)
    if one.alarm:
        return question.failure(one.alarm.partition(": ")[2], advice, SourceError.exit_status)
    if one.last.ended is None:
        advice = "`publisher publish` reads it, and so does the daemon"
        return question.warning("there was none yet", advice)
    if one.waiting:
        advice = "start A-REX; publisher.yaml(5) explains arc_outage_s"
        return question.warning(one.waiting.partition(": ")[2], advice)
    return question.ok(iso(one.last.ended))


def _newest(one: SourceStatus, newest: NewestJob | None) -> Finding:
    why = "a source without new jobs looks like one that is not read"
    question = Question("newest job", one.name, why)
    if one.silence:
        advice = (
            "check that the batch system runs jobs and still writes its accounting where it is read"
        )
        return question.warning(one.silence.partition(": ")[2].partition(";")[0], advice)
    if newest is None:
        return question.ok("none of its jobs was loaded yet")
    if newest.ended_at is None:
        return question.ok("it has no job yet")
    jobs = plural(newest.four_weeks, "job")
    return question.ok(f"{iso_epoch(newest.ended_at)}, {jobs} in the four weeks up to it")


def _set_aside(one: SourceStatus, lines: int) -> Finding:
    why = "jobs in lines that cannot be understood are not published"
    question = Question("bad lines", one.name, why)
    return question.warning(
        f"{plural(lines, 'line is', 'lines are')} set aside",
        f"`publisher source bad-lines {one.name}` shows them, and how to try them again",
    )


def _notices(one: SourceStatus, notices: Sequence[str]) -> Iterator[Finding]:
    """What is wrong with the source as a whole: each text is a fact, and after `; ` the advice."""
    question = Question("accounting", one.name, "usage may be missing, unknown or forged")
    for notice in notices:
        fact, _, advice = notice.partition("; ")
        yield question.warning(fact, advice)


def _maps(batch_systems: BatchSystems, entry: BatchEntry) -> Finding:
    question = Question("map files", entry.name, "without them nothing is imported")
    try:
        batch_systems.importer(entry)
    except ConfigError as error:
        return question.error(error, f"see importers {entry.type} in publisher.yaml(5)")
    return question.ok("all of them can be read")


def _arc_databases(entry: BatchEntry) -> Iterator[Finding]:
    options: Any = entry.options
    why = "without them all jobs of the batch system wait, because some would count twice"
    question = Question("arc_databases", entry.name, why)
    for path in options.arc_databases or ():
        try:
            check_arc_database(path)
        except SourceError as error:
            yield question.error(error, f"see importers {entry.type} in publisher.yaml(5)")
        else:
            yield question.ok(str(path))
