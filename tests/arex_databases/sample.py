"""An ordinary month of an ordinary site, the same for the same seed."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from random import Random
from typing import Final

from tests.arex_databases.communities import COMMUNITIES, Community, Queue, User
from tests.arex_databases.jobs import Event, SampleJob, Transfer, TransferKind

_GIB: Final = 2**30
_SIZES: Final = (0, 4_711, 120_000_000, _GIB, 3 * _GIB, 5 * _GIB)
"""Bytes of a staged file; the 32-bit writer turns those over 2 GiB negative and loses those over 4 GiB."""

_FEW: Final = 2_000

_RTES: Final = ("ENV/PROXY", "APPS/HEP/ATLAS-SITE-LCG", "ENV/SINGULARITY")


def epoch_window(start: datetime, end: datetime) -> tuple[int, int]:
    """A window as epoch seconds.

    Raises: ValueError: a time without a zone, or a window without a second in it.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise ValueError("start and end need a time zone")
    if start >= end:
        raise ValueError(f"the window is empty: {start} to {end}")
    return int(start.timestamp()), int(end.timestamp())


def job_id(rng: Random) -> str:
    """54 characters of base 62, as A-REX makes them."""
    return b64encode(rng.randbytes(41), b"Ab")[:54].decode("ascii")


def generate(seed: int, count: int, start: datetime, end: datetime) -> Iterator[SampleJob]:
    """Finished jobs that ended in [start, end), about in order of submission.

    About 4 % failed before they reached the batch system (no LocalJobID, wall 0), another 4 % in it; a third stages files, a
    few span nodes. About a fifth ends on a full half minute, so that seconds are shared.
    """
    return iter(_few(seed, count, start, end)) if count <= _FEW else _made(seed, count, start, end)


@lru_cache(maxsize=64)
def _few(seed: int, count: int, start: datetime, end: datetime) -> tuple[SampleJob, ...]:
    """Tests ask for the same ones again and again."""
    return tuple(_made(seed, count, start, end))


def _made(seed: int, count: int, start: datetime, end: datetime) -> Iterator[SampleJob]:
    first, last = epoch_window(start, end)
    rng = Random(seed)
    lead = min(86_400, (last - first) // 4)
    for index in range(count):
        submitted = first - lead + (last - first + lead) * index // count
        yield _job(rng, number=1_000_000 + index, submitted=submitted, first=first, last=last)


def _job(rng: Random, *, number: int, submitted: int, first: int, last: int) -> SampleJob:
    (community,) = rng.choices(COMMUNITIES, weights=[each.share for each in COMMUNITIES])
    ended = submitted + 60 + int(rng.expovariate(1 / 900)) + int(rng.lognormvariate(8.6, 1.2))
    if not first <= ended < last:
        low = max(submitted, first)
        ended = low + rng.randrange(min(last - low, 6 * 3600))
    if rng.random() < 0.2 and ended - ended % 30 >= max(submitted, first):
        ended -= ended % 30
    job = _submission(rng, community, submitted, ended)
    if rng.random() < 0.04:
        return _never_ran(job)
    if rng.random() < 0.35:
        job = _with_transfers(rng, community, job)
    return _with_run(rng, community, job, number)


def _submission(rng: Random, community: Community, submitted: int, ended: int) -> SampleJob:
    user: User = rng.choice(community.users)
    queue: Queue = rng.choice(community.queues)
    interface, url = rng.choice(community.interfaces)
    return SampleJob(
        job_id=job_id(rng),
        local_job_id="",
        interface=interface,
        endpoint_url=url,
        queue=queue.name,
        user=user.name,
        vo=community.vo,
        fqans=user.fqans,
        token_attributes=user.claims,
        status="completed",
        exit_code=0,
        benchmark=queue.benchmark,
        submit_time=submitted,
        end_time=ended,
        nodes=0,
        cpus=0,
        memory_kib=0,
        virtual_memory_kib=0,
        wall_s=0,
        cpu_user_s=0,
        cpu_kernel_s=0,
        scratch_bytes=0,
        stage_in_bytes=0,
        stage_out_bytes=0,
        job_name=rng.choice(community.job_names),
        lrms="SLURM",
        client_host=f"{rng.choice(('192.0.2.17', '198.51.100.4', '2001:db8::17'))}:{rng.randrange(20_000, 60_000)}",
        projects=community.projects,
        local_user=user.local,
        rtes=rng.choice((_RTES[:1], _RTES[:1], _RTES[:2], _RTES[1:2])),
    )


def _never_ran(job: SampleJob) -> SampleJob:
    states = ("ACCEPTED", "PREPARING", "FINISHING", "FINISHED")
    return replace(job, status="failed", exit_code=1, events=_spread(states, job.submit_time, job.end_time))


def _with_transfers(rng: Random, community: Community, job: SampleJob) -> SampleJob:
    span = job.end_time - job.submit_time
    download = Transfer(
        url=f"{community.storage}/input.{rng.randrange(10**6):06}.root",
        size=rng.choice(_SIZES),
        start=job.submit_time + span // 20,
        end=job.submit_time + span // 10,
        kind=rng.choice((TransferKind.DOWNLOAD, TransferKind.CACHED)),
    )
    upload = Transfer(
        url=f"{community.storage}/output.{rng.randrange(10**6):06}.root",
        size=rng.choice(_SIZES),
        start=job.end_time - span // 20,
        end=job.end_time - span // 40,
        kind=TransferKind.UPLOAD,
    )
    return replace(
        job,
        transfers=(download, upload),
        stage_in_bytes=download.size if download.kind is TransferKind.DOWNLOAD else 0,
        stage_out_bytes=upload.size,
    )


def _with_run(rng: Random, community: Community, job: SampleJob, number: int) -> SampleJob:
    """The job's time on the worker nodes: after a tenth to a fifth of its life, to a twentieth before its end."""
    span = job.end_time - job.submit_time
    started = job.submit_time + rng.randrange(span // 10, span // 5 + 1)
    stopped = job.end_time - span // 20
    wall = stopped - started
    cpus = rng.choice(community.cpus)
    nodes = rng.choice((2, 3)) if cpus == 8 and rng.random() < 0.05 else 1
    cpu = int(wall * cpus * rng.uniform(0.3, 0.99))
    memory = rng.randrange(200_000, 3_000_000) * cpus
    failed = rng.random() < 0.04
    prefix = next(queue.prefix for queue in community.queues if queue.name == job.queue)
    return replace(
        job,
        local_job_id=str(number),
        status="failed" if failed else "completed",
        exit_code=rng.choice((1, 65, 137)) if failed else 0,
        nodes=nodes,
        cpus=cpus * nodes,
        memory_kib=memory,
        virtual_memory_kib=rng.choice((memory, memory * 2)),
        wall_s=wall,
        cpu_user_s=cpu - cpu // 10,
        cpu_kernel_s=cpu // 10,
        scratch_bytes=rng.choice((0, 0, 2 * _GIB + 17)),
        node_names=tuple(f"{prefix}{rng.randrange(1, 200):03}" for _ in range(nodes)),
        system_software="Linux 5.14.0 x86_64" if rng.random() < 0.6 else None,
        wn_instance="compute.large" if rng.random() < 0.4 else None,
        events=_run_events(job, started, stopped),
    )


def _run_events(job: SampleJob, started: int, stopped: int) -> tuple[Event, ...]:
    before = _spread(("ACCEPTED", "PREPARING", "SUBMIT", "INLRMS"), job.submit_time, started)
    after = (Event(key="FINISHING", at=stopped), Event(key="FINISHED", at=job.end_time))
    batch = (Event(key="LRMSSTART", at=started), Event(key="LRMSEND", at=stopped))
    if not job.transfers:
        return (*before, *batch, *after)
    download, upload = job.transfers
    staging = (
        Event(key="DTRDOWNLOADSTART", at=download.start),
        Event(key="DTRDOWNLOADEND", at=download.end),
        Event(key="DTRUPLOADSTART", at=upload.start),
        Event(key="DTRUPLOADEND", at=upload.end),
    )
    return (*before, *batch, *staging, *after)


def _spread(states: tuple[str, ...], first: int, last: int) -> tuple[Event, ...]:
    step = len(states) - 1
    return tuple(Event(key=state, at=first + (last - first) * n // step) for n, state in enumerate(states))
