"""Computing elements that forget: A-REX's real databases, and every job as it stands in them now."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.arex_databases import Event, SampleJob, Schema, Writer
from tests.support import gridengine_files

VOS: Final = ("atlas", "cms", "bio")
USERS: Final = {"ann": "atlas", "bob": "cms", "cyd": "bio", "dan": "atlas"}
_SIDE: Final = ("AuthTokenAttributes", "JobExtraInfo", "RunTimeEnvironments", "DataTransfers", "JobEvents")


def user_name(user: str) -> str:
    return f"/DC=org/DC=example/CN={user}"


def job_of(
    *,
    number: int,
    ce: str,
    end: int,
    wall_s: int,
    cpu_s: int,
    user: str,
    cpus: int = 1,
    local_id: str = "",
    benchmark: str | None = None,
) -> SampleJob:
    """Return a finished job that ran for its wall time until its end."""
    start = end - wall_s
    vo = USERS[user]
    return SampleJob(
        job_id=f"job{number:04d}{ce}",
        local_job_id=local_id or str(1000 + number),
        interface="org.nordugrid.arcrest",
        endpoint_url=f"https://{ce}.example.org:443/arex",
        queue="grid",
        user=user_name(user),
        vo=vo,
        fqans=(f"/{vo}/Role=NULL/Capability=NULL",),
        status="completed",
        exit_code=0,
        benchmark=benchmark,
        submit_time=start - 60,
        end_time=end,
        nodes=1,
        cpus=cpus,
        memory_kib=1000,
        virtual_memory_kib=2000,
        wall_s=wall_s,
        cpu_user_s=cpu_s,
        cpu_kernel_s=0,
        scratch_bytes=0,
        stage_in_bytes=0,
        stage_out_bytes=0,
        lrms="SLURM",
        local_user=user,
        events=_events(start, end),
    )


def _events(start: int, end: int) -> tuple[Event, ...]:
    moments = {"ACCEPTED": start - 60, "LRMSSTART": start, "LRMSEND": end, "FINISHED": end}
    return tuple(Event(key=key, at=at) for key, at in moments.items())


def ended_again(job: SampleJob, end: int, **changes: Any) -> SampleJob:
    """Return a job after another run, which ended then."""
    other: SampleJob = replace(job, end_time=end, **changes)
    return replace(other, events=_events(end - other.wall_s, end))


class Ce:
    """A computing element with its accounting database, of schema 1 until it migrates."""

    def __init__(self, folder: Path, name: str, schema: Schema) -> None:
        self.name = name
        self.control = folder / name
        self.accounting = self.control / "accounting"
        self.accounting.mkdir(parents=True)
        self.schema = schema
        self.rows: dict[str, SampleJob] = {}
        self.insert([])

    @property
    def path(self) -> Path:
        return self.accounting / ("accounting.db" if self.schema == 1 else "accounting_v2.db")

    @property
    def source(self) -> dict[str, Any]:
        return {"type": "arex", "name": self.name, "control_dir": str(self.control), "time_zone": "UTC"}

    def insert(self, jobs: Iterable[SampleJob]) -> None:
        """These jobs are finished."""
        jobs = list(jobs)
        with Writer(self.path, schema=self.schema, zone="UTC") as arex:
            arex.write_all(jobs)
        self.rows |= {job.job_id: job for job in jobs}

    def again(self, job: SampleJob) -> None:
        """The job passes FINISHED once more, with these values."""
        with Writer(self.path, zone="UTC") as arex:
            arex.finish(job)
        self.rows[job.job_id] = job

    def correct(self, job: SampleJob) -> None:
        """An administrator writes other usage into the row."""
        columns = "UsedWalltime = ?, UsedCPUUserTime = ?, CPUCount = ?"
        values = job.wall_s, job.cpu_user_s, job.cpus
        self._execute(f"UPDATE AAR SET {columns} WHERE JobID = ?", [(*values, job.job_id)])
        self.rows[job.job_id] = job

    def purge(self, job_ids: Iterable[str]) -> None:
        """Remove jobs, from a database of before a migration too, as ARC's `cleanup` does."""
        gone = [(job_id,) for job_id in job_ids]
        numbers = "SELECT RecordID FROM AAR WHERE JobID = ?"
        statements = [*(f"DELETE FROM {table} WHERE RecordID = ({numbers})" for table in _SIDE)]
        for statement in [*statements, "DELETE FROM AAR WHERE JobID = ?"]:
            self._execute(statement, gone)
        for (job_id,) in gone:
            del self.rows[job_id]

    def _execute(self, statement: str, values: list[tuple[Any, ...]]) -> None:
        for path in self.accounting.glob("*.db"):
            with closing(sqlite3.connect(path)) as database, database:
                database.executemany(statement, values)

    def renumber(self, chance: random.Random) -> None:
        """Put another file in the place, with the same jobs under other RecordIDs: `rotate`, or a restored copy."""
        jobs = list(self.rows.values())
        chance.shuffle(jobs)
        for path in list(self.accounting.glob(f"{self.path.name}*")):  # not that of before a migration
            path.unlink()
        self.insert(jobs)

    def migrate(self) -> None:
        """Write all jobs into a database of schema 2; the old one stays where it is."""
        if self.schema == 1:
            self.schema = 2
            self.insert(list(self.rows.values()))


class BatchSystem:
    """A Grid Engine with its accounting file, which forgets nothing: local jobs, and the runs of CEs that submit to it."""

    name: Final = "ce9"  # in host names, where the others are ce1 and ce2

    def __init__(self, folder: Path) -> None:
        self.log = folder / "sge" / "accounting"
        self.log.parent.mkdir()
        self.log.write_bytes(gridengine_files.HEADER)
        self._users = folder / "sge" / "users"
        self._users.write_text("".join(f"{user} {user_name(user)}\n" for user in USERS))
        self._vos = folder / "sge" / "vos"
        self._vos.write_text("".join(f"{user} {vo}\n" for user, vo in USERS.items()))
        self.local: list[SampleJob] = []
        self.of_ces: list[SampleJob] = []  # each run of a CE, with its values in the file

    @property
    def source(self) -> dict[str, Any]:
        maps = {"user_map": str(self._users), "user_vo_map": str(self._vos)}
        return {"type": "gridengine", "cluster": f"{self.name}.example.org", "paths": [str(self.log)], **maps}

    def finish(self, job: SampleJob, *, of_ce: bool = False) -> None:
        """A run ended, and is in the file from now on, with one core."""
        (self.of_ces if of_ce else self.local).append(replace(job, cpus=1))
        entry = gridengine_files.Entry(
            job=int(str(job.local_job_id)),
            owner=str(job.local_user),
            submitted=job.submit_time,
            started=job.end_time - job.wall_s,
            ended=job.end_time,
            ru_wallclock=float(job.wall_s),
            cpu=float(job.cpu_user_s),
            utime=float(job.cpu_user_s),
            stime=0.0,
        )
        with self.log.open("ab") as log:
            log.write(gridengine_files.colon(entry))
