"""A job as it truly was, before A-REX's writer distorts it, and rows that no A-REX would write."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

SqlValue = str | bytes | int | float | None
"""What a column can hold. `str` may carry undecodable bytes as surrogate escapes; `bytes` is stored as a BLOB."""


class TransferKind(IntEnum):
    """DataTransfers.TransferType."""

    DOWNLOAD = 10
    CACHED = 11
    UPLOAD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A file staged in or out; times are epoch seconds, UTC."""

    url: str
    size: int
    start: int
    end: int
    kind: TransferKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of state; `at` is epoch seconds, UTC (the file holds local time text)."""

    key: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleJob:
    """Everything a job has. Text may hold undecodable bytes as surrogate escapes (`"\\udcff"` is the byte FF).

    `name` names a hostile case and is empty otherwise. `None` means that A-REX had nothing to write: no row.
    `fqans[0]` is the main FQAN. `token_attributes` come on top of the FQANs. Of `projects` the writer keeps the first.
    `benchmark` is `type:value`. Times are epoch seconds, UTC; `events` are in order and end with FINISHED.
    """

    name: str = ""
    job_id: str
    local_job_id: str | None
    interface: str
    endpoint_url: str
    queue: str
    user: str
    vo: str
    fqans: tuple[str, ...] = ()
    token_attributes: tuple[tuple[str, str], ...] = ()
    status: str
    exit_code: int
    benchmark: str | None
    submit_time: int
    end_time: int
    nodes: int
    cpus: int
    memory_kib: int
    virtual_memory_kib: int
    wall_s: int
    cpu_user_s: int
    cpu_kernel_s: int
    scratch_bytes: int
    stage_in_bytes: int
    stage_out_bytes: int
    job_name: str | None = None
    lrms: str | None = None
    client_host: str | None = None
    projects: tuple[str, ...] = ()
    node_names: tuple[str, ...] = ()
    local_user: str | None = None
    system_software: str | None = None
    wn_instance: str | None = None
    rtes: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    events: tuple[Event, ...] = ()

    def moved_to(self, end_time: int) -> "SampleJob":
        """The same job with another end: EndTime and the FINISHED event move, the usage stays."""
        events = tuple(replace(event, at=end_time) if event.key == "FINISHED" else event for event in self.events)
        return replace(self, end_time=end_time, events=events)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """A job written as A-REX does and then bent by hand, past escapes and 32 bits.

    In this order: `again` passes FINISHED once more; side rows of the tables in `cleared` go; `side` rows (table,
    column to value) come; each row in `names` (column of AAR to the columns of a new row in its name table) is
    added and pointed to; `columns` of AAR are set. Columns that schema 1 lacks are left out there.
    """

    name: str
    job: SampleJob
    again: SampleJob | None = None
    cleared: frozenset[str] = frozenset()
    side: tuple[tuple[str, Mapping[str, SqlValue]], ...] = ()
    names: Mapping[str, Mapping[str, SqlValue]] = field(default_factory=dict)
    columns: Mapping[str, SqlValue] = field(default_factory=dict)
