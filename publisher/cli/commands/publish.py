"""`publish`: one regular round; and how all commands and the daemon show results of rounds.

A dry run is a plan: `publisher plan` prints what `publish --dry-run` prints.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, Final

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.logs import log, log_trouble
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    earlier_text,
    moment_text,
    plan_earlier_json,
    print_result,
)
from publisher.cli.parser import (
    add_accept_state,
    add_dry_run,
    add_flag,
    add_json,
    add_targets,
    count,
    is_quiet,
)
from publisher.cli.sources import failing_now, sources_json, sources_text
from publisher.formats import is_summary_format, receiver_of, summary_format
from publisher.model.entry import RecordKey
from publisher.model.errors import Later, RecordError
from publisher.model.rates import wall_text
from publisher.model.text import plural
from publisher.model.time import iso_epoch
from publisher.model.totals import (
    BlockedMonth,
    KeyTotal,
    RestoredMonth,
    SummaryKey,
    column,
    month_name,
)
from publisher.policy.target import Target
from publisher.publishing import publish
from publisher.publishing.databases.batch_systems import SourceStatus, readings
from publisher.publishing.plan.actions import EXAMPLES, Action, Example, PlanLine
from publisher.publishing.round.outcome import Outcome, incomplete
from publisher.publishing.site import Site
from publisher.publishing.sync.left import LeftBehind, left_at

if TYPE_CHECKING:
    from publisher.publishing.round.outcome import LostJobs

KEY_CHANGE_HELP = "send months even if rows under other keys remain at the receiver"
_COLUMNS = ("target", "outcome", "messages", "records", "bytes", "set aside")
_PLAN_LINES: Final = 20  # of more, months of which the same is done share a line
_NAMED: Final = 4  # targets that a line names
_PLAN_COLUMNS = ("target", "month", "action", "jobs", "rows", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    text = "also publish to targets that are not due yet, and check every row again"
    add_flag(parser, "--force", text=text)
    add_dry_run(parser)
    add_flag(parser, "--accept-key-change", text=f"{KEY_CHANGE_HELP} (its team must delete them)")
    text = "at most N jobs per target (not for summaries)"
    parser.add_argument("--limit", type=count, metavar="N", help=text)
    add_accept_state(parser)
    add_json(parser)


_SHOWN_FIRST: Final = (
    "--accept-key-change accepts what was shown before; what is held now was not: give it again"
)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load().accepting_state(accept=arguments.accept_state)
    with progress.rounds(quiet=is_quiet(arguments)) as report:
        report.expect_targets(len(arguments.target or site.targets))
        ended = publish.publish(
            site,
            targets=arguments.target,
            observer=report,
            force=arguments.force,
            dry_run=arguments.dry_run,
            limit=arguments.limit,
            accept_key_change=arguments.accept_key_change,
        )
    sources = readings(site)
    unread: Sequence[str] = ()
    if arguments.dry_run:  # else the outcomes have them, as plans do that failed for that reason
        shown = "\n".join(one.reason for one in ended)
        unread = failing_now([one for one in sources if one.trouble not in shown])
    accepts = arguments.accept_key_change
    later = "" if arguments.dry_run else "nothing is lost, the next round sends it"
    return print_outcomes(
        arguments, site, ended, sources=sources, unread=unread, accepts=accepts, later=later
    )


def print_outcomes(
    arguments: argparse.Namespace,
    site: Site,
    outcomes: Sequence[Outcome],
    targets: Sequence[Target] | None = None,
    *,
    sources: Sequence[SourceStatus] = (),
    unread: Sequence[str] = (),
    accepts: bool = False,
    later: str = "",
) -> int:
    """Print what came of the rounds to targets (default: the site's). Returns their exit status.

    `unread`: sources whose jobs may be missing, and not in the outcomes. `accepts`: rows may stay
    at receivers. `later`: what becomes of what was deferred.
    """
    outcomes = [incomplete(outcome, unread) for outcome in outcomes]
    if arguments.dry_run:
        outcomes = list(map(_of_plan, outcomes))
    by_name = {target.name: target for target in targets or site.targets}
    shadows = {target.name for target in site.targets if target.shadow}
    outcomes = [
        outcome._replace(shadow=True)
        if outcome.target in shadows and outcome.outcome != "nothing"
        else outcome
        for outcome in outcomes
    ]
    by_reason: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_reason.setdefault(outcome.own_reason, []).append(outcome)
    for reason, alike in by_reason.items():
        log_trouble([one.target for one in alike], publish.exit_status(alike), reason)
    for reason in dict.fromkeys(reason for outcome in outcomes for reason in outcome.lacks):
        log.error("%s", reason)
    held = (month for outcome in outcomes for month in outcome.held)
    if accepts and not all(month.restored or month.purged or month.was for month in held):
        log.warning("%s", _SHOWN_FIRST)
    left = _left(site, outcomes) if accepts and not arguments.dry_run else {}
    print_result(
        outcomes,
        lambda lines: as_json(lines, sources),
        lambda lines: _as_text(
            site.records.name, by_name, lines, sources, left, later, dry_run=arguments.dry_run
        ),
        form=arguments.form,
        rows="targets",
    )
    return publish.exit_status(outcomes)


def _of_plan(outcome: Outcome) -> Outcome:
    """Return the outcome of a dry run: jobs that would be set aside are no trouble of the plan."""
    if outcome.exit_status != RecordError.exit_status or outcome.outcome == "held" or outcome.held:
        return outcome
    status = Later.exit_status if outcome.outcome == "deferred" else 0
    return outcome._replace(exit_status=status)


def _left(site: Site, outcomes: Iterable[Outcome]) -> Mapping[str, Sequence[LeftBehind]]:
    """Return what stays at the receiver of each target. Raises: LedgerError."""
    found: defaultdict[str, list[LeftBehind]] = defaultdict(list)
    with closing(site.ledgers.to_read()) as ledger:
        for target, left in left_at(ledger.left, [one.target for one in outcomes]):
            found[target].append(left)
    return found


def as_json(outcomes: Sequence[Outcome], sources: Sequence[SourceStatus]) -> Json:
    return {
        "targets": {outcome.target: _outcome_json(outcome) for outcome in outcomes},
        "sources": sources_json(sources),
        "exit": publish.exit_status(outcomes),
    }


def _outcome_json(outcome: Outcome) -> Json:
    return {
        **attributes(outcome, "messages", "records", "bytes", "quarantined", "shed", "kept"),
        "arex_default_benchmarks": outcome.arex_default_benchmarks,
        "arex_default_wall_s": sum(outcome.arex_default_wall_s.values()),
        "arex_default_queues": sorted(outcome.arex_default_wall_s),
        "warnings": dict(outcome.warnings),
        "odd_jobs": dict(outcome.odd_jobs),
        "outcome": outcome.outcome,
        "reason": outcome.reason or None,
        "shadow": outcome.shadow,
        "actions": list(map(_action_json, outcome.actions)),
        "earlier_settings": plan_earlier_json(outcome.earlier),
        "held": list(map(_held_json, outcome.held)),
        "others_first": dict(outcome.others_first),
        "lost": None if outcome.lost is None else _lost_json(outcome.lost),
    }


def _action_json(line: PlanLine) -> Json:
    examples = [
        {"job": one.job or None, "row": one.row or None, "reason": one.reason or None}
        for one in line.examples
    ]
    return {
        "month": None if line.month is None else month_name(line.month),
        "action": line.action.kind.value,
        "reason": line.action.reason,
        **attributes(line, "jobs", "rows"),
        "examples": examples,
    }


def _held_json(held: BlockedMonth) -> Json:
    orphaned = () if held.purged else held.orphaned
    rows = [{"row": total.key.text, **usage_json(total)} for total in orphaned]
    restored = None if held.restored is None else _restored_json(held.restored)
    lost = attributes(held, "lost_jobs", "emptied", "purged")
    return {"month": held.name, **lost, "stale": rows, "restored": restored}


def _restored_json(restored: RestoredMonth) -> Json:
    numbers = attributes(restored, "differs", "jobs", "counted", "waiting")
    return {"noticed": moment_text(restored.noticed_at), **numbers}


def usage_json(total: KeyTotal) -> Json:
    return attributes(total, "jobs", "wall_s", "cpu_s")


def usage_text(total: KeyTotal) -> str:
    return f"{plural(total.jobs, 'job')}, {total.wall_s:,} s wall, {total.cpu_s:,} s CPU"


def _lost_json(lost: LostJobs) -> Json:
    jobs = [
        {"job": one.job_id, "end_time": moment_text(one.ended_at), "certain": one.certain}
        for one in lost.jobs
    ]
    return {**attributes(lost, "certain", "perhaps"), "jobs": jobs}


def _as_text(
    site: str,
    targets: Mapping[str, Target],
    outcomes: Sequence[Outcome],
    sources: Sequence[SourceStatus],
    left: Mapping[str, Sequence[LeftBehind]],
    later: str,
    *,
    dry_run: bool,
) -> Iterator[Part]:
    yield TextTable(_COLUMNS, [_row(outcome) for outcome in outcomes])
    if dry_run:
        yield from _plan_text(outcomes)
        yield from _rows_together(outcomes, targets)
    yield from _notes_of_all(outcomes)
    deferred = [one.target for one in outcomes if one.outcome == "deferred"]
    if later and deferred:
        yield f"{_named(deferred)}: {later}"
    for outcome in outcomes:
        target = targets[outcome.target]
        there = receiver_of(target.format)
        for line in ticket(site, there.name, outcome):
            yield from line.split("\n")
        name = outcome.target
        to = f"{there.name} team", name, f"--target {name}"
        yield from ticket_after(target.policy.site, *to, left.get(name, ()))
    if dry_run:
        yield from sources_text(sources)
        yield _recorded(outcomes)


def _recorded(outcomes: Iterable[Outcome]) -> str:
    if all(one.earlier is None for one in outcomes):
        return "dry run: nothing was sent or recorded"
    return "dry run: nothing was sent, and nothing recorded but how many jobs have other keys"


def _plan_text(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    """Yield the lines of all targets as a table, and some of their jobs and rows."""
    lines = [(outcome.target, line) for outcome in outcomes for line in outcome.actions]
    if not lines:
        return
    key = _by_action if len(lines) > _PLAN_LINES else _by_month
    yield TextTable(_PLAN_COLUMNS, [_plan_row(list(each)) for _, each in groupby(lines, key)])
    shown: Counter[Action] = Counter()
    listed = {outcome.target: _ticket_rows(outcome) for outcome in outcomes}
    for target, line in lines:
        new = [one for one in line.examples if one.job or one.row not in listed[target]]
        for example in new[: max(EXAMPLES - shown[line.action], 0)]:
            shown[line.action] += 1
            yield f"{target}, {month_text(line)}, {line.action.kind}: {_example(example)}"


def _ticket_rows(outcome: Outcome) -> Collection[str]:
    """Return the rows that are listed below, for a ticket."""
    listed = (one.orphaned for one in outcome.held if not (one.emptied or one.purged))
    return {row.key.text for rows in listed for row in rows}


def _rows_together(outcomes: Iterable[Outcome], targets: Mapping[str, Target]) -> Iterator[str]:
    """Yield why fewer records are sent than rows are counted, where that may be so."""
    for outcome in outcomes:
        form = targets[outcome.target].format
        has_rows = any(line.rows for line in outcome.actions)
        if has_rows and is_summary_format(form) and not summary_format(form).grouping.by_level:
            yield f"{outcome.target}: a record sums up the rows of all values of a benchmark"


def _by_action(line: tuple[str, PlanLine]) -> Sequence[object]:
    return line[0], line[1].action


def _by_month(line: tuple[str, PlanLine]) -> Sequence[object]:
    return line[0], line[1].action, line[1].month


def _plan_row(lines: Sequence[tuple[str, PlanLine]]) -> tuple[str, ...]:
    """Return the row of what is done alike for a target in one month, or in several."""
    (target, first), (_, last) = lines[0], lines[-1]
    months = month_text(first) if first is last else f"{month_text(first)} to {month_text(last)}"
    jobs = _sum_text(line.jobs for _, line in lines)
    rows = _sum_text(line.rows for _, line in lines)
    return target, months, first.action.kind, jobs, rows, first.action.reason


def _sum_text(counts: Iterable[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{sum(known):,}" if known else "-"


def month_text(line: PlanLine) -> str:
    return "unknown" if line.month is None else month_name(line.month)


def _example(example: Example) -> str:
    named = [
        f"{name} {text}" for name, text in (("job", example.job), ("row", example.row)) if text
    ]
    return ": ".join(filter(None, (", ".join(named), example.reason)))


def _row(outcome: Outcome) -> tuple[str, ...]:
    counts = (outcome.messages, outcome.records, outcome.bytes, outcome.quarantined)
    return (outcome.target, outcome.outcome, *(f"{count:,}" for count in counts))


def _warned(outcome: Outcome) -> str:
    """Return how many jobs look odd by rule, each with the command that shows one of them."""
    found = [
        f"{rule} {jobs:,} (`publisher explain {quote(outcome.odd_jobs[rule])}` shows one)"
        for rule, jobs in outcome.warnings.items()
    ]
    return f"values that may be wrong: {', '.join(found)}"


def notes(outcome: Outcome) -> list[str]:
    """Return what an administrator must know of a round in addition to its counts."""
    return list(_notes_of_all([outcome]))


def _notes_of_all(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of all rounds; one that several share names their targets."""
    well = (0, RecordError.exit_status)
    shadows = [one.target for one in outcomes if one.shadow and one.exit_status in well]
    if shadows:
        what = "shadow target: everything was done and recorded, but nothing was sent"
        yield f"{', '.join(shadows)}: {what}"
    yield from (line for one in outcomes if one.lost is not None for line in one.lost.lines)
    targets: dict[str, list[str]] = {}
    for outcome in outcomes:
        for line in _notes(outcome):
            targets.setdefault(line, []).append(outcome.target)
    for line, names in targets.items():
        yield from f"{_named(names)}: {line}".split("\n")


def _named(targets: Sequence[str]) -> str:
    """Return the names of targets; of many the first, and how many there are."""
    if len(targets) <= _NAMED:
        return ", ".join(targets)
    return f"{len(targets)} targets ({', '.join(targets[:_NAMED])}, ...)"


def _notes(outcome: Outcome) -> Iterator[str]:
    if outcome.reason and not outcome.exit_status:  # else it was logged
        yield outcome.reason
    if outcome.quarantined:
        yield f"{outcome.quarantined:,} set aside; `publisher quarantine list` shows why"
    if outcome.warnings:
        yield _warned(outcome)
    if outcome.shed:
        yield f"{outcome.shed} sent without their file transfers, with which they were too large"
    if outcome.kept:
        kept = "the receiver accepts no corrections and keeps the first version"
        yield f"{outcome.kept} changed after delivery; {kept}"
    if outcome.earlier is not None and (line := earlier_text(outcome.target, outcome.earlier)):
        yield line
    for name, messages in outcome.others_first.items():
        under_way = f"{plural(messages, 'message')} of target {name} went first"
        yield f"{under_way}: the receiver is the same, and its answer was not known"
    if outcome.arex_default_benchmarks:
        yield _default_benchmarks(outcome)


def _default_benchmarks(outcome: Outcome) -> str:
    records = plural(outcome.arex_default_benchmarks, "record")
    carry = "carries" if outcome.arex_default_benchmarks == 1 else "carry"
    return (
        f"{records} with {wall_text(outcome.arex_default_wall_s)} {carry} HEPSPEC:1.0, "
        "which A-REX writes where no benchmark is configured; "
        "set one in arc.conf, or records.distrust_default with records.benchmark here"
    )


def ticket(site: str, receiver: str, outcome: Outcome) -> list[str]:
    """Return what to write to the accounting team, so that it deletes rows that would stay.

    Where the receiver makes them of single records, the ticket comes after those (`ticket_after`):
    these are the rows that would stay.
    """
    held = [one for one in outcome.held if not (one.emptied or one.ticket_after or one.purged)]
    rows = [(one.name, row) for one in held for row in one.orphaned]
    later = [(one.name, row) for one in outcome.held if one.ticket_after for row in one.orphaned]
    lines = [""] if rows or later else []
    if rows:
        before = f"to be sent before --accept-key-change ({outcome.target})"
        months = ", ".join(dict.fromkeys(month for month, _ in rows))
        lines += [
            f"Text for a ticket to the {receiver} team, {before}:",
            "",
            f"  Site {site} is about to republish {months} under other keys.",
            "  Please delete these rows, which the new ones do not replace:",
            *(_row_line(site, month, row) for month, row in rows),
            "",
        ]
    if later:
        then = f"prints the ticket that has the {receiver} team delete what stayed"
        lines += [
            f"Rows that would stay ({outcome.target}); --accept-key-change sends, and {then}:",
            *(_row_line(site, month, row) for month, row in later),
            "",
        ]
    return lines


def ticket_after(
    site: str, team: str, where: str, option: str, changes: Iterable[LeftBehind]
) -> Iterator[str]:
    """Yield what to write to the accounting team once the new single records have arrived.

    Rows that the team deleted before would be made again of the old records. `where` is a target or
    a receiver, which `option` names for `sync --deleted`.
    """
    left = [one for one in changes if one.sums or one.records]
    if not left:
        return
    months = list(dict.fromkeys(month_name(one.month) for one in left))
    rows = [(month_name(one.month), row) for one in left for row in one.sums]
    records = [(month_name(one.month), record.key) for one in left for record in one.records]
    yield ""
    yield f"Text for a ticket to the {team}, to be sent now ({where}):"
    yield ""
    yield f"  Site {site} has published {', '.join(months)} again under other keys."
    if records:
        yield "  Please delete these job records, which the new ones do not replace:"
        yield from (_record_line(month, key) for month, key in records)
    if rows:
        then = "Then please delete" if records else "Please delete"
        yield f"  {then} these rows of the summaries, of which there are no job records any more:"
        yield from (_row_line(site, month, row) for month, row in rows)
    yield ""
    for month in months:
        yield f"once that is done: publisher sync --deleted {month} {option}"


def _row_line(site: str, month: str, row: KeyTotal) -> str:
    return f"  {month}: {_of_site(site, row.key)}: {usage_text(row)}"


def _record_line(month: str, key: RecordKey) -> str:
    local_id = key.localid_prefix + key.local_id
    return f"  {month}: site {key.site}, LocalJobId {local_id}, EndTime {iso_epoch(key.ended_at)}"


def _of_site(site: str, key: SummaryKey) -> str:
    """Return a row's key, with its site where that is not the one that the ticket is about."""
    if not key.site or column(key.site) == column(site):
        return key.text
    return f"site {key.site}, {key.text}"
