"""`statement`: months on one page, for terminal, mail, browser and paper: were they all counted?"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.logs import notice
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    earlier_json,
    earlier_text,
    moment_text,
    print_result,
    text_pieces,
)
from publisher.cli.parser import Form, add_all_instances, add_json, add_targets, is_quiet
from publisher.cli.sources import incomplete, never_sent_json
from publisher.formats import receiver_of
from publisher.model.errors import RecordError, UsageError, gravest
from publisher.model.text import plural
from publisher.model.time import Window, iso, month_of, parse_months
from publisher.publishing.databases.prune import refuse_pruned
from publisher.publishing.site import choose
from publisher.publishing.sync import check, portal
from publisher.reporting.files import whole_file
from publisher.reporting.statement import figures, page
from publisher.reporting.statement.breakdown import (
    added_up,
    by_vo_and_project,
    kinds_of,
    pair_table,
)
from publisher.reporting.statement.figures import RecordedStatement, Statement, TargetStatement
from publisher.reporting.statement.verdict import (
    Badge,
    badge,
    has_no_data,
    is_incomplete,
    recorded_verdict,
    verdict,
)
from publisher.reporting.statement.work import VoWork, Work, summed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "months in UTC: 2026-03, last-month, a quarter 2026-Q3, or a year 2026"
    parser.add_argument("period", metavar="PERIOD", help=text)
    add_targets(parser)
    add_all_instances(parser)
    text = "also compare with counts saved from the portal, CSV or JSON"
    parser.add_argument("--portal", type=Path, metavar="FILE", help=text)
    text = "text, or an HTML page that needs no other file"
    parser.add_argument("--format", choices=("text", "html"), help=text)
    text = "write it to this file, as a page unless --format is text; - is standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.all_instances and arguments.target:
        raise UsageError("--all-instances covers all targets; omit --target")
    site = context.load()
    months = parse_months(arguments.period, site.process.clock())
    window = Window(start=months[0].window.start, end=months[-1].window.end)
    refuse_pruned(site, window)
    targets = choose(site.targets, arguments.target)
    counts = portal.read(arguments.portal, site.records.name) if arguments.portal else None
    with progress.counting("jobs compared", quiet=is_quiet(arguments)) as counting:
        back = month_of(site.process.clock()).number - months[0].number + 1
        counting.expect(check.jobs_to_compare(site, targets, back, months[-1].number))
        found = figures.collect(
            site,
            targets,
            months,
            portal=counts,
            jobs_seen=counting.seen,
            all_instances=arguments.all_instances,
        )
    different = any(one.different for one in found)
    compared = RecordError.exit_status if different else 0
    status = gravest([incomplete(site, sources_shown=True), compared])
    if arguments.form is Form.TABLE and (arguments.format or arguments.output):
        _write(arguments, _pieces(arguments, found, status))
        return status
    rows = "months" if found[1:] else "targets"
    print_result(
        found,
        lambda each: _as_json(each, status),
        lambda each: _as_text(each, status),
        form=arguments.form,
        rows=rows,
    )
    return status


def _pieces(
    arguments: argparse.Namespace, found: Sequence[Statement], status: int
) -> Iterator[str]:
    parts = _as_text(found, status)
    if arguments.format == "text":
        return text_pieces(parts)
    title = f"{found[0].site}: statement of {_period(found)}"
    return page.page(title, badge(found, status), map(_on_page, parts))


def _on_page(part: Part) -> str | page.Table:
    return (part.columns, part.rows) if isinstance(part, TextTable) else part


def _write(arguments: argparse.Namespace, pieces: Iterator[str]) -> None:
    if arguments.output is None or str(arguments.output) == "-":
        sys.stdout.writelines(pieces)
        return
    with whole_file(arguments.output) as out:
        out.writelines(pieces)
    notice(f"{arguments.output}: written")


def _period(months: Sequence[Statement]) -> str:
    window = Window(start=months[0].month.window.start, end=months[-1].month.window.end)
    return f"{_period_name(months)} ({window})"


def _period_name(months: Sequence[Statement]) -> str:
    first, last = months[0].month, months[-1].month
    return str(first) if first == last else f"{first} to {last}"


def _as_text(months: Sequence[Statement], status: int) -> Iterator[Part]:
    found = months[-1]
    made = f"made {iso(found.made_at)}; hours, UTC, by end of jobs."
    yield f"Statement of {_period_name(months)} for site {found.site}, {made}"
    if months[1:]:
        yield from _months_as_text(months, status)
    else:
        yield from _month_as_text(found, status)
    for month in months:
        if month.others is not None:
            yield from _others_as_text(month, month.others)
    yield from found.alarms


def _month_as_text(found: Statement, status: int) -> Iterator[Part]:
    for target in found.targets:
        yield ""
        yield _heading(target, verdict(found, target, status).text)
        yield from (f"  {line}" for line in target.missing)
        if has_no_data(found, target):
            continue
        yield ""
        yield TextTable(("", "at the CE", "delivered"), _usage_rows(target))
        yield ""
        yield TextTable(("jobs", ""), _job_rows(target, status))
        yield ""
        yield from _tables(target.by_vo, target.by_project)
        yield from _left_out(target.left_out)
        yield from _notes(target)


def _heading(target: TargetStatement, text: str) -> str:
    shadow = ", a shadow: nothing was sent" if target.shadow else ""
    return f"Target {target.target} ({target.format}{shadow}): {text}"


def _months_as_text(months: Sequence[Statement], status: int) -> Iterator[Part]:
    """Yield a row for each month of a quarter or year, and the sums."""
    for number, last in enumerate(months[-1].targets):
        pairs = [(month, month.targets[number]) for month in months]
        verdicts = [verdict(month, target, status) for month, target in pairs]
        agreed = sum(one.badge in (Badge.COMPLETE, Badge.NO_DATA) for one in verdicts)
        yield ""
        yield _heading(last, f"{agreed} of {plural(len(months), 'month')} complete")
        yield ""
        at_ce = [target.at_ce for _, target in pairs]
        delivered = [target.delivered for _, target in pairs]
        kinds = kinds_of(*at_ce, *delivered)
        lines = zip(pairs, at_ce, delivered, strict=True)
        works = [(str(month.month), ours, theirs) for (month, _), ours, theirs in lines]
        works.append(("all", summed(at_ce), summed(delivered)))
        badges = [one.badge.value for one in verdicts]
        columns, rows = pair_table("month", works, kinds)
        rows = [(*row, end) for row, end in zip(rows, [*badges, ""], strict=True)]
        yield TextTable((*columns, "verdict"), rows)
        yield ""
        for (month, target), one in zip(pairs, verdicts, strict=True):
            if one.badge is not Badge.COMPLETE:
                yield f"{month.month}: {one.text}"
            yield from (f"  {month.month}: {line}" for line in target.missing)
        yield ""
        yield from _tables(*added_up([target for _, target in pairs]))
        left_out: Counter[str] = Counter()
        for _, target in pairs:
            left_out.update(target.left_out)
        yield from _left_out(left_out)
        for month, target in pairs:
            digest = f", SHA-256 {target.sent.digest}" if target.sent.digest else ""
            yield f"{month.month}: sent {plural(target.sent.messages, 'message')}{digest}"


def _tables(by_vo: Mapping[str, VoWork], by_project: Mapping[str, Work]) -> Iterator[Part]:
    for table in by_vo_and_project(by_vo, by_project):
        yield TextTable(*table)
        yield ""


def _left_out(left_out: Mapping[str, int]) -> Iterator[str]:
    reasons = [f"{jobs:,} {reason}" for reason, jobs in sorted(left_out.items())]
    yield f"Left out: {'; '.join(reasons)}." if reasons else "Left out: no job."


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
        recorded_verdict(each),
    )


def _work_of(each: RecordedStatement) -> Iterator[str]:
    for kind in sorted(each.delivered.scaled or ()):
        yield f"  {each.target}: work, {kind}, delivered {_scaled(each.delivered, kind)}"
    if each.emptied:
        yield f"  {each.target}: emptied at the receiver"
    yield from (f"  {each.target}: {one.text}" for one in each.never_sent)


def _usage_rows(target: TargetStatement) -> list[tuple[str, str, str]]:
    ours, theirs = target.at_ce, target.delivered
    kinds = sorted({*(ours.scaled or ()), *(theirs.scaled or ())})
    return [
        ("jobs", f"{ours.jobs:,}", f"{theirs.jobs:,}"),
        ("wall time", _hours(ours.wall_s), _hours(theirs.wall_s)),
        ("core time", _hours(ours.core_s), _hours(theirs.core_s)),
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
    gone = absent if is_incomplete(status) else "purged at the CE since"
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
    for left in target.left:
        rows = plural(len(left.rows), "row")
        jobs = plural(sum(row.jobs for row in left.rows), "job")
        what = f"{rows} with {jobs}"
        if left.records:
            what += f" and {plural(len(left.records), 'job record')}"
        yield f"To be deleted at the receiver: {what}."
    yield from (one.text for one in target.never_sent)
    digest = f", SHA-256 {target.sent.digest}" if target.sent.digest else ""
    yield f"Sent: {plural(target.sent.messages, 'message')}{digest}"


def _work_notes(target: TargetStatement) -> Iterator[str]:
    """Why what was delivered is not known, where jobs were."""
    theirs = target.delivered
    if theirs.jobs and theirs.wall_s is None:
        yield "Times and work delivered: the ledger has no sums of just these jobs."
    elif theirs.jobs and theirs.scaled is None:
        kept = "the ledger keeps times, but neither cores nor benchmarks"
        yield f"Core time and work delivered: for {target.format}, {kept}."


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


def _as_json(months: Sequence[Statement], status: int) -> Json:
    if not months[1:]:
        return _month_json(months[0], status)
    first, last = months[0], months[-1]
    return {
        "site": first.site,
        "from": str(first.month),
        "to": str(last.month),
        "badge": badge(months, status),
        "months": [_month_json(month, status) for month in months],
        "exit": status,
    }


def _month_json(found: Statement, status: int) -> Json:
    return {
        "site": found.site,
        "month": str(found.month),
        "made": moment_text(found.made_at),
        "over": found.is_over,
        "badge": badge([found], status),
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
        "verdict": recorded_verdict(each),
        "missing": list(each.missing),
        "delivered": _work_json(each.delivered),
        **attributes(each, "last_success", "before", "portal", "quarantined", "held", "emptied"),
        "never_sent": never_sent_json(each.never_sent),
        "told": each.reported,
        "messages": each.sent.messages,
        "digest": each.sent.digest or None,
    }


def _target_json(found: Statement, target: TargetStatement, status: int) -> Json:
    given = verdict(found, target, status)
    return {
        "verdict": given.text,
        "badge": given.badge,
        "missing": list(target.missing),
        "at_ce": _work_json(target.at_ce),
        "delivered": _work_json(target.delivered),
        **attributes(target, "format", "shadow", "measured", "portal", "before", "pending"),
        **attributes(target, "quarantined", "held", "purged", "retired", "restarted", "emptied"),
        "left_out": dict(target.left_out),
        "vos": {name: _vo_json(pair) for name, pair in target.by_vo.items()},
        "projects": {name: _work_json(work) for name, work in target.by_project.items()},
        "told": target.reported,
        "earlier_settings": earlier_json(target.earlier),
        "never_sent": never_sent_json(target.never_sent),
        "messages": target.sent.messages,
        "digest": target.sent.digest or None,
    }


def _vo_json(pair: VoWork) -> Json:
    theirs = None if pair.delivered is None else _work_json(pair.delivered)
    return {"at_ce": _work_json(pair.at_ce), "delivered": theirs}


def _work_json(work: Work) -> Json:
    scaled: Mapping[str, float] | None = None
    if work.scaled is not None:
        scaled = {kind: milli / 3_600_000 for kind, milli in sorted(work.scaled.items())}
    return {**attributes(work, "jobs", "wall_s", "core_s", "cpu_s", "gpu_s"), "work_hours": scaled}
