"""Ordinary jobs and an ordinary site, to be bent by the tests that need something else."""

from __future__ import annotations

from typing import Any

from publisher.model.entry import Entry, ReceiverName, RecordKey, RowFields, RowKey
from publisher.model.job import Epoch, JobId, JobRecord, RowRef
from publisher.model.message import Rendered
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, make_benchmark
from publisher.model.totals import month_number
from publisher.policy.records import RecordPolicy
from publisher.reporting.charges.rules import ChargeRule, Charges, Formula

ENDED = Epoch(1_772_719_200)  # 2026-03-05T14:00:00Z

_ORDINARY: dict[str, Any] = {
    "row": RowRef(database="accounting_v2.db", record_id=1),
    "job_id": JobId("PczLDmmZ2h8nJ4xqTq1bVrVoABFKDmABFKDmvkIKDmABFKDmBcdEfG"),
    "local_id": "4711042",
    "status": "completed",
    "exit_code": 0,
    "submitted_at": Epoch(ENDED - 9_000),
    "started_at": Epoch(ENDED - 7_200),
    "ended_at": ENDED,
    "wall_s": 7_150,
    "cpu_user_s": 27_000,
    "cpu_kernel_s": 310,
    "node_count": 1,
    "cpu_count": 4,
    "memory_kib": 2_097_152,
    "virtual_memory_kib": 3_145_728,
    "scratch_bytes": 1_000_000,
    "stage_in_bytes": 20_000_000,
    "stage_out_bytes": 5_000_000,
    "interface": "org.nordugrid.arcrest",
    "endpoint": "https://ce01.example.org:443/arex",
    "queue": "grid",
    "user": "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=atlpilo1/CN=614260/CN=Robot: ATLAS Pilot1",
    "vo": "atlas",
    "fqans": ("/atlas/Role=pilot/Capability=NULL", "/atlas/Role=NULL/Capability=NULL"),
    "attributes": (),
    "benchmark": "HEPscore23:11.9",
    "job_name": "mc23_13p6TeV.601229",
    "lrms": "slurm",
    "client_host": "192.0.2.7:51022",
    "projects": (),
    "hosts": ("wn042.example.org",),
    "local_user": "atlplt01",
    "local_group": "atlas",
    "wn_instance": "",
    "runtime_environments": (),
    "transfers": (),
    "escaped": False,
}


def make_job(**overrides: Any) -> JobRecord:
    """A job of an ATLAS pilot on four cores that ended at `ENDED`, but for the overrides."""
    return JobRecord(**(_ORDINARY | overrides))


RECEIVER = ReceiverName("AMS msg.example.org, project accounting, topic gLite-APEL")


def make_entry(job: JobRecord, *, site: str = "EXAMPLE-SITE", vo: str = "atlas", prefix: str = "") -> Entry:
    """What a job counts for at a receiver that adds up by site and VO."""
    fields = RowFields.of({"Site": site, "VO": vo}, (site.lower(), vo.lower()))
    return Entry(
        run=job.run_key,
        record=RecordKey(site, prefix, job.local_id or job.job_id, job.ended_at),
        row=RowKey(month_number(job.ended_at), fields),
        wall_s=job.wall_s,
        cpu_s=job.cpu_user_s + job.cpu_kernel_s,
        digest=job.values_digest,
        source=job.row.database,
    )


def make_record(job: JobRecord, content: bytes = b"", **entry: str) -> Rendered:
    """A rendered job, with what `make_entry` makes of it."""
    return Rendered(job, content, make_entry(job, **entry))


def make_charging(formula: str = "gres_gpu * RunTime / 4 + cpu%3", **overrides: Any) -> Charges:
    """One rule for all jobs, in credits."""
    made: dict[str, Any] = {"formula": Formula.read(formula), "unit": "credits"}
    return Charges(rules=(ChargeRule(**(made | overrides)),))


def make_policy(**overrides: Any) -> RecordPolicy:
    """The site EXAMPLE-SITE with HEPSPEC 10 for jobs that carry no benchmark, but for the overrides."""
    ordinary: dict[str, Any] = {
        "site": "EXAMPLE-SITE",
        "host_name": "ce01.example.org",
        "benchmarks": BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(make_benchmark("HEPSPEC", "10"),)),)),
    }
    return RecordPolicy(**(ordinary | overrides))
