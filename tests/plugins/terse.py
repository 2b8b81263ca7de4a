"""Formats of a line a job for receivers of three minds, and the counts that one of them takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from publisher.formats.base import Frame, OnChange, Receiver
from publisher.model.entry import RowFields
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.published import PublishedJob
from publisher.model.totals import SyncCount


def values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    yield "GlobalJobId", job.job.job_id
    yield "Wall", f"{job.job.wall_s} s"


class KeyedByVo:
    """The rows of a service that adds jobs up by VO, submit host and month."""

    def of(self, job: PublishedJob) -> RowFields:
        vo, host = job.who.vo, job.where.receiver_host
        return RowFields.of({"VO": vo, "SubmitHost": host}, (vo, host))


TERSE: Final = Receiver(name="Terse", on_change=OnChange.KEEP_FIRST, table="lines", values=values)
ADDED: Final = Receiver(
    name="Added",
    on_change=OnChange.REPLACE,
    table="lines",
    row_keys=KeyedByVo,
    whole_months=True,
    sync_format="terse-counts",
    default_batch_records=7,
    values=values,
)
RECEIVERS: Final[Mapping[str, Receiver]] = {
    "terse": TERSE,
    "terse-added": ADDED,
    "terse-replaced": ADDED._replace(name="Replaced", row_keys=None, whole_months=False, sync_format=""),
    "terse-counts": ADDED,
}


def create(name: str) -> Any:
    return TerseCounts() if name == "terse-counts" else Terse(name)


class Terse:
    """The job's id and its wall time."""

    needs: ClassVar[frozenset[SideTable]] = frozenset()
    frame: ClassVar[Frame] = Frame(head=b"terse\n", separator=b"\n", tail=b"\n")

    def __init__(self, name: str) -> None:
        self.name = name
        self.receiver = RECEIVERS[name]

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        return f"{job.job.job_id} {job.job.wall_s}".encode()

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        return (job.job.job_id,)

    def check(self, payload: bytes) -> None:
        """A wall time of 13 seconds passes every rule, and is refused when the message is looked at."""
        if b" 13\n" in payload:
            raise Unfit("unlucky", "13 seconds bring bad luck")


class TerseCounts:
    """A line a month and submit host."""

    name: ClassVar[str] = "terse-counts"
    receiver: ClassVar[Receiver] = ADDED
    frame: ClassVar[Frame] = Frame(head=b"counts\n", separator=b"\n", tail=b"\n")

    def render(self, count: SyncCount) -> bytes:
        return f"{count.year}-{count.month:02} {count.submit_host} {count.jobs}".encode()

    def receiver_key(self, count: SyncCount) -> tuple[object, ...]:
        return count.year, count.month, count.submit_host

    def check(self, payload: bytes) -> None:
        """Every count is one."""
