"""`republish`: send a window again, after showing what would be sent."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, NamedTuple

from publisher import config
from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.commands.publish import KEY_CHANGE_HELP, print_outcomes
from publisher.cli.logs import error_line, notice
from publisher.cli.parser import (
    add_accept_state,
    add_dry_run,
    add_flag,
    add_json,
    add_targets,
    add_window,
    add_yes,
    confirmation_of,
    count,
    is_quiet,
    window_of,
)
from publisher.cli.site import LiveSite
from publisher.cli.sources import failing_now
from publisher.config.targets import format_problem
from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, receiver_of
from publisher.formats.base import OnChange
from publisher.model.errors import ConfigError, UsageError
from publisher.model.text import plural
from publisher.policy.target import FOR_ONCE, Target
from publisher.publishing.databases.batch_systems import readings
from publisher.publishing.republish import plan as planning
from publisher.publishing.republish import run as republishing
from publisher.publishing.republish.plan import RepublishPlan, RepublishRequest
from publisher.publishing.site import choose
from publisher.transports import TRANSPORTS, transport_plugin
from publisher.transports.base import OneOff

_MEGABYTE = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_window(parser, required=True)
    add_targets(parser)
    parser.add_argument("--format", metavar="F", help="another format than the target's own")
    _add_one_off_target(parser)
    add_flag(parser, "--exact", text="do not round out to whole months (job formats only)")
    add_yes(parser)
    text = "send even if it is far more than, or contradicts, what was delivered so far"
    add_flag(parser, "--no-brake", text=text)
    add_dry_run(parser)
    add_flag(parser, "--accept-key-change", text=KEY_CHANGE_HELP)
    add_accept_state(parser)
    add_json(parser)


def _add_one_off_target(parser: argparse.ArgumentParser) -> None:
    ways = _ways()
    for way in ways:
        named = way.once.key.upper()
        parser.add_argument(way.option, dest=way.option, metavar=named, help=way.once.help)
    parser.add_argument("--site", help="with --ams-url or --sgas-url: another site name")
    for key in dict.fromkeys(key for way in ways for key in way.once.options):
        takers = [way for way in ways if key in way.defaults]
        chosen = [f"with {way.option}: default {way.defaults[key]}" for way in takers]
        parser.add_argument(_option(key), help=", ".join(chosen))
    text = "with a URL: only jobs of this VO; may be repeated"
    parser.add_argument("--vo", action="append", default=[], metavar="NAME", help=text)
    text = "with a URL: put this before the batch system's ids"
    parser.add_argument("--localid-prefix", metavar="TEXT", help=text)
    text = "with a URL: at most N records per message"
    parser.add_argument("--batch-records", type=count, metavar="N", help=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load().accepting_state(accept=arguments.accept_state)
    request = _request(arguments, site)
    targets = _once(arguments, site) or choose(site.targets, arguments.target)
    _check_format(targets, arguments.format)
    is_confirmed = confirmation_of(arguments)
    quiet = is_quiet(arguments)
    with progress.counting("jobs examined, to work out what will be sent", quiet=quiet) as looking:
        plans = planning.plan(site, targets, request, looking)
    for line in plan_lines(plans):
        notice(line)
    if not is_confirmed("Send this?"):
        error_line("nothing was sent")
        return 0
    with progress.rounds(quiet=quiet) as report:
        report.expect(sum(plan.records or plan.jobs for plan in plans))
        ended = republishing.carry_out(
            site, targets, plans, request, report, dry_run=arguments.dry_run
        )
    requested = [planning.as_requested(target, request) for target in targets]
    unread = failing_now(readings(site))
    accepts = arguments.accept_key_change
    return print_outcomes(arguments, site, ended, requested, unread=unread, accepts=accepts)


def _request(arguments: argparse.Namespace, site: LiveSite) -> RepublishRequest:
    """Raises: UsageError."""
    formats = {**JOB_FORMATS, **SUMMARY_FORMATS}
    if arguments.format and arguments.format not in formats:
        raise UsageError(f"there is no format {arguments.format!r}; there are {', '.join(formats)}")
    return RepublishRequest(
        window=window_of(arguments, site.process.clock()),
        exact=arguments.exact,
        format=arguments.format,
        accept_key_change=arguments.accept_key_change,
        brake=not arguments.no_brake,
    )


def _check_format(targets: Iterable[Target], name: str | None) -> None:
    """Raises: UsageError for a format that the service of a target does not read."""
    for target in targets:
        if reason := format_problem(target.type, target.options, name):
            advice = "leave --format out, or choose others with --target"
            raise UsageError(f"target {target.name}: {reason}; {advice}")


class _Way(NamedTuple):
    """How a transport's target is made for once, and the defaults of its keys there."""

    option: str
    transport: str
    once: OneOff
    defaults: Mapping[str, object]


def _ways() -> list[_Way]:
    """Return the ways of all transports that have one."""
    found = []
    for name in TRANSPORTS:
        shape = transport_plugin(name).Options
        if (once := shape.one_off) is not None:
            defaults = {one.name: one.default for one in fields(shape) if one.name in once.options}
            found.append(_Way(_option(f"{name}-{once.key}"), name, once, defaults))
    return found


def _chosen(
    ways: Sequence[_Way], given: Sequence[_Way], own: Mapping[str, object], *, named: bool
) -> _Way:
    """Raises: UsageError for options that do not go together."""
    options = [way.option for way in ways]
    if not given:
        names = ", ".join(_option(key) for key in ("site", *own, "vo", "localid_prefix"))
        raise UsageError(f"{names} and --batch-records go with {' or '.join(options)}")
    if len(given) > 1 or named:
        raise UsageError(f"name one of {', '.join(options)} and --target")
    for key in _filled(own):
        if key not in given[0].once.options:
            takers = " or ".join(way.option for way in ways if key in way.once.options)
            raise UsageError(f"{_option(key)} goes with {takers}")
    return given[0]


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _once(arguments: argparse.Namespace, site: LiveSite) -> list[Target]:
    """Return the target of the command line; none without a URL. Raises: UsageError."""
    ways = _ways()
    given = [way for way in ways if getattr(arguments, way.option)]
    # What only some transports take, in order.
    own = {key: getattr(arguments, key) for way in ways for key in way.once.options}
    either = {
        "vos": arguments.vo,
        "localid_prefix": arguments.localid_prefix,
        "batch_records": arguments.batch_records and str(arguments.batch_records),
    }
    further = _filled(own | either)
    if not (given or arguments.site or further):
        return []
    way = _chosen(ways, given, own, named=bool(arguments.target))
    place = getattr(arguments, way.option)
    keys = {
        "type": way.transport,
        way.once.key: place,
        "format": arguments.format or way.once.format,
        **further,
    }
    # Its name keys the ledger: the same place for once again is the same target.
    name = f"{FOR_ONCE}{sha256(repr((place, *own.values())).encode()).hexdigest()[:8]}"
    host = socket.gethostname()
    try:
        target = config.one_off_target(
            site.settings, name, keys, site=arguments.site, host_name=host
        )
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return [target]


def plan_lines(plans: Sequence[RepublishPlan]) -> list[str]:
    """Return a heading for each target, and below it what is sent and what is special."""
    return [line for plan in plans for line in _lines(plan)]


def _lines(plan: RepublishPlan) -> Iterator[str]:
    rounded = ", rounded out to whole months" if plan.rounded else ""
    yield f"{plan.target}: {plan.format}, jobs that ended {plan.window}{rounded}"
    yield f"  {_size(plan)}; months: {', '.join(plan.months) or 'none'}"
    if plan.resume_from and plan.summary:
        yield "  resumes with the month in which the last run of the same command stopped"
    elif plan.resume_from:
        jobs = plural(plan.rows, "job")
        yield f"  {jobs} left: resumes where the last run of the same command stopped"
    here = [month for month in plan.held if month.restored is None]
    if whole := [month.name for month in here if month.was and month.lost_jobs]:
        yield f"  {', '.join(whole)}: stays as it is, since jobs of it cannot be sent again"
    if rows := [month.name for month in here if month.name not in whole]:
        yield f"  {', '.join(rows)}: would leave rows behind at the receiver"
    if restored := [month.name for month in plan.held if month.restored is not None]:
        yield f"  {', '.join(restored)}: held, since the ledger was restored or lost"
    yield from _of_receiver(plan)
    if plan.brake:
        yield f"  {plan.brake}"


def _of_receiver(plan: RepublishPlan) -> Iterator[str]:
    receiver = receiver_of(plan.format)
    if receiver.on_change is OnChange.KEEP_FIRST:
        yield f"  {receiver.name} keeps the row it has: this fills gaps and corrects nothing"
    elif plan.exact and receiver.whole_months:
        purged = "a receiver that purged its job records"
        yield f"  --exact: {purged} replaces a whole month's total by this part of it"


def _size(plan: RepublishPlan) -> str:
    """Return counts, exact where every job was examined; single records by their mean size."""
    if not plan.jobs and not plan.records:
        return "no jobs to send"
    jobs, messages = plural(plan.jobs, "job"), plural(plan.messages, "message")
    if plan.summary and not plan.counted:
        return f"totals of at most {jobs}"
    if plan.summary:
        return f"{plural(plan.records, 'total')} of {jobs} in {messages}, {_bytes(plan.bytes)}"
    bound = "" if plan.counted else "at most "
    return f"{bound}{jobs} in about {messages}, {_bytes(plan.bytes)}"


def _bytes(count: int) -> str:
    return f"{count / _MEGABYTE:,.1f} MB" if count >= _MEGABYTE else f"{count / 1000:,.1f} kB"
