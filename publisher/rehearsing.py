"""Monthly totals summed up as they would be sent, to tell how many they are, and what would hold them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from publisher.config import TargetSettings
from publisher.delivery.base import Receipt
from publisher.ledger.base import Ledger, TargetState
from publisher.model.job import JobId, SkippedJob
from publisher.model.message import Message
from publisher.outcome import Outcome, added
from publisher.pipeline import Round
from publisher.sources.base import Page, Source
from publisher.wiring import Site


def rehearse(
    site: Site,
    target: TargetSettings,
    months: Sequence[int],
    source: Source,
    ledger: Ledger,
    seen: Callable[[int], None],
    *,
    accept_key_change: bool,
) -> Outcome:
    """What would come of sending these months (12 x year + month - 1). The ledger is one of a rehearsal.

    `seen` is told how many more rows were read. Raises: CredentialError, SourceError, LedgerError.
    """
    aim = site.aim(target, rehearsal=True, accept_key_change=accept_key_change)
    done = Outcome(target=target.name, outcome="nothing")
    with closing(aim.transport):
        for month in months:
            onlooker = _Onlooker(seen)
            round_ = Round(aim, source, ledger, onlooker, site.surroundings.clock, site.surroundings.wait)
            done = added(done, round_.republish_month(month))
    return done


class _Onlooker:
    """An `Observer` of a rehearsal: only what was read is told."""

    def __init__(self, seen: Callable[[int], None]) -> None:
        self._seen = seen

    def page_read(self, target: str, page: Page) -> None:
        self._seen(page.rows_read)

    def round_begins(self, state: TargetState, *, sweep: bool) -> None:
        pass

    def job_set_aside(self, target: str, job: SkippedJob) -> None:
        pass

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None:
        pass

    def message_prepared(self, message: Message) -> None:
        pass

    def message_handed_over(self, message: Message, receipt: Receipt) -> None:
        pass

    def message_settled(self, message: Message, receipt: Receipt) -> None:
        pass
