"""What finished jobs used, summed up by SQLite: the runs of a day that are alike are one group.

Of 48 runs of one person at one place on 3 October, 2 of which failed, there are two groups:

    kind 7   day 20729   exit code None   46 jobs   wall time x cores 812345 s   CPU time 700123 s
    kind 8   day 20729   exit code 1       2 jobs   wall time x cores   3412 s   CPU time   1200 s

What a site says of jobs depends on their kind, so it is asked once for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from publisher.jobs.reader import StoreReader, bounds
from publisher.jobs.tables.columns import READ, SHARED, job_of
from publisher.model.job import GpuModels, JobRecord, gpus_by_model
from publisher.model.time import LONGEST_MIN, MINUTE_S, Durations, Window

_DAY_S: Final = 86_400
FAILED: Final = "failed"
_IN_WINDOW: Final = "ended_at >= :first AND ended_at <= :last"
JOBS: Final = "job WHERE NOT gone"
# Of a job that is in no row whole: where it is over, else in the database that was named first.
PARTIAL: Final = """partial AS p WHERE NOT EXISTS (
    SELECT 1 FROM job AS j WHERE substr(j.run, 5, 7) = substr(p.run, 5, 7)
        AND j.job_id = p.job_id AND NOT j.gone)
    AND NOT EXISTS (
        SELECT 1 FROM partial AS q WHERE substr(q.run, 5, 7) = substr(p.run, 5, 7)
            AND q.job_id = p.job_id AND p.job_id <> ''
            AND (q.is_in_progress, q.source, q.record_id)
                < (p.is_in_progress, p.source, p.record_id))"""
# What these used is all there: A-REX only has not written the rest.
OVER: Final = f"{PARTIAL} AND NOT is_in_progress AND rule = ''"
READ_OF: Final = {  # a job's columns; a row that is no run has no number of a change
    JOBS: ", ".join(READ),
    OVER: ", ".join(("0 AS change", *READ[1:])),
}
# Beyond these the sums of a group might not fit into 64 bits: such a run is a group of its own.
_PLAIN: Final = """(wall_s < 8589934592 AND cpu_user_s < 4398046511104
    AND cpu_kernel_s < 4398046511104 AND ifnull(cpu_count, 1) < 131072)"""
CORES: Final = "ifnull(nullif(cpu_count, 0), 1)"
_ALIKE: Final = ("person", "account", "place", "benchmark", "flags", "projects", "status")
_KIND_END: Final = len(_ALIKE) + 1
_GPUS: Final = """ifnull(gpu_count, 0) AS gpus,
    CASE WHEN gpu_count > 0 THEN json_extract(rare, '$.gpu_models') END AS models"""
_GROUPED: Final = f"""
    ended_at / {{day}} AS day, CASE status WHEN '{{failed}}' THEN exit_code END AS failure,
    {_GPUS}"""
_WHOLE: Final = f"0 AS day, NULL AS failure, {_GPUS}"


def groups_question(rows: str, *, hosts: bool, days: bool = True) -> str:
    """Return the statement of `UsageReader.groups`."""
    alike = ", ".join((*_ALIKE, "hosts" if hosts else "NULL AS hosts"))
    grouped = (_GROUPED if days else _WHOLE).format(day=_DAY_S, failed=FAILED)
    by = ", ".join((*_ALIKE, "hosts", "day", "failure", "gpus", "models"))
    return f"""
SELECT {alike}, {grouped}, count(*), sum(wall_s), sum(wall_s * {CORES}), sum(cpu_user_s),
    sum(cpu_kernel_s), sum(ifnull(cpu_count, 0) = 0), max({CORES})
FROM {rows} AND {_IN_WINDOW}
GROUP BY {by}, CASE WHEN NOT {_PLAIN} THEN rowid END ORDER BY {by}"""


def waits_question(rows: str) -> str:
    """Return the statement of `UsageReader.waits`."""
    return f"""SELECT place, CASE
        WHEN started_at IS NULL THEN NULL
        WHEN started_at < submitted_at THEN -1
        ELSE min((started_at - submitted_at) / {MINUTE_S}, {LONGEST_MIN}) END AS minutes, count(*)
FROM {rows} AND {_IN_WINDOW} GROUP BY 1, 2"""


UNREADABLE: Final = "SELECT count(*) FROM skipped WHERE ended_at >= :first AND ended_at <= :last"


class RunKind(NamedTuple):
    """What runs are alike in, by numbers of the store."""

    person: int
    account: int
    place: int
    benchmark: int
    flags: int
    projects: str | bytes | None
    status: str | bytes
    hosts: str | bytes | None

    @property
    def of_row(self) -> tuple[object, ...]:
        """What a site's answers depend on, unless its rules ask for accounts, projects or hosts."""
        return self.person, self.place, self.benchmark, self.flags, self.status


class UsageGroup(NamedTuple):
    """Sums over runs of a day (since 1970) that differ in nothing but ids, times and usage.

    `example` has what they share. `cpu_s` is 0 where nobody measured it (`example.cpu_unknown`).
    `exit_code`: of failed ones alone. `gpus`: of each run, by model; '' is no known one. Of groups
    that hold several days, `day` is 0 and `exit_code` None.
    """

    kind: RunKind | None  # None: of one job alone
    example: JobRecord
    day: int
    exit_code: int | None
    jobs: int
    wall_s: int
    wall_core_s: int  # a run whose number of cores is unknown counts as one core
    cpu_s: int
    cores_unknown: int = 0
    gpus: GpuModels = ()

    @property
    def gpu_count(self) -> int:
        """GPUs of each run."""
        return sum(count for _, count in self.gpus)


def group_of(job: JobRecord) -> UsageGroup:
    """Return the group of one job alone."""
    cpu_s = job.measured(job.cpu_user_s + job.cpu_kernel_s) or 0
    exit_code = job.exit_code if job.status == FAILED else None
    return UsageGroup(
        kind=None,
        example=job,
        day=job.ended_at // _DAY_S,
        exit_code=exit_code,
        jobs=1,
        wall_s=job.wall_s,
        wall_core_s=job.wall_s * (job.cpu_count or 1),
        cpu_s=cpu_s,
        cores_unknown=int(not job.cpu_count),
        gpus=gpus_by_model(job.gpu_count, job.gpu_models),
    )


class UsageReader(StoreReader):
    """The store, to be asked what jobs used. Runs that their sources no longer have do not count.

    Every method raises LedgerError where the store cannot be read.
    """

    def groups(self, window: Window, *, hosts: bool, days: bool = True) -> Iterator[UsageGroup]:
        """Yield the jobs that ended in a window, in groups; `hosts`: apart by their hosts, too.

        `days`: apart by days, and failed ones by exit codes. Groups of a kind come one after the
        other.
        """
        last: RunKind | None = None
        for rows in (JOBS, OVER):
            for row in self._each(groups_question(rows, hosts=hosts, days=days), _place(window)):
                kind = RunKind._make(row[:_KIND_END])
                if kind != last:
                    last, example = kind, self._example(kind)
                yield _group(kind, example, row[_KIND_END:])

    def each_group(self, window: Window) -> Iterator[UsageGroup]:
        """Yield each job that ended in a window as a group of its own."""
        for rows in (JOBS, OVER):
            question = f"SELECT {READ_OF[rows]} FROM {rows} AND {_IN_WINDOW}"
            yield from map(group_of, map(self.job, self._each(question, _place(window))))

    def waits(self, window: Window) -> dict[str, Durations]:
        """Return how long the jobs of a window waited from submission to true start, by queue."""
        found: dict[str, Durations] = {}
        for rows in (JOBS, OVER):
            for place, minutes, jobs in self._each(waits_question(rows), _place(window)):
                queue = str(self._places.values[place][2])
                found.setdefault(queue, Durations()).add_minutes(minutes, jobs)
        return found

    def unreadable(self, window: Window) -> int:
        """Return how many rows that no job could be made of ended in a window."""
        return int(self._rows(UNREADABLE, _place(window))[0][0])

    def _example(self, kind: RunKind) -> JobRecord:
        values = _NEUTRAL.copy()
        for place, value in zip(_OF_KIND, kind, strict=True):
            values[place] = value
        row = tuple(values)
        return job_of(row, "", self.shared(row[SHARED]))


# What an example of alike jobs has of its own.
_OWN: Final = {
    **dict.fromkeys(("job_id", "local_id", "job_name", "client_host", "wn_instance", "joined"), ""),
    **dict.fromkeys(("ended_at", "wall_s", "cpu_user_s", "cpu_kernel_s", "submitted_at"), 0),
}
# A row of which only what is shared is missing, and the places of that in it
_NEUTRAL: Final[list[Any]] = [({"record_id": 0} | _OWN).get(name) for name in READ]
_OF_KIND: Final = tuple(map(READ.index, RunKind._fields))


def _place(window: Window) -> dict[str, Any]:
    first, last = bounds(window)
    return {"first": first, "last": last}


def _group(kind: RunKind, example: JobRecord, row: Sequence[Any]) -> UsageGroup:
    day, exit_code, gpus, rare, jobs, wall_s, wall_core_s, user_s, kernel_s, unknown, cores = row
    if wall_core_s.__class__ is float:  # beyond 64 bits: one run alone
        wall_core_s = wall_s * cores
    cpu_s = 0 if example.cpu_unknown else user_s + kernel_s
    models = gpus_by_model(gpus, _models(rare)) if gpus else ()
    return UsageGroup(
        kind, example, day, exit_code, jobs, wall_s, wall_core_s, cpu_s, unknown, models
    )


@lru_cache(maxsize=1024)
def _models(text: str | None) -> GpuModels:
    return tuple((model, count) for model, count in json.loads(text or "[]"))
