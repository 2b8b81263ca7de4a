"""What is published of a job, value by value, with the rule that decided it and the field of the job that it came from.

Names are those of APEL's messages, and of usage records where APEL has none. Values are as people read them: times in ISO
8601, durations in seconds; the record itself shows their spelling on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from publisher.model import sgas
from publisher.model.identity import IdentityMode
from publisher.model.job import Epoch
from publisher.model.origin import Origin
from publisher.model.policy import KeyStyle, PublishedJob, RecordPolicy
from publisher.model.quality import QUEUE_CHARACTERS, apel_local_user, apel_queue
from publisher.model.when import iso

_AS_IT_IS: Final = "as it is"
# Values that no rule of the site decides, and where they stand in a job record.
_PLAIN: Final[Mapping[str, str]] = {
    "GlobalJobId": "job_id",
    "Status": "status",
    "ExitStatus": "exit_code",
    "WallDuration": "wall_s",
    "CpuDuration": "cpu_user_s, cpu_kernel_s",
    "Processors": "cpu_count",
    "NodeCount": "node_count",
    "SubmitTime": "submitted_at",
    "MemoryReal": "memory_kib",
    "MemoryVirtual": "virtual_memory_kib",
    "Host": "hosts",
    "GPUs": "gpu_count",
    "ProjectName": "projects",
    "Disk": "scratch_bytes",
    "Network": "stage_in_bytes, stage_out_bytes",
    "WorkerNodeInstance": "wn_instance",
    "RuntimeEnvironment": "runtime_environments",
}

# Summaries spell these in the site's key style.
_SPELT: Final = frozenset({"VOGroup", "VORole", "SubmitHost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedValue:
    """One published value, '' where nothing is said; `source` is the field of the job record, '' for the configuration."""

    name: str
    value: str
    rule: str
    source: str


def explained(policy: RecordPolicy, job: PublishedJob, *, usage_record: bool, summary: bool) -> list[ExplainedValue]:
    """Every value of a record: a usage record for SGAS, else one for APEL, a job's or (`summary`) of its group."""
    origins = {origin.name: origin for origin in _origins(policy, job, usage_record=usage_record, summary=summary)}
    values = _for_sgas(job) if usage_record else _for_apel(job, summary=summary)
    return [
        ExplainedValue(name=name, value=value, rule=origins[name].rule, source=origins[name].source)
        for name, value in values
    ]


def _for_apel(job: PublishedJob, *, summary: bool) -> Iterator[tuple[str, str]]:
    run, who, where = job.job, job.who, job.where
    yield "Site", where.site
    yield "SubmitHost", where.spelt_host if summary else where.submit_host
    yield "InfrastructureType", where.infrastructure
    yield "GlobalUserName", who.user
    yield "VO", who.vo
    yield "VOGroup", who.spelt_group if summary else who.group
    yield "VORole", who.spelt_role if summary else who.role
    yield "ServiceLevel", "; ".join(f"{one.kind} {one.text}" for one in job.benchmark.benchmarks)
    yield "NodeCount", _number(run.node_count)
    yield "Processors", _number(run.cpu_count)
    yield "WallDuration", f"{run.wall_s} s"
    yield "CpuDuration", f"{run.cpu_user_s + run.cpu_kernel_s} s"
    yield "EndTime", _time(job.ended_at)
    if summary:
        return
    yield "StartTime", _time(job.started_at)
    yield "SubmitTime", _time(run.submitted_at)
    yield "RecordId", job.record_id
    yield "GlobalJobId", run.job_id
    yield "LocalJobId", job.local_id
    yield "FQAN", who.apel_fqan()
    yield "LocalUserId", job.local_user if apel_local_user(job.local_user) else ""
    yield "LocalGroup", job.local_group
    yield "JobName", job.job_name
    yield "Status", run.status
    yield "ExitStatus", _number(run.exit_code)
    yield "MachineName", where.machine_name
    yield "Queue", where.queue if len(where.queue) <= QUEUE_CHARACTERS else apel_queue(where.queue)
    yield "InfrastructureDescription", where.description
    yield "MemoryReal", _number(run.memory_kib, " KiB")
    yield "MemoryVirtual", _number(run.virtual_memory_kib, " KiB")
    yield "Host", ", ".join(run.hosts)
    yield "GPUs", _number(run.gpu_count)
    yield "Charge", f"{job.charge.text} {job.charge.tariff.unit}" if job.charge else ""
    yield "ProjectName", ", ".join(job.projects)


def _for_sgas(job: PublishedJob) -> Iterator[tuple[str, str]]:
    run, who, where = job.job, job.who, job.where
    yield "RecordId", sgas.record_id(job)
    yield "GlobalJobId", run.job_id
    yield "LocalJobId", sgas.local_id(job)
    yield "GlobalUserName", who.user
    yield "LocalUserId", sgas.local_user(job.local_user)
    yield "VO", who.vo
    attributes = sgas.vo_attributes(who)
    yield "VOGroup", ", ".join(dict.fromkeys(group for group, _ in attributes))
    yield "VORole", ", ".join(dict.fromkeys(role for _, role in attributes if role))
    yield "JobName", sgas.job_name(job.job_name)
    yield "Status", run.status
    yield "ExitStatus", _number(sgas.exit_code(run.exit_code))
    yield "WallDuration", f"{run.wall_s} s"
    yield "CpuDuration", f"{run.cpu_user_s} s user, {run.cpu_kernel_s} s system"
    yield "Processors", str(sgas.processors(run.cpu_count))
    yield "NodeCount", _number(sgas.node_count(run.node_count))
    yield "SubmitTime", _time(sgas.known_time(run.submitted_at))
    yield "StartTime", _time(sgas.start_time(job))
    yield "EndTime", _time(job.ended_at)
    yield "MemoryReal", _number(sgas.memory_kib(run.memory_kib), " KiB")
    yield "MemoryVirtual", _number(sgas.memory_kib(run.virtual_memory_kib), " KiB")
    yield "Disk", _number(sgas.positive(run.scratch_bytes), " bytes")
    yield "Network", _number(sgas.positive(run.stage_in_bytes, run.stage_out_bytes), " bytes")
    yield "MachineName", where.machine_name
    yield "SubmitHost", sgas.submit_host(job.client_host)
    yield "Queue", sgas.queue(where.queue)
    yield "ProjectName", ", ".join(sgas.projects(job.projects))
    yield "Host", "".join(map(sgas.host, run.hosts[:1]))
    yield "GPUs", _number(run.gpu_count)
    charge = sgas.charge(job.charge)
    yield "Charge", f"{charge.text} {charge.tariff.unit}" if charge else ""
    yield "WorkerNodeInstance", run.wn_instance
    yield "RuntimeEnvironment", ", ".join(sgas.runtime_environments(run.runtime_environments))
    yield "FileTransfers", _number(sum(1 for _ in sgas.transfers(job.transfers)) or None)


def _origins(policy: RecordPolicy, job: PublishedJob, *, usage_record: bool, summary: bool) -> Iterator[Origin]:
    """Later ones win."""
    yield from (Origin(name=name, rule=_AS_IT_IS, source=source) for name, source in _PLAIN.items())
    yield from job.who.origins
    yield from job.where.origins
    yield from _personal(policy, job, usage_record=usage_record)
    yield policy.start_origin(job.job)
    yield Origin(name="EndTime", rule=_AS_IT_IS, source="ended_at")
    yield Origin(
        name="RecordId", rule="ur-, the endpoint's host (or MachineName), the job's id", source="endpoint, job_id"
    )
    yield _local_id(policy, job)
    yield _fqan(job)
    yield _service_level(job)
    yield Origin(name="Charge", rule=f"records.charges: {job.charge.tariff.formula}" if job.charge else "none")
    if summary and policy.key_style is KeyStyle.JURA:
        spelt = [origin for origin in (*job.who.origins, *job.where.origins) if origin.name in _SPELT]
        for origin in spelt:
            rule = f"{origin.rule}; spelt as jura-ng did (records.key_style)"
            yield Origin(name=origin.name, rule=rule, source=origin.source)


def _personal(policy: RecordPolicy, job: PublishedJob, *, usage_record: bool) -> Iterator[Origin]:
    """What is left out where people are not named."""
    hidden = policy.identity.mode is not IdentityMode.PLAIN
    rule = f"left out (records.identity: {policy.identity.mode})" if hidden else _AS_IT_IS
    yield Origin(name="LocalUserId", rule=rule, source="local_user")
    kept = job.local_group == job.job.local_group
    yield Origin(name="LocalGroup", rule=_AS_IT_IS if kept else rule, source="local_group")
    told = job.projects == job.job.projects
    yield Origin(name="ProjectName", rule=_AS_IT_IS if told else rule, source="projects")
    yield Origin(name="JobName", rule=rule, source="job_name")
    yield Origin(name="FileTransfers", rule=rule, source="transfers")
    if usage_record:
        yield Origin(name="SubmitHost", rule=rule, source="client_host")


def _local_id(policy: RecordPolicy, job: PublishedJob) -> Origin:
    prefix = "records.localid_prefix, then " if policy.localid_prefix else ""
    if job.job.local_id:
        return Origin(name="LocalJobId", rule=f"{prefix}the batch system's id", source="local_id")
    return Origin(name="LocalJobId", rule=f"{prefix}the job's id, because the batch system gave none", source="job_id")


def _service_level(job: PublishedJob) -> Origin:
    said = job.benchmark
    if said.unreadable is not None:
        return Origin(
            name="ServiceLevel", rule=f"the job's cannot be read: {said.unreadable.reason}", source="benchmark"
        )
    default = ": HEPSPEC 1.0, which A-REX writes where arc.conf has none" if said.arex_default else ""
    if said.origin == "the job":
        return Origin(name="ServiceLevel", rule=f"the job{default}", source="benchmark")
    own = f", whose override wins over the job's {job.job.benchmark!r}" if job.job.benchmark else ""
    return Origin(name="ServiceLevel", rule=f"{said.origin}{own}")


def _fqan(job: PublishedJob) -> Origin:
    if not job.job.fqans:
        return Origin(name="FQAN", rule="the job has none", source="fqans")
    if not job.who.apel_fqan():
        return Origin(
            name="FQAN", rule="left out: APEL would take VO, group and role from it, which are others", source="fqans"
        )
    return Origin(name="FQAN", rule="the main FQAN", source="fqans")


def _number(value: int | None, unit: str = "") -> str:
    return "" if value is None else f"{value}{unit}"


def _time(moment: Epoch | int | None) -> str:
    if moment is None:
        return ""
    try:
        return iso(datetime.fromtimestamp(moment, UTC))
    except (OverflowError, OSError, ValueError):
        return f"{moment} s"
