"""What is published of a job, value by value, with the rule that decided it and the field of the job that it came from.

Names are those of APEL's messages, and of usage records where APEL has none. Values are as people read them: times in ISO
8601, durations in seconds; the record itself shows their spelling on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from publisher.formats.base import Receiver
from publisher.model.identity import IdentityMode
from publisher.model.policy import KeyStyle, PublishedJob, RecordPolicy, ValueOrigin

_AS_IT_IS: Final = "as it is"
# Values that no rule of the site decides, and where they are in a job record.
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
_RESPELLED: Final = frozenset({"VOGroup", "VORole", "SubmitHost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedValue:
    """One published value, '' where nothing is said; `source` is the field of the job record, '' for the configuration."""

    name: str
    value: str
    rule: str
    source: str


def explained(policy: RecordPolicy, job: PublishedJob, receiver: Receiver, *, summary: bool) -> list[ExplainedValue]:
    """Every value of a record for a receiver, a job's or (`summary`) of its group."""
    origins = {origin.name: origin for origin in _origins(policy, job, receiver, summary=summary)}
    values = receiver.values(job, summary)
    return [
        ExplainedValue(name=name, value=value, rule=origins[name].rule, source=origins[name].source)
        for name, value in values
    ]


def _origins(policy: RecordPolicy, job: PublishedJob, receiver: Receiver, *, summary: bool) -> Iterator[ValueOrigin]:
    """Later ones win."""
    yield from (ValueOrigin(name=name, rule=_AS_IT_IS, source=source) for name, source in _PLAIN.items())
    yield from job.who.origins
    yield from job.where.origins
    yield from _personal(policy, job, receiver)
    yield policy.start_origin(job.job)
    yield ValueOrigin(name="EndTime", rule=_AS_IT_IS, source="ended_at")
    yield ValueOrigin(
        name="RecordId", rule="ur-, the endpoint's host (or MachineName), the job's id", source="endpoint, job_id"
    )
    yield _local_id(policy, job)
    yield _fqan(job)
    yield _service_level(job)
    yield ValueOrigin(name="Charge", rule=f"records.charges: {job.charge.tariff.formula}" if job.charge else "none")
    if summary and policy.key_style is KeyStyle.JURA:
        respelled = [origin for origin in (*job.who.origins, *job.where.origins) if origin.name in _RESPELLED]
        for origin in respelled:
            rule = f"{origin.rule}; spelled as jura-ng did (records.key_style)"
            yield ValueOrigin(name=origin.name, rule=rule, source=origin.source)


def _personal(policy: RecordPolicy, job: PublishedJob, receiver: Receiver) -> Iterator[ValueOrigin]:
    """What is left out where people are not named."""
    hidden = policy.identity.mode is not IdentityMode.PLAIN
    rule = f"left out (records.identity: {policy.identity.mode})" if hidden else _AS_IT_IS
    yield ValueOrigin(name="LocalUserId", rule=rule, source="local_user")
    kept = job.local_group == job.job.local_group
    yield ValueOrigin(name="LocalGroup", rule=_AS_IT_IS if kept else rule, source="local_group")
    unchanged = job.projects == job.job.projects
    yield ValueOrigin(name="ProjectName", rule=_AS_IT_IS if unchanged else rule, source="projects")
    yield ValueOrigin(name="JobName", rule=rule, source="job_name")
    yield ValueOrigin(name="FileTransfers", rule=rule, source="transfers")
    if receiver.submit_host_is_client:
        yield ValueOrigin(name="SubmitHost", rule=rule, source="client_host")


def _local_id(policy: RecordPolicy, job: PublishedJob) -> ValueOrigin:
    prefix = "records.localid_prefix, then " if policy.localid_prefix else ""
    if job.job.local_id:
        return ValueOrigin(name="LocalJobId", rule=f"{prefix}the batch system's id", source="local_id")
    return ValueOrigin(
        name="LocalJobId", rule=f"{prefix}the job's id, because the batch system gave none", source="job_id"
    )


def _service_level(job: PublishedJob) -> ValueOrigin:
    applied = job.benchmark
    if applied.unreadable is not None:
        return ValueOrigin(
            name="ServiceLevel", rule=f"the job's cannot be read: {applied.unreadable.reason}", source="benchmark"
        )
    default = ": HEPSPEC 1.0, which A-REX writes where arc.conf has none" if applied.arex_default else ""
    if applied.origin == "the job":
        return ValueOrigin(name="ServiceLevel", rule=f"the job{default}", source="benchmark")
    own = f", whose override wins over the job's {job.job.benchmark!r}" if job.job.benchmark else ""
    return ValueOrigin(name="ServiceLevel", rule=f"{applied.origin}{own}")


def _fqan(job: PublishedJob) -> ValueOrigin:
    if not job.job.fqans:
        return ValueOrigin(name="FQAN", rule="the job has none", source="fqans")
    if not job.who.apel_fqan():
        return ValueOrigin(
            name="FQAN", rule="left out: APEL would take VO, group and role from it, which are others", source="fqans"
        )
    return ValueOrigin(name="FQAN", rule="the main FQAN", source="fqans")
