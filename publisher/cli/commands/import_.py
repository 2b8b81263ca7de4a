"""`import`: files of another system's accounting, by hand, into the job store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.logs import error_line
from publisher.cli.output import Json, Part, TextTable, attributes, print_result
from publisher.cli.parser import add_action, add_actions, add_json, is_quiet
from publisher.model.errors import ConfigError, UsageError
from publisher.model.text import plural
from publisher.publishing.databases.bring_in import bring_in
from publisher.publishing.site import Site
from publisher.sources import IMPORTERS, importer_plugin
from publisher.sources.base import BatchEntry
from publisher.sources.importers import ImportReport, Watch

_ABORTED = "aborted"
_SHOWN = 10  # bad lines that are printed; the JSON has a hundred, the store all
_NUMBERS = ("files", "lines", "imported", "updated", "merged", "duplicates")
_COLUMNS = (*_NUMBERS, "skipped", "bad", "held")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    for name in IMPORTERS:
        importer = importer_plugin(name)
        action = add_action(actions, name, importer.SUMMARY)
        action.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=importer.PATHS)
        text = f"which entry of `source`, where several are of type {name}"
        action.add_argument("--source", metavar="NAME", help=text)
        add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    with progress.counting("records read", quiet=is_quiet(arguments)) as counting:
        report = _import(site, arguments, counting.seen)
    print_result(report, _as_json, _as_text, form=arguments.form)
    for trouble in report.troubles:
        error_line(trouble)
    return report.exit_status


def _import(site: Site, arguments: argparse.Namespace, watch: Watch) -> ImportReport:
    """What is new in these files, into the job store.

    Raises: ConfigError, UsageError, SourceError, LedgerError; not for single files.
    """
    entry = _entry(site, arguments.action, arguments.source)
    report = bring_in(site, entry, arguments.paths, watch)
    without = [target.name for target in site.targets if _ABORTED not in target.statuses]
    if report.imported and report.cancelled and without:
        jobs = f"{plural(report.cancelled, 'job')} cancelled while running"
        advice = f"add {_ABORTED} to records.statuses if their usage counts"
        report.notes.append(f"{jobs} and not sent to {', '.join(without)}: {advice}")
    return report


def _entry(site: Site, kind: str, name: str | None) -> BatchEntry:
    """Raises: ConfigError, UsageError."""
    entries = [entry for entry in site.batch_systems.entries if entry.type == kind]
    found = [entry for entry in entries if name in (None, entry.name)]
    if not entries and name is None:
        advice = (
            f"add one such as `- {{type: {kind}, cluster: NAME}}`; publisher.yaml(5) has its keys"
        )
        raise ConfigError(f"{site.configuration}: no entry of `source` has type {kind}; {advice}")
    if len(found) != 1:
        names = ", ".join(entry.name for entry in entries) or "there is none"
        raise UsageError(f"--source must name one of the sources of type {kind}: {names}")
    return found[0]


def _as_json(report: ImportReport) -> Json:
    return {
        "importer": report.importer,
        "database": str(report.database),
        **attributes(report, *_NUMBERS),
        "skipped": [{"reason": why, "records": n} for why, n in report.skipped.most_common()],
        "bad": report.bad,
        "bad_lines": [
            {"file": line.path, **attributes(line, "offset", "length", "reason")}
            for line in report.bad_lines
        ],
        **attributes(report, "held", "orphans"),
        "set_aside": report.bad_kept,
        **attributes(report, "notes", "troubles"),
        "exit": report.exit_status,
    }


def _as_text(report: ImportReport) -> Iterator[Part]:
    """The counts, and what an administrator must know in addition."""
    counts = attributes(report, *_COLUMNS) | {"skipped": report.skipped.total()}
    yield TextTable(_COLUMNS, [[f"{count:,}" for count in counts.values()]])
    yield from (f"{count:,} skipped: {reason}" for reason, count in report.skipped.most_common())
    for line in report.bad_lines[:_SHOWN]:
        yield f"set aside: {line.path}, byte {line.offset}: {line.reason}"
    if report.bad > _SHOWN:
        yield f"and {plural(report.bad - _SHOWN, 'more line')} set aside"
    if report.bad_kept:
        lines = plural(report.bad_kept, "line")
        yield f"{lines} set aside in total; `publisher source bad-lines` shows them"
    if report.orphans:
        yield (
            f"{plural(report.orphans, *report.orphans_are)}, "
            "long without the record of the job itself: "
            "is a file missing? This usage is not published"
        )
    yield from report.notes
