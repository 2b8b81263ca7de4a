"""What a site configures for HTCondor (a pool or a CE), and runs of jobs as job records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import ClassVar, Final

from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.model.rates import parse_benchmark
from publisher.sources.files.batch_job import batch_job, known
from publisher.sources.files.site_mapping import (
    ImporterOptions,
    SiteMapping,
    cluster_key,
    map_of,
)
from publisher.sources.htcondor.records import CondorRun, Routed, benchmark_text
from publisher.sources.importers import ImportRule

NAME: Final = "htcondor"
_LRMS: Final = "condor"


# How fields of a job come about.
_USER_OF_AD: Final = (
    "the ad: x509userproxysubject, else the DN of x509UserProxyFQAN, else issuer and subject of "
    "the token"
)
_VO_OF_AD: Final = (
    "the ad: x509UserProxyVOName, else the first FQAN, else the first group of the token"
)
_FIELDS: Final = {
    "wall_s": "RemoteWallClockTime of all attempts, less CumulativeSuspensionTime",
    "cpu_user_s": "CumulativeRemoteUserCpu, else RemoteUserCpu of a job that started once; "
    "unknown otherwise, and 0 to APEL",
    "cpu_kernel_s": "CumulativeRemoteSysCpu, else RemoteSysCpu of a job that started once; "
    "unknown otherwise, and 0 to APEL",
    "cpu_count": "CpusProvisioned, else the most of RequestCpus, xcount, and MachineAttrCpus0 or "
    "MATCH_EXP_JOB_GLIDEIN_Cpus; of a parallel job of all its MaxHosts",
    "gpu_count": "GPUsProvisioned, else RequestGPUs; of a parallel job of all its MaxHosts",
    "node_count": "1; of a parallel job the machines of AllRemoteHosts",
    "memory_kib": "ResidentSetSize_RAW, else ResidentSetSize",
    "benchmark": "MachineAttrApelSpecs0, else average_benchmark times MachineAttrApelScaling0",
}


def _check_benchmark(text: str) -> str | None:
    try:
        parse_benchmark(text)
    except Unfit as unfit:
        return f"{unfit.reason}; write one such as HEPscore23:15.2"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ImporterOptions):
    """Keys of `importers.htcondor`."""

    reads_key: ClassVar[str] = "history"
    have_vos: ClassVar[bool] = True  # of proxies and tokens

    cluster: str = field(
        default="htcondor",
        metadata=cluster_key(
            "write a name for the pool, such as the host of its central manager, "
            "which becomes part of every job's id",
            "is not a host name; write that of the central manager or of the CE, "
            "such as condor.example.org",
        ),
    )
    history: Path | None = field(
        default=None, metadata={"help": "directory of histories, one of them, or a pattern"}
    )
    routed: Routed = Routed.BATCH
    group_vo_map: Path | None = field(default=None, metadata=map_of("ACCOUNTING-GROUP VO"))
    average_benchmark: str = field(
        default="",
        metadata={
            "help": "benchmark of a machine whose ApelScaling is 1",
            "check": _check_benchmark,
        },
    )
    exclude_groups: tuple[str, ...] = ()


class CondorMapping(SiteMapping):
    """Makes jobs of runs. Reads the map files once."""

    in_ids: ClassVar[frozenset[str]] = frozenset({"routed"})

    def __init__(self, options: Options) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        super().__init__(
            NAME,
            options,
            interface=NAME,
            vo_maps=("user_vo_map", "group_vo_map"),
            excludes=("exclude_users", "exclude_groups"),
        )
        average = options.average_benchmark
        self._average = parse_benchmark(average) if average else None

    def skips(self, run: CondorRun) -> str:
        """Why a run is not this site's usage, or ''."""
        return self._left_out(run.owner, run.group)

    def job(self, run: CondorRun) -> JobRecord:
        """Return the job of a run."""
        total_s = round((run.user_s or 0) + (run.system_s or 0))
        kernel_s = min(total_s, round(run.system_s or 0))
        models = ((run.gpu_model, run.gpus),) if run.gpus and run.gpu_model else ()
        hosts = (run.host,) if run.host else ()
        return batch_job(
            job_id=f"{self.options.cluster}:{run.global_id}",
            local_id=run.local_id,
            endpoint=self._endpoint,
            queue=run.queue,
            lrms=_LRMS,
            user=self._users.get(run.owner) or run.subject,
            vo=self._vo_of(run),
            account=(run.owner, run.group),
            status=_status(run),
            exit_code=run.exit_code,
            submitted_at=run.submitted_at,
            started_at=run.started_at,
            ended_at=run.ended_at,
            node_count=run.nodes,
            cpu_count=run.cpus,
            memory_kib=run.memory_kib or 0,
            virtual_memory_kib=run.image_kib or 0,
            wall_s=run.wall_s,
            cpu_user_s=total_s - kernel_s,
            cpu_kernel_s=kernel_s,
            cpu_unknown=run.user_s is None,
            gpu_count=run.gpus,
            gpu_models=models,
            job_name=run.name,
            project=run.group,
            hosts=hosts,
            quantities=known([("SecsPreSuspend", run.suspended_s or None)]),
            fqans=tuple(dict.fromkeys(run.fqans)),
            benchmark=self._benchmark(run),
        )

    @staticmethod
    def record_key(job: JobRecord) -> str:
        """Return what tells people which ad a job is: its GlobalJobId."""
        return job.job_id.partition(":")[2]

    def _vo_of(self, run: CondorRun) -> str:
        names = (run.owner, run.group)
        return self._vo(names, "") or run.vo or self._vo(names, run.group)

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        """How the fields of a job came about."""
        names = (job.local_user, job.local_group)
        user, vo = self._identity_rules(job, names)
        if job.user and job.local_user not in self._users:
            user = ImportRule("user", _USER_OF_AD)
        if job.vo and not self._vo(names, "") and job.vo != f"local-{job.local_group}":
            vo = ImportRule("vo", _VO_OF_AD)
        return [user, vo, *starmap(ImportRule, _FIELDS.items()), self._endpoint_rule()]

    def arc_ids(self, job: JobRecord) -> Sequence[str]:
        """What A-REX may call a job: a cluster's number, and a word or the schedd's host."""
        cluster, _, proc = job.local_id.partition(".")
        if proc != "0":
            return (job.local_id,)
        schedd = self.record_key(job).partition("#")[0].rpartition("@")[2]
        return (job.local_id, f"{cluster}.{schedd}", f"{cluster}.condor")

    def _benchmark(self, run: CondorRun) -> str:
        """Of the machine; '' where the ad does not tell."""
        if run.benchmark or self._average is None or not run.scaling:
            return run.benchmark
        return benchmark_text(self._average.kind, float(self._average.value) * run.scaling)


def _status(run: CondorRun) -> str:
    """As A-REX calls them."""
    if run.removed:
        return "aborted"
    return "completed" if run.completed else "failed"
