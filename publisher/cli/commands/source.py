"""`source`: batch systems and databases that were read: list, bad-lines, retry, prune, retire."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from publisher.cli.commands import Context
from publisher.cli.logs import error_line
from publisher.cli.output import Json, Part, TextTable, attributes, moment_text, print_result
from publisher.cli.parser import Form, add_action, add_actions, add_flag, add_json
from publisher.cli.sources import never_sent_json, sources_json, sources_text, warnings_of
from publisher.model.errors import RecordError, SourceError, UsageError
from publisher.model.text import plural
from publisher.publishing.databases import known
from publisher.publishing.databases import retired as retirement
from publisher.publishing.databases.batch_systems import (
    SetAside,
    SourceStatus,
    set_aside,
    source_status,
)
from publisher.publishing.databases.bring_in import retry_bad_lines
from publisher.publishing.databases.known import SourceFile, missed_at
from publisher.publishing.site import Site
from publisher.publishing.takeover import old_months
from publisher.publishing.takeover.old_months import Pruned
from publisher.sources.importers import Retried

_SHOWN_BYTES = 80
_COLUMNS = ("database", "last seen", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    retry = "read files with bad lines again, once they are repaired or publisher is updated"
    for action, text in (
        ("list", "show each source and database, when it was last read, and whether it is retired"),
        ("bad-lines", "show the lines of batch systems that could not be understood, and why"),
        ("retry", retry),
    ):
        below = add_action(actions, action, text)
        below.add_argument("source", nargs="?", metavar="NAME", help="of the source (default: all)")
        add_json(below)
    text = "close months that are older than `keep`, and delete their jobs from the job store"
    add_json(add_action(actions, "prune", text))
    text = "no longer expect these databases: they are gone for good"
    retire = add_action(actions, "retire", text)
    text = "a source's name, or a file as `source list` shows it"
    retire.add_argument("databases", nargs="+", metavar="NAME", help=text)
    text = "also if jobs were never sent: they are lost, and stay listed as lost"
    add_flag(retire, "--force", text=text)
    add_json(retire)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site, form = context.load(), arguments.form
    match arguments.action:
        case "list":
            return _list(site, arguments.source, form=form)
        case "bad-lines":
            bad = set_aside(site, arguments.source)
            print_result(bad, _bad_lines_json, _bad_lines_text, form=form, rows="bad_lines")
        case "prune":
            found = old_months.prune(site) if site.keep_months else None
            print_result(found, _pruned_json, _pruned_text, form=form)
        case "retry":
            return _retry(retry_bad_lines(site, arguments.source), form=form)
        case _:
            retired = retirement.retire(site, arguments.databases, force=arguments.force)
            print_result(retired, _as_json, _as_retired, form=form, rows="databases")
    return 0


def _listed(site: Site, name: str | None) -> tuple[Sequence[SourceFile], Sequence[SourceStatus]]:
    """Raises: UsageError for a name that is not configured."""
    files, sources = known.listed(site.ledgers, site.accounting), source_status(site)
    if name is None:
        return files, sources
    chosen = [one for one in sources if one.name == name]
    if not chosen:
        names = ", ".join(one.name for one in sources)
        raise UsageError(f"{name}: no such source; there are: {names}")
    there = (name, *chosen[0].databases)
    return [one for one in files if one.file in there or _names(site, name, one.file)], chosen


def _names(site: Site, name: str, file: str) -> bool:
    """Whether this entry of `source` is one of a CE that names a file, be it there or not."""
    entries = [entry for entry in site.accounting.entries if entry.name == name]
    return any(site.accounting.names(entry, file) for entry in entries)


def _missing(site: Site, name: str | None, listed: Set[str]) -> list[str]:
    """Return why databases are missing, of a source or of all."""
    try:
        missed = missed_at(site)
    except SourceError as error:  # of one source, which has it as its trouble too
        return [] if name else [str(error)]
    if name is None:
        return [one.reason for one in missed]
    return [one.reason for one in missed if one.file in listed or _names(site, name, one.file)]


def _list(site: Site, name: str | None, *, form: Form) -> int:
    """Print sources and databases, and what is wrong as `status` does. Return the exit status."""
    found = files, sources = _listed(site, name)
    print_result(found, _listed_json, _listed_text, form=form, rows="databases")
    lines = [line for one in sources for line in warnings_of(one)]
    missing, text = _missing(site, name, {one.file for one in files}), "\n".join(lines)
    lines += [reason for reason in missing if reason not in text]
    for line in lines:
        error_line(line)
    is_failing = bool(missing) or any(one.alarm or one.trouble for one in sources)
    return SourceError.exit_status if is_failing else 0


def _retry(found: Mapping[str, Retried | None], *, form: Form) -> int:
    retried = {name: one for name, one in found.items() if one is not None}
    print_result(retried, _retried_json, _retried_text, form=form, rows="sources")
    for name, one in retried.items():
        for line in one.report.troubles:
            error_line(f"source {name}: {line}")
    if any(one.report.troubles for one in retried.values()):
        return SourceError.exit_status
    bad = any(one.still_bad or one.gone for one in retried.values())
    return RecordError.exit_status if bad else 0


def _retried_json(found: Mapping[str, Retried]) -> Json:
    return {"sources": {name: _source_json(one) for name, one in found.items()}}


def _source_json(one: Retried) -> Json:
    return {
        **attributes(one, "tried", "still_bad"),
        "gone": [{"file": file, "lines": lines} for file, lines in one.gone.items()],
        **attributes(one.report, "imported", "updated"),
        "troubles": list(one.report.troubles),
    }


def _retried_text(found: Mapping[str, Retried]) -> Iterator[Part]:
    rows = []
    for name, one in found.items():
        counts = (one.tried, one.still_bad, one.report.imported, one.report.updated)
        rows.append((name, *(f"{count:,}" for count in counts)))
    yield TextTable(("source", "tried", "still bad", "imported", "updated"), rows)
    for name, one in found.items():
        for file, number in one.gone.items():
            lines = plural(number, "line")
            yield f"{name}: {file} does not exist: {lines} of it cannot be tried again"


def _pruned_json(found: Pruned | None) -> Json:
    if found is None:
        return {"before": None, "entries": 0, "jobs": 0, "reason": None}
    before = None if found.before is None else str(found.before)
    return {"before": before, **attributes(found, "entries", "jobs"), "reason": found.why or None}


def _pruned_text(found: Pruned | None) -> Iterator[Part]:
    if found is None:
        yield "no month is older than `keep`, or the configuration has no such key"
    else:
        yield old_months.pruned_text(found)


def _listed_json(found: tuple[Sequence[SourceFile], Sequence[SourceStatus]]) -> Json:
    return {**_as_json(found[0]), "sources": sources_json(found[1])}


def _listed_text(found: tuple[Sequence[SourceFile], Sequence[SourceStatus]]) -> Iterator[Part]:
    yield from sources_text(found[1])
    yield from _as_text(found[0])


def _bad_lines_json(found: tuple[Sequence[SetAside], int]) -> Json:
    lines, total = found
    return {
        "bad_lines": [
            {
                "source": source,
                "file": line.path,
                **attributes(line, "offset", "length", "reason"),
                "line": line.line.decode("utf-8", "replace"),
            }
            for source, line in lines
        ],
        "listed": len(lines),
        "set_aside": total,
    }


def _bad_lines_text(found: tuple[Sequence[SetAside], int]) -> Iterator[Part]:
    lines, total = found
    rows = [
        (source, bad.path, f"{bad.offset}", bad.reason, repr(bad.line[:_SHOWN_BYTES])[2:-1])
        for source, bad in lines
    ]
    yield TextTable(("source", "file", "byte", "reason", "line"), rows, "no line is set aside")
    if total > len(lines):
        yield f"and {total - len(lines):,} more"


def _as_json(found: Iterable[SourceFile]) -> Json:
    return {"databases": list(map(_database_json, found))}


def _database_json(one: SourceFile) -> Json:
    seen = moment_text(one.seen)
    return {
        "file": one.file,
        "last_seen": seen,
        **attributes(one, "retired", "there"),
        "never_sent": never_sent_json(retirement.never_sent(one.known)),
    }


def _as_text(found: Iterable[SourceFile]) -> Iterator[Part]:
    files = list(found)
    rows = [(one.file, moment_text(one.seen) or "-", _state(one)) for one in files]
    yield TextTable(_COLUMNS, rows)
    for file in files:
        for lost in retirement.never_sent(file.known):
            yield f"target {lost.target}: {lost.text}"


def _as_retired(found: Iterable[SourceFile]) -> Iterator[Part]:
    yield from _as_text(found)
    yield "also remove a retired file from `source.databases`, if it is listed there"


def _state(one: SourceFile) -> str:
    if one.retired is not None:
        return f"retired {moment_text(one.retired)}"
    return "read" if one.there else "missing"
