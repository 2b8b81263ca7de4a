"""All that a source has on one job, for people."""

from __future__ import annotations

from dataclasses import dataclass

from publisher.model.job import Epoch, JobId, RowRef, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A change of state. `local_time` is the CE's clock, as stored; `moments` what it may mean.

    One moment usually; two in the hour in which clocks go back, none in the one
    that they leave out.
    """

    key: str
    local_time: str
    moments: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """Everything known about a job in one database. None is unknown, '' a text that is not there.

    `attributes` are its token's, `extra` everything else that A-REX noted by name; both as stored,
    without repetitions. `oddities` tell of values that cannot be read. `elsewhere` are other
    databases that hold the job too. `zone` is the IANA name of the zone in which events are
    written, '' for that of this host.
    """

    row: RowRef
    job_id: JobId
    local_id: str
    status: str
    in_progress: bool
    exit_code: int | None
    submitted_at: Epoch | None
    started_at: Epoch | None
    ended_at: Epoch | None
    interface: str
    endpoint: str
    queue: str
    user: str
    vo: str
    fqan: str  # the main one
    benchmark: str
    node_count: int | None
    cpu_count: int | None
    gpu_count: int | None
    memory_kib: int | None
    virtual_memory_kib: int | None
    wall_s: int | None
    cpu_user_s: int | None
    cpu_kernel_s: int | None
    scratch_bytes: int | None
    stage_in_bytes: int | None
    stage_out_bytes: int | None
    attributes: tuple[tuple[str, str], ...]
    extra: tuple[tuple[str, str], ...]
    runtime_environments: tuple[str, ...]
    events: tuple[StoredEvent, ...]
    transfers: tuple[Transfer, ...]
    oddities: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    zone: str = ""
