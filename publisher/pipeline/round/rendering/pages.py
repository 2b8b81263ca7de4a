"""Pages of rendered records: made of a page of jobs, in this process or another, and taken where
the ledger knows of nothing against them (hot path).

What is made knows nothing of the ledger: every wanted job is rendered as one that was never
delivered. Jobs that break a rule, or of which more must be known, are left, and judged one by one:
whole where they were read in this process, else by their rows, to be read again. A page of three
rows, of which one is still in progress, comes as

    RenderedPage(records=Records([7, 9], ["job-a", "job-b"], ..., [b"<UsageRecord>...", ...]),
                 open=(OpenRow(row 8),), cursor=Cursor("a.db", 9, "job-b"), ...)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import compress
from operator import add
from typing import Any, NamedTuple

from publisher.formats.base import Formed, JobFormat, SummaryFormat, Templated
from publisher.ledger.contract import Ledger
from publisher.model.errors import Unfit
from publisher.model.job import (
    AlikeJob,
    Epoch,
    JobId,
    JobKey,
    JobRecord,
    RowRef,
    RunColumns,
    job_key,
    whole_job,
)
from publisher.model.message import Progress, RecordColumns
from publisher.model.totals import SummaryKey, month_number
from publisher.pipeline.guards.collisions import NoCollisions
from publisher.pipeline.round.batches import JobBatches, RecordMaker
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.reader import with_rows
from publisher.pipeline.round.rendering.kinds import KindFacts, KindTemplates, Written, facts_of
from publisher.pipeline.round.sender import MessageSender
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source


class Records(NamedTuple):
    """Records and their runs in columns, ordered as `Rendered`; `facts` are places in `kinds`."""

    record_ids: list[int]
    job_ids: list[JobId]
    local_ids: list[str]
    wall_s: list[int]
    cpu_s: list[int]
    keys: list[JobKey]
    ended_at: list[Epoch]
    fingerprints: list[int]
    contents: list[bytes]
    facts: list[int]
    kinds: list[KindFacts]

    def columns(self, database: str) -> RecordColumns:
        """The records, as if none was delivered before; each had its form looked at."""
        runs: tuple[list[Any], ...] = self[:-2]
        facts, kinds, count = self.facts, self.kinds, len(self.facts)
        hosts, summary_keys = [kind.submit_host for kind in kinds], list(map(_summary_key, kinds))
        of_kinds = [hosts[at] for at in facts], [summary_keys[at] for at in facts]
        return RecordColumns(
            [[database] * count, *runs, [True] * count, *of_kinds, [True] * count, [None] * count]
        )


class Unwanted(NamedTuple):
    """Runs that the target does not want, unless it holds them in quarantine already."""

    record_ids: list[int]
    keys: list[JobKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPage(Page):
    """A page with records of its jobs; `jobs` and the rows `left` need another look."""

    database: str
    records: Records
    unwanted: Unwanted
    left: tuple[int, ...] = ()


def has_kinds(form: JobFormat | SummaryFormat, decider: Decider) -> bool:
    """Whether records of a format can be made of kinds of jobs."""
    return isinstance(form, Templated) and decider.is_alike


class PageRenderer:
    """Renders the pages of a target."""

    def __init__(self, job_format: JobFormat, decider: Decider, now: datetime) -> None:
        self._maker = RecordMaker(job_format)
        self._formed = job_format if isinstance(job_format, Formed) else None
        self._decider = decider
        self._now = now
        self._kinds: KindTemplates | None = None
        if isinstance(job_format, Templated):
            self._kinds = KindTemplates(job_format, decider, now, self._maker)

    def of_kinds(self, page: Page, database: str) -> RenderedPage:
        """The jobs of a page that are of a kind; the others stay as they are."""
        written, not_wanted, others = self._sorted(page.alike)
        return RenderedPage(
            jobs=(*page.jobs, *map(whole_job, others)),
            skipped=page.skipped,
            open=page.open,
            cursor=page.cursor,
            rows_read=page.rows_read,
            restarted=page.restarted,
            database=database,
            records=_records_of(written, database),
            unwanted=Unwanted(
                [one.record_id for one in not_wanted],
                [job_key(*one.values[:2]) for one in not_wanted],
            ),
        )

    def _sorted(
        self, jobs: Sequence[AlikeJob]
    ) -> tuple[Written, Sequence[AlikeJob], Sequence[AlikeJob]]:
        if self._kinds is None or not jobs:
            return Written([], [], []), (), jobs
        return self._kinds.sort(jobs)

    def rendered(self, page: Page, database: str) -> RenderedPage:
        """All jobs of a page."""
        made = self.of_kinds(page, database)
        left = [skipped.row.record_id for skipped in page.skipped]
        for job in made.jobs:
            fit = self._decider.decide(job, job.key, None, None)
            if isinstance(fit, Skip):
                made.unwanted.record_ids.append(job.row.record_id)
                made.unwanted.keys.append(job.key)
            elif not isinstance(fit, Publish) or not self._append(fit, made.records):
                left.append(job.row.record_id)
        return replace(made, jobs=(), skipped=(), left=tuple(left))

    def _append(self, fit: Publish, records: Records) -> bool:
        """False for a job that breaks a rule, and for a record whose form may not be sound."""
        try:
            record = self._maker.rendered(fit, self._now)
        except Unfit:
            return False
        if self._formed is not None and not self._formed.matches(record.content):
            return False
        run = record.row.record_id, *record[1:9], len(records.kinds)
        columns: tuple[list[Any], ...] = records[:-1]
        for column, value in zip(columns, run, strict=True):
            column.append(value)
        facts = facts_of(fit.published, self._maker.row_key(fit.published))
        records.kinds.append(facts.of_month(month_number(record.ended_at)))
        return True


def _records_of(written: Written, database: str) -> Records:
    if not written.jobs:
        return Records([], [], [], [], [], [], [], [], [], [], [])
    examples, _, _, record_ids, values = zip(*written.jobs, strict=True)
    job_ids, local_ids, ends, wall, user, kernel, *_ = zip(*values, strict=True)
    runs = RunColumns(database, record_ids, job_ids, local_ids, ends, wall, user, kernel, examples)
    facts = list(zip(map(id, written.facts), map(month_number, ends), strict=True))
    of_kinds = dict(zip(facts, written.facts, strict=True))
    places = {kind: place for place, kind in enumerate(of_kinds)}
    kinds = [undated.of_month(month) for (_, month), undated in of_kinds.items()]
    usage = map(list, (record_ids, job_ids, local_ids, wall, map(add, user, kernel)))
    made = runs.keys(), list(ends), runs.fingerprints(), written.contents
    return Records._make([*usage, *made, list(map(places.__getitem__, facts)), kinds])


class RenderedRecords:
    """Takes a page's records that are new, or go again as they were sent.

    Who changed since it was delivered, is held or shares a key of the receiver is left.
    """

    def __init__(
        self,
        live: LiveTarget,
        decider: Decider,
        source: Source,
        ledger: Ledger,
        sink: JobBatches,
        sender: MessageSender,
        collisions: NoCollisions,
        now: datetime,
    ) -> None:
        self._target = live.name
        self._needs = live.format.needs
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._sink = sink
        self._sender = sender
        self._collisions = collisions
        self._new_renderer = partial(PageRenderer, sink.format, decider, now)
        self._renderer: PageRenderer | None = None

    def take_page(
        self, page: Page, progress: Progress, now: datetime
    ) -> tuple[Page, Progress, int]:
        """As `GroupedCounter.take_page`. Raises: SourceError; Stopped."""
        read = {job.record_id: job for job in page.alike}
        if read:
            self._renderer = self._renderer or self._new_renderer()
            page = self._renderer.of_kinds(page, page.alike[0].example.row.database)
        elif isinstance(page, RenderedPage):
            self._renderer = None  # another process has one now, and both are to fit into memory
        if not isinstance(page, RenderedPage):
            return page, progress, 0
        records, left = self._sifted(page)
        if read:  # and not once more: the rows may be others by now
            whole = [whole_job(read[number]) for number in left]
            page = replace(page, jobs=(*page.jobs, *whole))
        else:
            numbers = (*page.left, *left)
            rows = [RowRef(database=page.database, record_id=number) for number in numbers]
            page, progress = with_rows(page, progress, rows, self._source, self._needs, now)
        if self._decider.again:
            self._sink.take_in_order(records)
        else:
            self._sink.take_rendered(records)
        # Of two that share a key of the receiver, the first goes first.
        return replace(page, jobs=tuple(sorted(page.jobs, key=self._order))), progress, len(records)

    def _order(self, job: JobRecord) -> tuple[Epoch, RowRef]:
        """By row, or as in a window."""
        return job.ended_at if self._decider.again else Epoch(0), job.row

    def _sifted(self, page: RenderedPage) -> tuple[RecordColumns, list[int]]:
        """The records to take, and the rows of other jobs, to be read whole."""
        records, kinds = page.records.columns(page.database), page.records.kinds
        known = self._ledger.known_at(self._target, page.database, records.record_ids, records.keys)
        held = self._ledger.held(self._target, records.keys + page.unwanted.keys)
        left = [row for row, key in zip(*page.unwanted, strict=True) if key in held]
        in_the_way_of = self._collisions.in_the_way_of(records, known)
        met, most_content, go = self._sink.met(records.keys), self._sink.most_content, []
        is_as_sent, again = self._decider.is_as_sent, self._decider.again
        columns = records.keys, records.record_ids, records.ended_at, records.fingerprints
        for key, row, end, values, content in zip(*columns, records.contents, strict=True):
            goes = False
            if key in met:
                pass
            elif key in held or (key in known and not is_as_sent(known[key], end, values)):
                left.append(row)
            elif key in known and not again:
                pass
            elif key in in_the_way_of or len(content) > most_content:
                left.append(row)
            else:
                goes = True
                met.add(key)
            go.append(goes)
        if not all(go):
            records = records.only(go)
        records.first_time = [key not in known for key in records.keys]
        self._remark(compress(page.records.facts, go), kinds, records)
        return records, left

    def _remark(
        self, facts: Iterable[int], kinds: Sequence[KindFacts], records: RecordColumns
    ) -> None:
        """Note what is odd about records of these kinds."""
        if not any(kind.warnings or kind.arex_default for kind in kinds):
            return
        for at, key, wall_s in zip(facts, records.keys, records.wall_s, strict=True):
            kind = kinds[at]
            lost_s = wall_s if kind.arex_default else 0
            self._sender.remarks.note(key, kind.queue, lost_s, kind.warnings)


def _summary_key(kind: KindFacts) -> SummaryKey | None:
    if kind.summary_key is None:
        return None
    return SummaryKey._make(kind.summary_key)
