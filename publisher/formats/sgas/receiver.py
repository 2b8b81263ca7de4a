"""What SGAS does with usage records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from publisher.formats.base import OnChange, Receiver, moment, number
from publisher.formats.sgas import values
from publisher.formats.sgas.rules import sgas_omissions
from publisher.model.published import PublishedJob


def published_values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    """What a usage record says of a job: APEL's names where there are any, values for people."""
    run, who, where = job.job, job.who, job.where
    yield "RecordId", values.record_id(job)
    yield "GlobalJobId", run.job_id
    yield "LocalJobId", values.local_id(job)
    yield "GlobalUserName", who.user
    yield "LocalUserId", values.local_user(job.local_user)
    yield "VO", who.vo
    attributes = values.vo_attributes(who)
    yield "VOGroup", ", ".join(dict.fromkeys(group for group, _ in attributes))
    yield "VORole", ", ".join(dict.fromkeys(role for _, role in attributes if role))
    yield "JobName", values.job_name(job.job_name)
    yield "Status", run.status
    yield "ExitStatus", number(values.exit_code(run.exit_code))
    yield "WallDuration", f"{run.wall_s} s"
    yield "CpuDuration", f"{run.cpu_user_s} s user, {run.cpu_kernel_s} s system"
    yield "Processors", str(values.processors(run.cpu_count))
    yield "NodeCount", number(values.node_count(run.node_count))
    yield "SubmitTime", moment(values.known_time(run.submitted_at))
    yield "StartTime", moment(values.start_time(job))
    yield "EndTime", moment(job.ended_at)
    yield "MemoryReal", number(values.memory_kib(run.memory_kib), " KiB")
    yield "MemoryVirtual", number(values.memory_kib(run.virtual_memory_kib), " KiB")
    yield "Disk", number(values.positive(run.scratch_bytes), " bytes")
    yield "Network", number(values.positive(run.stage_in_bytes, run.stage_out_bytes), " bytes")
    yield "MachineName", where.machine_name
    yield "SubmitHost", values.submit_host(job.client_host)
    yield "Queue", values.queue(where.queue)
    yield "ProjectName", ", ".join(values.projects(job.projects))
    yield "Host", "".join(map(values.host, run.hosts[:1]))
    yield "GPUs", number(run.gpu_count)
    charge = values.charge(job.charge)
    yield "Charge", f"{charge.text} {charge.tariff.unit}" if charge else ""
    yield "WorkerNodeInstance", run.wn_instance
    yield "RuntimeEnvironment", ", ".join(values.runtime_environments(run.runtime_environments))
    yield "FileTransfers", number(sum(1 for _ in values.transfers(job.transfers)) or None)


USAGE_RECORDS: Final = Receiver(
    name="SGAS",
    on_change=OnChange.KEEP_FIRST,
    table="usage records",
    takes_charges=True,
    submit_host_is_client=True,
    checks_machine_name=True,
    default_batch_records=50,
    values=published_values,
    omitted=sgas_omissions,
)
