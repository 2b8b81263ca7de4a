"""APEL sync messages v0.1: how many jobs a site holds for each submit host and month, to compare with what arrived."""

from __future__ import annotations

from typing import ClassVar, Final

from publisher.formats.apel import text_message
from publisher.formats.apel.receiver import SYNC
from publisher.formats.apel.text_message import TextLine, whole, written
from publisher.formats.base import Frame, Receiver
from publisher.model.totals import SyncCount, column

# Spec: apel facts, 4.8. The server checks nothing of it.
LINES: Final = (
    TextLine(key="Site", value=lambda count: count.site, mandatory=True),
    TextLine(key="SubmitHost", value=lambda count: count.submit_host),
    whole("NumberOfJobs", lambda count: count.jobs),
    whole("Month", lambda count: count.month, limit=12),
    whole("Year", lambda count: count.year, limit=9999),
)


class ApelSync:
    """One record a submit host and month. A count of 0 takes back one that was announced."""

    name: ClassVar[str] = "apel-sync-0.1"
    receiver: ClassVar[Receiver] = SYNC
    frame: ClassVar[Frame] = text_message.frame("APEL-sync-message: v0.1")

    def render(self, count: SyncCount) -> bytes:
        """The lines of one count."""
        return written(LINES, count).encode("ascii")

    def receiver_key(self, count: SyncCount) -> tuple[object, ...]:
        """Site, SubmitHost, Month and Year, as the server compares them."""
        return column(count.site), column(count.submit_host), count.month, count.year

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        text_message.check(payload, self.frame, LINES)


def create(name: str) -> ApelSync:
    return {ApelSync.name: ApelSync}[name]()
