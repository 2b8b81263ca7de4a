"""Templates of kinds of jobs: of each kind one job is rendered with placeholders, and cut there.

What is said of a job, its rules and its record come from the same code as ever, which is asked for
the largest and for the smallest values that jobs of the kind may have; the text of the second is
what the template must make. What it says of a user and of a place is kept by itself, and put into
the templates of all kinds, once the first of their jobs was rendered alone. So no rule is known
here, and no format. Kind, user and place hold for a period in which whoever decides makes the same
of jobs (`grouped.Periods`). Hot path.

    an example that ended in May, and a format
      ->   "<UsageRecord>..<LocalJobId>%s</LocalJobId>..", values 1, 5, 12
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import compress
from math import inf
from operator import add, itemgetter, le, not_
from typing import Any, Final, NamedTuple

from publisher.formats.base import Formed, RowKey, Templated, mark
from publisher.formats.rules import warnings_about
from publisher.model.errors import Unfit
from publisher.model.job import (
    OWN_VALUES,
    AlikeJob,
    Epoch,
    JobPlace,
    JobRecord,
    JobUser,
    Transfer,
    whole_job,
)
from publisher.model.policy import PublishedJob
from publisher.model.totals import ascii_key
from publisher.pipeline.round.batches import RecordMaker
from publisher.pipeline.round.decision import Decider
from publisher.pipeline.round.grouped import Periods

_REMEMBERED: Final = 1_000  # templates
_SHARED: Final = 5_000  # texts of users, and of places
_FACTS: Final = 10_000  # of 500 bytes
_PLAIN: Final = re.compile(r"[!$()*+,.:;=?@A-Z\[\]^_`a-z{|}~0-9-]*").fullmatch
_HAS_NUMBER: Final = re.compile("[0-9]").search
# In the text that is cut, a letter for each place of a value: of those that no alphabet has.
_FIRST_PLACE: Final = 0xE000
_A_PLACE: Final = re.compile("([\ue000-\uf8ff])")
_MOST_S: Final = 2**29 - 8  # within every receiver's bounds; 17 years
_MOST_KIB: Final = 2**30 - 8
_MOST_BYTES: Final = 2**64  # as stored
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
    "client_host": "client1.example.org",
    "transfers": (Transfer("upload", "file:/highest", 1, None, None),),
}
_LOWEST: Final[dict[str, Any]] = {
    "job_id": "1",
    "local_id": "1",
    **dict.fromkeys(("wall_s", "cpu_user_s", "cpu_kernel_s"), 0),
    **dict.fromkeys(("memory_kib", "virtual_memory_kib"), 1),
    **dict.fromkeys(("scratch_bytes", "stage_in_bytes", "stage_out_bytes"), 1),
    "job_name": "1",
    "client_host": "c1",
    "transfers": (Transfer("download", "f:/l", None, None, None),),
}
_NOT_THERE: Final = frozenset({"", "None", "0"})
_END: Final = OWN_VALUES.index("ended_at")
_ALWAYS: Final = frozenset(
    {"job_id", "wall_s", "cpu_user_s", "cpu_kernel_s", "submitted_at", "ended_at"}
)


class KindFacts(NamedTuple):
    """What is known of all records of a kind, in values that `marshal` knows."""

    submit_host: str
    summary_key: tuple[int, bytes, str, str] | None  # the values of a `SummaryKey`
    queue: str
    arex_default: bool
    warnings: tuple[str, ...]


@dataclass(slots=True)
class UndatedFacts:
    """The same in whatever month a job ended."""

    facts: KindFacts
    row_key: RowKey | None
    # The last, and its digest: jobs come in the order of time.
    _month: int = field(default=-1, init=False, compare=False)
    _digest: bytes = field(default=b"", init=False, compare=False)

    def of_month(self, month: int) -> KindFacts:
        if self.row_key is None:
            return self.facts
        if self._month != month:
            self._month, self._digest = month, self.row_key.of_month(month).digest
        host, _, queue, arex_default, warnings = self.facts
        summary_key = month, self._digest, self.row_key.text, self.row_key.site
        return KindFacts(host, summary_key, queue, arex_default, warnings)


def facts_of(published: PublishedJob, row_key: RowKey | None) -> UndatedFacts:
    """Of a job's record, and of all like it."""
    host, benchmark = ascii_key(published.where.receiver_host), published.benchmark
    shared = published.job.queue, benchmark.arex_default, warnings_about(published)
    facts = KindFacts(host, None, *shared)
    return UndatedFacts(facts, row_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """What becomes of the jobs of an example that end in a period."""

    example: JobRecord  # held, so that its id cannot come to mean another
    until: int = -1  # the last second for which this holds; -1: each job needs a look of its own
    # The record, a text and a value in turn; []: none is wanted.
    parts: list[str] = field(default_factory=list)
    # The values, of those of a job, its user and its place.
    pick: Callable[[Sequence[Any]], tuple[Any, ...]] = tuple
    cores: float = inf  # without end where they are not known


class SharedTexts(NamedTuple):
    """What records say of a user, or of a place. None: each of its jobs needs a look of its own."""

    of: JobUser | JobPlace  # held as an example is
    texts: tuple[str, ...] | None
    wanted: bool = True


@dataclass(slots=True)
class JobTemplate:
    """What a record is made of beside a job's own values."""

    kind: JobKind
    texts: tuple[str, ...]  # of its user and its place
    wanted: bool
    facts: UndatedFacts | None = None
    facts_over: UndatedFacts | None = None  # of jobs with more CPU time than their cores may have


class Written(NamedTuple):
    """Jobs of templates, and their records."""

    jobs: Sequence[AlikeJob]
    contents: Sequence[bytes]
    facts: Sequence[UndatedFacts]


class KindTemplates:
    """The templates of a format under a policy, and records made of them."""

    def __init__(
        self, form: Templated, decider: Decider, now: datetime, maker: RecordMaker
    ) -> None:
        self._form = form
        self._decider = decider
        self._now = now
        self._until = int(now.timestamp()) - 1  # not now, when the record is made
        self._maker = maker
        self._periods = Periods(decider, months=decider.policy.depends_on_month)
        self._by_place = decider.policy.user_depends_on_place
        self._kinds: dict[tuple[int, int], JobKind] = {}
        # By user and place, as far as they matter, and period.
        self._shared: dict[tuple[int, int, int], SharedTexts] = {}
        self._texts_of_kinds: dict[str, str] = {}  # most of them are in many
        self._known: dict[tuple[int, ...], JobTemplate] = {}  # by kind, user, place, and period

    def sort(self, jobs: Sequence[AlikeJob]) -> tuple[Written, list[AlikeJob], list[AlikeJob]]:
        """Some jobs with their records, those not wanted, and those that need another look."""
        unwanted, left = list[AlikeJob](), list[AlikeJob]()
        rows = [job.values for job in jobs]
        columns = _columns(rows)
        are_plain = _which_are_plain(rows, columns, self._until)
        if not all(are_plain):
            left = list(compress(jobs, map(not_, are_plain)))
            jobs = list(compress(jobs, are_plain))
            if not jobs:
                return Written([], [], []), unwanted, left
            columns = _columns([job.values for job in jobs])
        found = self._all_found(jobs, columns["ended_at"])
        contents = list(map(_content, found, self._texts(columns)))
        made: Sequence[Sequence[Any]] = jobs, contents, found, columns["wall_s"], columns["cpu_s"]
        if not all(contents):
            for job, template, content in zip(jobs, found, contents, strict=True):
                if content is None:
                    (left if template is None or template.wanted else unwanted).append(job)
            made = [list(compress(column, contents)) for column in made]
        jobs_made, contents_made, *used = made
        return Written(jobs_made, contents_made, self._facts(jobs_made, *used)), unwanted, left

    def _all_found(
        self, jobs: Sequence[AlikeJob], ends: Sequence[Epoch]
    ) -> list[JobTemplate | None]:
        """None for a job that needs a look of its own."""
        known, periods = self._known, self._periods.of(ends)
        groups = zip(jobs, periods, strict=True)
        keys = [(id(job.example), id(job.user), id(job.place), at) for job, at in groups]
        found = list(map(known.get, keys))
        if not all(found):
            each = zip(jobs, keys, strict=True)
            found = [known.get(key) or self._found(job, key[-1]) for job, key in each]
        ended = zip(found, ends, strict=True)
        return [one if one is not None and end <= one.kind.until else None for one, end in ended]

    def _found(self, job: AlikeJob, period: int) -> JobTemplate | None:
        """What is not known yet; None for a job that needs a look of its own."""
        place_at = 0, id(job.place), period
        user_at = id(job.user), id(job.place) if self._by_place else 0, period
        if user_at not in self._shared or place_at not in self._shared:
            self._learn(job, user_at, place_at)
        user, place = self._shared.get(user_at), self._shared.get(place_at)
        if user is None or place is None or user.texts is None or place.texts is None:
            return None
        shared = user.texts + place.texts
        kind = self._kinds.get((id(job.example), period)) or self._new(job, period, shared)
        if len(self._known) >= _FACTS:
            self._known.clear()
        found = JobTemplate(kind, shared, user.wanted and bool(kind.parts))
        self._known[id(job.example), id(job.user), id(job.place), period] = found
        return found

    def _learn(
        self, job: AlikeJob, user_at: tuple[int, int, int], place_at: tuple[int, int, int]
    ) -> None:
        """What is said of user and place, where one is new; the job's record is looked at whole."""
        form = self._form
        try:
            published = self._decider.policy.describe(whole_job(job))
            user = _texts_or_none(form.user_texts, published)
            place = _texts_or_none(form.place_texts, published)
            both = user is not None and place is not None
            if both and not self._are_sound([form.render(published, self._now)]):
                user = place = None
        except Unfit:  # for a reason that may be the job's own
            return
        if len(self._shared) >= _SHARED:
            self._shared.clear()
            self._known.clear()
        wanted = self._decider.selection.wants_vo(published.who.vo)
        self._shared.setdefault(user_at, SharedTexts(job.user, user, wanted))
        self._shared.setdefault(place_at, SharedTexts(job.place, place))

    def _are_sound(self, contents: list[bytes]) -> bool:
        """Whether these records are beyond doubt."""
        if isinstance(self._form, Formed) and all(map(self._form.matches, contents)):
            return True
        try:
            self._form.check(self._form.frame.join(contents))
        except Unfit:
            return False
        return True

    def _texts(self, columns: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str | None, ...]]:
        """The own values of each job as its record has them, in the order of the format's table.

        None for a value that the format leaves out, '' for one that is not there.
        """
        texts: list[Iterable[str | None]] = []
        for name, write in self._form.own_values.items():
            if write is str:
                texts.append(map(str, columns[name]))
            else:
                texts.append([(write(value) or None) if value else "" for value in columns[name]])
        return zip(*texts, strict=True)

    def _facts(
        self,
        jobs: Sequence[AlikeJob],
        found: Sequence[JobTemplate],
        wall_s: Sequence[int],
        cpu_s: Sequence[int],
    ) -> list[UndatedFacts]:
        """What is known of each job's record."""
        facts = []
        for job, template, wall, cpu in zip(jobs, found, wall_s, cpu_s, strict=True):
            over = cpu > wall * template.kind.cores
            known = template.facts_over if over else template.facts
            facts.append(known or self._new_facts(template, job, over))
        return facts

    def _new_facts(self, found: JobTemplate, job: AlikeJob, over: bool) -> UndatedFacts:
        published = self._decider.policy.describe(whole_job(job))
        facts = facts_of(published, self._maker.row_key(published))
        if over:
            found.facts_over = facts
        else:
            found.facts = facts
        return facts

    def _new(self, job: AlikeJob, period: int, shared: tuple[str, ...]) -> JobKind:
        if len(self._kinds) >= _REMEMBERED:
            self._kinds.clear()
            self._known.clear()
            self._texts_of_kinds.clear()
        try:
            kind = self._made(job, self._periods.seconds(period), shared)
        except Unfit:
            kind = JobKind(example=job.example)
        self._kinds[id(job.example), period] = kind
        return kind

    def _made(self, alike: AlikeJob, seconds: range, shared: tuple[str, ...]) -> JobKind:
        """Raises: Unfit for a kind whose jobs may break a rule."""
        own_look = JobKind(example=alike.example)
        until = min(self._until, seconds.stop - 1)
        first = max(1, seconds.start)
        if until - 2 < first:
            return own_look
        example = whole_job(alike)
        highest = _HIGHEST | _hosts(example, "host%d.example.org")
        highest |= {"submitted_at": until - 2, "started_at": until - 1, "ended_at": until}
        times = dict.fromkeys(("submitted_at", "started_at", "ended_at"), first)
        lowest = _LOWEST | _hosts(example, "h%d") | times
        ends = [_with_values(example, values) for values in (highest, lowest)]
        wanted = set(map(self._decider.selection.wants, ends))
        if wanted == {False}:
            return replace(own_look, until=until)
        most, least = map(self._decider.policy.describe, ends)
        form = self._form
        texts_of = [form.user_texts(one) + form.place_texts(one) for one in (most, least)]
        if len(wanted) > 1 or texts_of != [shared, shared]:
            return own_look
        contents = [form.render(one, self._now) for one in (most, least)]
        if _A_PLACE.search(contents[0].decode()):  # somebody has put such a letter into a name
            return own_look
        parts, pick = self._cut(most, len(shared))
        (texts,) = self._texts(_columns([_own_values(least.job)]))
        written = parts.copy()
        written[1::2] = pick((*texts, *shared))
        if "".join(written).encode() != contents[1] or not self._are_sound(contents):
            return own_look
        cores = example.cpu_count or inf
        return JobKind(example=alike.example, until=until, parts=parts, pick=pick, cores=cores)

    def _cut(
        self, most: PublishedJob, shared: int
    ) -> tuple[list[str], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """The record, a text and a value in turn, and its values' places among those of a job."""
        (texts,) = self._texts(_columns([_own_values(most.job)]))
        at = enumerate(texts)
        places = {text: place for place, text in at if text is not None and text not in _NOT_THERE}
        places |= {mark(number): len(texts) + number for number in range(shared)}
        content = self._form.render(most, self._now, marked=True).decode()
        for text in sorted(places, key=len, reverse=True):
            content = content.replace(text, chr(_FIRST_PLACE + places[text]))
        parts = [self._texts_of_kinds.setdefault(text, text) for text in _A_PLACE.split(content)]
        return parts, itemgetter(*(ord(place) - _FIRST_PLACE for place in parts[1::2]))


def _content(found: JobTemplate | None, own: tuple[str | None, ...]) -> bytes | None:
    """The record of a job; None where it is none, or has a value that the format leaves out."""
    if found is None or not found.wanted:
        return None
    parts: list[Any] = found.kind.parts.copy()
    parts[1::2] = found.kind.pick(own + found.texts)
    try:
        return "".join(parts).encode()
    except TypeError:  # None, which is dearer to look for
        return None


def _texts_or_none(
    texts: Callable[[PublishedJob], tuple[str, ...]], published: PublishedJob
) -> tuple[str, ...] | None:
    try:
        return texts(published)
    except Unfit:
        return None


def _with_values(example: JobRecord, values: Mapping[str, Any]) -> JobRecord:
    """The example with these values in place of those that it has."""
    replaced = [name for name in values if name in _ALWAYS or getattr(example, name)]
    return example._replace(**{name: values[name] for name in replaced})


def _hosts(example: JobRecord, form: str) -> dict[str, tuple[str, ...]]:
    return {"hosts": tuple(form % number for number in range(1, len(example.hosts) + 1))}


def _own_values(job: JobRecord) -> tuple[Any, ...]:
    return tuple(getattr(job, name) for name in OWN_VALUES)


def _columns(rows: Sequence[tuple[Any, ...]]) -> Mapping[str, Sequence[Any]]:
    """Own values by name, with what records say of several together."""
    columns: dict[str, Sequence[Any]] = dict(zip(OWN_VALUES, zip(*rows, strict=True), strict=True))
    columns["cpu_s"] = list(map(add, columns["cpu_user_s"], columns["cpu_kernel_s"]))
    columns["host"] = [hosts[0] if hosts else "" for hosts in columns["hosts"]]
    columns["other_hosts"] = [hosts[1:] for hosts in columns["hosts"]]
    stages = zip(columns["stage_in_bytes"], columns["stage_out_bytes"], strict=True)
    columns["stage_bytes"] = [(before or 0) + (after or 0) for before, after in stages]
    return columns


def _which_are_plain(
    rows: Sequence[tuple[Any, ...]], columns: Mapping[str, Sequence[Any]], until: int
) -> list[bool]:
    if _are_plain(columns, until):
        return [True] * len(rows)
    half = len(rows) // 2
    parts = (rows[:half], rows[half:]) if half else ()
    found = [one for part in parts for one in _which_are_plain(part, _columns(part), until)]
    return found or [False]


def _are_plain(columns: Mapping[str, Sequence[Any]], until: int) -> bool:
    """Whether all values are within those for which templates were made."""
    ends, submitted = columns["ended_at"], columns["submitted_at"]
    started = [1 if start is None else start for start in columns["started_at"]]
    return (
        max(ends) <= until
        and min(min(submitted), min(started)) > 0
        and all(map(le, submitted, ends))
        and all(map(le, started, ends))
        and all(max(columns[name]) <= _MOST_S for name in ("wall_s", "cpu_user_s", "cpu_kernel_s"))
        and _most_of(columns["memory_kib"]) <= _MOST_KIB
        and _most_of(columns["virtual_memory_kib"]) <= _MOST_KIB
        and _are_written_as_they_are(columns["job_id"], 100)
        and _are_written_as_they_are(list(filter(None, columns["local_id"])), 40)
    )


def _most_of(sizes: Sequence[int | None]) -> int:
    return max(filter(None, sizes), default=0)


def _are_written_as_they_are(texts: Sequence[str], longest: int) -> bool:
    """Whether no format has anything to escape or to cut, and none of them says `none`."""
    joined = "".join(texts)
    return (
        max(map(len, texts), default=0) <= longest
        and _PLAIN(joined) is not None
        and (joined.isdigit() or all(map(_HAS_NUMBER, texts)))
    )
