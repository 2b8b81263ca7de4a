"""`statement`: a month on one page, for terminal, mail and browser: was it all counted?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    earlier_json,
    earlier_text,
    moment_text,
    print_result,
)
from publisher.cli.parser import Form, add_all_instances, add_json, add_targets, is_quiet
from publisher.cli.sources import incomplete, never_sent_json
from publisher.formats import receiver_of
from publisher.model.errors import RecordError, UsageError, gravest
from publisher.model.text import plural, visible
from publisher.model.time import iso, parse_month
from publisher.publishing.databases.prune import refuse_pruned
from publisher.publishing.databases.retired import NeverSent
from publisher.publishing.site import choose
from publisher.publishing.sync import portal
from publisher.reporting import statement
from publisher.reporting.statement import RecordedStatement, Statement, TargetStatement, Work

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; \
padding: 0 1rem; overflow-wrap: anywhere }}
h1 {{ font-size: 1.4rem }}
h2 {{ font-size: 1.1rem; margin-top: 2rem }}
div {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0 }}
th, td {{ text-align: right; padding: .25rem; border-bottom: 1px solid #8888; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; min-width: 6rem }}
</style>
</head>
<body>
<h1>{title}</h1>
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a calendar month in UTC: 2026-03, last-month"
    parser.add_argument("month", metavar="MONTH", help=text)
    add_targets(parser)
    add_all_instances(parser)
    text = "also compare with counts saved from the portal, CSV or JSON"
    parser.add_argument("--portal", type=Path, metavar="FILE", help=text)
    text = "text, or an HTML page that needs no other file"
    parser.add_argument("--format", choices=("text", "html"), default="text", help=text)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.all_instances and arguments.target:
        raise UsageError("--all-instances covers all targets; omit --target")
    site = context.load()
    month = parse_month(arguments.month, site.process.clock())
    refuse_pruned(site, month.window)
    targets = choose(site.targets, arguments.target)
    counts = portal.read(arguments.portal, site.records.name) if arguments.portal else None
    with progress.counting("jobs compared", quiet=is_quiet(arguments)) as counting:
        found = statement.collect(
            site,
            targets,
            month,
            portal=counts,
            jobs_seen=counting.seen,
            all_instances=arguments.all_instances,
        )
    status = gravest(
        [incomplete(site, sources_shown=True), RecordError.exit_status if found.different else 0]
    )
    if arguments.format == "html" and arguments.form is Form.TABLE:
        sys.stdout.writelines(_as_page(_title(found), _as_text(found, status)))
    else:
        print_result(
            found,
            lambda each: _as_json(each, status),
            lambda each: _as_text(each, status),
            form=arguments.form,
            rows="targets",
        )
    return status


def _title(found: Statement) -> str:
    return f"{found.site}: statement of {found.month}"


def _verdict(found: Statement, target: TargetStatement, status: int) -> str:
    if target.missing:
        return f"not complete: {plural(len(target.missing), 'difference')}, see below"
    if _is_incomplete(status):
        return "cannot tell: the accounting data is not complete"
    if lost := _lost_jobs(target.never_sent):
        return f"not complete: {plural(lost, 'job is', 'jobs are')} lost, see below"
    if found.alarms:
        return "complete as far as can be told: see below about the sources"
    if target.never_sent:
        return "complete as far as can be told: see below about retired databases"
    if found.has_no_data and not (target.sent.messages or target.before):
        return "no data: the accounting data has no job of this month or an earlier one"
    if found.is_over:
        return "complete" if target.at_ce.jobs else "complete, without any job"
    return f"complete so far; the month ends at {iso(found.month.next.start)}"


def _is_incomplete(status: int) -> bool:
    """Whether accounting data is missing or cannot be read."""
    return status not in (0, RecordError.exit_status)


def _lost_jobs(lost: Iterable[NeverSent]) -> int:
    """Return how many jobs surely are lost with retired databases."""
    return sum(one.jobs or 0 for one in lost)


def _as_text(found: Statement, status: int) -> Iterator[Part]:
    made = f"made {iso(found.made_at)}; hours, UTC, by end of jobs."
    yield f"Statement of {found.month} for site {found.site}, {made}"
    for target in found.targets:
        yield ""
        shadow = ", a shadow: nothing was sent" if target.shadow else ""
        yield f"Target {target.target} ({target.format}{shadow}): {_verdict(found, target, status)}"
        yield from (f"  {line}" for line in target.missing)
        yield ""
        yield TextTable(("", "at the CE", "delivered"), _usage_rows(target))
        yield ""
        yield TextTable(("jobs", ""), _job_rows(target, status))
        yield ""
        yield from _notes(target)
    if found.others is not None:
        yield from _others_as_text(found, found.others)
    yield from found.alarms


def _others_as_text(found: Statement, others: Sequence[RecordedStatement]) -> Iterator[Part]:
    """What the other instances' ledgers have, and the site's sums."""
    yield "Other instances, as far as their ledgers tell:"
    counts = ("target", "delivered", "before", "told", "in the portal")
    columns = (*counts, "wall time", "CPU time", "messages", "verdict")
    yield TextTable(columns, [_other_row(each) for each in others])
    for each in others:
        yield from (f"  {each.target}: {line}" for line in each.missing)
        yield from _work_of(each)
        yield f"  {each.target}: SHA-256 of what was sent {each.sent.digest or '-'}"
    yield ""
    rows = [(name, f"{jobs:,}") for name, jobs in found.delivered().items()]
    yield TextTable(("target, all instances", "jobs delivered"), rows)
    yield ""


def _other_row(each: RecordedStatement) -> tuple[str, ...]:
    counts = (each.delivered.jobs, each.before, each.reported, each.portal)
    return (
        each.target,
        *("-" if jobs is None else f"{jobs:,}" for jobs in counts),
        _hours(each.delivered.wall_s),
        _hours(each.delivered.cpu_s),
        f"{each.sent.messages:,}",
        _other_verdict(each),
    )


def _work_of(each: RecordedStatement) -> Iterator[str]:
    for kind in sorted(each.delivered.scaled or ()):
        yield f"  {each.target}: work, {kind}, delivered {_scaled(each.delivered, kind)}"
    if each.emptied:
        yield f"  {each.target}: emptied at the receiver"
    yield from (f"  {each.target}: {one.text}" for one in each.never_sent)


def _other_verdict(each: RecordedStatement) -> str:
    if each.missing:
        return f"not complete: {plural(len(each.missing), 'difference')}"
    if lost := _lost_jobs(each.never_sent):
        return f"not complete: {plural(lost, 'job is', 'jobs are')} lost"
    return "complete as far as can be told" if each.never_sent else "complete"


def _usage_rows(target: TargetStatement) -> list[tuple[str, str, str]]:
    ours, theirs = target.at_ce, target.delivered
    kinds = sorted({*(ours.scaled or ()), *(theirs.scaled or ())})
    return [
        ("jobs", f"{ours.jobs:,}", f"{theirs.jobs:,}"),
        ("wall time", _hours(ours.wall_s), _hours(theirs.wall_s)),
        ("CPU time", _hours(ours.cpu_s), _hours(theirs.cpu_s)),
        *((f"work, {kind}", _scaled(ours, kind), _scaled(theirs, kind)) for kind in kinds),
        ("GPU time", _hours(ours.gpu_s), _hours(theirs.gpu_s)),
    ]


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:,.2f}"


def _scaled(work: Work, kind: str) -> str:
    return "-" if work.scaled is None else _hours(work.scaled.get(kind, 0) / 1000)


def _job_rows(target: TargetStatement, status: int) -> list[tuple[str, str]]:
    absent = "not in any database that is there"
    gone = absent if _is_incomplete(status) else "purged at the CE since"
    counts = {
        "reported by sync": target.reported,
        "in the portal's file": target.portal,
        "delivered earlier by another publisher": target.before,
        "pending": target.pending,
        "quarantined": target.quarantined,
        f"delivered, {gone}": target.purged,
        "delivered, of retired databases": target.retired,
        "delivered, restarted since": target.restarted,
    }
    return [(name, "-" if jobs is None else f"{jobs:,}") for name, jobs in counts.items()]


def _notes(target: TargetStatement) -> Iterator[str]:
    if target.measured != target.at_ce.jobs:
        yield f"Times and work at the CE are those of {plural(target.measured, 'job')}."
    yield from _work_notes(target)
    yield from _gpu_notes(target)
    held, emptied = ("yes" if each else "no" for each in (target.held, target.emptied))
    yield f"Held back by the last round: {held}. Emptied at the receiver: {emptied}."
    if target.earlier is not None:
        yield f"{earlier_text(target.target, target.earlier)}."
    for change in target.accepted:
        rows = plural(len(change.rows), "row")
        jobs = plural(sum(row.jobs for row in change.rows), "job")
        lost = plural(change.lost_jobs, "job is", "jobs are")
        accepted = f"Accepted at {moment_text(change.accepted_at)}"
        what = f"{rows} with {jobs}"
        if change.records:
            what += f" and {plural(len(change.records), 'job record')}"
        yield f"{accepted}: {what} stay at the receiver, {lost} lost there."
    yield from (one.text for one in target.never_sent)
    digest = f", SHA-256 {target.sent.digest}" if target.sent.digest else ""
    yield f"Sent: {plural(target.sent.messages, 'message')}{digest}"


def _work_notes(target: TargetStatement) -> Iterator[str]:
    """Why what was delivered is not known, where jobs were."""
    theirs = target.delivered
    if theirs.jobs and theirs.wall_s is None:
        yield "Times and work delivered: the ledger has no sums of just these jobs."
    elif theirs.jobs and theirs.scaled is None:
        kept = "the ledger keeps times but not their product with the benchmark"
        yield f"Work delivered: for {target.format}, {kept}."


def _gpu_notes(target: TargetStatement) -> Iterator[str]:
    """Why GPU time is not known."""
    ours, theirs = target.at_ce.gpu_s, target.delivered.gpu_s
    if ours is None:
        yield "GPU time: only batch systems record it, and none is a source here."
    elif ours and theirs is None and receiver_of(target.format).gpus_only:
        needed = "until just the CE's jobs are delivered, as they are"
        yield f"GPU time delivered: cannot be told {needed}."
    elif ours and theirs is None:
        kept = "the ledger keeps none; a target with apel-accelerator-0.1 has it"
        yield f"GPU time delivered: for {target.format}, {kept}."


def _as_page(title: str, parts: Iterable[Part]) -> Iterator[str]:
    """The same as text, in HTML."""
    yield _PAGE.format(title=_html(title))
    for part in parts:
        if isinstance(part, TextTable):
            yield from _html_table(part)
        elif part:
            tag = "h2" if part.startswith("Target ") else "p"
            yield f"<{tag}>{_html(part)}</{tag}>\n"
    yield "</body>\n</html>\n"


def _html_table(table: TextTable) -> Iterator[str]:
    yield "<div><table>\n"
    for tag, rows in (("th", [table.columns]), ("td", table.rows)):
        for row in rows:
            yield "<tr>" + "".join(f"<{tag}>{_html(cell)}</{tag}>" for cell in row) + "</tr>\n"
    yield "</table></div>\n"


def _html(text: str) -> str:
    return escape(visible(text))


def _as_json(found: Statement, status: int) -> Json:
    return {
        "site": found.site,
        "month": str(found.month),
        "made": moment_text(found.made_at),
        "over": found.is_over,
        "targets": {each.target: _target_json(found, each, status) for each in found.targets},
        **_others_json(found),
        "alarms": list(found.alarms),
        "exit": status,
    }


def _others_json(found: Statement) -> Json:
    if found.others is None:
        return {}
    return {
        "others": {each.target: _other_json(each) for each in found.others},
        "delivered": dict(found.delivered()),
    }


def _other_json(each: RecordedStatement) -> Json:
    return {
        "verdict": _other_verdict(each),
        "missing": list(each.missing),
        "delivered": _work_json(each.delivered),
        **attributes(each, "last_success", "before", "portal", "quarantined", "held", "emptied"),
        "never_sent": never_sent_json(each.never_sent),
        "told": each.reported,
        "messages": each.sent.messages,
        "digest": each.sent.digest or None,
    }


def _target_json(found: Statement, target: TargetStatement, status: int) -> Json:
    return {
        "verdict": _verdict(found, target, status),
        "missing": list(target.missing),
        "at_ce": _work_json(target.at_ce),
        "delivered": _work_json(target.delivered),
        **attributes(target, "format", "shadow", "measured", "portal", "before", "pending"),
        **attributes(target, "quarantined", "held", "purged", "retired", "restarted", "emptied"),
        "told": target.reported,
        "earlier_settings": earlier_json(target.earlier),
        "never_sent": never_sent_json(target.never_sent),
        "lost_accepted": sum(change.lost_jobs for change in target.accepted),
        "messages": target.sent.messages,
        "digest": target.sent.digest or None,
    }


def _work_json(work: Work) -> Json:
    scaled: Mapping[str, float] | None = None
    if work.scaled is not None:
        scaled = {kind: milli / 3_600_000 for kind, milli in sorted(work.scaled.items())}
    return {**attributes(work, "jobs", "wall_s", "cpu_s", "gpu_s"), "work_hours": scaled}
