"""Whether a month was all counted: a badge with its meaning, and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from publisher.model.errors import RecordError
from publisher.model.text import plural
from publisher.model.time import iso
from publisher.publishing.databases.retired import NeverSent
from publisher.reporting.statement.figures import RecordedStatement, Statement, TargetStatement


class Badge(StrEnum):
    """A verdict in two words."""

    COMPLETE = "complete"
    SO_FAR = "complete so far"
    DIFFERENT = "not complete"
    UNKNOWN = "cannot tell"
    NO_DATA = "no data"


MEANINGS: Final = {
    Badge.COMPLETE: "Every finished job that a target wants was accepted by its receiver, once; "
    "the accounting data, the ledger of what was sent and the counts that were reported agree.",
    Badge.SO_FAR: "What is known was accepted; the period goes on, or more jobs may come to light: "
    "see below.",
    Badge.DIFFERENT: "What the receivers have differs from the accounting data; each difference is "
    "listed with what to do.",
    Badge.UNKNOWN: "Accounting data is missing or could not be read, so nothing can be said.",
    Badge.NO_DATA: "No job of the period, or of the time before it, is in the accounting data.",
}
_GRAVEST: Final = (Badge.UNKNOWN, Badge.DIFFERENT, Badge.SO_FAR, Badge.COMPLETE, Badge.NO_DATA)


class MonthVerdict(NamedTuple):
    """A badge, and what is to be said of the month."""

    badge: Badge
    text: str


def verdict(found: Statement, target: TargetStatement, status: int) -> MonthVerdict:
    """Return what is to be said of a target's month; `status` is the exit status of the command."""
    if target.missing:
        differences = plural(len(target.missing), "difference")
        return MonthVerdict(Badge.DIFFERENT, f"not complete: {differences}, see below")
    if is_incomplete(status):
        return MonthVerdict(Badge.UNKNOWN, "cannot tell: the accounting data is not complete")
    if lost := _lost_jobs(target.never_sent):
        jobs = plural(lost, "job is", "jobs are")
        return MonthVerdict(Badge.DIFFERENT, f"not complete: {jobs} lost, see below")
    known = "complete as far as can be told: see below about"
    if found.alarms:
        return MonthVerdict(Badge.SO_FAR, f"{known} the sources")
    if target.never_sent:
        return MonthVerdict(Badge.SO_FAR, f"{known} retired databases")
    if has_no_data(found, target):
        nothing = "the accounting data has no job of this month or an earlier one"
        return MonthVerdict(Badge.NO_DATA, f"no data: {nothing}")
    if found.is_over:
        text = "complete" if target.at_ce.jobs else "complete, without any job"
        return MonthVerdict(Badge.COMPLETE, text)
    end = iso(found.month.next.start)
    return MonthVerdict(Badge.SO_FAR, f"complete so far; the month ends at {end}")


def has_no_data(found: Statement, target: TargetStatement) -> bool:
    """Return whether there never was a job to count, at the CE or at the receiver."""
    return found.has_no_data and not (target.sent.messages or target.before)


def recorded_verdict(each: RecordedStatement) -> str:
    """Return what the ledger of another instance has to say of its target."""
    if each.missing:
        return f"not complete: {plural(len(each.missing), 'difference')}"
    if lost := _lost_jobs(each.never_sent):
        return f"not complete: {plural(lost, 'job is', 'jobs are')} lost"
    return "complete as far as can be told" if each.never_sent else "complete"


def badge(months: Sequence[Statement], status: int) -> Badge:
    """Return the gravest badge of all targets and months."""
    found = {verdict(month, target, status).badge for month in months for target in month.targets}
    if any(other.missing for month in months for other in month.others or ()):
        found.add(Badge.DIFFERENT)
    return next((one for one in _GRAVEST if one in found), Badge.NO_DATA)


def is_incomplete(status: int) -> bool:
    """Return whether accounting data is missing or cannot be read."""
    return status not in (0, RecordError.exit_status)


def _lost_jobs(lost: Iterable[NeverSent]) -> int:
    """Return how many jobs surely are lost with retired databases."""
    return sum(one.jobs or 0 for one in lost)
