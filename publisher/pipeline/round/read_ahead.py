"""A backlog on two cores: another process reads and renders, this one asks the ledger, packs and sends (hot path).

The other process knows nothing of the ledger. It renders every wanted job as one that was never delivered, and gives those of
whom more must be known by their rows. So it can end at any moment: whoever reads its pages goes on by itself behind the last
of them. A page of three rows, of which one is still in progress, comes as

    RenderedPage(records=(RenderedRun(7, "job-a", "11", ..., b"<UsageRecord>..."), RenderedRun(9, ...)),
                 open=(OpenRow(row 8),), cursor=Cursor("a.db", 9, "job-b"), ...)
"""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import IO, Any, BinaryIO, Final, NamedTuple

from publisher.formats.base import Formed, JobFormat
from publisher.formats.rules import warnings_about
from publisher.ledger.contract import DeliveredRun, Ledger
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId, JobKey, RowRef, RowRun, RunValues, job_keys
from publisher.model.message import Cursor, OpenRow, Progress, Rendered, RunKeyValues
from publisher.model.target import Selection
from publisher.model.totals import SummaryKey
from publisher.pipeline.guards.keys import NoCollisions
from publisher.pipeline.round.batches import JobBatches, RecordMaker
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.reader import with_rows
from publisher.pipeline.round.sender import MessageSender
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source

_PIPE_BYTES: Final = 2**20  # what a user may ask for; a page has as much
_LENGTH_BYTES: Final = 8
_SPARING: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc: what held a page goes back to the system at once
_ONE_AT_A_TIME: Final = threading.Lock()  # of several targets with a backlog: each would take the memory of a process


class RenderedRun(NamedTuple):
    """A run and its record, in values that `marshal` knows."""

    record_id: int
    job_id: JobId
    local_id: str
    status: str
    ended_at: Epoch
    wall_s: int
    cpu_user_s: int
    cpu_kernel_s: int
    node_count: int | None
    cpu_count: int | None
    sent_end: Epoch
    fingerprint: int
    submit_host: str
    summary_key: tuple[int, bytes, str, str] | None
    queue: str
    arex_default_wall_s: int
    warnings: tuple[str, ...]
    content: bytes


class UnwantedRun(NamedTuple):
    """A run that the target does not want, unless it holds it in quarantine already."""

    record_id: int
    job_id: JobId
    local_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPage(Page):
    """A page whose jobs were rendered, as far as nothing stood against it; `left` need a look of their own."""

    database: str
    records: tuple[RenderedRun, ...]
    unwanted: tuple[UnwantedRun, ...]
    left: tuple[RowRef, ...]


class ReadOrder(NamedTuple):
    """What to read: everything of a database after a cursor, of jobs that ended at `start` or later."""

    database: str
    cursor: Cursor | None
    start: Epoch | None
    now: datetime

    def text(self) -> str:
        """As `order_from` takes it."""
        return json.dumps([self.database, self.cursor, self.start, self.now.isoformat()])


def order_from(text: str) -> ReadOrder:
    database, cursor, start, now = json.loads(text)
    return ReadOrder(
        database=database,
        cursor=None if cursor is None else Cursor(*cursor),
        start=start,
        now=datetime.fromisoformat(now),
    )


# In the other process


def write_pages(job_format: JobFormat, decider: Decider, source: Source, order: ReadOrder, out: BinaryIO) -> None:
    """Read and render to the end of the database. Raises: SourceError."""
    work = _PageRenderer(job_format, decider, order.now)
    passed_over = None if order.start is None else partial(_unwanted, decider.selection)
    for page in source.since(order.cursor, order.database, job_format.needs, order.now, passed_over):
        packed = marshal.dumps(work.rendered(page))
        out.write(len(packed).to_bytes(_LENGTH_BYTES, "little"))
        out.write(packed)
        out.flush()


def _unwanted(selection: Selection, _: Sequence[int], runs: Sequence[RunValues]) -> list[bool]:
    return [not selection.wants(run) for run in runs]


class _PageRenderer:
    def __init__(self, job_format: JobFormat, decider: Decider, now: datetime) -> None:
        self._maker = RecordMaker(job_format)
        self._formed = job_format if isinstance(job_format, Formed) else None
        self._decider = decider
        self._now = now

    def rendered(self, page: Page) -> tuple[Any, ...]:
        """A page as `_page_from` takes it apart."""
        records: list[tuple[object, ...]] = []
        unwanted: list[tuple[object, ...]] = []
        left = [skipped.row.record_id for skipped in page.skipped]
        for job in page.jobs:
            fit = self._decider.decide(job, job.key, None, None)
            record = self._record(fit) if isinstance(fit, Publish) else None
            if record is not None:
                records.append(record)
            elif isinstance(fit, Skip):
                unwanted.append((job.row.record_id, job.job_id, job.local_id))
            else:
                left.append(job.row.record_id)
        opened = [(one.row.record_id, one.finished_seen_at) for one in page.open]
        cursor = None if page.cursor is None else tuple(page.cursor)
        return cursor, page.rows_read, page.restarted, opened, left, unwanted, records

    def _record(self, fit: Publish) -> tuple[object, ...] | None:
        """None for a job that breaks a rule, and for a record whose form does not show that it is sound."""
        job, published = fit.published.job, fit.published
        try:
            record = self._maker.rendered(fit, self._now)
        except Unfit:
            return None
        if self._formed is not None and not self._formed.matches(record.content):
            return None
        key = record.summary_key
        return (
            *(job.row.record_id, job.job_id, job.local_id, job.status, job.ended_at),
            *(job.wall_s, job.cpu_user_s, job.cpu_kernel_s, job.node_count, job.cpu_count),
            *(record.entry.ended_at, record.entry.fingerprint, record.submit_host),
            None if key is None else (key.month, key.digest, key.site, key.text),
            job.queue,
            job.wall_s if published.benchmark.arex_default else 0,
            warnings_about(published),
            record.content,
        )


# In this process


def read_ahead(command: Sequence[str], order: ReadOrder) -> Generator[RenderedPage, None, None]:
    """The pages of another process, as far as it comes; none while one reads for another target."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return
    try:
        yield from _pages_of(command, order)
    finally:
        _ONE_AT_A_TIME.release()


def _pages_of(command: Sequence[str], order: ReadOrder) -> Iterator[RenderedPage]:
    try:
        process = subprocess.Popen(
            [*command, order.text()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_SPARING},
            pipesize=_PIPE_BYTES,
        )
    except OSError:  # no memory, or no right to make processes
        return
    with process:
        pipe = process.stdout
        try:
            while pipe is not None and (page := _next_page(pipe, order.database)) is not None:
                yield page
        finally:
            process.kill()


def _next_page(pipe: IO[bytes], database: str) -> RenderedPage | None:
    """None where the process ended, be it in the middle of a page."""
    length = int.from_bytes(pipe.read(_LENGTH_BYTES), "little")
    packed = pipe.read(length)
    return _page_from(database, marshal.loads(packed)) if packed and len(packed) == length else None


def _page_from(database: str, packed: tuple[Any, ...]) -> RenderedPage:
    cursor, rows_read, restarted, opened, left, unwanted, records = packed
    return RenderedPage(
        jobs=(),
        open=tuple(OpenRow(row=_row(database, number), finished_seen_at=seen) for number, seen in opened),
        cursor=None if cursor is None else Cursor(*cursor),
        rows_read=rows_read,
        restarted=restarted,
        database=database,
        records=tuple(map(RenderedRun._make, records)),
        unwanted=tuple(map(UnwantedRun._make, unwanted)),
        left=tuple(_row(database, number) for number in left),
    )


def _row(database: str, record_id: int) -> RowRef:
    return RowRef(database=database, record_id=record_id)


class RenderedRecords:
    """Takes the records of a page that were never delivered; whoever is known, held or shares a key is left."""

    def __init__(
        self,
        live: LiveTarget,
        decider: Decider,
        source: Source,
        ledger: Ledger,
        sink: JobBatches,
        sender: MessageSender,
        collisions: NoCollisions,
    ) -> None:
        self._target = live.name
        self._needs = live.format.needs
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._sink = sink
        self._sender = sender
        self._collisions = collisions

    def take_page(self, page: Page, progress: Progress, now: datetime) -> tuple[Page, Progress, int]:
        """As `GroupedCounter.take_page`. Raises: SourceError; Stopped."""
        if not isinstance(page, RenderedPage):
            return page, progress, 0
        jobs, left = self._take(page)
        page, progress = with_rows(page, progress, left, self._source, self._needs, now)
        return page, progress, jobs

    def _take(self, page: RenderedPage) -> tuple[int, list[RowRef]]:
        """How many were taken, and the rows that are left to be read whole."""
        records, database = page.records, page.database
        keys, unwanted = _keys(records), _keys(page.unwanted)
        known = self._ledger.known_at(self._target, database, [one.record_id for one in records], keys)
        held = self._ledger.held(self._target, keys + unwanted)
        of_quarantine = [one for one, key in zip(page.unwanted, unwanted, strict=True) if key in held]
        left = [*page.left, *(_row(database, one.record_id) for one in of_quarantine)]
        runs = [RowRun(_row(database, one.record_id), *one[1:10]) for one in records]
        self._collisions.look_up(runs)
        taken = 0
        for one, run, key in zip(records, runs, keys, strict=True):
            if key in self._sink:
                continue
            if key in held:
                left.append(run.row)
            elif key in known:
                if not self._is_delivered(known[key], one):
                    left.append(run.row)
            elif self._collisions.concern(key) or not self._takes(one, run, key):
                left.append(run.row)
            else:
                taken += 1
        return taken, left

    def _takes(self, one: RenderedRun, run: RowRun, key: JobKey) -> bool:
        """False for a record that no message can hold as it is. Raises: Stopped."""
        try:
            self._sink.take_rendered(_rendered(one, run, RunKeyValues(key, one.sent_end, one.fingerprint)))
        except Unfit:
            return False
        self._sender.remark(key, one.queue, one.arex_default_wall_s, one.warnings)
        return True

    def _is_delivered(self, known: DeliveredRun, run: RenderedRun) -> bool:
        return self._decider.is_delivered(known, run.ended_at, run.fingerprint)


def _keys(runs: Sequence[RenderedRun | UnwantedRun]) -> list[JobKey]:
    return job_keys([one.job_id for one in runs], [one.local_id for one in runs])


def _rendered(one: RenderedRun, run: RowRun, entry: RunKeyValues) -> Rendered:
    key = None
    if one.summary_key is not None:
        month, digest, site, text = one.summary_key
        key = SummaryKey(month=month, digest=digest, site=site, text=text)
    return Rendered(run, one.content, entry, True, one.submit_host, key, formed=True)
