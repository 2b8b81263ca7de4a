"""`sync`: job counts per submit host and month, sent to the receiver or compared with its own."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.commands.publish import print_outcomes, ticket_after, usage_json, usage_text
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    fits_screen,
    moment_text,
    print_result,
)
from publisher.cli.parser import (
    add_all_instances,
    add_dry_run,
    add_flag,
    add_json,
    add_targets,
    count,
    is_quiet,
)
from publisher.cli.site import LiveSite
from publisher.cli.sources import failing_now, incomplete, never_sent_json
from publisher.formats import receiver_of
from publisher.jobs.filters import JobFilter
from publisher.model.errors import RecordError, SourceError, UsageError, gravest
from publisher.model.receiver import KnownReceiver
from publisher.model.text import plural
from publisher.model.time import parse_month
from publisher.model.totals import month_name
from publisher.policy.target import Target
from publisher.publishing import publish
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.batch_systems import readings
from publisher.publishing.databases.prune import earliest
from publisher.publishing.databases.retired import NeverSent
from publisher.publishing.site import choose
from publisher.publishing.sync import check, portal
from publisher.publishing.sync.counts import RecordedCount, first_month, recorded
from publisher.publishing.sync.differences import Compared
from publisher.publishing.sync.left import (
    LeftBehind,
    confirm_deleted,
    confirm_deleted_at,
    left_behind,
    left_elsewhere,
)
from publisher.publishing.sync.portal import EVERY_HOST
from publisher.publishing.takeover import adopt
from publisher.publishing.takeover.adopt import ComparedMonth
from publisher.reporting import statistics

_COLUMNS = (
    *("target", "month", "submit host", "database", "delivered", "before us"),
    *("set aside", "pending", "reported", "portal", "difference"),
)
_LINES = 24  # of a table on a terminal; of a longer one the worst is shown
_WORST_MONTHS = 8
_WORST_ROWS = 4
_OTHERS = (
    *("other instance", "month", "submit host", "delivered", "before us"),
    *("reported", "as of", "difference"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    add_flag(parser, "--check", text="send nothing; compare database, ledger and last sync")
    text = "the last N months (default 12), or all"
    parser.add_argument("--months", default="12", metavar="N", help=text)
    text = "with --check: counts saved from the portal, CSV or JSON"
    parser.add_argument("--portal", type=Path, metavar="FILE", help=text)
    text = "rows that stayed of this month with consent are deleted at the receiver"
    parser.add_argument("--deleted", metavar="MONTH", help=text)
    text = "with --deleted: at this receiver, to which no target may lead any more"
    parser.add_argument("--receiver", type=count, metavar="NUMBER", help=text)
    add_all_instances(parser)
    add_dry_run(parser)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    months = None if arguments.months == "all" else _months(arguments.months)
    if arguments.portal and not arguments.check:
        raise UsageError("--portal is for --check")
    if arguments.all_instances and (arguments.target or not arguments.check):
        raise UsageError("--all-instances is for --check, of all targets")
    if arguments.deleted and (arguments.check or arguments.dry_run):
        raise UsageError(
            "--deleted sends and compares nothing: give it alone, or with --target or --receiver"
        )
    if arguments.receiver and (arguments.target or not arguments.deleted):
        raise UsageError("--receiver is for --deleted, without --target")
    targets = _targets(arguments, site)
    if arguments.deleted:
        return _confirm_deleted(arguments, site, targets)
    if arguments.check:
        return _check(arguments, site, targets, months)
    with progress.rounds(quiet=is_quiet(arguments)) as report:
        ended = publish.sync(site, targets, report, months=months, dry_run=arguments.dry_run)
    return print_outcomes(arguments, site, ended, unread=failing_now(readings(site)))


def _confirm_deleted(
    arguments: argparse.Namespace, site: LiveSite, targets: Sequence[Target]
) -> int:
    month = parse_month(arguments.deleted, site.process.clock())
    where = "receiver" if arguments.receiver else "target"
    if arguments.receiver:
        found = confirm_deleted_at(site.ledgers, arguments.receiver, month.number)
    else:
        found = confirm_deleted(site.ledgers, targets, month.number)
    print_result(
        found,
        lambda found: {"month": str(month), "targets": {name: {"rows": n} for name, n in found}},
        lambda found: [TextTable((where, "rows"), [(name, f"{n:,}") for name, n in found])],
        form=arguments.form,
        rows="targets",
    )
    return 0


def _targets(arguments: argparse.Namespace, site: LiveSite) -> list[Target]:
    """Those whose counts are sent or compared. Raises: UsageError."""
    chosen = choose(site.targets, arguments.target)
    every = arguments.target or arguments.check or arguments.deleted
    targets: list[Target] = [target for target in chosen if every or target.sync]
    if not targets:
        raise _no_target(chosen)
    elsewhere = [target.name for target in targets if not _takes_counts(target)]
    if elsewhere and not (arguments.check or arguments.deleted):
        raise UsageError(f"the receiver takes no job counts: {', '.join(elsewhere)}")
    return targets


def _no_target(chosen: Sequence[Target]) -> UsageError:
    names = " or ".join(f"`--target {target.name}`" for target in chosen if _takes_counts(target))
    if not names:
        return UsageError("no target has a receiver that takes job counts")
    advice = f"set it in the configuration, or name one: {names}"
    return UsageError(f"no target has `sync: true`; {advice}")


def _takes_counts(target: Target) -> bool:
    return receiver_of(target.format).sync_format != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """What `sync --check` found."""

    site: str
    receivers: Mapping[str, str]  # their names by target
    compared: Sequence[Compared]
    left: Sequence[tuple[str, LeftBehind]]
    elsewhere: Sequence[tuple[KnownReceiver, LeftBehind]]
    lost: Sequence[NeverSent]
    shadows: Sequence[ComparedMonth]
    incomplete: int  # an exit status, where databases are missing
    others: Sequence[RecordedCount]  # of other instances
    # Jobs of which nobody measured the CPU time; None where that cannot be told
    cpu_unknown: int | None

    @property
    def different(self) -> bool:
        return (
            any(row.repairs for row in self.compared)
            or bool(self.elsewhere)
            or any(month.different for month in self.shadows)
            or any(one.differs for one in self.others)
        )

    @property
    def exit_status(self) -> int:
        return gravest([self.incomplete, RecordError.exit_status if self.different else 0])


def _check(
    arguments: argparse.Namespace, site: LiveSite, targets: Sequence[Target], months: int | None
) -> int:
    now = site.process.clock()
    counts = portal.read(arguments.portal, site.records.name) if arguments.portal else None
    with progress.counting("jobs compared", quiet=is_quiet(arguments)) as counting:
        counting.expect(check.jobs_to_compare(site, targets, months))
        compared = check.check(site, targets, months=months, portal=counts, jobs_seen=counting.seen)
    others = recorded(site.ledgers, now, months=months) if arguments.all_instances else ()
    elsewhere: Sequence[tuple[KnownReceiver, LeftBehind]] = ()
    if not arguments.target:
        elsewhere = left_elsewhere(site.ledgers, targets, now, months=months)
    found = _Check(
        site=site.records.name,
        receivers={target.name: receiver_of(target.format).name for target in targets},
        compared=compared,
        left=left_behind(site.ledgers, targets, now, months=months),
        elsewhere=elsewhere,
        lost=check.lost(site.ledgers, targets, now, months=months),
        shadows=_shadows(site, targets, months),
        incomplete=incomplete(site),
        others=others,
        cpu_unknown=_cpu_unknown(site, months),
    )
    print_result(found, _as_json, _as_text, form=arguments.form, rows="rows")
    return found.exit_status


def _shadows(site: LiveSite, targets: Sequence[Target], months: int | None) -> list[ComparedMonth]:
    now = site.process.clock()
    if not any(target.shadow and target.jura_format for target in targets):
        return []
    with check.loaded_to_check(site, first_month(now, months)) as (_, data):
        jobs = adopt.jobs_of_ces(data.jobs, data.source, now)
        return adopt.compare(jobs, targets, now, months=months)


def _cpu_unknown(site: LiveSite, months: int | None) -> int | None:
    if not site.batch_systems.entries:
        return 0
    try:
        ended = JobFilter(ended=earliest(site.process.clock(), months))
        with asked(site) as jobs:
            return statistics.stats(jobs, ended, by=None).totals.cpu_unknown
    except SourceError:  # told as a missing database
        return None


def _months(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--months {text}: a number of months from 1, or all")
    return int(text)


def _as_json(found: _Check) -> Json:
    return {
        "rows": [
            {
                "target": row.target,
                "month": row.month_name,
                **attributes(row, "submit_host", "database", "delivered", "restarted"),
                **attributes(row, "before", "quarantined", "pending"),
                "told": row.reported,
                **attributes(row, "portal", "purged", "retired", "repairs"),
            }
            for row in found.compared
        ],
        "accepted": [
            *(_left_json(target, left) for target, left in found.left),
            *(_left_json(None, left) for _, left in found.elsewhere),
        ],
        "never_sent": never_sent_json(found.lost),
        "shadows": list(map(_shadow_json, found.shadows)),
        "others": [
            {
                "target": one.target,
                "month": month_name(one.month),
                **attributes(one, "submit_host", "delivered", "before"),
                "told": one.reported,
                "recorded": moment_text(one.recorded),
                "differs": one.differs,
            }
            for one in found.others
        ],
        "cpu_unknown": found.cpu_unknown,
        "exit": found.exit_status,
    }


def _left_json(target: str | None, left: LeftBehind) -> Json:
    return {
        "target": target,
        "receiver": left.receiver,
        "month": month_name(left.month),
        "stale": [{"row": row.key.text, **usage_json(row)} for row in left.rows],
        "job_records": [
            {
                "site": one.key.site,
                "local_id": one.key.localid_prefix + one.key.local_id,
                "end_time": moment_text(one.key.ended_at),
                "row": one.row.key.text,
                **usage_json(one.row),
            }
            for one in left.records
        ],
    }


def _shadow_json(one: ComparedMonth) -> Json:
    return {
        "target": one.target,
        "month": one.month_name,
        "format": one.format,
        "jura_format": one.their_format,
        "equal": one.equal,
        "different": [
            {
                "row": row.row,
                "ours": row.ours and usage_json(row.ours),
                "jura": row.theirs and usage_json(row.theirs),
            }
            for row in one.different
        ],
    }


def _as_text(found: _Check) -> Iterator[Part]:
    gone = "not in any database that is there" if found.incomplete else "purged at the CE"
    table = TextTable(_COLUMNS, [_row(row, gone) for row in found.compared])
    is_whole = fits_screen(table, _LINES)
    if is_whole:
        yield table
    else:
        yield from _worst(found.compared, gone)
    if found.others:
        yield TextTable(_OTHERS, list(map(_other_row, found.others)))
    if found.different or not found.incomplete:
        none = "no difference but for lost jobs" if found.lost else "no difference"
        where = "see the last column" if is_whole else "the worst are above"
        if found.elsewhere and not any(row.repairs for row in found.compared):
            where = "see below"
        yield f"differences: {where}" if found.different else none
    yield from (f"target {one.target}: {one.text}" for one in found.lost)
    if found.cpu_unknown:
        yield f"CPU time unknown, and 0 in what APEL reads: {plural(found.cpu_unknown, 'job')}"
    yield from _shadow_lines(found.shadows)
    yield from _left_lines(found.left)
    for target, receiver in found.receivers.items():
        left = [one for name, one in found.left if name == target]
        to = f"{receiver} team", target, f"--target {target}"
        yield from ticket_after(found.site, *to, left)
    yield from _elsewhere_lines(found)
    yield from _ticket(found)


def _worst(rows: Sequence[Compared], gone: str) -> Iterator[Part]:
    """Yield what fits a screen: a verdict on each month that differs, and the worst rows."""
    months: defaultdict[int, list[Compared]] = defaultdict(list)
    for row in rows:
        months[row.month].append(row)
    jobs = {month: sum(map(_jobs_of, each)) for month, each in months.items()}
    different = [row for row in rows if row.repairs]
    differing = {row.month for row in different}
    shown = sorted(nlargest(_WORST_MONTHS, differing, key=lambda month: jobs[month]))
    if shown:
        heads = ("month", "rows", "rows that differ", "jobs that differ", "targets")
        yield TextTable(heads, [_verdict(months[month], jobs[month]) for month in shown])
    if more := len(differing) - len(shown):
        yield plural(more, "more month differs", "more months differ")
    if agreeing := len(months) - len(differing):
        yield plural(agreeing, "month agrees", "months agree")
    for row in nlargest(_WORST_ROWS, different, key=_jobs_of):
        what = "; ".join(_differences(row, gone))
        yield f"{row.target}, {row.month_name}, {_host(row)}: {what}"
    more = len(different) - _WORST_ROWS
    others = f"{plural(more, 'more row differs', 'more rows differ')}; " if more > 0 else ""
    yield f"{others}--as csv prints all {plural(len(rows), 'row')}"


def _verdict(rows: Sequence[Compared], jobs: int) -> tuple[str, ...]:
    different = [row for row in rows if row.repairs]
    targets = ", ".join(dict.fromkeys(row.target for row in different))
    return rows[0].month_name, f"{len(rows):,}", f"{len(different):,}", f"{jobs:,}", targets


def _jobs_of(row: Compared) -> int:
    """Return how many jobs the largest difference of a row is about."""
    if not row.repairs:
        return 0
    counts = [each for each in (row.reported, row.portal) if each is not None]
    return max(row.pending, row.quarantined, *(abs(row.due - count) for count in counts), 1)


def _row(row: Compared, gone: str) -> tuple[str, ...]:
    counts = (row.database, row.delivered, row.before, row.quarantined, row.pending)
    return (
        row.target,
        row.month_name,
        _host(row),
        *(f"{count:,}" for count in counts),
        "-" if row.reported is None else f"{row.reported:,}",
        "-" if row.portal is None else f"{row.portal:,}",
        "; ".join(_differences(row, gone)),
    )


def _other_row(one: RecordedCount) -> tuple[str, ...]:
    return (
        one.target,
        month_name(one.month),
        one.submit_host or "(none)",
        f"{one.delivered:,}",
        f"{one.before:,}",
        "-" if one.reported is None else f"{one.reported:,}",
        moment_text(one.recorded) or "never",
        "what was reported is not what was delivered: look there" if one.differs else "none",
    )


def _differences(row: Compared, gone: str) -> list[str]:
    """What to do, and why there is nothing to do where database and ledger have other numbers."""
    found = list(row.repairs) or ["none"]
    if row.restarted:
        found.append(f"{row.restarted:,} delivered before a restart count too")
    if row.purged:
        found.append(f"{row.purged:,} {gone}")
    if row.retired:
        found.append(f"{row.retired:,} of retired databases")
    return found


def _shadow_lines(shadows: Sequence[ComparedMonth]) -> Iterator[str]:
    """Beside jura-ng, row by row."""
    for one in shadows:
        formats = f"our {one.format} beside jura-ng's {one.their_format}"
        rows = f"{plural(one.equal, 'row')} equal, {len(one.different):,} not"
        yield f"{one.target}, a shadow: {one.month_name}: {formats}: {rows}"
        for row in one.different:
            ours = usage_text(row.ours) if row.ours else "none"
            theirs = usage_text(row.theirs) if row.theirs else "none"
            yield f"  {row.row}: ours {ours}, jura-ng's {theirs}"


def _left_lines(found: Sequence[tuple[str, LeftBehind]]) -> Iterator[str]:
    """Yield what stays at receivers."""
    for target, left in found:
        rows = plural(len(left.rows), "row")
        what = f"{rows} with {plural(sum(row.jobs for row in left.rows), 'job')}"
        if left.records:
            what = f"{what} and {plural(len(left.records), 'job record')}"
        stay = "stay at the receiver until its team deletes them"
        yield f"{target}: {month_name(left.month)}: {what} {stay}"
        # What is of records is in the text for the ticket.
        yield from (f"  {row.key.text}: {usage_text(row)}" for row in left.totals)


def _elsewhere_lines(found: _Check) -> Iterator[str]:
    """Yield what stays at receivers to which no target leads."""
    for (number, name, address, _), left in found.elsewhere:
        option = f"--receiver {number}"
        yield from _left_lines([(f"receiver {number} ({name}), {address}", left)])
        if not (left.sums or left.records):  # else the text for the ticket says so
            yield f"  after that, publisher sync --deleted {month_name(left.month)} {option}"
        to = f"team of {address}", f"receiver {number}", option
        yield from ticket_after(found.site, *to, [left])


def _ticket(found: _Check) -> Iterator[str]:
    """About what the portal has beyond ours."""
    beyond = [row for row in found.compared if row.beyond]
    for receiver in dict.fromkeys(found.receivers.values()):
        too_many = [row for row in beyond if found.receivers[row.target] == receiver]
        if too_many:
            yield from _ticket_to(receiver, found, too_many)


def _ticket_to(receiver: str, found: _Check, too_many: Sequence[Compared]) -> Iterator[str]:
    yield ""
    yield f"Text for a ticket to the {receiver} team:"
    yield ""
    yield f"  The accounting portal has more jobs of site {found.site} than we publish:"
    for one in too_many:
        jobs = f"{one.portal:,} jobs, we publish {one.due:,}"
        yield f"  {one.month_name}, submit host {_host(one)}: {jobs}."
    keys = "(user, VO, submit host, benchmark, processors)"
    yield f"  Please tell us under which keys {keys} these months have rows, and delete"
    months = {(one.target, one.month) for one in too_many}
    ours = [left for target, left in found.left if (target, left.month) in months]
    if ours:
        yield "  those that we do not send any more:"
        for left in ours:
            for row in left.rows:
                yield f"  {month_name(left.month)}: {row.key.text}: {row.jobs:,} jobs"
    else:
        yield "  those that we name as not ours."
    yield ""


def _host(row: Compared) -> str:
    return "(all)" if row.submit_host == EVERY_HOST else row.submit_host or "(none)"
