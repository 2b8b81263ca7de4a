"""Rows of an A-REX accounting database to job records: done, not yet done, or unreadable.

Side rows (tokens, extra information, events, and what a format asks for beyond) are read for a page
of jobs at a time, by RecordID.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    counted,
    exit_code,
    gpu_models_of,
    hosts_of,
    is_undecodable,
    mandatory,
    moment,
    positive,
    quantities_of,
    text_of,
    tolerant_text,
    transfer,
    unescaped,
    unsigned,
)
from publisher.sources.base import CPU_UNKNOWN, GPU_MODELS, QUANTITIES, OpenRow

Fqans = tuple[str, ...]
Attributes = tuple[tuple[str, str], ...]
Row = tuple[Any, ...]  # in the order of `queries`: what SQLite finds, which may be of any type

_REMEMBERED_TOKENS: Final = 5_000
MOST_TEXT: Final = 1_000  # characters beside a row that are remembered of it
# Without knowing when a row was first seen finished, its side rows are taken to be all there a day
# after its end: A-REX writes them within seconds of each other, but may do so hours after EndTime.
SURELY_WRITTEN_S: Final = 86_400
IN_PROGRESS: Final = "in-progress"
_PROJECT: Final = "projectname"
_FQAN_KEYS: Final = frozenset({"mainfqan", "vomsfqan"})
# Rows whose side rows are read together: 2 kB of objects each, and a core's own cache does not hold
# those of a page.
_AT_ONCE: Final = 50
NOTHING: Final[Mapping[str, object]] = {}
_NONE_SEEN: Final[Mapping[int, Epoch]] = {}


@dataclass(slots=True, kw_only=True)
class SideRows:
    """What stands beside some rows, as stored: texts are escaped still, and may be of any type."""

    finished: set[int] = field(default_factory=set)
    eventful: set[int] = field(default_factory=set)  # not finished, but with some event
    started: dict[int, object] = field(default_factory=dict)  # the newest LRMSSTART
    tokens: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)
    extra: dict[int, dict[Any, Any]] = field(default_factory=dict)  # the newest value of each key
    projects: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    environments: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    transfers: dict[int, list[Row]] = field(default_factory=dict)


def read_sides(
    connection: sqlite3.Connection, rows: Sequence[Row], span: bool, asked: ReadOptions
) -> SideRows:
    """The side rows of these rows of AAR. `span`: they are all the rows from the first to the last.

    Raises: sqlite3.Error.
    """
    where = sql.beside([row[0] for row in rows], span=span)
    sides = SideRows()
    _read_events(connection, sides, where, rows)
    # Hot path: ten rows a job, a job's together, so its list is looked up once. Those of fifty jobs
    # are fetched at once: a loop over the cursor would call it for each.
    job: object = None
    pairs: list[tuple[Any, Any]] = []
    for record_id, key, value in _stored(connection, "AuthTokenAttributes", where):
        if record_id != job:
            job, pairs = record_id, []
            sides.tokens[record_id] = pairs
        pairs.append((key, value))
    _read_extra(connection, sides, where)
    if SideTable.RUNTIME_ENVIRONMENTS in asked.needs:
        for record_id, name in _stored(connection, "RunTimeEnvironments", where):
            sides.environments[record_id].append(name)
    if SideTable.TRANSFERS in asked.needs:
        sides.transfers = read_transfers(connection, where)
    return sides


def _stored(connection: sqlite3.Connection, table: str, where: sql.Where) -> list[Row]:
    return connection.execute(sql.side(table, where[0]), where[1]).fetchall()


def read_transfers(connection: sqlite3.Connection, where: sql.Where) -> dict[int, list[Row]]:
    """Raises: sqlite3.Error."""
    found: dict[int, list[Row]] = {}
    for record_id, *stored in _stored(connection, "DataTransfers", where):
        found.setdefault(record_id, []).append(tuple(stored))
    return found


def _read_extra(connection: sqlite3.Connection, sides: SideRows, where: sql.Where) -> None:
    job: object = None
    values: dict[Any, Any] = {}
    for record_id, key, value in _stored(connection, "JobExtraInfo", where):
        if record_id != job:
            job, values = record_id, {}
            sides.extra[record_id] = values
        if key == _PROJECT:
            sides.projects[record_id].append(value)
        else:
            values[key] = value


def _read_events(
    connection: sqlite3.Connection, sides: SideRows, where: sql.Where, rows: Sequence[Row]
) -> None:
    finished, started = sides.finished, sides.started
    for record_id, start in connection.execute(sql.events(where[0]), where[1]).fetchall():
        if start is None:
            finished.add(record_id)
        else:
            started[record_id] = start
    unfinished = [row[0] for row in rows if row[0] not in finished]
    if unfinished:
        found = connection.execute(sql.EVENTFUL, sql.listed(unfinished)[1])
        sides.eventful.update(number for (number,) in found)


class ReadOptions(NamedTuple):
    """What a caller wants of rows.

    `first_seen` are those that it saw finished but incomplete before, with the time; `remembers` is
    whether it will bring incomplete rows again with that time; else a day after EndTime is enough.
    """

    needs: frozenset[SideTable]
    now: Epoch
    first_seen: Mapping[int, Epoch] = _NONE_SEEN
    remembers: bool = True


class JobUser(NamedTuple):
    """Whose a job is: a part of a `JobRecord`."""

    user: str
    vo: str
    fqans: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    side_fqan: bool
    local_user: str
    local_group: str
    projects: tuple[str, ...]


class JobPlace(NamedTuple):
    """Where a job ran, and what an hour is worth there: a part of a `JobRecord`."""

    interface: str
    endpoint: str
    queue: str
    lrms: str
    benchmark: str
    side_benchmark: bool


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
        self._tokens: dict[Row, tuple[Fqans, Attributes, bool]] = {}
        self.doubtful = False  # some text of this page is not UTF-8

    def read(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions, *, span: bool
    ) -> RowOutcomes:
        """Verdicts on rows of AAR, inside the transaction that found them.

        `span`: they are all rows from first to last. Raises: sqlite3.Error.
        """
        verdicts = RowOutcomes()
        if not rows:
            return verdicts
        self.doubtful = connection.text_factory is tolerant_text
        self.names.fill(connection, rows)
        for start in range(0, len(rows), _AT_ONCE):
            self._sort(connection, rows[start : start + _AT_ONCE], span, asked, verdicts)
        return verdicts

    def _sort(
        self,
        connection: sqlite3.Connection,
        rows: Sequence[Row],
        span: bool,
        asked: ReadOptions,
        verdicts: RowOutcomes,
    ) -> None:
        """Put each row into its list of verdicts. Raises: sqlite3.Error."""
        sides = read_sides(connection, rows, span, asked)
        for row in rows:
            try:
                opened = self._still_open(row, sides, asked)
                if opened is None:
                    verdicts.jobs.append(self.job(row, sides))
                else:
                    verdicts.open.append(opened)
                    verdicts.left.append((row, sides, ""))
            except Unfit as unfit:
                verdicts.skipped.append(self._skip(row, unfit))
                verdicts.left.append((row, sides, unfit.rule))

    def _still_open(self, row: Row, sides: SideRows, asked: ReadOptions) -> OpenRow | None:
        """None when the job is finished and all of it is there. Raises: Unfit."""
        record_id, status_id, end = row[0], row[8], row[12]
        status = self.names.statuses.get(status_id, "")
        if status == IN_PROGRESS or (not status and not end):
            return self._open(record_id, None)
        ended_at = end if end.__class__ is int else mandatory("EndTime", end)
        if ended_at <= 0:
            raise Unfit("no-end-time", f"the status is {status!r} and EndTime {ended_at}")
        if not status:
            is_known = status_id in self.names.statuses
            what = "is the empty one" if is_known else f"{status_id!r} is unknown"
            raise Unfit("unknown-status", f"StatusID {what}, and EndTime is set")
        if record_id in sides.finished or self.layout == sql.IMPORTED:
            return None  # an importer writes a job's rows in one transaction
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
        """The record of a finished job. Raises: Unfit."""
        # fmt: off
        (record_id, job_id, local_id, _, _, _, _, _, status_id, status_code, _,
         _, _, nodes, cpus, memory, virtual, _, _, _, scratch, stage_in, stage_out, began,
         gpus) = row
        # fmt: on
        submitted_at, ended_at, wall_s, cpu_user_s, cpu_kernel_s = _mandatory_numbers(row)
        text, extra = self.text, sides.extra.get(record_id, NOTHING)
        imported = self.layout == sql.IMPORTED
        quantities = quantities_of(str(extra.get(QUANTITIES, ""))) if imported else ()
        try:
            place, user = self._place(row, sides), self._user(row, sides)
        except KeyError:
            raise self.names.dangling(row) from None
        job = JobRecord(
            job_id=JobId(text(job_id)),
            local_id=text(local_id),
            status=self.names.statuses[status_id],
            ended_at=ended_at,
            wall_s=wall_s,
            cpu_user_s=cpu_user_s,
            cpu_kernel_s=cpu_kernel_s,
            node_count=positive(nodes),
            cpu_count=positive(cpus),
            row=RowRef(database=self.database, record_id=record_id),
            exit_code=exit_code(status_code),
            submitted_at=submitted_at,
            started_at=self.started_at(began, sides.started.get(record_id), ended_at, wall_s),
            # 0 is what A-REX writes when the batch system told nothing.
            memory_kib=unsigned(memory) or None,
            virtual_memory_kib=unsigned(virtual) or None,
            scratch_bytes=unsigned(scratch),
            stage_in_bytes=unsigned(stage_in),
            stage_out_bytes=unsigned(stage_out),
            job_name=text(extra.get("jobname", "")),
            client_host=text(extra.get("clienthost", "")),
            hosts=hosts_of(text(extra.get("nodenames") or extra.get("nodename"))),
            wn_instance=text(extra.get("wninstance", "")),
            runtime_environments=self.distinct(sides.environments.get(record_id, ())),
            transfers=self.transfers(sides.transfers.get(record_id, ())),
            escaped=self.is_escaped,
            gpu_count=counted(gpus),
            quantities=quantities,
            gpu_models=gpu_models_of(text(extra.get(GPU_MODELS, ""))),
            cpu_unknown=imported and extra.get(CPU_UNKNOWN[0]) == CPU_UNKNOWN[1],
            **user._asdict(),
            **place._asdict(),
        )
        # What is stored as bytes raises no doubt while it is read.
        ids_are_bytes = bytes in (job_id.__class__, local_id.__class__)
        if self.doubtful or self.names.undecodable or ids_are_bytes:
            _check_identity(job)
        return job

    def _user(self, row: Row, sides: SideRows) -> JobUser:
        """Whose a job is. Raises: KeyError for a reference that points nowhere; Unfit."""
        names, record_id = self.names, row[0]
        user, vo, main_fqan = names.users[row[5]], names.vos[row[6]], names.fqans[row[7]]
        fqans, attributes, side_fqan = self._token_texts(main_fqan, sides.tokens.get(record_id))
        account = self.text(sides.extra.get(record_id, NOTHING).get("localuser", ""))
        local_user, _, local_group = account.partition(":")
        projects = self.distinct(sides.projects.get(record_id, ()))
        return JobUser(user, vo, fqans, attributes, side_fqan, local_user, local_group, projects)

    def _place(self, row: Row, sides: SideRows) -> JobPlace:
        """Where a job ran. Raises: KeyError for a reference that points nowhere."""
        names, extra = self.names, sides.extra.get(row[0], NOTHING)
        interface, endpoint = names.endpoints[row[3]]
        queue, benchmark = names.queues[row[4]], names.benchmarks[row[10]]
        lrms, noted = self.text(extra.get("lrms", "")), self.text(extra.get("benchmark", ""))
        return JobPlace(interface, endpoint, queue, lrms, benchmark or noted, bool(noted))

    def started_at(self, began: object, event: object, ended_at: int, wall_s: int) -> Epoch | None:
        """The true start: an importer's column, or the newest LRMSSTART in A-REX's local time."""
        if began is not None:
            return moment(began)
        if not event:
            return None
        return self._clock.epoch(text_of(event), ended_at=ended_at, wall_s=wall_s)

    def distinct(self, stored: Sequence[object]) -> tuple[str, ...]:
        """The texts, each once and none empty: who finished twice has all side rows twice."""
        return tuple(dict.fromkeys(filter(None, map(self.text, stored))))

    def transfers(self, stored: Iterable[Row]) -> tuple[Transfer, ...]:
        read = (transfer(self.text(url), rest) for url, *rest in dict.fromkeys(stored))
        return tuple(each for each in read if each is not None)

    def _token_texts(
        self, main_fqan: str, stored: Sequence[Row] | None
    ) -> tuple[Fqans, Attributes, bool]:
        """FQANs, the main one first; other attributes; whether the main one is among a job's token.

        Few different ones, so remembered. Raises: Unfit for an FQAN that is not UTF-8.
        """
        if not stored:
            return ((main_fqan,) if main_fqan else (), (), False)
        known = self._tokens.get((main_fqan, *stored))
        if known is None:
            pairs = [(self.text(key), self.text(value)) for key, value in stored]
            known = of_token(main_fqan, pairs)
            _check_fqans(known[0])
            if sum(map(len, chain(*pairs))) <= MOST_TEXT:
                if len(self._tokens) >= _REMEMBERED_TOKENS:
                    self._tokens.clear()
                self._tokens[main_fqan, *stored] = known
        return known

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
