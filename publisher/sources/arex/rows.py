"""Rows of an A-REX accounting database to job records: done, not yet done, or unreadable.

Side rows (tokens, extra information, events, and what a format asks for beyond) are read for a page
of jobs at a time, by RecordID.
"""

from __future__ import annotations

import json
import marshal
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import (
    Epoch,
    JobId,
    JobRecord,
    RowRef,
    SideTable,
    SkippedJob,
    Transfer,
    values_fingerprint,
)
from publisher.sources.arex import queries as sql
from publisher.sources.arex.names import NameTables
from publisher.sources.arex.values import (
    LocalTime,
    exit_code,
    hosts_of,
    is_undecodable,
    mandatory,
    moment,
    positive,
    text_of,
    tolerant_text,
    transfer,
    unescaped,
    unsigned,
)
from publisher.sources.base import OpenRow

Fqans = tuple[str, ...]
Attributes = tuple[tuple[str, str], ...]
Row = tuple[Any, ...]  # in the order of `queries`: what SQLite finds, which may be of any type

_REMEMBERED: Final = 5_000  # of people, places and accounts each
MOST_TEXT: Final = 1_000  # characters of tokens that are remembered
# Without knowing when a row was first seen finished, its side rows are taken to be all there a day
# after its end: A-REX writes them within seconds of each other, but may do so hours after EndTime.
SURELY_WRITTEN_S: Final = 86_400
IN_PROGRESS: Final = "in-progress"
_PROJECT: Final = "projectname"
_FQAN_KEYS: Final = frozenset({"mainfqan", "vomsfqan"})
_NEEDED_FOR: Final = {
    "RunTimeEnvironments": SideTable.RUNTIME_ENVIRONMENTS,
    "DataTransfers": SideTable.TRANSFERS,
}
_DIGEST_BYTES: Final = 16
_MARSHAL: Final = 2  # the last version in which equal values are always equal bytes
NOTHING: Final[Mapping[str, object]] = {}
_NONE_SEEN: Final[Mapping[int, Epoch]] = {}


# The side rows of some rows of AAR by their tables, a job's in the order of writing, as stored:
# escaped still, and of any type.
StoredSides = Mapping[str, Sequence[Row]]


class SideRows:
    """The side rows of some rows of AAR, by job."""

    def __init__(self, stored: StoredSides) -> None:
        events = stored["JobEvents"]
        self.finished = {job for job, start in events if start is None}
        self.eventful: set[int] = set()  # not finished, but with some event
        # The newest LRMSSTART
        self.started = {job: start for job, start in events if start is not None}
        self.extra: dict[int, dict[Any, Any]] = {}  # the newest value of each key
        self.projects: dict[int, Sequence[Any]] = {}  # all of them
        # Hot path: ten rows a job, a job's together, so its list is looked up once.
        self.tokens = _by_job(stored["AuthTokenAttributes"])
        self.environments: dict[int, list[Any]] = {}
        for record_id, name in stored.get("RunTimeEnvironments", ()):
            self.environments.setdefault(record_id, []).append(name)
        self.transfers = _by_job(stored.get("DataTransfers", ()))
        # Hot path: texts read together cost half, and their jobs share the keys.
        texts = stored["JobExtraInfo"]
        together = json.loads(f"[{','.join(text for _, text in texts)}]")
        for (record_id, text), noted in zip(texts, together, strict=True):
            self.extra[record_id] = noted
            if _PROJECT in noted:
                one = (noted[_PROJECT],)
                self.projects[record_id] = one if text.count(_PROJECT) == 1 else _projects(text)


def _projects(noted: str) -> Sequence[Any]:
    """Return the projects of a job that finished twice, in the order of writing."""
    pairs = json.loads(noted, object_pairs_hook=list)
    return [value for key, value in pairs if key == _PROJECT]


def _by_job(stored: Sequence[Row]) -> dict[int, list[Row]]:
    """Return rows by their RecordID, which is left out of them."""
    found: dict[int, list[Row]] = {}
    job: object = None
    rows: list[Row] = []
    for row in stored:
        if row[0] != job:
            job = row[0]
            rows = found[row[0]] = []
        rows.append(row[1:])
    return found


def _read_sides(
    connection: sqlite3.Connection, rows: Sequence[Row], span: bool, needs: frozenset[SideTable]
) -> StoredSides:
    """Return the side rows of rows of AAR, by a statement a table.

    `span`: they are all the rows from the first to the last. Raises: sqlite3.Error.
    """
    if not rows:
        return dict.fromkeys(("AuthTokenAttributes", "JobExtraInfo", "JobEvents"), ())
    which, where = sql.beside([row[0] for row in rows], span=span)
    questions = {
        "AuthTokenAttributes": sql.side("AuthTokenAttributes", which),
        "JobExtraInfo": sql.noted(which),
        "JobEvents": sql.events(which),
    }
    for table in ("RunTimeEnvironments", "DataTransfers"):
        if _NEEDED_FOR[table] in needs:
            questions[table] = sql.side(table, which)
    return {
        table: connection.execute(question, where).fetchall()
        for table, question in questions.items()
    }


class ReadOptions(NamedTuple):
    """What a caller wants of rows.

    `first_seen` are those that it saw finished but incomplete before, with the time; `remembers` is
    whether it will bring incomplete rows again with that time; else a day after EndTime is enough.
    """

    needs: frozenset[SideTable]
    now: Epoch
    first_seen: Mapping[int, Epoch] = _NONE_SEEN
    remembers: bool = True


# FQANs, attributes, and whether the main FQAN is among them
_Token = tuple[Fqans, Attributes, bool]
# interface, endpoint, queue, batch system, benchmark, and whether that is the job's own
_Place = tuple[str, str, str, str, str, bool]


@dataclass(slots=True, kw_only=True)
class RowOutcomes:
    """What became of some rows, each in one of the lists."""

    jobs: list[JobRecord] = field(default_factory=list)
    skipped: list[SkippedJob] = field(default_factory=list)
    open: list[OpenRow] = field(default_factory=list)
    # Rows that are open or were skipped, with what stands beside them and the rule that they break
    left: list[tuple[Row, SideRows, str]] = field(default_factory=list)


class RowReader:
    """Reads the rows of one open database, for one connection: its names are by number."""

    def __init__(
        self, database: str, layout: int, *, unescape: bool, clock: LocalTime, hold_off_s: int
    ) -> None:
        self.layout = layout
        self.database = database
        self.is_escaped = unescape
        self._clock = clock
        self._hold_off_s = hold_off_s
        self.text = unescaped if unescape else text_of  # as it was before A-REX escaped it
        self.names = NameTables(layout, self.text)
        self._tokens: dict[Row, _Token] = {}
        self._places: dict[Row, _Place] = {}
        self._accounts: dict[object, tuple[str, str]] = {}
        self.doubtful = False  # some text of this page is not UTF-8

    def read(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions, *, span: bool
    ) -> RowOutcomes:
        """Return what became of rows of AAR, inside the transaction that found them.

        `span`: they are all rows from first to last. Raises: sqlite3.Error.
        """
        if not rows:
            return RowOutcomes()
        stored = self.gather(connection, rows, asked.needs, span=span)
        return self.decide(rows, self.sides(connection, rows, stored), asked)

    def gather(
        self,
        connection: sqlite3.Connection,
        rows: Sequence[Row],
        needs: frozenset[SideTable],
        *,
        span: bool,
    ) -> StoredSides:
        """Return the side rows of rows of AAR, and read the names that they point to.

        Raises: sqlite3.Error.
        """
        self.doubtful = connection.text_factory is tolerant_text
        if self.names.fill(connection, rows):
            self._tokens.clear()
            self._places.clear()
        # Rows to read again are mostly those of jobs that still run, which have nothing else yet.
        wanted = rows if span else [row for row in rows if not self.is_in_progress(row)]
        return _read_sides(connection, wanted, span, needs)

    def sides(
        self, connection: sqlite3.Connection, rows: Sequence[Row], stored: StoredSides
    ) -> SideRows:
        """Return the side rows of rows of AAR by job. Raises: sqlite3.Error."""
        sides = SideRows(stored)
        over = (row for row in rows if row[0] not in sides.finished)
        unfinished = [row[0] for row in over if not self.is_in_progress(row)]
        if unfinished:
            found = connection.execute(sql.EVENTFUL, sql.listed(unfinished)[1])
            sides.eventful.update(number for (number,) in found)
        return sides

    def is_in_progress(self, row: Row) -> bool:
        status = self.names.statuses.get(row[8], "")
        return status == IN_PROGRESS or (not status and not row[12])

    def digest(self, rows: Sequence[Row], stored: StoredSides) -> bytes:
        """Return a digest of all that was read of rows of AAR."""
        digest = blake2b(digest_size=_DIGEST_BYTES)
        read: Iterable[Any] = (rows, *sorted(stored.items()), self.names.of(rows))
        for one in read:  # a buffer that grows to a megabyte costs twice as much (hot path)
            digest.update(marshal.dumps(one, _MARSHAL))
        return digest.digest()

    def decide(self, rows: Sequence[Row], sides: SideRows, asked: ReadOptions) -> RowOutcomes:
        """Return which rows are jobs, which are open, and which have to be set aside."""
        found = RowOutcomes()
        for row in rows:
            try:
                opened = self._still_open(row, sides, asked)
                if opened is None:
                    found.jobs.append(self.job(row, sides))
                else:
                    found.open.append(opened)
                    found.left.append((row, sides, ""))
            except Unfit as unfit:
                found.skipped.append(self._skip(row, unfit))
                found.left.append((row, sides, unfit.rule))
        return found

    def _still_open(self, row: Row, sides: SideRows, asked: ReadOptions) -> OpenRow | None:
        """None when the job is finished and all of it is there. Raises: Unfit."""
        record_id, status_id, end = row[0], row[8], row[12]
        if self.is_in_progress(row):
            return self._open(record_id, None)
        status = self.names.statuses.get(status_id, "")
        ended_at = end if end.__class__ is int else mandatory("EndTime", end)
        if ended_at <= 0:
            raise Unfit("no-end-time", f"the status is {status!r} and EndTime {ended_at}")
        if not status:
            is_known = status_id in self.names.statuses
            what = "is the empty one" if is_known else f"{status_id!r} is unknown"
            raise Unfit("unknown-status", f"StatusID {what}, and EndTime is set")
        if record_id in sides.finished:
            return None
        return self._incomplete(record_id, ended_at, sides, asked)

    def _incomplete(
        self, record_id: int, ended_at: int, sides: SideRows, asked: ReadOptions
    ) -> OpenRow | None:
        """A row without its FINISHED event: open until it was held off long enough."""
        first_seen = asked.first_seen.get(record_id)
        if first_seen is not None and asked.now - first_seen >= self._hold_off_s:
            return None
        if record_id not in sides.eventful:
            enough = self._hold_off_s  # converted, or another system's: it never had events
        elif asked.remembers:
            enough = None
        else:
            enough = max(self._hold_off_s, SURELY_WRITTEN_S)
        if enough is not None and asked.now - ended_at >= enough:
            return None
        seen_at = asked.now if first_seen is None else first_seen
        return self._open(record_id, seen_at)

    def _open(self, record_id: int, finished_seen_at: Epoch | None) -> OpenRow:
        row = RowRef(database=self.database, record_id=record_id)
        return OpenRow(row=row, finished_seen_at=finished_seen_at)

    def job(self, row: Row, sides: SideRows) -> JobRecord:
        """Return the record of a finished job (hot path). Raises: Unfit."""
        # fmt: off
        (record_id, job_id, local_id, endpoint_id, queue_id, user_id, vo_id, fqan_id, status_id,
         status_code, benchmark_id, submitted, ended, nodes, cpus, memory, virtual,
         wall_s, cpu_user_s, cpu_kernel_s, scratch, stage_in, stage_out) = row
        # fmt: on
        if not (
            job_id
            and submitted.__class__ is ended.__class__ is wall_s.__class__ is int
            and cpu_user_s.__class__ is cpu_kernel_s.__class__ is int
            and wall_s >= 0
            and cpu_user_s >= 0
            and cpu_kernel_s >= 0
        ):
            submitted, ended, wall_s, cpu_user_s, cpu_kernel_s = _mandatory_numbers(row)
        of_extra = sides.extra.get(record_id, NOTHING).get
        texts = (
            *(job_id, local_id, of_extra("jobname", ""), of_extra("clienthost", "")),
            *(of_extra("nodenames") or of_extra("nodename", ""), of_extra("wninstance", "")),
        )
        # What is stored as bytes raises no doubt while it is read.
        ids_are_bytes = job_id.__class__ is bytes or local_id.__class__ is bytes
        job_id, local_id, job_name, client_host, host_names, wn_instance = self._texts(texts)
        names = self.names
        place_key = endpoint_id, queue_id, benchmark_id, of_extra("lrms"), of_extra("benchmark")
        token_key = fqan_id, *sides.tokens.get(record_id, ())
        try:
            user, vo = names.users[user_id], names.vos[vo_id]
            place = self._places.get(place_key) or self._place(place_key)
            token = self._tokens.get(token_key) or self._token(token_key)
        except KeyError:
            raise names.dangling(row) from None
        interface, endpoint, queue, lrms, benchmark, side_benchmark = place
        fqans, attributes, side_fqan = token
        account, start = of_extra("localuser"), sides.started.get(record_id)
        local_user, local_group = self._accounts.get(account) or self._account(account)
        started_at = self.started_at(start, ended, wall_s) if start else None
        # fmt: off
        job = JobRecord._make((  # of a tuple by place, as there are millions
            job_id, local_id, names.statuses[status_id], ended, wall_s, cpu_user_s, cpu_kernel_s,
            positive(nodes), positive(cpus), RowRef(self.database, record_id),
            exit_code(status_code), submitted, started_at,
            # 0 is what A-REX writes when the batch system reported nothing.
            unsigned(memory) or None, unsigned(virtual) or None,
            unsigned(scratch), unsigned(stage_in), unsigned(stage_out),
            interface, endpoint, queue, user, vo, fqans, attributes, benchmark,
            job_name, lrms, client_host, self.distinct(sides.projects.get(record_id, ())),
            hosts_of(host_names), local_user, local_group, wn_instance,
            self.distinct(sides.environments.get(record_id, ())),
            self.transfers(sides.transfers.get(record_id, ())),
            self.is_escaped,
            None, (),  # GPUs and quantities: A-REX knows none
            side_fqan, side_benchmark,
            (), False, "",  # nor models of GPUs; CPU time is known, and nothing joined
        ))
        # fmt: on
        if self.doubtful or names.undecodable or ids_are_bytes:
            _check_identity(job)
        return job

    def _texts(self, stored: tuple[Any, ...]) -> Iterable[str]:
        """Return texts of one job as they were before A-REX escaped them (hot path)."""
        try:
            if "%" not in "".join(stored):
                return stored
        except TypeError:  # NULL, or no text
            pass
        return map(self.text, stored)

    def _token(self, key: Row) -> _Token:
        """Return what a job's token says. Raises: KeyError as `_place`; Unfit."""
        fqan_id, *tokens = key
        pairs = [(self.text(name), self.text(value)) for name, value in tokens]
        token = of_token(self.names.fqans[fqan_id], pairs)
        _check_fqans(token[0])
        if sum(map(len, chain(*pairs))) <= MOST_TEXT:
            _remember(self._tokens, key, token)
        return token

    def _place(self, key: Row) -> _Place:
        """Return where a job ran. Raises: KeyError for a reference that points nowhere."""
        endpoint_id, queue_id, benchmark_id, *noted = key
        names = self.names
        lrms, benchmark = map(self.text, noted)
        interface, endpoint = names.endpoints[endpoint_id]
        queue, of_row = names.queues[queue_id], names.benchmarks[benchmark_id]
        place = interface, endpoint, queue, lrms, of_row or benchmark, bool(benchmark)
        _remember(self._places, key, place)
        return place

    def _account(self, stored: object) -> tuple[str, str]:
        """Return the local user and group."""
        local_user, _, local_group = self.text(stored).partition(":")
        _remember(self._accounts, stored, (local_user, local_group))
        return local_user, local_group

    def started_at(self, event: object, ended_at: int, wall_s: int) -> Epoch | None:
        """Return the true start, of the newest LRMSSTART in A-REX's local time."""
        if not event:
            return None
        return self._clock.epoch(text_of(event), ended_at=ended_at, wall_s=wall_s)

    def distinct(self, stored: Sequence[object]) -> tuple[str, ...]:
        """Return the texts, each once, none empty: a job that finished twice has them twice."""
        if not stored:
            return ()
        return tuple(dict.fromkeys(filter(None, map(self.text, stored))))

    def transfers(self, stored: Sequence[Row]) -> tuple[Transfer, ...]:
        """Return the transfers of rows of DataTransfers."""
        if not stored:
            return ()
        read = (transfer(self.text(url), rest) for url, *rest in dict.fromkeys(stored))
        return tuple(each for each in read if each is not None)

    def _skip(self, row: Row, unfit: Unfit) -> SkippedJob:
        return SkippedJob(
            row=RowRef(database=self.database, record_id=row[0]),
            job_id=JobId(self.text(row[1])),
            local_id=self.text(row[2]),
            ended_at=moment(row[12]),
            rule=unfit.rule,
            reason=unfit.reason,
            fingerprint=values_fingerprint(*row[1:]),
            submitted_at=moment(row[11]) or 0,
        )


def _remember(known: dict[Any, Any], key: object, value: object) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def of_token(main_fqan: str, pairs: Sequence[tuple[str, str]]) -> tuple[Fqans, Attributes, bool]:
    # Schema 1 keeps the main FQAN as an attribute of its own, schema 2 among the others too.
    main_tokens = [value for key, value in pairs if key == "mainfqan"]
    others = [value for key, value in pairs if key == "vomsfqan"]
    fqans = tuple(dict.fromkeys(filter(None, [main_fqan, *main_tokens, *others])))
    attributes = tuple(dict.fromkeys(pair for pair in pairs if pair[0] not in _FQAN_KEYS))
    return fqans, attributes, bool(main_tokens)


def _mandatory_numbers(row: Row) -> tuple[Epoch, Epoch, int, int, int]:
    """Submission, end, wall time, and CPU time of user and kernel. Raises: Unfit."""
    if not row[1]:
        raise Unfit("no-job-id", "JobID is empty")
    submitted, ended, wall, user, kernel = row[11], row[12], row[17], row[18], row[19]
    are_times = submitted.__class__ is ended.__class__ is int
    if not (are_times and wall.__class__ is user.__class__ is kernel.__class__ is int):
        submitted = Epoch(mandatory("SubmitTime", submitted))
        ended = Epoch(mandatory("EndTime", ended))
        wall, user = mandatory("UsedWalltime", wall), mandatory("UsedCPUUserTime", user)
        kernel = mandatory("UsedCPUKernelTime", kernel)
    if wall < 0 or user < 0 or kernel < 0:
        used = f"wall time {wall} s, CPU time {user} s user and {kernel} s kernel"
        raise Unfit("negative-duration", used)
    return submitted, ended, wall, user, kernel


def _check_identity(job: JobRecord) -> None:
    """Raises: Unfit when a text that says whose or which job it is, is not UTF-8.

    No receiver would know it.
    """
    for name in ("job_id", "local_id", "user", "vo", "endpoint", "interface"):
        if is_undecodable(getattr(job, name)):
            raise Unfit("undecodable-text", f"{name} is not UTF-8: {getattr(job, name)!r}")
    _check_fqans(job.fqans)


def _check_fqans(fqans: Fqans) -> None:
    for fqan in fqans:
        if is_undecodable(fqan):
            raise Unfit("undecodable-text", f"FQAN is not UTF-8: {fqan!r}")
