"""The runs of a job, built from all records of it and its steps.

A run is identified by its start time; a job that was requeued has several. Spec: other-sources
facts, section 2.4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from publisher.sources.sonar.records import LIVE, WAITING, Clock, Fields, Layer, merged
from publisher.sources.sonar.store import StoredRecord

MOST_RUNS: Final = (
    200  # Slurm requeues a job some times at most; more are not one job, and would take forever to look at
)


@dataclass(slots=True, kw_only=True)
class SlurmRun:
    """One run. Times are epoch seconds; figures of the steps are 0 where they are unknown."""

    start: str  # on the cluster's clock
    started_at: int
    submitted_at: int
    ended_at: int | None
    fields: Fields
    written: bool  # it is a row of AAR already
    followed: bool = False  # by another run
    steps: int = 0
    steps_cpu_s: int = 0
    resident_kib: int = 0
    virtual_kib: int = 0

    @property
    def over(self) -> bool:
        """Whether the job ended, and when it did so is known."""
        return self.ended_at is not None and self.fields.get("state", "") not in LIVE

    @property
    def span_s(self) -> int:
        return 0 if self.ended_at is None else self.ended_at - self.started_at


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """All of one job: its runs in order, what was said about it before it began, and steps that no run claims."""

    job: int
    runs: list[SlurmRun] = field(default_factory=list)
    waiting: Fields | None = None
    absurd: bool = False  # more runs than a job has


def read_history(job: int, rows: Iterable[StoredRecord], clock: Clock) -> JobHistory:
    """Of all rows of the job, the job itself before its steps."""
    history = JobHistory(job=job)
    begun: list[StoredRecord] = []
    not_started: list[StoredRecord] = []
    made = False
    for row in rows:
        if not row.step:
            (not_started if row.start.startswith(WAITING) else begun).append(row)
            if len(begun) + len(not_started) > MOST_RUNS:
                return JobHistory(job=job, absurd=True)
            continue
        if not made:
            _make_runs(history, begun, not_started, clock)
            made = True
        _add_step(history, row)
    if not made:
        _make_runs(history, begun, not_started, clock)
    return history


def _make_runs(
    history: JobHistory, begun: Sequence[StoredRecord], not_started: Sequence[StoredRecord], clock: Clock
) -> None:
    starts = [clock.moments(row.start, row.offsets.get(row.start))[0] for row in begun]
    extra, used = _assigned(begun, not_started, starts)
    offsets = {clock_text: offset for each in not_started for clock_text, offset in each.offsets.items()}
    for number, row in enumerate(begun):
        fields = _with_undated(row, extra[number])
        history.runs.append(_run(row, fields, starts[number], {**offsets, **row.offsets}, clock))
    for run in history.runs[:-1]:
        run.followed = True
    unused = [row for row in not_started if row.start not in used]
    if unused:
        history.waiting = merged(max(unused, key=_newest).layers)


def _assigned(
    begun: Sequence[StoredRecord], not_started: Sequence[StoredRecord], starts: Sequence[int]
) -> tuple[list[list[Layer]], set[str]]:
    """What records without a start report of each run, and which of these records were used."""
    extra: list[list[Layer]] = [[] for _ in begun]
    used: set[str] = set()
    for row in not_started:
        candidates = [number for number, other in enumerate(begun) if _same_submission(row, other)]
        for layer in row.layers:
            for number in _candidates(layer, candidates, begun, starts):
                extra[number].append(layer)
                used.add(row.start)
    return extra, used


def _with_undated(row: StoredRecord, undated: Sequence[Layer]) -> Fields:
    """A run's fields, with what is reported without a start filling in what is not reported with it."""
    own = merged(row.layers)
    if undated and not _ended(own):
        return merged([*undated, *row.layers])
    return merged(undated) | own


def _candidates(
    layer: Layer, candidates: Sequence[int], begun: Sequence[StoredRecord], starts: Sequence[int]
) -> Sequence[int]:
    """Whose run a record without a start speaks of: a description is of all, an end of the last that has none."""
    if not layer.over:
        return candidates
    open_runs = [at for at in candidates if starts[at] <= layer.at and not _ended(merged(begun[at].layers))]
    return open_runs[-1:]


def _newest(row: StoredRecord) -> tuple[int, int, str]:
    over, at = row.layers[0][:2] if row.layers else (0, 0)
    return over, at, row.start


def _same_submission(row: StoredRecord, other: StoredRecord) -> bool:
    submitted = row.start.removeprefix(WAITING)
    return not submitted or merged(other.layers).get("submit", submitted) == submitted


def _ended(fields: Fields) -> bool:
    return "end" in fields and fields.get("state", "") not in LIVE


def _run(row: StoredRecord, fields: Fields, started_at: int, offsets: dict[str, int | None], clock: Clock) -> SlurmRun:
    submit, end = fields.get("submit"), fields.get("end")
    ended_at = None
    if end is not None:
        ended_at = _nearest(clock.moments(end, offsets.get(end)), started_at + fields.get("elapsed", 0))
    submitted_at = started_at if submit is None else clock.moments(submit, offsets.get(submit))[0]
    return SlurmRun(
        start=row.start,
        started_at=started_at,
        submitted_at=submitted_at,
        ended_at=ended_at,
        fields=fields,
        written=row.written,
    )


def _nearest(moments: Sequence[int], expected: int) -> int:
    """In the hour that comes twice, what fits the time that the job took."""
    return min(moments, key=lambda moment: abs(moment - expected))


def _add_step(history: JobHistory, row: StoredRecord) -> None:
    """A step belongs to the run that began last before it."""
    if not history.runs:
        return
    at = len(history.runs)
    if not row.start.startswith(WAITING):
        at = bisect_right(history.runs, row.start, key=lambda run: run.start)
    run = history.runs[max(0, at - 1)]
    fields = merged(row.layers)
    run.steps += 1
    run.steps_cpu_s += fields.get("cpu_s", 0)
    run.resident_kib = max(run.resident_kib, fields.get("rss", 0))
    run.virtual_kib = max(run.virtual_kib, fields.get("vm", 0))
