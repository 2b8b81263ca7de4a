"""What came of a round, for people, for JSON and for the exit status."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from publisher.model.entry import EarlierRuns
from publisher.model.errors import Later, PublisherError, RecordError, SourceError, Unfit, gravest
from publisher.model.job import Epoch, JobRecord, RunKey, SkippedJob
from publisher.model.totals import BlockedMonth, month_number
from publisher.publishing.plan.actions import (
    EXAMPLES,
    Action,
    ActionCounts,
    Example,
    Kind,
    PlanLine,
    merged,
)
from publisher.publishing.plan.reasons import held_month, held_reason, set_aside
from publisher.transports.base import Receipt, Verdict

_NONE: Final[Mapping[str, int]] = {}


@dataclass(slots=True)
class RoundCounters:
    """What was sent in a round, and what was written down."""

    messages: int = 0
    records: int = 0
    bytes: int = 0
    jobs: int = 0  # in the totals that were told
    quarantined: int = 0
    shed: int = 0  # records that went without what made them too large
    kept: int = 0  # jobs that changed after delivery, where the receiver keeps what it has
    # Jobs with wall time under A-REX's own HEPSPEC:1.0, delivered or counted into their months.
    arex_default: int = 0
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)  # theirs, by queue
    # Jobs, as above, that look odd, by rule.
    warnings: Counter[str] = field(default_factory=Counter)
    odd_jobs: dict[str, str] = field(default_factory=dict)  # one of these by rule
    # By target, messages that another one of the receiver had under way, delivered before its own.
    others_first: Counter[str] = field(default_factory=Counter)
    # To hand a message over, by what came of each.
    attempts: Counter[str] = field(default_factory=Counter)
    # Of runs and rows whose messages arrived, that are held back, and that were set aside.
    actions: ActionCounts = field(default_factory=ActionCounts)

    def set_aside(self, job: SkippedJob) -> None:
        """Count a job of the target that was set aside."""
        self.quarantined += 1
        row = f"row {job.row.record_id} of {job.row.database}"
        about = Example(job.job_id or job.local_id or row, reason=job.reason)
        self.actions.job(_month_of(job), set_aside(job.rule), about)


def _month_of(job: SkippedJob) -> int | None:
    """Return the month in which a job ended; None where that is unknown, or in no calendar."""
    with suppress(Unfit):
        return None if job.ended_at is None else month_number(job.ended_at)
    return None


class _Remark(NamedTuple):
    """What is odd about a job."""

    job: str
    queue: str
    arex_default_wall_s: int  # 0 where its benchmark is not A-REX's default
    warnings: tuple[str, ...]


class Remarks:
    """What is done, and what is odd, about jobs; it counts when they are delivered.

    Jobs of totals are delivered when they are counted into their months.
    """

    def __init__(self, tally: RoundCounters) -> None:
        self._tally = tally
        self._actions: dict[RunKey, tuple[int, Action, Example]] = {}
        self._by_run: dict[RunKey, _Remark] = {}
        self._lighter: set[RunKey] = set()  # records that were made lighter

    def note(
        self, run: RunKey, job: JobRecord, arex_default_wall_s: int, warnings: tuple[str, ...]
    ) -> None:
        """Note what is odd about a job; 0 s where its benchmark is not A-REX's default."""
        if arex_default_wall_s or warnings:
            self._by_run[run] = _Remark(job.job_id, job.queue, arex_default_wall_s, warnings)

    def note_action(self, run: RunKey, month: int, action: Action, job: str) -> None:
        """Note why the single record of a job goes out (hot path)."""
        self._actions[run] = month, action, Example(job)

    def note_lighter(self, run: RunKey) -> None:
        self._lighter.add(run)

    def count(self, runs: Iterable[RunKey]) -> None:
        """These were delivered, or counted into their months."""
        if not (self._by_run or self._lighter or self._actions):
            return
        delivered = dict.fromkeys(runs)
        for run in delivered:
            if (noted := self._actions.pop(run, None)) is not None:
                self._tally.actions.job(*noted)
        for run in delivered:
            if (odd := self._by_run.pop(run, None)) is not None:
                self._count(odd)
        self._tally.shed += len(self._lighter & delivered.keys())
        self._lighter -= delivered.keys()

    def _count(self, remark: _Remark) -> None:
        if remark.arex_default_wall_s:
            self._tally.arex_default += 1
            self._tally.arex_default_wall_s[remark.queue] += remark.arex_default_wall_s
        self._tally.warnings.update(remark.warnings)
        for rule in remark.warnings:
            self._tally.odd_jobs.setdefault(rule, remark.job)


class LostJob(NamedTuple):
    """A job that was certainly or perhaps passed over."""

    job_id: str
    ended_at: Epoch
    certain: bool


class LostJobs(NamedTuple):
    """What was found. The numbers count all, `jobs` are the first; `lines` are for people."""

    certain: int
    perhaps: int
    jobs: tuple[LostJob, ...]
    lines: tuple[str, ...]


class Outcome(NamedTuple):
    """What a round did. `outcome` is ok, nothing, held, deferred, rejected or error.

    `exit_status` is as in model/errors.py.
    """

    target: str
    outcome: str
    reason: str = ""
    messages: int = 0
    records: int = 0
    bytes: int = 0
    jobs: int = 0  # in the totals that were told
    quarantined: int = 0
    shed: int = 0  # records that went without what made them too large
    kept: int = 0  # jobs that changed after delivery, where the receiver keeps what it has
    # Records with wall time under A-REX's HEPSPEC:1.0, where nearly all of it is lost.
    arex_default_benchmarks: int = 0
    arex_default_wall_s: Mapping[str, int] = _NONE  # theirs, by queue
    # By the rule's name, jobs that look odd among those delivered or counted.
    warnings: Mapping[str, int] = _NONE
    odd_jobs: Mapping[str, str] = MappingProxyType({})  # one of these by rule
    held: tuple[BlockedMonth, ...] = ()
    shadow: bool = False  # everything was done but sent
    missing: tuple[str, ...] = ()  # what is said of databases that are not there any more
    lost: "LostJobs | None" = None  # by another publisher, when that was looked for
    # By target, messages that another one of the receiver had under way: nothing else here, but
    # attempts and bytes, counts them.
    others_first: Mapping[str, int] = _NONE
    attempts: Mapping[str, int] = _NONE  # to hand messages over, by what came of each
    actions: tuple[PlanLine, ...] = ()  # what was done, held back and set aside, and why
    earlier: EarlierRuns | None = None  # of a plan: sent under other settings than today's
    seconds: float = 0.0  # how long it took
    exit_status: int = 0
    lacks: tuple[str, ...] = ()  # of the reason, what concerns the sources and so each target

    @property
    def own_reason(self) -> str:
        """The reason without what the sources lack, which is printed once for all targets."""
        return self.reason.removesuffix("; ".join(self.lacks)).removesuffix("; ")


def of_whom(maker: str, target: str, receipt: Receipt) -> Receipt:
    """Return a receipt that ends a round, which names the maker of a message if it is another."""
    if maker == target:
        return receipt
    reason = f"a message of target {maker}, which goes first: {receipt.reason}"
    return receipt._replace(reason=reason)


def concluded(
    target: str, receipt: Receipt | None, tally: RoundCounters, *, held: Sequence[BlockedMonth]
) -> Outcome:
    """The outcome of a round that came to its end, or to a receipt that ended it."""
    reason = receipt.reason if receipt else held_reason(held)
    statuses = [receipt.exit_status] if receipt else []
    if held:
        statuses.append(RecordError.exit_status)
    count_held(held, tally.actions)
    outcome = _with_tally(target, _word(receipt, tally, held), reason, statuses, tally)
    return outcome._replace(held=tuple(held))


def count_held(held: Iterable[BlockedMonth], counts: ActionCounts) -> None:
    """Count the rows of months that are held back; of their jobs nothing is known where none is."""
    counted = {(line.month, line.action.kind) for line in counts.lines()}
    for month in held:
        at = month.month, held_month(month)
        if (restored := month.restored) is not None:
            jobs = [Example(job) for job in restored.examples]
            counts.add(*at, jobs=restored.waiting or None, examples=jobs)
            continue
        counts.add(*at, rows=len(month.orphaned))
        if (month.month, Kind.HOLD) not in counted:
            rows = [Example(row=one.key.text) for one in month.orphaned[:EXAMPLES]]
            counts.add(*at, jobs=month.jobs, examples=rows)


def _word(receipt: Receipt | None, tally: RoundCounters, held: Sequence[BlockedMonth]) -> str:
    if receipt is not None:
        return "rejected" if receipt.verdict is Verdict.STOP_TARGET else "deferred"
    if held:
        return "held"
    return "ok" if tally.messages or tally.quarantined else "nothing"


def broken_off(target: str, error: PublisherError, tally: RoundCounters | None = None) -> Outcome:
    """The outcome of a round that an error ended, with what had gone out by then."""
    word = "deferred" if isinstance(error, Later) else "error"
    reason = str(error).removeprefix(f"target {target}: ")  # is shown beside its name
    outcome = _with_tally(target, word, reason, [error.exit_status], tally or RoundCounters())
    return outcome._replace(lacks=(reason,)) if isinstance(error, SourceError) else outcome


def _with_tally(
    target: str, word: str, reason: str, statuses: Sequence[int], tally: RoundCounters
) -> Outcome:
    """Of the exit statuses the gravest, where jobs that were set aside have theirs."""
    of_jobs = [RecordError.exit_status] if tally.quarantined else []
    return Outcome(
        target=target,
        outcome=word,
        reason=reason,
        messages=tally.messages,
        records=tally.records,
        bytes=tally.bytes,
        jobs=tally.jobs,
        quarantined=tally.quarantined,
        shed=tally.shed,
        kept=tally.kept,
        arex_default_benchmarks=tally.arex_default,
        arex_default_wall_s=dict(sorted(tally.arex_default_wall_s.items())),
        warnings=dict(sorted(tally.warnings.items())),
        odd_jobs=dict(sorted(tally.odd_jobs.items())),
        others_first=dict(sorted(tally.others_first.items())),
        attempts=dict(sorted(tally.attempts.items())),
        actions=tally.actions.lines(),
        exit_status=gravest([*statuses, *of_jobs]),
    )


def incomplete(outcome: Outcome, reasons: Sequence[str]) -> Outcome:
    """The outcome of a round that published what is there: without all of the data no success."""
    if not reasons:
        return outcome
    return outcome._replace(
        outcome="error",
        reason="; ".join(filter(None, (outcome.reason, *reasons))),
        lacks=(*outcome.lacks, *reasons),
        exit_status=gravest([outcome.exit_status, SourceError.exit_status]),
    )


_GRAVITY: Final = ("nothing", "ok", "held", "rejected", "deferred", "error")


def added(one: Outcome, other: Outcome) -> Outcome:
    """Two parts of one republish as one outcome; the later reason and the graver outcome stay."""
    held = one.held + other.held
    reason = other.reason or one.reason
    if reason in (held_reason(one.held), held_reason(other.held)):
        reason = held_reason(held)
    default_wall_s = Counter(one.arex_default_wall_s) + Counter(other.arex_default_wall_s)
    return Outcome(
        target=one.target,
        outcome=max(one.outcome, other.outcome, key=_GRAVITY.index),
        reason=reason,
        messages=one.messages + other.messages,
        records=one.records + other.records,
        bytes=one.bytes + other.bytes,
        jobs=one.jobs + other.jobs,
        quarantined=one.quarantined + other.quarantined,
        shed=one.shed + other.shed,
        kept=one.kept + other.kept,
        arex_default_benchmarks=one.arex_default_benchmarks + other.arex_default_benchmarks,
        arex_default_wall_s=dict(default_wall_s),
        warnings=dict(sorted((Counter(one.warnings) + Counter(other.warnings)).items())),
        odd_jobs={**other.odd_jobs, **one.odd_jobs},
        held=held,
        missing=one.missing + other.missing,
        lost=one.lost or other.lost,
        others_first=dict(Counter(one.others_first) + Counter(other.others_first)),
        attempts=dict(sorted((Counter(one.attempts) + Counter(other.attempts)).items())),
        actions=merged([one.actions, other.actions]),
        seconds=one.seconds + other.seconds,
        exit_status=gravest([one.exit_status, other.exit_status]),
    )
