"""The local questions to the job store: which jobs there are, how they are called, what they used.

named("1001")            the jobs with this id in the batch system
beginning("abc", 200)    ids of jobs that begin like this, for the shell
names(NameKind.VO)       all VOs
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from publisher.jobs import file as store_file
from publisher.jobs.reader import SKIPPED_ROWS, bounds
from publisher.jobs.sums import SumsReader
from publisher.jobs.tables.columns import restored, stored
from publisher.jobs.usage import JOBS, READ_OF
from publisher.model.job import JobId, JobRecord, RowRef, SkippedJob, run_key
from publisher.model.time import Window

ANY: Final = """
SELECT EXISTS (SELECT 1 FROM job WHERE ended_at >= :first AND ended_at <= :last AND NOT gone)
    OR EXISTS (SELECT 1 FROM skipped WHERE ended_at >= :first AND ended_at <= :last)"""
WITH_LOCAL_ID: Final = """
SELECT job_id FROM job WHERE local_id = :local_id AND NOT gone
UNION SELECT job_id FROM partial WHERE local_id = :local_id
LIMIT 5"""
BEGINNING: Final = """
SELECT job_id FROM job WHERE substr(job_id, 1, :length) = :text AND NOT gone
UNION SELECT job_id FROM partial WHERE substr(job_id, 1, :length) = :text AND job_id <> ''
ORDER BY job_id LIMIT :limit"""
_IS_CALLED: Final = "substr(run, 5, 7) = :digest AND job_id = :job_id"
OF_JOB: Final = f"SELECT {READ_OF[JOBS]} FROM {JOBS} AND {_IS_CALLED} ORDER BY change"
PARTIAL_OF_JOB: Final = f"""
SELECT p.source, p.record_id, is_in_progress, u.seen_at FROM partial AS p
LEFT JOIN unfinished AS u ON u.source = p.source AND u.record_id = p.record_id
WHERE NOT EXISTS (SELECT 1 FROM job WHERE {_IS_CALLED} AND NOT gone) AND {_IS_CALLED}
    AND rule = ''"""
# There are few, and one may be of a job that another source has whole.
SKIPPED_OF_JOB: Final = f"{SKIPPED_ROWS} WHERE job_id = :job_id"


class NameKind(StrEnum):
    """Names that jobs have in common, with the word for one of them."""

    VO = "VO"
    USER = "user"
    STATE = "state"
    QUEUE = "queue"
    INTERFACE = "endpoint type"


NAMES: Final = {
    NameKind.VO: "SELECT vo FROM person",
    NameKind.USER: "SELECT user FROM person",
    NameKind.STATE: "SELECT DISTINCT status FROM job UNION SELECT status FROM partial",
    NameKind.QUEUE: "SELECT queue FROM place",
    NameKind.INTERFACE: "SELECT interface FROM place",
}


class FoundJob(NamedTuple):
    """The runs of a job, rows that none could be made of, and rows that are none yet.

    `awaited`: they are over, and wait for what their batch system records of them.
    """

    jobs: Sequence[JobRecord]
    skipped: Sequence[SkippedJob]
    unfinished: Sequence[RowRef]
    awaited: Sequence[RowRef]

    @property
    def is_there(self) -> bool:
        """Whether anything is known of the job."""
        return any(self)


class JobQueries(SumsReader):
    """The store, open for local questions. Every method raises LedgerError."""

    def has_any(self, window: Window) -> bool:
        """Return whether a job, or a row that none could be made of, ended in a window."""
        first, last = bounds(window)
        return bool(self._rows(ANY, {"first": first, "last": last})[0][0])

    def names(self, kind: NameKind) -> frozenset[str]:
        """Return all names of a kind."""
        return frozenset(restored(row)[0] for row in self._each(NAMES[kind]))

    def with_local_id(self, local_id: str) -> list[JobId]:
        """Return some of the jobs that have an id in the batch system."""
        return self._ids(WITH_LOCAL_ID, {"local_id": stored((local_id,))[0]})

    def beginning(self, text: str, limit: int) -> list[JobId]:
        """Return so many of the ids of jobs that begin like this, in order."""
        return self._ids(BEGINNING, {"text": text, "length": len(text), "limit": limit})

    def find(self, job_id: JobId) -> FoundJob:
        """Return what is known of a job, of the runs that its source still has."""
        asked = {"digest": bytes(run_key(0, job_id, "")[4:11]), "job_id": stored((job_id,))[0]}
        jobs = [self.job(row) for row in self._rows(OF_JOB, asked)]
        unfinished: list[RowRef] = []
        awaited: list[RowRef] = []
        skipped = [self._skipped(row) for row in self._rows(SKIPPED_OF_JOB, asked)]
        for source, record_id, is_in_progress, seen_at in self._rows(PARTIAL_OF_JOB, asked):
            row = RowRef(self._name_of(source), record_id)
            if is_in_progress or seen_at is not None:
                unfinished.append(row)
            else:
                awaited.append(row)
        return FoundJob(jobs, skipped, unfinished, awaited)

    def _ids(self, question: str, asked: dict[str, object]) -> list[JobId]:
        return [JobId(restored(row)[0]) for row in self._rows(question, asked)]


def open_queries(path: Path) -> JobQueries:
    """Return a store for local questions, an empty one where there is none. Raises: LedgerError."""
    return JobQueries(store_file.open_to_read(path) or store_file.open_scratch(), path)
