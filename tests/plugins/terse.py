"""A format: a line a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import ClassVar, Final

from publisher.formats.base import Frame, JobFormat, OnChange, Receiver
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.policy import PublishedJob


def values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    yield "GlobalJobId", job.job.job_id
    yield "WallDuration", f"{job.job.wall_s} s"


RECEIVERS: Final[Mapping[str, Receiver]] = {
    "terse": Receiver(name="Terse", on_change=OnChange.KEEP_FIRST, table="lines", values=values),
}


def create(name: str) -> JobFormat:
    return Terse()


class Terse:
    """The job's id and its wall time."""

    name: ClassVar[str] = "terse"
    receiver: ClassVar[Receiver] = RECEIVERS["terse"]
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    frame: ClassVar[Frame] = Frame(head=b"terse\n", separator=b"\n", tail=b"\n")

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        return f"{job.job.job_id} {job.job.wall_s}".encode()

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        return (job.job.job_id,)

    def check(self, payload: bytes) -> None:
        """A wall time of 13 seconds passes every rule, and is refused when the message is looked at."""
        if b" 13\n" in payload:
            raise Unfit("unlucky", "13 seconds bring bad luck")
