"""What `sync --check` found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from publisher.checking import Compared
from publisher.model.months import AcceptedChange
from publisher.model.row_keys import year_and_month
from publisher.model.summary_keys import KeyTotal
from publisher.portal import EVERY_HOST
from publisher.results import Json, when
from publisher.shadowing import ComparedMonth

CHECK_COLUMNS = (
    "target",
    "month",
    "submit host",
    "database",
    "delivered",
    "before us",
    "set aside",
    "pending",
    "told",
    "portal",
    "difference",
)


def check_rows(compared: Iterable[Compared]) -> list[tuple[str, ...]]:
    return [
        (
            row.target,
            row.month_name,
            _host(row),
            *(f"{count:,}" for count in (row.database, row.delivered, row.before, row.quarantined, row.pending)),
            "-" if row.told is None else f"{row.told:,}",
            "-" if row.portal is None else f"{row.portal:,}",
            "; ".join(_differences(row)),
        )
        for row in compared
    ]


def _differences(row: Compared) -> list[str]:
    """What to do, and why there is nothing to do where database and ledger have other numbers."""
    found = list(row.repairs) or ["none"]
    if row.restarted:
        found.append(f"{row.restarted:,} delivered before a restart count too")
    if row.purged:
        found.append(f"{row.purged:,} purged at the CE")
    return found


def check_json(
    compared: Iterable[Compared],
    accepted: Sequence[tuple[str, AcceptedChange]],
    shadows: Sequence[ComparedMonth],
    exit_status: int,
) -> Json:
    return {
        "rows": [
            {
                "target": row.target,
                "month": row.month_name,
                "submit_host": row.submit_host,
                "database": row.database,
                "delivered": row.delivered,
                "restarted": row.restarted,
                "before": row.before,
                "quarantined": row.quarantined,
                "pending": row.pending,
                "told": row.told,
                "portal": row.portal,
                "purged": row.purged,
                "repairs": list(row.repairs),
            }
            for row in compared
        ],
        "accepted": [
            {
                "target": target,
                "month": _name(change.month),
                "accepted": when(change.accepted_at),
                "lost_jobs": change.lost_jobs,
                "stale": [
                    {"row": row.key.text, "jobs": row.jobs, "wall_s": row.wall_s, "cpu_s": row.cpu_s}
                    for row in change.rows
                ],
            }
            for target, change in accepted
        ],
        "shadows": [
            {
                "target": one.target,
                "month": one.month_name,
                "format": one.format,
                "jura_format": one.their_format,
                "equal": one.equal,
                "different": [
                    {"row": row.row, "ours": _total(row.ours), "jura": _total(row.theirs)} for row in one.different
                ],
            }
            for one in shadows
        ],
        "exit": exit_status,
    }


def _total(total: KeyTotal | None) -> Json | None:
    return None if total is None else {"jobs": total.jobs, "wall_s": total.wall_s, "cpu_s": total.cpu_s}


def shadow_lines(shadows: Sequence[ComparedMonth]) -> Iterator[str]:
    """Beside jura-ng, row by row."""
    for one in shadows:
        rows = f"{one.equal:,} rows alike, {len(one.different):,} not"
        yield f"{one.target}, a shadow: {one.month_name}: our {one.format} beside jura-ng's {one.their_format}: {rows}"
        for row in one.different:
            yield f"  {row.row}: ours {_said(row.ours)}, jura-ng's {_said(row.theirs)}"


def _said(total: KeyTotal | None) -> str:
    return "none" if total is None else f"{total.jobs:,} jobs, {total.wall_s:,} s wall, {total.cpu_s:,} s CPU"


def check_notes(
    site: str, compared: Sequence[Compared], accepted: Sequence[tuple[str, AcceptedChange]]
) -> Iterator[str]:
    """What was accepted of these months, and the ticket about what the portal has beyond ours."""
    for target, change in accepted:
        rows = f"{len(change.rows):,} rows with {sum(row.jobs for row in change.rows):,} jobs"
        yield (
            f"{target}: {_name(change.month)}: accepted at {when(change.accepted_at)}: {rows} stay at the receiver until its "
            f"team deletes them, {change.lost_jobs:,} jobs are lost there"
        )
        for row in change.rows:
            yield f"  {row.key.text}: {row.jobs:,} jobs, {row.wall_s:,} s wall, {row.cpu_s:,} s CPU"
    too_many = [row for row in compared if row.beyond]
    if not too_many:
        return
    yield ""
    yield "Text for a ticket to the APEL team:"
    yield ""
    yield f"  The accounting portal has more jobs of site {site} than we publish:"
    for one in too_many:
        yield f"  {one.month_name}, submit host {_host(one)}: {one.portal:,} jobs, we publish {one.due:,}."
    yield "  Please tell us under which keys (user, VO, submit host, benchmark, processors) these months have rows, and delete"
    ours = {(target, change.month) for target, change in accepted}
    if any((one.target, one.month) in ours for one in too_many):
        yield "  those that we do not send any more:"
        for target, change in accepted:
            if any((one.target, one.month) == (target, change.month) for one in too_many):
                yield from (f"  {_name(change.month)}: {row.key.text}: {row.jobs:,} jobs" for row in change.rows)
    else:
        yield "  those that we name as not ours."
    yield ""


def _name(month: int) -> str:
    year, of_year = year_and_month(month)
    return f"{year}-{of_year:02}"


def _host(row: Compared) -> str:
    return "(all)" if row.submit_host == EVERY_HOST else row.submit_host or "(none)"
