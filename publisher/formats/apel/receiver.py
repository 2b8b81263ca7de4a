"""What APEL's server does with each kind of record, read in its source and measured.

Job records replace each other there, but the summaries that it makes of them do not: a job sent
again with another benchmark, user, VO, submit host or number of cores makes a second row, and the
first one stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from publisher.formats.apel.rules import apel_local_user, apel_queue
from publisher.formats.base import OnChange, Receiver, moment, number
from publisher.formats.rows import SingleRows
from publisher.formats.rules import QUEUE_CHARACTERS
from publisher.model.entry import RowFields
from publisher.model.job import gpus_by_model, run_digest
from publisher.model.published import PublishedJob
from publisher.model.totals import COUNTED_HOST, ascii_key, column, counted_host


def published_values(job: PublishedJob, summary: bool) -> Iterator[tuple[str, str]]:
    """What a record says of a job, or (`summary`) of its group: APEL's names, values for people."""
    run, who, where = job.job, job.who, job.where
    yield "Site", where.site
    yield "SubmitHost", where.receiver_host if summary else where.submit_host
    yield "InfrastructureType", where.infrastructure
    yield "GlobalUserName", who.user
    yield "VO", who.vo
    yield "VOGroup", who.receiver_group if summary else who.group
    yield "VORole", who.receiver_role if summary else who.role
    yield "ServiceLevel", "; ".join(f"{one.kind} {one.text}" for one in job.benchmark.benchmarks)
    yield "NodeCount", number(run.node_count)
    yield "Processors", number(run.cpu_count)
    yield "WallDuration", f"{run.wall_s} s"
    yield "CpuDuration", f"{run.cpu_user_s + run.cpu_kernel_s} s"
    yield "EndTime", moment(job.ended_at)
    if summary:
        return
    yield "StartTime", moment(job.started_at)
    yield "SubmitTime", moment(run.submitted_at)
    yield "RecordId", job.record_id
    yield "GlobalJobId", run.job_id
    yield "LocalJobId", job.local_id
    yield "FQAN", who.apel_fqan()
    yield "LocalUserId", job.local_user if apel_local_user(job.local_user) else ""
    yield "LocalGroup", job.local_group
    yield "JobName", job.job_name
    yield "Status", run.status
    yield "ExitStatus", number(run.exit_code)
    yield "MachineName", where.machine_name
    yield "Queue", where.queue if len(where.queue) <= QUEUE_CHARACTERS else apel_queue(where.queue)
    yield "InfrastructureDescription", where.description
    yield "MemoryReal", number(run.memory_kib, " KiB")
    yield "MemoryVirtual", number(run.virtual_memory_kib, " KiB")
    yield "Host", ", ".join(run.hosts)
    yield "GPUs", number(run.gpu_count)
    yield "Charge", f"{job.charge.text} {job.charge.tariff.unit}" if job.charge else ""
    yield "ProjectName", ", ".join(job.projects)


JOBS: Final = Receiver(
    name="APEL",
    on_change=OnChange.REPLACE,
    table="JobRecords",
    row_keys=SingleRows,
    whole_months=True,
    sync_format="apel-sync-0.1",
    needs_benchmark=True,
    signed=True,
    values=published_values,
)
# All benchmarks of a job travel in a dictionary, of which the server keeps one by preference;
# elsewhere the first travels.
JOBS_WITH_ALL_BENCHMARKS: Final = JOBS._replace(row_keys=partial(SingleRows, several=True))
CAR_JOBS: Final = JOBS._replace(takes_charges=True)
SUMMARIES: Final = JOBS._replace(on_change=OnChange.RECOUNT, table="Summaries", row_keys=None)
NORMALISED_SUMMARIES: Final = SUMMARIES._replace(
    table="NormalisedSummaries", keeps_benchmark_values=False
)
SYNC: Final = SUMMARIES._replace(table="SyncRecords")


# Accelerators of jobs: the server keeps a row for each month, job, site and model.

MOST_RECORDS: Final = 1_000  # of a message
MOST_MODELS: Final = 4  # of a job's GPUs, so that 250 jobs fit into a message
_MODEL_UNKNOWN: Final = "unknown"


def gpu_models(job: PublishedJob) -> list[tuple[str, int]]:
    """The GPUs of a job by model, those of no known model last; the server wants a word for these.

    Models that are one to the server, such as A100 and a100, go under the first name: the second
    record would replace the first.
    """
    merged: Counter[str] = Counter()
    names: dict[str, str] = {}
    for model, count in gpus_by_model(job.job.gpu_count, job.job.gpu_models):
        name = ascii_key(model) or _MODEL_UNKNOWN
        merged[names.setdefault(column(name), name)] += count
    return list(merged.items())


def associated_record(job: PublishedJob) -> str:
    """The global id of a job; a later run has a digest behind it, or it would replace the first."""
    job_id = job.job.job_id
    return f"{job_id}-{run_digest(job.job.local_id).hex()}" if job.later_run else job_id


class AcceleratorKeys:
    """What accelerators are added up by beside their month: site and models; here by host too."""

    def of(self, job: PublishedJob) -> RowFields:
        site = ascii_key(job.where.site) or "None"
        models = ", ".join(sorted(model for model, _ in gpu_models(job)))
        named = {"Site": site, "Accelerators": models, **counted_host(job.where, "")}
        host = column(named.get(COUNTED_HOST, ""))
        return RowFields.of(named, (column(site), column(models), host))


def accelerator_values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    """What the records of a job's accelerators say: APEL's names, values for people."""
    yield "Site", job.where.site
    yield "GlobalJobId", associated_record(job)
    yield "GlobalUserName", job.who.user
    yield "FQAN", job.who.full_fqan()
    yield "GPUs", number(job.job.gpu_count)
    yield "GPUModels", ", ".join(f"{model} ({count})" for model, count in gpu_models(job))
    yield "WallDuration", f"{job.job.wall_s} s"
    yield "EndTime", moment(job.ended_at)


ACCELERATORS: Final = Receiver(
    name="APEL",
    on_change=OnChange.REPLACE,
    table="AcceleratorRecords",
    counts="accelerators",
    row_keys=AcceleratorKeys,
    whole_months=True,
    signed=True,
    gpus_only=True,
    default_batch_records=MOST_RECORDS // MOST_MODELS,
    most_batch_records=MOST_RECORDS // MOST_MODELS,
    keyed_by_job=True,
    unreleased="APEL's server does not take accelerator records yet (apel/apel pull request 459)",
    values=accelerator_values,
)
