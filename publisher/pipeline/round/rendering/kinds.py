"""Templates of kinds of jobs: of each kind one job is rendered with placeholders, and the text is cut there (hot path).

What is said of a job, its rules and its record come from the same code as ever, which is asked for the largest and for the
smallest values that jobs of the kind may have; the text of the second is what the template must make. So no rule is known
here, and no format. A kind holds for a period in which whoever decides makes the same of jobs (`grouped.Periods`).

    an example that ended in May, and a format   ->   "<UsageRecord>..<LocalJobId>%s</LocalJobId>..", values 1, 5, 12
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import add, itemgetter
from typing import Any, Final, NamedTuple

from publisher.formats.base import Formed, JobFormat
from publisher.formats.rules import warnings_about
from publisher.model.errors import Unfit
from publisher.model.job import OWN_VALUES, AlikeJob, JobRecord, Transfer, whole_job
from publisher.model.message import Rendered
from publisher.model.policy import PublishedJob
from publisher.model.totals import SummaryKey, ascii_key, month_number
from publisher.pipeline.round.batches import RecordMaker
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.grouped import Periods

_REMEMBERED: Final = 1_000  # templates
# Texts that every format writes as they are: nothing to escape, and a number in each, so that none says `none`.
_PLAIN_JOB_ID: Final = re.compile(r"(?=[^0-9]*[0-9])[!$()*+,.:;=?@A-Z\[\]^_`a-z{|}~0-9-]{1,100}").fullmatch
_PLAIN_LOCAL_ID: Final = re.compile(r"(?=[^0-9]*[0-9])[!$()*+,.:;=?@A-Z\[\]^_`a-z{|}~0-9-]{1,40}").fullmatch
_MOST_S: Final = 2**29 - 8  # within every receiver's bounds; 17 years
_MOST_KIB: Final = 2**30 - 8
_MOST_BYTES: Final = 2**60 - 8
# Each more than that, and as text in no other value.
_HIGHEST: Final[dict[str, Any]] = {
    "job_id": "J1" + 98 * "j",
    "local_id": "L1" + 38 * "l",
    "wall_s": _MOST_S + 1,
    "cpu_user_s": _MOST_S + 2,
    "cpu_kernel_s": _MOST_S + 4,
    "memory_kib": _MOST_KIB + 1,
    "virtual_memory_kib": _MOST_KIB + 2,
    "scratch_bytes": _MOST_BYTES + 1,
    "stage_in_bytes": _MOST_BYTES + 2,
    "stage_out_bytes": _MOST_BYTES + 4,
    "job_name": "name" + 196 * "n",
    "hosts": ("host1.example.org",),
    "client_host": "client1.example.org",
    "transfers": (Transfer("upload", "file:/highest", 1, None, None),),
}
_LOWEST: Final[dict[str, Any]] = {
    "job_id": "1",
    "local_id": "1",
    **dict.fromkeys(("wall_s", "cpu_user_s", "cpu_kernel_s"), 0),
    **dict.fromkeys(("memory_kib", "virtual_memory_kib", "scratch_bytes", "stage_in_bytes", "stage_out_bytes"), 1),
    "job_name": "1",
    "hosts": ("h1",),
    "client_host": "c1",
    "transfers": (Transfer("download", "f:/l", None, None, None),),
}
_NOT_THERE: Final = frozenset({"", "None", "0"})
_END: Final = OWN_VALUES.index("ended_at")
_ALWAYS: Final = frozenset({"job_id", "wall_s", "cpu_user_s", "cpu_kernel_s", "submitted_at", "ended_at"})


class KindFacts(NamedTuple):
    """What is known of all records of a kind, in values that `marshal` knows."""

    status: str
    node_count: int | None
    cpu_count: int | None
    submit_host: str
    summary_key: tuple[int, bytes, str, str] | None
    queue: str
    arex_default: bool
    warnings: tuple[str, ...]


def facts_of(published: PublishedJob, key: SummaryKey | None) -> KindFacts:
    """Of a job's record, and of all like it."""
    job = published.job
    return KindFacts(
        *(job.status, job.node_count, job.cpu_count, ascii_key(published.where.receiver_host)),
        None if key is None else (key.month, key.digest, key.site, key.text),
        job.queue,
        published.benchmark.arex_default,
        warnings_about(published),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """What becomes of the jobs of an example that end in a period."""

    example: JobRecord  # held, so that its id cannot come to mean another
    until: int = -1  # the last second for which this holds; -1: each job needs a look of its own
    parts: list[str] = field(
        default_factory=list
    )  # the record, a text and a value in turn; [] for jobs that are not wanted
    pick: Callable[[Sequence[str]], tuple[str, ...]] = tuple  # the values, of those of a job


class Written(NamedTuple):
    """Jobs of templates, and their records."""

    jobs: list[AlikeJob]
    contents: list[bytes]
    facts: list[KindFacts]


class KindTemplates:
    """The templates of a format under a policy, and records made of them."""

    def __init__(self, job_format: JobFormat, decider: Decider, now: datetime, maker: RecordMaker) -> None:
        self._format = job_format
        self._decider = decider
        self._now = now
        self._maker = maker
        self._periods = Periods(decider, months=decider.policy.depends_on_month)
        self._kinds: dict[tuple[int, int], JobKind] = {}
        self._texts_of_kinds: dict[str, str] = {}  # most of them are in many
        self._known: dict[tuple[int, int, bool], KindFacts] = {}  # by kind, month, and whether CPU time is too long

    def sort(self, jobs: Sequence[AlikeJob]) -> tuple[Written, list[AlikeJob], list[AlikeJob]]:
        """The jobs with their records, those that are not wanted, and those that need a look of their own."""
        fit: list[AlikeJob] = []
        kinds: list[JobKind] = []
        unwanted: list[AlikeJob] = []
        left: list[AlikeJob] = []
        known, periods = self._kinds, self._periods.of([values[_END] for _, _, values in jobs]) if jobs else ()
        for job, period in zip(jobs, periods, strict=True):
            example, _, values = job
            kind = known.get((id(example), period)) or self._new(example, period)
            if values[_END] > kind.until or not _is_plain(values):
                left.append(job)
            elif kind.parts:
                fit.append(job)
                kinds.append(kind)
            else:
                unwanted.append(job)
        written, not_written = self._written(fit, kinds)
        return written, unwanted, left + not_written

    def _written(self, jobs: Sequence[AlikeJob], kinds: Sequence[JobKind]) -> tuple[Written, list[AlikeJob]]:
        """The jobs with their records, and those with a value that the format cannot write."""
        written, left = Written([], [], []), []
        for job, kind, row in zip(jobs, kinds, self._texts(jobs) if jobs else (), strict=True):
            texts = kind.pick(row)
            if "" in texts:
                left.append(job)
                continue
            parts = kind.parts.copy()
            parts[1::2] = texts
            written.contents.append("".join(parts).encode())
            written.jobs.append(job)
            written.facts.append(self._facts(kind, job))
        return written, left

    def _texts(self, jobs: Sequence[AlikeJob]) -> Iterator[tuple[str, ...]]:
        """The own values of each job as its record has them, in the order of the format's table; '' for what is not there."""
        columns = _columns([values for _, _, values in jobs])
        return zip(
            *(
                map(str, columns[name]) if write is str else [write(value) if value else "" for value in columns[name]]
                for name, write in self._format.own_values.items()
            ),
            strict=True,
        )

    def _facts(self, kind: JobKind, job: AlikeJob) -> KindFacts:
        _, _, (_, _, end, wall, user, kernel, *_) = job
        cores = kind.example.cpu_count or 0
        at = id(kind), month_number(end), bool(cores) and user + kernel > wall * cores
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            published = self._decider.policy.describe(whole_job(job))
            known = self._known[at] = facts_of(published, self._maker.summary_key(published))
        return known

    def _new(self, example: JobRecord, period: int) -> JobKind:
        if len(self._kinds) >= _REMEMBERED:
            self._kinds.clear()
            self._known.clear()
            self._texts_of_kinds.clear()
        try:
            kind = self._made(example, self._periods.seconds(period))
        except Unfit:
            kind = JobKind(example=example)
        self._kinds[id(example), period] = kind
        return kind

    def _made(self, example: JobRecord, seconds: range) -> JobKind:
        """Raises: Unfit for a kind whose jobs may break a rule."""
        until = min(int(self._now.timestamp()) - 1, seconds.stop - 1)  # not now, when the record is made
        first = max(1, seconds.start)
        if until - 2 < first:
            return JobKind(example=example)
        highest = _HIGHEST | {"submitted_at": until - 2, "started_at": until - 1, "ended_at": until}
        lowest = _LOWEST | dict.fromkeys(("submitted_at", "started_at", "ended_at"), first)
        above, below = (_with_values(example, values) for values in (highest, lowest))
        most, least = (self._decider.decide(job, job.key, None, None) for job in (above, below))
        if isinstance(most, Skip) and isinstance(least, Skip):
            return JobKind(example=example, until=until)
        if not isinstance(most, Publish) or not isinstance(least, Publish):
            return JobKind(example=example)
        return self._template(example, until, (most, least))

    def _template(self, example: JobRecord, until: int, ends: tuple[Publish, Publish]) -> JobKind:
        most, least = (self._maker.rendered(fit, self._now) for fit in ends)
        published = ends[1].published
        parts, pick = self._cut(most)
        (texts,) = self._texts([_alike(published.job)])
        written = parts.copy()
        written[1::2] = pick(texts)
        if "".join(written) != least.content.decode():
            return JobKind(example=example)
        contents = [most.content, least.content]
        if not (isinstance(self._format, Formed) and all(map(self._format.matches, contents))):
            self._format.check(self._format.frame.join(contents))
        return JobKind(example=example, until=until, parts=parts, pick=pick)

    def _cut(self, most: Rendered) -> tuple[list[str], Callable[[Sequence[str]], tuple[str, ...]]]:
        """The record, a text and a value in turn, and the places of its values among those of a job."""
        job = most.job
        if not isinstance(job, JobRecord):
            raise TypeError(job)
        (texts,) = self._texts([_alike(job)])
        places = {text: place for place, text in enumerate(texts) if text not in _NOT_THERE}
        values = re.compile("|".join(map(re.escape, sorted(places, key=len, reverse=True))))
        content = most.content.decode()
        parts = [""] * (2 * len(values.findall(content)) + 1)
        parts[::2] = [self._texts_of_kinds.setdefault(text, text) for text in values.split(content)]
        return parts, itemgetter(*(places[found] for found in values.findall(content)))


def _with_values(example: JobRecord, values: Mapping[str, Any]) -> JobRecord:
    """The example with these values in place of those that it has."""
    return replace(example, **{name: value for name, value in values.items() if name in _ALWAYS or _has(example, name)})


def _has(example: JobRecord, name: str) -> bool:
    value = getattr(example, name)
    return len(value) == 1 if name == "hosts" else bool(value)


def _alike(job: JobRecord) -> AlikeJob:
    return (job, job.row.record_id, tuple(getattr(job, name) for name in OWN_VALUES))


def _columns(rows: Sequence[tuple[Any, ...]]) -> Mapping[str, Sequence[Any]]:
    """Own values by name, with what records say of several together."""
    columns: dict[str, Sequence[Any]] = dict(zip(OWN_VALUES, zip(*rows, strict=True), strict=True))
    columns["cpu_s"] = list(map(add, columns["cpu_user_s"], columns["cpu_kernel_s"]))
    columns["host"] = [hosts[0] if hosts else "" for hosts in columns["hosts"]]
    stages = zip(columns["stage_in_bytes"], columns["stage_out_bytes"], strict=True)
    columns["stage_bytes"] = [(before or 0) + (after or 0) for before, after in stages]
    return columns


def _is_plain(values: tuple[Any, ...]) -> bool:
    """Whether the values are within those for which templates were made."""
    job_id, local_id, end, wall, user, kernel, submitted, started = values[:8]
    return (
        submitted <= end
        and (started is None or started <= end)
        and (wall <= _MOST_S and user <= _MOST_S and kernel <= _MOST_S)
        and _has_plain_sizes(*values[8:13])
        and _PLAIN_JOB_ID(job_id) is not None
        and (not local_id or _PLAIN_LOCAL_ID(local_id) is not None)
    )


def _has_plain_sizes(
    memory: int | None, virtual: int | None, scratch: int | None, stage_in: int | None, stage_out: int | None
) -> bool:
    return (
        max(memory or 0, virtual or 0) <= _MOST_KIB and max(scratch or 0, stage_in or 0, stage_out or 0) <= _MOST_BYTES
    )
