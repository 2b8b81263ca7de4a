"""A run of a batch system as a job record: what no batch system has is unknown, or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from publisher.model.job import Epoch, JobId, JobRecord, RowRef

_NO_ROW: Final = RowRef("", 0)  # the store knows of which source and file it is
_MOST: Final = 10**18  # of a quantity


def batch_job(
    *,
    job_id: str,
    local_id: str,
    endpoint: tuple[str, str],
    queue: str,
    lrms: str,
    user: str,
    vo: str,
    account: tuple[str, str],
    status: str,
    exit_code: int | None,
    submitted_at: int,
    started_at: int,
    ended_at: int,
    node_count: int,
    cpu_count: int,
    memory_kib: int,
    virtual_memory_kib: int,
    wall_s: int,
    cpu_user_s: int,
    cpu_kernel_s: int,
    cpu_unknown: bool,
    gpu_count: int | None,
    gpu_models: tuple[tuple[str, int], ...] = (),
    job_name: str = "",
    project: str = "",
    hosts: tuple[str, ...] = (),
    quantities: tuple[tuple[str, int], ...] = (),
    fqans: tuple[str, ...] = (),
    benchmark: str = "",
) -> JobRecord:
    """Return the job record of a run; numbers of which 0 is no value are unknown then.

    `endpoint` is interface and URL, `account` the local user and group.
    """
    start = Epoch(started_at) if started_at > 0 else None
    projects = (project,) if project else ()
    # Hot path: a tuple is made by places.
    return JobRecord(
        JobId(job_id),
        local_id,
        status,
        Epoch(ended_at),
        wall_s,
        cpu_user_s,
        cpu_kernel_s,
        node_count or None,
        cpu_count or None,
        _NO_ROW,
        exit_code,
        Epoch(submitted_at),
        start,
        memory_kib or None,
        virtual_memory_kib or None,
        0,  # scratch, and what was staged in and out: a batch system moves no files
        0,
        0,
        endpoint[0],
        endpoint[1],
        queue,
        user,
        vo,
        fqans,
        (),
        benchmark,
        job_name,
        lrms,
        "",
        projects,
        hosts,
        account[0],
        account[1],
        "",
        (),
        (),
        False,
        gpu_count,
        quantities,
        False,
        False,
        gpu_models,
        cpu_unknown,
    )


def known(quantities: Sequence[tuple[str, int | None]]) -> tuple[tuple[str, int], ...]:
    """Return what formulas of charges may ask for, where it is known."""
    return tuple((name, n) for name, n in quantities if n is not None and 0 <= n < _MOST)
