"""A usage record as SGAS keeps it: the columns of its table, with the rows of the tables beside it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """One file staged in or out."""

    kind: str  # download | upload
    url: str
    size_bytes: int | None
    started_at: datetime | None
    ended_at: datetime | None
    bypass_cache: bool | None
    from_cache: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stored record; `id` is the row id, None is NULL. Times are UTC, durations seconds, memory bytes."""

    id: int = 0
    record_id: str | None = None
    create_time: datetime | None = None
    global_job_id: str | None = None
    local_job_id: str | None = None
    global_user_name: str | None = None
    local_user_id: str | None = None
    vo_type: str | None = None
    vo_name: str | None = None
    vo_issuer: str | None = None
    vo_attributes: tuple[tuple[str | None, str | None], ...] = ()
    job_name: str | None = None
    status: str | None = None
    charge: int | None = None
    wall_s: int | None = None
    cpu_s: int | None = None
    node_count: int | None = None
    processors: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    project_name: str | None = None
    submit_host: str | None = None
    queue: str | None = None
    machine_name: str | None = None
    host: str | None = None
    memory: tuple[tuple[int, str, str | None], ...] = ()
    submit_time: datetime | None = None
    user_time_s: int | None = None
    kernel_time_s: int | None = None
    exit_code: int | None = None
    major_page_faults: int | None = None
    runtime_environments: tuple[str, ...] = ()
    transfers: tuple[TransferRow, ...] = ()
    insert_identity: str = ""

    @property
    def has_children(self) -> bool:
        """Rows in other tables hang on it, and keep it from being deleted."""
        return bool(self.runtime_environments or self.transfers)
