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

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import BinaryIO, Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.rates import make_benchmark
from publisher.sources.files.line_importer import LogLine, LogPiece
from publisher.sources.files.log_files import clean
from publisher.sources.htcondor.attributes import (
    MOST_COUNT,
    NO_NUMBERS,
    count_of,
    number_of,
    text_of,
    value_of,
    whole_of,
)
from publisher.sources.htcondor.classads import Ad, BadAd, read_ad, read_record
from publisher.sources.htcondor.exports import (
    CUT_SHORT,
    MOST_BYTES,
    TOO_LONG,
    AdForm,
    framed_ads,
)
from publisher.sources.htcondor.identity import identity_of

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
_MOST_DIGITS: Final = 10
_MOST_LINES: Final = 10_000
_BANNER: Final = b"***"
# Of what a machine may tell of itself, the first that is there.
_BENCHMARKS: Final = ("HEPscore23", "HEPSPEC")


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
        if is_whole and len(self.lines) < _MOST_LINES and self.size <= MOST_BYTES:
            self.lines.append(line.content)
        else:
            self.whole = False

    def read(self, routed: Routed) -> LogPiece[CondorRun]:
        content = b"\n".join(self.lines)
        if not self.whole:
            return LogPiece(self.offset, self.end, content, (), TOO_LONG, length=self.size)
        return _read(self.offset, self.end, content, routed)


def read_ads(
    lines: Iterable[LogLine], routed: Routed, *, alone: bool, over: bool = False
) -> Iterator[LogPiece[CondorRun]]:
    """Yield the ads of a file.

    A last one without an ending line is whole only where it is `alone`, and set aside where nobody
    will write any more (`over`) and there are others.
    """
    ad: AdLines | None = None
    is_begun: bool | None = None
    for line in lines:
        if is_begun is None:
            is_begun = line.offset > 0
        if line.content.startswith(_BANNER) or not line.content.strip():
            if ad is None:
                # What stands before the first ad is read again until there is one.
                if is_begun:
                    yield LogPiece(line.offset, line.end, b"", ())
            else:
                is_begun = True
                ad.end = line.end
                yield ad.read(routed)
            ad = None
        else:
            ad = ad or AdLines(line.offset)
            ad.add(line)
    if ad is not None and alone:
        yield ad.read(routed)
    elif ad is not None and over and is_begun:
        yield LogPiece(ad.offset, ad.end, b"\n".join(ad.lines), (), CUT_SHORT, length=ad.size)


def read_export(
    parts: Iterable[bytes], start: int, form: AdForm, routed: Routed, *, over: bool
) -> Iterator[LogPiece[CondorRun]]:
    """Yield the ads of a file in another form; `over` where nobody will write any more."""
    for ad in framed_ads(parts, start, form, over=over):
        if ad.wrong:
            yield LogPiece(ad.offset, ad.end, ad.content, (), ad.wrong)
        else:
            yield _read(ad.offset, ad.end, ad.content, routed, form.read)


def read_file(file: BinaryIO, routed: Routed) -> LogPiece[CondorRun] | None:
    """What the file of one job says; None where it ends in the midst of a line, or is empty."""
    content = file.read(MOST_BYTES)
    if len(content) == MOST_BYTES:
        return LogPiece(0, len(content), content, (), TOO_LONG)
    if not content.endswith(b"\n"):
        return None
    return _read(0, len(content), content.strip(), routed)


def _read_lines(content: bytes) -> Ad:
    """Raises: BadAd."""
    return read_ad(content.decode("utf-8", "replace"))


def _read(
    offset: int,
    end: int,
    content: bytes,
    routed: Routed,
    read: Callable[[bytes], Ad] = _read_lines,
) -> LogPiece[CondorRun]:
    try:
        found = read(content)
        skipped = _skipped(found, routed)
        records = () if skipped else (_run(found),)
    except BadAd as error:
        return LogPiece(offset, end, content, (), clean(str(error)))
    return LogPiece(offset, end, content, records, skipped=skipped)


def _skipped(ad: Ad, routed: Routed) -> str:
    """Why an ad is no usage, or ''. Raises: BadAd."""
    status = whole_of(ad, "JobStatus")
    if status is None:
        raise BadAd("has no JobStatus")
    if status not in (_REMOVED, _COMPLETED):
        return f"not over (JobStatus {status})"
    universe, resource = whole_of(ad, "JobUniverse"), text_of(ad, "GridResource").partition(" ")[0]
    if universe in _LOCAL_UNIVERSES:
        return "ran on the submitting machine (scheduler or local universe)"
    if universe == _GRID_UNIVERSE and resource.lower() in _ELSEWHERE:
        return f"ran elsewhere (grid universe, {resource.lower()})"
    other = "RoutedToJobId" if routed is Routed.BATCH else "RoutedFromJobId"
    if text_of(ad, other):
        return ROUTED
    wall, starts = number_of(ad, "RemoteWallClockTime"), whole_of(ad, "NumJobStarts")
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
    global_id = text_of(ad, "GlobalJobId")
    cluster, proc = whole_of(ad, "ClusterId"), whole_of(ad, "ProcId")
    submitted_at, allocated_s = whole_of(ad, "QDate") or 0, number_of(ad, "RemoteWallClockTime")
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
    numbers = (whole_of(ad, name) for name in names)
    return next(filter(None, numbers), None)


def _group(ad: Ad) -> str:
    """Return the accounting group without the user, who stands last: group_cms.prod.john.doe."""
    group = text_of(ad, "AcctGroup")
    if group:
        return group
    whole = text_of(ad, "AccountingGroup")
    for user in (text_of(ad, "AcctGroupUser"), text_of(ad, "Owner")):
        if user and f".{whole}".endswith(f".{user}"):
            return whole.removesuffix(user).removesuffix(".")
    return whole.rpartition(".")[0]


def _slots(ad: Ad) -> int:
    """Unknown (0) for a parallel job that does not show them."""
    if whole_of(ad, "JobUniverse") != _PARALLEL_UNIVERSE:
        return 1
    return count_of(ad, "MaxHosts") or 0


def _nodes(ad: Ad, slots: int) -> int:
    """Return the machines, of which one may have several slots; unknown (0) where none is named."""
    if slots == 1:
        return 1
    hosts = text_of(ad, "AllRemoteHosts").split(",")
    machines = {host.strip().rpartition("@")[2].lower() for host in hosts}
    return len(machines - {""})


def _of_all_slots(of_each: int | None, slots: int) -> int | None:
    """None (unknown) also for more than any job has."""
    if of_each is None or of_each * max(1, slots) > MOST_COUNT:
        return None
    return of_each * max(1, slots)


def _run(ad: Ad) -> CondorRun:
    """Raises: BadAd."""
    removed = _is_removed(ad)
    job = _mandatory(ad, removed=removed)
    suspended_s = round(number_of(ad, "CumulativeSuspensionTime") or 0)
    wall_s = max(0, round(job.allocated_s) - suspended_s)
    # The first start, so that all attempts lie between it and the end.
    started_at = _first(ad, "JobStartDate", "JobCurrentStartDate") or job.ended_at
    exit_code = _exit_code(ad)
    owner, slots = identity_of(ad), _slots(ad)
    user_s, system_s = _cpu_times(ad)
    return CondorRun(
        global_id=job.global_id,
        local_id=job.local_id,
        owner=text_of(ad, "Owner"),
        group=_group(ad),
        queue=text_of(ad, "BatchQueue") or text_of(ad, "queue"),
        name=text_of(ad, "JobBatchName"),
        completed=not removed and not exit_code,
        removed=removed,
        exit_code=exit_code,
        submitted_at=job.submitted_at,
        started_at=max(0, min(started_at, job.ended_at - wall_s)),
        ended_at=job.ended_at,
        wall_s=wall_s,
        suspended_s=suspended_s,
        attempts=whole_of(ad, "NumJobStarts"),
        user_s=user_s,
        system_s=system_s,
        nodes=_nodes(ad, slots),
        cpus=_of_all_slots(_cores(ad), slots) or 0,
        gpus=_of_all_slots(_gpus(ad), slots),
        gpu_model=text_of(ad, "MachineAttrGPUs_DeviceName0").replace(",", " ").replace("=", " "),
        memory_kib=_first(ad, "ResidentSetSize_RAW", "ResidentSetSize"),
        image_kib=_first(ad, "ImageSize_RAW", "ImageSize"),
        host=text_of(ad, "LastRemoteHost").rpartition("@")[2],
        subject=owner.subject,
        vo=owner.vo,
        fqans=owner.fqans,
        benchmark=_benchmark(ad),
        scaling=number_of(ad, "MachineAttrApelScaling0"),
    )


def _exit_code(ad: Ad) -> int | None:
    """Of a job that a signal ended 128 and the signal, as a shell has it."""
    if value_of(ad, "ExitBySignal") is True:
        return 128 + (count_of(ad, "ExitSignal") or 0)
    return count_of(ad, "ExitCode")


def _is_removed(ad: Ad) -> bool:
    """Return whether a job was removed before it completed: completed jobs are removed later."""
    if whole_of(ad, "JobStatus") != _REMOVED:
        return False
    completed = whole_of(ad, "LastJobStatus") == _COMPLETED
    return not (completed and whole_of(ad, "CompletionDate"))


def _cpu_times(ad: Ad) -> tuple[float | None, float | None]:
    """Return user and system CPU time of all attempts, unknown where the ad lacks one of them."""
    restarted = _is_restarted(ad)
    user_s, system_s = (_cpu_time(ad, f"Remote{kind}Cpu", restarted) for kind in ("User", "Sys"))
    return (None, None) if user_s is None or system_s is None else (user_s, system_s)


def _cpu_time(ad: Ad, name: str, restarted: bool) -> float | None:
    """Return one kind of CPU time: `Remote…` of a restarted job leaves out its earlier attempts."""
    last, cumulative = number_of(ad, name), number_of(ad, f"Cumulative{name}")
    if cumulative is None or cumulative < (last or 0):
        return None if restarted else last
    return cumulative


def _is_restarted(ad: Ad) -> bool:
    starts = whole_of(ad, "NumJobStarts")
    if starts is None:
        starts = whole_of(ad, "JobRunCount")
    if starts is not None:
        return starts > 1
    first, last = whole_of(ad, "JobStartDate"), whole_of(ad, "JobCurrentStartDate")
    return first is not None and last is not None and first < last


def _cores(ad: Ad) -> int | None:
    """Return the cores of each node.

    Those that the slot gave, else the most that the ad knows of: a request may be an expression, or
    less than what a route of a CE asked the batch system for.
    """
    if provisioned := count_of(ad, "CpusProvisioned"):
        return provisioned
    slot = count_of(ad, "MachineAttrCpus0") or _numeral(ad, "MATCH_EXP_JOB_GLIDEIN_Cpus")
    found = (slot, count_of(ad, "RequestCpus"), count_of(ad, "xcount"))
    return max((count for count in found if count is not None), default=None)


def _numeral(ad: Ad, name: str) -> int | None:
    """Return a count that may be written as a text: "48"."""
    text = text_of(ad, name)
    is_number = text.isdecimal() and len(text) < _MOST_DIGITS
    return int(text) if is_number else count_of(ad, name)


def _gpus(ad: Ad) -> int | None:
    """Of each node; None for a request that is an expression, 0 where none were asked for."""
    for name in ("GPUsProvisioned", "RequestGPUs"):
        if name.lower() in ad and (count := count_of(ad, name)) is not None:
            return count
    return None if "requestgpus" in ad else 0


def _benchmark(ad: Ad) -> str:
    specs = read_record(ad.get("machineattrapelspecs0", ""))
    for kind in _BENCHMARKS:
        value = specs.get(kind.lower())
        if value is None or isinstance(value, NO_NUMBERS):
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
