"""Jobs, deliveries and charges as Parquet files by month; only what changed is written again.

    analytics/jobs/month=2026-10/ce1.parquet
    analytics/deliveries/month=2026-10/ce1.parquet
    analytics/charges/month=2026-10/ce1.parquet
    analytics/_ce1.json                       what the files were made of, by data set and month

Jobs that ended beyond the calendar are in a month that readers take for null. Several instances may
write to one directory. A file is written beside its place and renamed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from decimal import Context, Decimal, InvalidOperation
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from publisher.jobs.filters import JobFilter
from publisher.jobs.queries import JobQueries
from publisher.ledger.books import ChargeRequest, History
from publisher.ledger.contract import Ledgers
from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.model.rates import AssessedJob
from publisher.model.time import Month, Window
from publisher.publishing.site import Site
from publisher.reporting import statistics
from publisher.reporting.export.columns import COLUMNS, Column, ExportedJob
from publisher.reporting.export.pages import described
from publisher.transports.directories import new_file

_VERSION: Final = 2  # of the schema, and of what is said with it
_MODE: Final = 0o640  # users are named
_TIME: Final = pa.timestamp("s", tz="UTC")
_DECIMAL: Final = pa.decimal128(38, 9)
_RUN: Final = pa.binary(15)
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "decimal": _DECIMAL,
    "time": _TIME,
    "texts": pa.list_(pa.string()),
}
_JOBS: Final = pa.schema(
    [
        ("instance", pa.string()),
        ("run", _RUN),
        *((column.name, _TYPES[column.kind]) for column in COLUMNS),
    ]
)
_DELIVERIES: Final = pa.schema(
    [
        *(
            ("instance", pa.string()),
            ("target", pa.string()),
            ("message_id", pa.string()),
            ("format", pa.string()),
        ),
        *(("accepted_at", _TIME), ("run", _RUN), ("ended_at", _TIME)),
    ]
)
_CHARGES: Final = pa.schema(
    [
        *(("instance", pa.string()), ("run", _RUN), ("job_id", pa.string()), ("ended_at", _TIME)),
        *(("queue", pa.string()), ("project", pa.string()), ("group", pa.string())),
        *(("amount", _DECIMAL), ("unit", pa.string()), ("reason", pa.string())),
    ]
)
_ROWS: Final = 100_000  # of a row group, held in memory together
_CHARGES_AT_ONCE: Final = 5_000
_NANO: Final = Decimal("1E-9")
_EXACT: Final = Context(prec=38)
_INTEGERS: Final = range(-(2**63), 2**63)
_CALENDAR: Final = range(-62_135_596_800, 253_402_300_800)  # years 1 to 9999
_BEYOND: Final = "__HIVE_DEFAULT_PARTITION__"  # what stands for null in the name of a directory


@dataclass(slots=True)
class ExportedMonths:
    """What was written: by data set, the months with their rows; and how many were left alone.

    `left_out`: jobs in progress ('') or with rows that cannot be read, by rule.
    """

    written: dict[str, dict[str, int]] = field(default_factory=dict)
    unchanged: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def export(
    site: Site, jobs: JobQueries, directory: Path, *, jobs_seen: Callable[[int], None]
) -> ExportedMonths:
    """Bring the files up to date.

    Raises: SourceError, LedgerError, UsageError when they cannot be written.
    """
    files = _Files(site, directory)
    try:
        tally = statistics.stats(jobs, JobFilter(), by="month")
        months = {
            month or _BEYOND: asdict(totals)
            for month, totals in tally.groups.items()
            if month or (totals.last_ended_at or 0) >= _CALENDAR.stop
        }
        for month in files.outdated("jobs", months):
            wanted = JobFilter(ended=_window(month))
            found = described(site.records, jobs.selected(wanted), jobs_seen)
            files.write(
                "jobs", month, _JOBS, (_jobs(site.ledgers.instance, page) for page in found)
            )
            files.done.left_out += jobs.left_out(wanted)
        with closing(site.ledgers.history()) as history:
            for month in files.outdated("deliveries", history.accepted()):
                files.write(
                    "deliveries", month, _DELIVERIES, _deliveries(site.ledgers, history, month)
                )
        _export_charges(site.ledgers, files, months)
    except OSError as error:
        raise UsageError(
            f"{directory}: {error.strerror or error}; name another directory, or make room"
        ) from error
    return files.done


def _export_charges(ledgers: Ledgers, files: _Files, months: Iterable[str]) -> None:
    with closing(ledgers.charge_book(to_read=True)) as book:
        sums = {}
        for month in months if book.runs() else ():
            if found := list(map(str, book.sums(_window(month)))):
                sums[month] = found
        for month in files.outdated("charges", sums):
            kept = book.charges(ChargeRequest(window=_window(month)))
            rows = (_charge_row(ledgers.instance, one.job) for one in kept)
            files.write("charges", month, _CHARGES, _batches(rows))


def _charge_row(instance: str, job: AssessedJob) -> tuple[Any, ...]:
    described = (instance, job.run, job.job_id, job.ended_at, job.queue, job.project, job.group)
    return (*described, _taken(job.amount), job.tariff and job.tariff.unit, job.reason or None)


class _Files:
    """The files of an instance, and what each was made of."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._directory = directory
        self._name = site.ledgers.instance or site.records.name
        self._noted = directory / f"_{self._name}.json"
        settings = repr(
            (_VERSION, [column.name for column in COLUMNS], site.records.policy, site.records.power)
        )
        self._settings = sha256(settings.encode()).hexdigest()
        self._state: dict[str, dict[str, object]] = self._read()
        self.done = ExportedMonths()

    def outdated(self, what: str, months: Mapping[str, object]) -> Iterator[str]:
        """The months whose files are not made of this; each is noted when the next is asked for."""
        noted = self._state.setdefault(what, {})
        for month in sorted(noted.keys() - months.keys()):
            self._place(what, month).unlink(missing_ok=True)
            del noted[month]
        for month, made_of in sorted(months.items()):
            now = json.loads(json.dumps([self._settings if what == "jobs" else "", made_of]))
            if noted.get(month) == now and self._place(what, month).exists():
                self.done.unchanged += 1
                continue
            yield month
            noted[month] = now
            self._write_state()

    def write(
        self, what: str, month: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> None:
        place = self._place(what, month)
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = 0
        with (
            new_file(place, _MODE) as out,
            parquet.ParquetWriter(out, schema, compression="zstd") as writer,
        ):
            for table in _row_groups(schema, batches):
                writer.write_table(table)
                rows += table.num_rows
        self.done.written.setdefault(what, {})[month] = rows

    def _place(self, what: str, month: str) -> Path:
        return self._directory / what / f"month={month}" / f"{self._name}.parquet"

    def _read(self) -> dict[str, dict[str, object]]:
        try:
            return dict(json.loads(self._noted.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # then everything is written again
            return {}

    def _write_state(self) -> None:
        with new_file(self._noted, _MODE) as out:
            out.write(json.dumps(self._state).encode())


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _window(month: str) -> Window:
    if month == _BEYOND:
        return Window(start=Epoch(_CALENDAR.stop))
    year, _, number = month.partition("-")
    return Month(int(year), int(number)).window


def _jobs(instance: str, page: Sequence[ExportedJob]) -> pa.RecordBatch:
    """Return a page of jobs, with the key of each run."""
    runs = [one.job.run_key for one in page]
    arrays = [pa.array([instance] * len(runs), pa.string()), pa.array(runs, _RUN)]
    for column in COLUMNS:
        # Not as text, which the values of such a column are
        value = attrgetter(column.inputs[0]) if column.kind == "time" else column.value
        arrays.append(_array(column, list(map(value, page))))
    return pa.RecordBatch.from_arrays(arrays, schema=_JOBS)


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    if column.kind == "time" and not _are_in_calendar(values):
        values = [value if value in _CALENDAR else None for value in values]
    try:
        return pa.array(values, _TYPES[column.kind])
    except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array(list(map(_taken, values)), _TYPES[column.kind])


def _are_in_calendar(moments: Sequence[Epoch | None]) -> bool:
    known = list(filter(None, moments))
    return not known or (min(known) in _CALENDAR and max(known) in _CALENDAR)


def _taken(value: Any) -> Any:
    """A value that its column cannot hold, as one that it can.

    Bytes that were no UTF-8 are escaped, as in the other formats. A decimal has nine digits after
    the point. A number that is too large is None.
    """
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case Decimal():
            try:
                return value.quantize(_NANO, context=_EXACT)
            except InvalidOperation:
                return None
        case int():
            return value if value in _INTEGERS else None
        case None:
            return None
    return list(map(_taken, value))


def _deliveries(ledgers: Ledgers, history: History, month: str) -> Iterator[pa.RecordBatch]:
    for one in history.deliveries(_window(month)):
        named = one.target, one.message_id, one.format
        fixed = zip((ledgers.instance, *named, one.accepted_at), _DELIVERIES, strict=False)
        shared = [pa.array([value] * len(one.runs), kind.type) for value, kind in fixed]
        own = [pa.array(one.runs, _RUN), pa.array(one.ended_at, _TIME)]
        yield pa.RecordBatch.from_arrays([*shared, *own], schema=_DELIVERIES)


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    waiting: list[tuple[Any, ...]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= _CHARGES_AT_ONCE:
            yield _charges(waiting)
            waiting = []
    if waiting:
        yield _charges(waiting)


def _charges(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, _CHARGES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_CHARGES)
