"""`status`: what was delivered and what waits, of each target; only reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from publisher.cli import nagios
from publisher.cli.commands import Context, load_part
from publisher.cli.logs import error_line
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    earlier_json,
    earlier_text,
    moment_text,
    print_line,
    print_result,
)
from publisher.cli.parser import add_all_instances, add_json, add_nagios, add_targets
from publisher.cli.sources import never_sent_json, sources_json, sources_text
from publisher.model.errors import ConfigError, PublisherError, SourceError, UsageError, gravest
from publisher.model.rates import Allocation
from publisher.model.text import plural
from publisher.model.time import epoch
from publisher.publishing import status as operations
from publisher.publishing.databases.batch_systems import SourceStatus, source_status
from publisher.publishing.site import Site
from publisher.publishing.status import TargetStatus

_COLUMNS = (
    *("target", "last success", "last published end", "delivered", "pending", "late"),
    *("in doubt", "quarantined", "held months"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    add_all_instances(parser)
    output = parser.add_mutually_exclusive_group()
    add_json(output)
    add_nagios(output)
    for word, status in (("warning", 1), ("critical", 2)):
        parser.add_argument(
            f"--{word}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"with --nagios: exit {status} above this: age=36h, oldest=3d, late=100; "
            "may be repeated",
        )


def run(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.nagios:
        return _nagios(arguments, context)
    if arguments.warning or arguments.critical:
        raise UsageError("--warning and --critical go with --nagios")
    return _print_status(arguments, context.load())


def _print_status(arguments: argparse.Namespace, site: Site) -> int:
    found, trouble = _status(arguments, site)
    sources = source_status(site)
    print_result((found, sources), _as_json, _as_text, form=arguments.form, rows="targets")
    missing = {one.file: one.reason for each in found for one in each.missing}
    broken = [trouble] if trouble else list(missing.values())
    broken += [
        one.alarm for one in sources if one.alarm and (not trouble or one.trouble != trouble)
    ]
    silent = filter(None, (line for one in sources for line in (one.silence, one.waiting)))
    questions = [one.question for one in found if one.question]
    for line in (*questions, *broken, *silent):
        error_line(line)
    statuses = [ConfigError.exit_status for _ in questions]
    return gravest([*statuses, *(SourceError.exit_status for _ in broken)])


def _status(arguments: argparse.Namespace, site: Site) -> tuple[list[TargetStatus], str]:
    if not arguments.all_instances:
        return operations.status(site, targets=arguments.target)
    if arguments.target:
        raise UsageError("--all-instances covers all targets; omit --target")
    return operations.status_of_all(site)


def _nagios(arguments: argparse.Namespace, context: Context) -> int:
    """Print the line for Nagios, also of a configuration that cannot be read."""
    try:
        limits = nagios.thresholds(arguments.warning, arguments.critical)
        site = context.load()
        found, trouble = _status(arguments, site)
        sources = source_status(site)
        # Of unreadable accounting data nothing more is asked: a lock would be waited for again.
        current = () if arguments.all_instances or trouble else _current(site)
        counting = load_part("reporting.charges.allocations")
        allocations = counting.used_by_now(site, current) if current else ()
        never = [one.project for one in counting.never_charged(site.ledgers, current)]
    except PublisherError as error:
        print_line(nagios.nagios_line(nagios.UNKNOWN, str(error)))
        return nagios.UNKNOWN
    uncharged, now = list(dict.fromkeys(never)), site.process.clock()
    unable = {} if arguments.all_instances else _unable(site, found)
    line, state = nagios.status_nagios(
        found,
        trouble,
        now,
        limits,
        sources,
        allocations,
        uncharged,
        unable=unable,
    )
    print_line(line)
    return state


def _unable(site: Site, found: Iterable[TargetStatus]) -> dict[str, str]:
    """Return why targets cannot begin their first round, such as for a missing certificate.

    A round that did not begin left nothing in the ledger. No service is asked.
    """
    waiting = {one.target for one in found if not one.began}
    reasons = {}
    for target in site.targets:
        if target.name in waiting:
            try:
                site.sending.live(target, dry_run=False).transport.close()
            except PublisherError as error:
                reasons[target.name] = str(error).removeprefix(f"target {target.name}: ")
    return reasons


def _current(site: Site) -> list[Allocation]:
    now = epoch(site.process.clock())
    return [one for one in site.records.allocations if now in one.window]


def _as_json(both: tuple[Iterable[TargetStatus], Sequence[SourceStatus]]) -> Json:
    found, sources = both
    return {
        "targets": {one.target: _target_json(one) for one in found},
        "sources": sources_json(sources),
    }


def _target_json(one: TargetStatus) -> Json:
    return {
        "last_success": moment_text(one.last_success),
        "last_published_end_time": moment_text(one.last_published_end),
        **attributes(one, "delivered", "pending", "late", "awaited", "exact"),
        **attributes(one, "in_doubt", "quarantined", "held"),
        "earlier_settings": earlier_json(one.earlier),
        "missing_databases": [missing.file for missing in one.missing],
        "question": one.question or None,
        "never_sent": never_sent_json(one.never_sent),
    }


def _as_text(both: tuple[Iterable[TargetStatus], Sequence[SourceStatus]]) -> list[Part]:
    found, sources = both
    awaited = [
        f"target {one.target}: {plural(one.awaited, 'job waits', 'jobs wait')} "
        "for the batch system's record (join_wait)"
        for one in found
        if one.awaited
    ]
    earlier = [
        f"target {one.target}: {earlier_text(one.target, one.earlier)}"
        for one in found
        if one.earlier is not None
    ]
    lost = [f"target {one.target}: {each.text}" for one in found for each in one.never_sent]
    table = TextTable(_COLUMNS, list(map(_row, found)))
    return [table, *awaited, *earlier, *lost, *sources_text(sources)]


def _row(one: TargetStatus) -> tuple[str, ...]:
    return (
        one.target,
        moment_text(one.last_success) or "never",
        moment_text(one.last_published_end) or "-",
        f"{one.delivered:,}",
        *(_count(number, one.exact) for number in (one.pending, one.late)),
        *(f"{number:,}" for number in (one.in_doubt, one.quarantined, one.held)),
    )


def _count(number: int | None, exact: bool) -> str:
    if number is None:
        return "unknown"
    return f"{number:,}" if exact or not number else f"at most {number:,}"
