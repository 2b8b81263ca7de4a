"""A summary format: a line a VO and month."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final

from publisher.formats.base import Frame, OnChange, Receiver, SummaryFormat
from publisher.model.job import SideTable
from publisher.model.published import PublishedJob
from publisher.model.totals import Grouping, SummaryGroup


def values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    yield "VO", job.who.vo


RECEIVERS: Final[Mapping[str, Receiver]] = {
    "tally": Receiver(name="Tally", on_change=OnChange.RECOUNT, table="totals", values=values),
}


def create(name: str) -> SummaryFormat:
    return Tally()


class Tally:
    """Jobs and wall time."""

    name: ClassVar[str] = "tally"
    receiver: ClassVar[Receiver] = RECEIVERS["tally"]
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    frame: ClassVar[Frame] = Frame(head=b"tally\n", separator=b"\n", tail=b"\n")
    grouping: ClassVar[Grouping] = Grouping(by_level=False, several=False)
    takes_zeros: ClassVar[bool] = False

    def admit(self, job: PublishedJob, made_at: datetime) -> None:
        """Every job counts."""

    def render(self, groups: Sequence[SummaryGroup], made_at: datetime) -> list[bytes]:
        return [f"{one.year}-{one.month:02} {one.vo} {one.user} {one.jobs} {one.wall_s}".encode() for one in groups]

    def receiver_key(self, group: SummaryGroup) -> tuple[object, ...]:
        return group.year, group.month, group.vo, group.user

    def check(self, payload: bytes) -> None:
        """Every total is one."""
