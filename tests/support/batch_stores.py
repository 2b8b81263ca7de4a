"""The job store as tests of importers see it: each file `NAME.db` is a store, with the source NAME."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Any, Final

from publisher.jobs.batch import SourceJobs
from publisher.jobs.file import loader_lock, others_path
from publisher.jobs.link import Linked, Linking
from publisher.jobs.store import open_reader, open_store
from publisher.jobs.tables.systems import LinkedSystem
from publisher.model.entry import DeliveredRun
from publisher.model.errors import SourceError
from publisher.model.job import Epoch, JobRecord
from publisher.model.time import epoch
from publisher.publishing.databases.bring_in import count_linked
from publisher.publishing.databases.load import Loading, LoadOptions
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from publisher.sources.files.site_mapping import ImporterOptions
from publisher.sources.files.tables import last_reading
from publisher.sources.importers import Importer, ImportReport

_NAMES = {
    "Status": ("StatusID", "status"),
    "Queues": ("QueueID", "queue"),
    "Users": ("UserID", "user"),
    "WLCGVOs": ("VOID", "vo"),
    "Benchmarks": ("BenchmarkID", "benchmark"),
}
_NUMBERS = (
    *("LocalJobID", "SubmitTime", "StartTime", "EndTime", "NodeCount", "CPUCount", "UsedMemory", "UsedVirtMem"),
    *("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime", "GPUCount"),
)

# How an extra row says that nobody measured the CPU time.
CPU_UNKNOWN: Final = ("cputime", "unknown")


def read_into(
    store: Path, importer: Importer, tables: str, *paths: Path, now: datetime, options: ImporterOptions | None = None
) -> ImportReport:
    """Have an importer read files into a store, and its runs linked where CEs submit to it."""
    ces = options.arc_databases if options else None
    with source_jobs(store, tables, has_ces=bool(ces)) as jobs:
        report = importer.run(paths, jobs, now)
    if options is not None and ces:
        count_linked(report, _link(store, options, ces, now))
    return report


def _link(store: Path, options: ImporterOptions, ces: Sequence[Path], now: datetime) -> Linked:
    """Load the databases of CEs whose jobs others publish, and link the runs of the source."""
    names = list(map(str, ces))
    system = LinkedSystem(
        name=store.stem,
        lrms="",
        databases=frozenset(names),
        ce_of=lambda name: name if name in names else None,
        wait_s=options.arc_wait_s,
        outage_s=options.arc_outage_s,
    )
    arex = Options(databases=tuple(map(escape, names)), time_zone="UTC")
    with ExitStack() as held:
        lock(store, held)
        jobs = held.enter_context(closing(open_store(store)))
        others = held.enter_context(closing(open_store(others_path(store))))
        sources = held.enter_context(closing(create(arex, {})))
        linking = Linking(jobs, [system], epoch(now), others)
        linking.ask(_nothing_delivered)
        wanted = LoadOptions(frozenset(), "of others", due=linking.due())
        loading = Loading(others, sources, wanted, now, lambda: False, linking.meet)
        if failures := loading.run():
            raise SourceError("; ".join(failures))
        return linking.link(loading.read)[store.stem]


def _nothing_delivered(first: Epoch) -> Generator[Sequence[DeliveredRun], None, None]:
    yield from ()


def lock(store: Path, held: ExitStack) -> None:
    """Wait until no other process loads the store."""
    while not held.enter_context(loader_lock(store)):
        held.close()
        time.sleep(0.01)


@contextmanager
def source_jobs(store: Path, tables: str = "", *, has_ces: bool = False) -> Iterator[SourceJobs]:
    """The part of the source, once no other process loads the store."""
    with ExitStack() as held:
        lock(store, held)
        with closing(open_store(store)) as opened:
            yield SourceJobs(opened, store.stem, tables, has_ces=has_ces)


def hidden(store: Path) -> list[tuple[str, int]]:
    """The numbers of runs that are no jobs, with their states."""
    with asked(store) as connection:
        return sorted(connection.execute("SELECT local_id, state FROM batch_run"))


def records(store: Path) -> list[JobRecord]:
    """All runs, in the order in which they were stored or changed."""
    with closing(open_reader(store)) as reader:
        return [job for page in reader.changed(0, reader.state().last_change) for job in page.jobs]


@contextmanager
def asked(store: Path) -> Iterator[sqlite3.Connection]:
    """A connection on which `source_number()` is that of the source."""
    with closing(open_reader(store)) as reader:
        yield reader.bound_to(store.stem)


def as_row(job: JobRecord) -> dict[str, Any]:
    """A job with names of columns as A-REX has them, 0 and '' for unknown, and what else is known of it as pairs."""
    account = f"{job.local_user}:{job.local_group}" if job.local_group else job.local_user
    extra = [
        ("lrms", job.lrms),
        ("localuser", account),
        ("jobname", job.job_name),
        ("projectname", ":".join(job.projects)),
        ("nodenames", ":".join(job.hosts)),
        ("quantities", " ".join(f"{name}={value}" for name, value in job.quantities)),
        ("gpumodels", ",".join(f"{model}={count}" for model, count in job.gpu_models)),
        (CPU_UNKNOWN[0], CPU_UNKNOWN[1] if job.cpu_unknown else ""),
    ]
    return {
        "LocalJobID": job.local_id,
        "ExitCode": job.exit_code,
        "SubmitTime": job.submitted_at,
        "StartTime": job.started_at or 0,
        "EndTime": job.ended_at,
        "NodeCount": job.node_count or 0,
        "CPUCount": job.cpu_count or 0,
        "UsedMemory": job.memory_kib or 0,
        "UsedVirtMem": job.virtual_memory_kib or 0,
        "UsedWalltime": job.wall_s,
        "UsedCPUUserTime": job.cpu_user_s,
        "UsedCPUKernelTime": job.cpu_kernel_s,
        "UsedScratch": job.scratch_bytes,
        "StageInVolume": job.stage_in_bytes,
        "StageOutVolume": job.stage_out_bytes,
        "GPUCount": job.gpu_count,
        "Queue": job.queue,
        "User": job.user,
        "VO": job.vo,
        "Status": job.status,
        "Interface": job.interface,
        "URL": job.endpoint,
        "extra": sorted(pair for pair in extra if pair[1]),
    }


def notices(store: Path) -> tuple[str, ...]:
    """What is wrong with the source as a whole."""
    with asked(store) as connection:
        return last_reading(connection).notices


def as_tables(store: Path) -> sqlite3.Connection:
    """Tables such as A-REX has, of all that a store has: for sums by SQLite alone."""
    connection = sqlite3.connect(":memory:")
    named = ", ".join(column for column, _ in _NAMES.values())
    connection.execute(f"CREATE TABLE AAR (RecordID INTEGER PRIMARY KEY, JobID, {named}, {', '.join(_NUMBERS)})")
    connection.execute("CREATE TABLE JobExtraInfo (RecordID, InfoKey, InfoValue)")
    for table in _NAMES:
        connection.execute(f"CREATE TABLE {table} (ID INTEGER PRIMARY KEY, Name UNIQUE)")
    for number, job in enumerate(records(store) if store.exists() else (), 1):
        ids = []
        for table, (_, field) in _NAMES.items():
            name = (getattr(job, field),)
            connection.execute(f"INSERT OR IGNORE INTO {table} (Name) VALUES (?)", name)
            ids += connection.execute(f"SELECT ID FROM {table} WHERE Name = ?", name).fetchone()
        row = as_row(job)
        values = (number, job.job_id, *ids, *(row[name] for name in _NUMBERS))
        connection.execute(f"INSERT INTO AAR VALUES ({', '.join('?' * len(values))})", values)
        connection.executemany("INSERT INTO JobExtraInfo VALUES (?, ?, ?)", [(number, *pair) for pair in row["extra"]])
    return connection
