"""Jobs as rows of the store, and back: what goes in comes out equal.

Texts that are not UTF-8 (surrogates, in Python) are stored as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from publisher.model.job import JobId, JobRecord, RowRef, SkippedJob, Transfer

Row = tuple[Any, ...]

# Columns that are values of a job by the same name.
_PLAIN: Final = (
    *("job_id", "local_id", "status", "ended_at", "wall_s", "cpu_user_s", "cpu_kernel_s"),
    *("node_count", "cpu_count", "exit_code", "submitted_at", "started_at", "memory_kib"),
    *("virtual_memory_kib", "scratch_bytes", "stage_in_bytes", "stage_out_bytes", "job_name"),
    *("client_host", "wn_instance", "gpu_count", "joined"),
)
_FLAGS: Final = ("escaped", "side_fqan", "side_benchmark", "cpu_unknown")
PERSON: Final = ("user", "vo", "fqans", "attributes")
ACCOUNT: Final = ("local_user", "local_group")
PLACE: Final = ("interface", "endpoint", "queue", "lrms")
BENCHMARK: Final = ("benchmark",)
_LISTS: Final = frozenset({"fqans", "attributes"})  # columns of JSON
_RARE: Final = ("quantities", "gpu_models", "runtime_environments", "transfers")

# What decides whether a job has changed, in the order in which it is stored.
_SHARED: Final = ("person", "account", "place", "benchmark")
VALUES: Final = (*_SHARED, "flags", "hosts", "projects", "rare", *_PLAIN)
COLUMNS: Final = ("change", "run", "source", "record_id", "gone", *VALUES)
READ: Final = ("change", "source", "record_id", "gone", "run", *VALUES)
PARTIAL: Final = (
    *("source", "record_id", "run", "gone", "rule", "is_in_progress", "is_unreadable", *VALUES),
)
SKIPPED: Final = (
    *("job_id", "local_id", "ended_at", "rule", "reason", "fingerprint", "submitted_at"),
)

Values = Callable[[Sequence[Any]], Any]


def _of_job(names: Sequence[str]) -> Values:
    return itemgetter(*map(JobRecord._fields.index, names))


identity: Final = _of_job(("row", "submitted_at", "job_id", "local_id"))
plain_values: Final = _of_job(_PLAIN)
person_values: Final = _of_job(PERSON)
account_values: Final = _of_job(ACCOUNT)
place_values: Final = _of_job(PLACE)
_flag_values: Final = _of_job(_FLAGS)
_rare_values: Final = _of_job(_RARE)
_NO_RARE: Final[Row] = ((),) * len(_RARE)

# Parts of a job in the order in which they are read, and how they become a `JobRecord`.
_PARTS: Final = (
    *(*_PLAIN, *PERSON, *ACCOUNT, *PLACE, *BENCHMARK, *_FLAGS, *_RARE),
    *("hosts", "projects", "row"),
)
_arranged: Final = itemgetter(*map(_PARTS.index, JobRecord._fields))
_BITS: Final = (8, 4, 2, 1)


def _flags(number: int) -> tuple[bool, ...]:
    return tuple(bool(number & bit) for bit in _BITS)


_SETS_OF_FLAGS: Final = tuple(map(_flags, range(16)))
_SUMS_OF_FLAGS: Final = {flags: number for number, flags in enumerate(_SETS_OF_FLAGS)}


def benchmark_values(job: JobRecord) -> Row:
    """Return the values of the table `benchmark`."""
    return (job.benchmark,)


def own_values(job: JobRecord) -> Row:
    """Return flags, hosts, projects, and what few jobs have (hot path)."""
    rare = _rare_values(job)
    return (
        _SUMS_OF_FLAGS[_flag_values(job)],
        names_text(job.hosts),
        names_text(job.projects),
        None if rare == _NO_RARE else _rare_text(rare),
    )


def _rare_text(values: Row) -> str:
    named = {name: value for name, value in zip(_RARE, values, strict=True) if value}
    return json.dumps(named, separators=(",", ":"))


def names_text(names: tuple[str, ...]) -> str | None:
    """Return the text of names: None of none, and the only one as it is."""
    if not names:
        return None
    if len(names) == 1 and not names[0].startswith("["):
        return names[0]
    return json.dumps(names, separators=(",", ":"))


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names of a text that `names_text` made."""
    if text is None:
        return ()
    return tuple(json.loads(text)) if text.startswith("[") else (text,)


def stored(values: Iterable[Any]) -> Row:
    """Return values as SQLite takes them: texts that are not UTF-8 as bytes."""
    return tuple(_stored_text(value) if isinstance(value, str) else value for value in values)


def _stored_text(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def restored(values: Iterable[Any]) -> Row:
    """Return stored values as they were."""
    return tuple(
        value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
        for value in values
    )


def distinct_row(columns: Sequence[str], values: Sequence[Any]) -> Row:
    """Return the columns of what many jobs share."""
    return tuple(
        json.dumps(value, separators=(",", ":")) if name in _LISTS else value
        for name, value in zip(columns, values, strict=True)
    )


def distinct_values(columns: Sequence[str], row: Sequence[Any]) -> Row:
    """Return what many jobs share, of its columns."""
    return tuple(
        _tuples(json.loads(value)) if name in _LISTS else value
        for name, value in zip(columns, row, strict=True)
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_FIRST_SHARED: Final = READ.index("person")
SHARED: Final = slice(_FIRST_SHARED, _FIRST_SHARED + len(_SHARED))  # of a row that was read
_OWN: Final = slice(SHARED.stop, None)


def job_of(row: Row, database: str, shared: Row) -> JobRecord:
    """Return the job of a row with the columns `READ` (hot path).

    `shared`: the values of its person, account, place and benchmark, one after the other.
    """
    flags, hosts, projects, rare, *plain = own = row[_OWN]
    if bytes in map(type, own):
        (hosts, projects), plain = restored((hosts, projects)), list(restored(plain))
    plain += shared
    plain += _SETS_OF_FLAGS[flags]
    plain += _NO_RARE if rare is None else _rare(rare)
    plain += (names_of(hosts), names_of(projects), RowRef(database, row[2]))
    return JobRecord._make(_arranged(plain))


def _rare(text: str) -> Row:
    named = {name: _tuples(value) for name, value in json.loads(text).items()}
    named["transfers"] = tuple(Transfer(*each) for each in named.get("transfers", ()))
    return tuple(named.get(name, ()) for name in _RARE)


def skipped_of(row: Row, database: str) -> SkippedJob:
    """Return a row that was set aside, of `record_id` and the columns `SKIPPED`."""
    record_id, job_id, *values = restored(row)
    return SkippedJob(RowRef(database, record_id), JobId(job_id), *values)
