"""Histories of HTCondor: the runs of jobs that their ClassAds report.

A file holds the ad of one job (PER_JOB_HISTORY_DIR: `history.CLUSTER.PROC`), or many, each of which
ends with a line that begins with `***` (the rolling `history`). One ad tells of all attempts to run
a job: CPU time is that of all of them, and so is wall time, less the time of their suspension.

    GlobalJobId = "schedd#12.0#1790000000"
    ClusterId = 12
    ...
    *** Offset = 0 ClusterId = 12 ProcId = 0 Owner = "ann" CompletionDate = 1790000910
    ->  CondorRun(global_id="schedd#12.0#1790000000", local_id="12.0", ...)

Spec: HTCondor's manual, Job ClassAd Attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import BinaryIO, Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.rates import make_benchmark
from publisher.sources.htcondor.classads import Ad, BadAd, Value, read_ad, read_record, read_value
from publisher.sources.importing.line_importer import LogLine, LogPiece
from publisher.sources.importing.log_files import clean

ROUTED: Final = "routed, counted by its other ad"
_REMOVED, _COMPLETED = 3, 4
# Jobs that run on the machine that they were submitted from, and use none of the pool.
_LOCAL_UNIVERSES: Final = frozenset({7, 12})
_PARALLEL_UNIVERSE: Final = 11
_GRID_UNIVERSE: Final = 9
# Where jobs go that are sent to another site; `batch` and `condor` are routes of a CE too.
_ELSEWHERE: Final = frozenset(
    {"arc", "azure", "boinc", "cream", "ec2", "gce", "gt2", "gt4", "gt5", "nordugrid", "unicore"}
)
_MOST_LINES: Final = 10_000
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_NUMBER: Final = 2**53
_NO_NUMBERS: Final = (str, bool)
_MOST_COUNT: Final = 2**31 - 1
_BANNER: Final = b"***"
_TOO_LONG: Final = "is too long for the ClassAd of a job"
# Of what a machine may tell of itself, the first that is there.
_BENCHMARKS: Final = ("HEPscore23", "HEPSPEC")
_MOST_GROUPS: Final = 100


class Routed(StrEnum):
    """Which of the two ads of a job counts that an HTCondor-CE routed to the batch system."""

    BATCH = "batch"
    CE = "ce"


class CondorRun(NamedTuple):
    """A job that is over. Times are epoch seconds; None is unknown, '' a text that is not there."""

    global_id: str
    local_id: str
    owner: str
    group: str
    queue: str
    name: str
    completed: bool
    removed: bool
    exit_code: int | None
    submitted_at: int
    started_at: int
    ended_at: int
    wall_s: int
    suspended_s: int
    attempts: int | None
    user_s: float | None
    system_s: float | None
    nodes: int
    cpus: int
    gpus: int | None
    gpu_model: str
    memory_kib: int | None
    image_kib: int | None
    host: str
    subject: str  # of the proxy, or the token's issuer/subject
    vo: str
    fqans: tuple[str, ...]  # the main one first
    benchmark: str  # of the machine, `TYPE:value`
    scaling: float | None  # of the machine, against the site's average


class AdLines:
    """The lines of one ad, as far as they can be those of one."""

    __slots__ = ("end", "lines", "offset", "size", "whole")

    def __init__(self, offset: int) -> None:
        self.offset = self.end = offset
        self.lines: list[bytes] = []
        self.size = 0
        self.whole = True

    def add(self, line: LogLine) -> None:
        self.end = line.end
        self.size += line.length
        is_whole = len(line.content) == line.length
        if is_whole and len(self.lines) < _MOST_LINES and self.size <= _MOST_BYTES:
            self.lines.append(line.content)
        else:
            self.whole = False

    def read(self, routed: Routed) -> LogPiece[CondorRun]:
        content = b"\n".join(self.lines)
        if not self.whole:
            return LogPiece(self.offset, self.end, content, (), _TOO_LONG, length=self.size)
        return _read(self.offset, self.end, content, routed)


def read_ads(
    lines: Iterable[LogLine], routed: Routed, *, alone: bool
) -> Iterator[LogPiece[CondorRun]]:
    """The ads of a file. A last one without an ending line is whole only where it is `alone`."""
    ad: AdLines | None = None
    for line in lines:
        if line.content.startswith(_BANNER) or not line.content.strip():
            if ad is None:
                yield LogPiece(line.offset, line.end, b"", ())
            else:
                ad.end = line.end
                yield ad.read(routed)
            ad = None
        else:
            ad = ad or AdLines(line.offset)
            ad.add(line)
    if ad is not None and alone:
        yield ad.read(routed)


def read_file(file: BinaryIO, routed: Routed) -> LogPiece[CondorRun] | None:
    """What the file of one job says; None where it ends in the midst of a line, or is empty."""
    content = file.read(_MOST_BYTES)
    if len(content) == _MOST_BYTES:
        return LogPiece(0, len(content), content, (), _TOO_LONG)
    if not content.endswith(b"\n"):
        return None
    return _read(0, len(content), content.strip(), routed)


def _read(offset: int, end: int, content: bytes, routed: Routed) -> LogPiece[CondorRun]:
    try:
        found = read_ad(content.decode("utf-8", "replace"))
        skipped = _skipped(found, routed)
        records = () if skipped else (_run(found),)
    except BadAd as error:
        return LogPiece(offset, end, content, (), clean(str(error)))
    return LogPiece(offset, end, content, records, skipped=skipped)


def _skipped(ad: Ad, routed: Routed) -> str:
    """Why an ad is no usage, or ''. Raises: BadAd."""
    status = _whole(ad, "JobStatus")
    if status is None:
        raise BadAd("has no JobStatus")
    if status not in (_REMOVED, _COMPLETED):
        return f"not over (JobStatus {status})"
    universe, resource = _whole(ad, "JobUniverse"), _text(ad, "GridResource").partition(" ")[0]
    if universe in _LOCAL_UNIVERSES:
        return "ran on the submitting machine (scheduler or local universe)"
    if universe == _GRID_UNIVERSE and resource.lower() in _ELSEWHERE:
        return f"ran elsewhere (grid universe, {resource.lower()})"
    other = "RoutedToJobId" if routed is Routed.BATCH else "RoutedFromJobId"
    if _text(ad, other):
        return ROUTED
    wall, starts = _number(ad, "RemoteWallClockTime"), _whole(ad, "NumJobStarts")
    if wall is None and starts is None:
        raise BadAd("has neither RemoteWallClockTime nor NumJobStarts")
    return "" if wall or starts else "never ran"


class _Mandatory(NamedTuple):
    """What a run cannot do without."""

    global_id: str
    local_id: str
    submitted_at: int
    ended_at: int
    allocated_s: float


def _mandatory(ad: Ad, *, removed: bool) -> _Mandatory:
    """Raises: BadAd naming all that is missing."""
    end = "EnteredCurrentStatus" if removed else "CompletionDate"
    # 0 is a number that some have before they are over.
    ended_at = _first(ad, end, "EnteredCurrentStatus") or 0
    global_id = _text(ad, "GlobalJobId")
    cluster, proc = _whole(ad, "ClusterId"), _whole(ad, "ProcId")
    submitted_at, allocated_s = _whole(ad, "QDate") or 0, _number(ad, "RemoteWallClockTime")
    found = {
        "GlobalJobId": global_id != "",
        "ClusterId": cluster is not None,
        "ProcId": proc is not None,
        "QDate": submitted_at > 0,
        end: ended_at > 0,
        "RemoteWallClockTime": allocated_s is not None,
    }
    missing = [name for name, there in found.items() if not there]
    if missing:
        raise BadAd(f"lacks a readable {', '.join(missing)}")
    return _Mandatory(global_id, f"{cluster}.{proc}", submitted_at, ended_at, allocated_s or 0.0)


def _first(ad: Ad, *names: str) -> int | None:
    """The first of these numbers that is there and not 0."""
    numbers = (_whole(ad, name) for name in names)
    return next(filter(None, numbers), None)


def _group(ad: Ad) -> str:
    return _text(ad, "AcctGroup") or _text(ad, "AccountingGroup").rpartition(".")[0]


def _nodes(ad: Ad) -> int:
    """Unknown (0) for a parallel job that does not show them."""
    if _whole(ad, "JobUniverse") != _PARALLEL_UNIVERSE:
        return 1
    return _count(ad, "MaxHosts") or 0


def _of_all_nodes(of_each: int | None, nodes: int) -> int | None:
    """None (unknown) also for more than any job has."""
    if of_each is None or of_each * max(1, nodes) > _MOST_COUNT:
        return None
    return of_each * max(1, nodes)


def _run(ad: Ad) -> CondorRun:
    """Raises: BadAd."""
    removed = _whole(ad, "JobStatus") == _REMOVED
    job = _mandatory(ad, removed=removed)
    suspended_s = round(_number(ad, "CumulativeSuspensionTime") or 0)
    wall_s = max(0, round(job.allocated_s) - suspended_s)
    # The first start, so that all attempts lie between it and the end.
    started_at = _first(ad, "JobStartDate", "JobCurrentStartDate") or job.ended_at
    exit_code = _exit_code(ad)
    fqans, nodes = _fqans(ad), _nodes(ad)
    per_node, gpus = _count(ad, "CpusProvisioned") or _count(ad, "RequestCpus") or 0, _gpus(ad)
    return CondorRun(
        global_id=job.global_id,
        local_id=job.local_id,
        owner=_text(ad, "Owner"),
        group=_group(ad),
        queue=_text(ad, "BatchQueue") or _text(ad, "queue"),
        name=_text(ad, "JobBatchName"),
        completed=not removed and not exit_code,
        removed=removed,
        exit_code=exit_code,
        submitted_at=job.submitted_at,
        started_at=max(0, min(started_at, job.ended_at - wall_s)),
        ended_at=job.ended_at,
        wall_s=wall_s,
        suspended_s=suspended_s,
        attempts=_whole(ad, "NumJobStarts"),
        user_s=_all_attempts(ad, "RemoteUserCpu"),
        system_s=_all_attempts(ad, "RemoteSysCpu"),
        nodes=nodes,
        cpus=_of_all_nodes(per_node, nodes) or 0,
        gpus=_of_all_nodes(gpus, nodes),
        gpu_model=_text(ad, "MachineAttrGPUs_DeviceName0").replace(",", " ").replace("=", " "),
        memory_kib=_first(ad, "ResidentSetSize_RAW", "ResidentSetSize"),
        image_kib=_first(ad, "ImageSize_RAW", "ImageSize"),
        host=_text(ad, "LastRemoteHost").rpartition("@")[2],
        subject=_subject(ad),
        vo=_text(ad, "x509UserProxyVOName") or _vo_of(fqans),
        fqans=fqans,
        benchmark=_benchmark(ad),
        scaling=_number(ad, "MachineAttrApelScaling0"),
    )


def _exit_code(ad: Ad) -> int | None:
    """Of a job that a signal ended 128 and the signal, as a shell has it."""
    if _value(ad, "ExitBySignal") is True:
        return 128 + (_count(ad, "ExitSignal") or 0)
    return _count(ad, "ExitCode")


def _all_attempts(ad: Ad, name: str) -> float | None:
    """CPU time of all attempts, where the ad has it; else of those that were not evicted."""
    found = (_number(ad, f"Cumulative{name}"), _number(ad, name))
    return max((value for value in found if value is not None), default=None)


def _gpus(ad: Ad) -> int | None:
    """Of each node; None for a request that is an expression, 0 where none were asked for."""
    for name in ("GPUsProvisioned", "RequestGPUs"):
        if name.lower() in ad and (count := _count(ad, name)) is not None:
            return count
    return None if "requestgpus" in ad else 0


def _subject(ad: Ad) -> str:
    subject = _text(ad, "x509userproxysubject")
    if subject:
        return subject
    token, issuer = _text(ad, "orig_AuthTokenSubject"), _text(ad, "orig_AuthTokenIssuer")
    return f"{issuer.rstrip('/')}/{token}" if issuer and token else token


def _fqans(ad: Ad) -> tuple[str, ...]:
    """The first FQAN of a proxy; of a token its groups, which are written alike.

    An FQAN may hold commas, so the list of all (`x509UserProxyFQAN`) cannot be taken apart.
    """
    first = _text(ad, "x509UserProxyFirstFQAN")
    if first:
        return (first,)
    listed = _text(ad, "orig_AuthTokenGroups").split(",", _MOST_GROUPS)
    groups = map(str.strip, listed[:_MOST_GROUPS])
    return tuple(dict.fromkeys(group for group in groups if group.startswith("/")))


def _vo_of(fqans: Sequence[str]) -> str:
    """An FQAN begins with the VO: `/cms/Role=production`."""
    return fqans[0].split("/", 2)[1] if fqans else ""


def _benchmark(ad: Ad) -> str:
    specs = read_record(ad.get("machineattrapelspecs0", ""))
    for kind in _BENCHMARKS:
        value = specs.get(kind.lower())
        if value is None or isinstance(value, _NO_NUMBERS):
            continue
        if text := benchmark_text(kind, value):
            return text
    return ""


def benchmark_text(kind: str, value: float) -> str:
    """`TYPE:value`, or '' for a value that no benchmark has."""
    try:
        benchmark = make_benchmark(kind, f"{value:.6f}")
    except Unfit:
        return ""
    return f"{benchmark.kind}:{benchmark.text}"


def _value(ad: Ad, name: str) -> Value:
    return read_value(ad.get(name.lower(), ""))


def _text(ad: Ad, name: str) -> str:
    value = _value(ad, name)
    return clean(value).strip() if isinstance(value, str) else ""


def _number(ad: Ad, name: str) -> float | None:
    value = _value(ad, name)
    if isinstance(value, _NO_NUMBERS) or value is None or not 0 <= value <= _MOST_NUMBER:
        return None
    return value


def _whole(ad: Ad, name: str) -> int | None:
    number = _number(ad, name)
    return None if number is None else int(number)


def _count(ad: Ad, name: str) -> int | None:
    number = _whole(ad, name)
    return number if number is not None and number <= _MOST_COUNT else None
