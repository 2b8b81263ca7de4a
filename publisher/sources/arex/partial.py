"""What is known of a row that is no run: its job is in progress, not complete, or breaks a rule."""

from __future__ import annotations

from typing import NamedTuple

from publisher.model.job import Epoch, JobId, JobRecord, PartialJob, RowRef
from publisher.sources.arex.rows import (
    IN_PROGRESS,
    NOTHING,
    Row,
    RowReader,
    SideRows,
    of_token,
)
from publisher.sources.arex.values import (
    duration,
    exit_code,
    hosts_of,
    moment,
    positive,
    unsigned,
)


class _PartialUser(NamedTuple):
    """Whose a job is: a part of a `JobRecord`."""

    user: str
    vo: str
    fqans: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    side_fqan: bool
    local_user: str
    local_group: str
    projects: tuple[str, ...]


class _PartialPlace(NamedTuple):
    """Where a job ran, and what an hour is worth there: a part of a `JobRecord`."""

    interface: str
    endpoint: str
    queue: str
    lrms: str
    benchmark: str
    side_benchmark: bool


def partial_job(reader: RowReader, row: Row, sides: SideRows, rule: str) -> PartialJob:
    """Return what is known of a row, which breaks a rule or is open."""
    # fmt: off
    (record_id, job_id, local_id, _, _, _, _, _, status_id, status_code, _,
     submitted, ended, nodes, cpus, memory, virtual, wall, user_s, kernel_s, scratch, stage_in,
     stage_out) = row
    # fmt: on
    text, extra = reader.text, sides.extra.get(record_id, NOTHING)
    status = reader.names.statuses.get(status_id, "")
    used = wall, user_s, kernel_s, stage_in, stage_out
    known = (*map(duration, used[:3]), *map(unsigned, used[3:]))
    wall_s, cpu_user_s, cpu_kernel_s, stage_in_bytes, stage_out_bytes = known
    ended_at = moment(ended) or Epoch(0)
    job = JobRecord(
        job_id=JobId(text(job_id)),
        local_id=text(local_id),
        status=status,
        ended_at=ended_at,
        wall_s=wall_s or 0,
        cpu_user_s=cpu_user_s or 0,
        cpu_kernel_s=cpu_kernel_s or 0,
        node_count=positive(nodes),
        cpu_count=positive(cpus),
        row=RowRef(database=reader.database, record_id=record_id),
        exit_code=exit_code(status_code),
        submitted_at=moment(submitted) or Epoch(0),
        started_at=reader.started_at(sides.started.get(record_id), ended_at, wall_s or 0),
        memory_kib=unsigned(memory) or None,
        virtual_memory_kib=unsigned(virtual) or None,
        scratch_bytes=unsigned(scratch),
        stage_in_bytes=stage_in_bytes,
        stage_out_bytes=stage_out_bytes,
        job_name=text(extra.get("jobname", "")),
        client_host=text(extra.get("clienthost", "")),
        hosts=hosts_of(text(extra.get("nodenames") or extra.get("nodename"))),
        wn_instance=text(extra.get("wninstance", "")),
        runtime_environments=reader.distinct(sides.environments.get(record_id, ())),
        transfers=reader.transfers(sides.transfers.get(record_id, ())),
        escaped=reader.is_escaped,
        **_user(reader, row, sides)._asdict(),
        **_place(reader, row, sides)._asdict(),
    )
    return PartialJob(
        job,
        is_in_progress=status == IN_PROGRESS or (not status and not ended),
        # NULL is unknown, and nothing strange: other systems tell less.
        is_unreadable=known.count(None) > used.count(None),
        rule=rule,
    )


def _user(reader: RowReader, row: Row, sides: SideRows) -> _PartialUser:
    names, record_id, text = reader.names, row[0], reader.text
    pairs = [(text(key), text(value)) for key, value in sides.tokens.get(record_id, ())]
    fqans, attributes, side_fqan = of_token(names.fqans.get(row[7], ""), pairs)
    account = text(sides.extra.get(record_id, NOTHING).get("localuser", ""))
    local_user, _, local_group = account.partition(":")
    user, vo = names.users.get(row[5], ""), names.vos.get(row[6], "")
    projects = reader.distinct(sides.projects.get(record_id, ()))
    return _PartialUser(user, vo, fqans, attributes, side_fqan, local_user, local_group, projects)


def _place(reader: RowReader, row: Row, sides: SideRows) -> _PartialPlace:
    names, extra = reader.names, sides.extra.get(row[0], NOTHING)
    interface, endpoint = names.endpoints.get(row[3], ("", ""))
    queue, benchmark = names.queues.get(row[4], ""), names.benchmarks.get(row[10], "")
    lrms, noted = reader.text(extra.get("lrms", "")), reader.text(extra.get("benchmark", ""))
    return _PartialPlace(interface, endpoint, queue, lrms, benchmark or noted, bool(noted))
