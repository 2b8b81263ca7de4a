"""The commands that send, from arguments to what is told of them: publish, republish, sync."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from publisher import commands, config, results, terminal
from publisher.config import TargetSettings
from publisher.errors import RecordError, UsageError
from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS
from publisher.model import when
from publisher.outcome import Outcome
from publisher.wiring import Site

if TYPE_CHECKING:  # `publish` starts sooner without them
    from publisher.planning import Plan, Wish


def publish(arguments: argparse.Namespace, site: Site) -> int:
    report = _progress(arguments)
    try:
        outcomes = commands.publish(
            site,
            targets=arguments.target,
            observer=report,
            force=arguments.force,
            dry_run=arguments.dry_run,
            limit=arguments.limit,
            accept_key_change=arguments.accept_key_change,
        )
    finally:
        report.done()
    _tell_outcomes(arguments, site, outcomes)
    return commands.exit_status(outcomes)


def republish(arguments: argparse.Namespace, site: Site) -> int:
    from publisher import planning, republishing, results_plan

    now = site.surroundings.clock()
    if arguments.format and arguments.format not in {**JOB_FORMATS, **SUMMARY_FORMATS}:
        raise UsageError(
            f"no format is called {arguments.format!r}; there are {', '.join({**JOB_FORMATS, **SUMMARY_FORMATS})}"
        )
    wish = planning.Wish(
        window=when.window(when.parse_from(arguments.start, now), when.parse_to(arguments.end, now)),
        exact=arguments.exact,
        format=arguments.format,
        accept_key_change=arguments.accept_key_change,
        brake=not arguments.no_brake,
    )
    targets = _once(arguments, site) or commands.choose(site.settings, arguments.target)
    plans = _planned(arguments, site, targets, wish)
    for line in results_plan.plan_lines(plans):
        terminal.notice(line)
    if not (arguments.yes or arguments.dry_run) and sys.stdin.isatty() and not _confirmed():
        terminal.error_line("nothing was sent")
        return 0
    report = _progress(arguments)
    report.expect(sum(plan.records or plan.jobs for plan in plans))
    try:
        outcomes = republishing.carry_out(site, targets, plans, wish, report, dry_run=arguments.dry_run)
    finally:
        report.done()
    _tell_outcomes(arguments, site, outcomes)
    return commands.exit_status(outcomes)


def _planned(arguments: argparse.Namespace, site: Site, targets: Sequence[TargetSettings], wish: Wish) -> list[Plan]:
    from publisher import planning

    looking = terminal.CountingReport(
        sys.stderr,
        monotonic=time.monotonic,
        quiet=arguments.quiet or arguments.json,
        what="jobs looked at, to tell what will be sent",
    )
    try:
        return planning.plan(site, targets, wish, looking)
    finally:
        looking.done()


def _once(arguments: argparse.Namespace, site: Site) -> list[TargetSettings]:
    """The target that the command line makes for this once; none without a URL. Raises: UsageError, ConfigError."""
    urls = {"ams": arguments.ams_url, "sgas": arguments.sgas_url}
    given = [(kind, url) for kind, url in urls.items() if url]
    extra = {"topic": arguments.topic, "project": arguments.project}
    either = {
        "vos": arguments.vo,
        "localid_prefix": arguments.localid_prefix,
        "batch_records": arguments.batch_records and str(arguments.batch_records),
    }
    if not given:
        if arguments.site or any(extra.values()) or any(either.values()):
            raise UsageError(
                "--site, --topic, --project, --vo, --localid-prefix and --batch-records go with --ams-url or --sgas-url"
            )
        return []
    if len(given) > 1 or arguments.target:
        raise UsageError("name one of --ams-url, --sgas-url and --target")
    ((kind, url),) = given
    if kind == "sgas" and any(extra.values()):
        raise UsageError("--topic and --project go with --ams-url")
    form = arguments.format or ("car" if kind == "ams" else "ogf-ur")
    told = {key: value for key, value in (extra | either).items() if value}
    keys = {"type": kind, "url": url, "format": form} | told
    # Its name keys the ledger: the same place for once again is the same target.
    name = f"once-{sha256(repr((url, arguments.topic, arguments.project)).encode()).hexdigest()[:8]}"
    return [config.one_off_target(site.settings, name, keys, site=arguments.site, host_name=socket.gethostname())]


def _progress(arguments: argparse.Namespace) -> terminal.ProgressReport:
    return terminal.ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json)


def _confirmed() -> bool:
    sys.stderr.write("Send this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell_outcomes(arguments: argparse.Namespace, site: Site, outcomes: Sequence[Outcome]) -> None:
    shadows = {target.name for target in site.settings.targets if target.shadow}
    outcomes = [
        replace(outcome, shadow=outcome.shadow or (outcome.target in shadows and outcome.outcome != "nothing"))
        for outcome in outcomes
    ]
    for outcome in outcomes:
        terminal.log_trouble(outcome.target, outcome.exit_status, outcome.reason)
    if arguments.json:
        terminal.print_json(results.publish_json(outcomes), sys.stdout)
        return
    terminal.print_table(results.PUBLISH_COLUMNS, results.publish_rows(outcomes), sys.stdout)
    for outcome in outcomes:
        for note in [*results.publish_notes(outcome), *results.ticket(site.settings.site, outcome)]:
            for line in note.split("\n"):
                terminal.print_line(line, sys.stdout)
    if arguments.dry_run:
        terminal.print_line("a rehearsal: nothing was sent, nothing was written down", sys.stdout)


def sync(arguments: argparse.Namespace, site: Site) -> int:
    from publisher import checking, portal, results_sync, shadowing, syncing

    months = None if arguments.months == "all" else _months(arguments.months)
    if arguments.portal and not arguments.check:
        raise UsageError("--portal is for --check")
    chosen = commands.choose(site.settings, arguments.target)
    targets = [target for target in chosen if arguments.target or arguments.check or target.sync]
    if not targets:
        names = " or ".join(f"`--target {target.name}`" for target in chosen if _goes_to_apel(target))
        raise UsageError(
            f"no target has `sync: true`; set it in the configuration, or name one: {names}"
            if names
            else "counts are for APEL, and no target goes there"
        )
    if not arguments.check:
        if elsewhere := [target.name for target in targets if not _goes_to_apel(target)]:
            raise UsageError(f"counts are for APEL: not for {', '.join(elsewhere)}")
        report = _progress(arguments)
        try:
            outcomes = syncing.sync(site, targets, report, months=months, dry_run=arguments.dry_run)
        finally:
            report.done()
        _tell_outcomes(arguments, site, outcomes)
        return commands.exit_status(outcomes)
    counts = portal.read(arguments.portal, site.settings.site) if arguments.portal else None
    quiet = arguments.quiet or arguments.json
    counting = terminal.CountingReport(sys.stderr, monotonic=time.monotonic, quiet=quiet, what="jobs compared")
    try:
        compared = checking.check(site, targets, months=months, portal=counts, jobs_seen=counting.seen)
    finally:
        counting.done()
    accepted = checking.accepted(site, targets, months=months)
    shadows = shadowing.compare(site, targets, months=months)
    different = any(row.repairs for row in compared) or any(month.different for month in shadows)
    status = RecordError.exit_status if different else 0
    if arguments.json:
        terminal.print_json(results_sync.check_json(compared, accepted, shadows, status), sys.stdout)
    else:
        terminal.print_table(results_sync.CHECK_COLUMNS, results_sync.check_rows(compared), sys.stdout)
        terminal.print_line("differences: see the last column" if status else "no difference", sys.stdout)
        notes = results_sync.check_notes(site.settings.site, compared, accepted)
        for line in [*results_sync.shadow_lines(shadows), *notes]:
            terminal.print_line(line, sys.stdout)
    return status


def _goes_to_apel(target: TargetSettings) -> bool:
    return target.type != "sgas" and target.format != "ogf-ur"


def _months(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--months {text}: a number of months from 1, or all")
    return int(text)
