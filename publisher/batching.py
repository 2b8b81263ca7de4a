"""Jobs on their way as single records: rendered, packed into batches, dispatched as each one fills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from publisher.dispatch import Dispatch
from publisher.errors import Unfit
from publisher.formats.base import JobFormat, lighter
from publisher.judge import Fit
from publisher.model.job import JobKey
from publisher.model.message import Rendered
from publisher.model.parcel import TOO_LARGE, Batch, Packer
from publisher.model.progress import Progress
from publisher.model.row_keys import said
from publisher.model.summary_keys import SummaryKeys


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

    def __init__(
        self,
        format: JobFormat,  # noqa: A002  # the field's word
        packer: Packer,
        dispatch: Dispatch,
        *,
        summed: bool,  # the receiver adds the records up under keys of its own
    ) -> None:
        self._format = format
        self._packer = packer
        self._dispatch = dispatch
        self._keys = SummaryKeys()
        self._summed = summed
        self._shipped: set[JobKey] = set()  # since the last page began, or before and not written down yet

    def __contains__(self, key: JobKey) -> bool:
        return key in self._packer or key in self._shipped

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._packer.idle

    def take(self, fit: Fit, now: datetime) -> None:
        """Render a job and pack it; ships the batch that it closes. Raises: Unfit; Stopped."""
        published = fit.published
        record = Rendered(
            job=published.job,
            content=self._format.render(published, now),
            entry=fit.entry,
            receiver_key=self._format.receiver_key(published),
            first_time=fit.known is None,
            submit_host=said(published.where.spelt_host),
            summary_key=self._keys.of(published) if self._summed else None,
        )
        for batch in self._packed(record):
            self._ship(batch)

    def _packed(self, record: Rendered) -> Iterator[Batch]:
        """Pack a record; one that no message can hold, without what its format can leave out. Raises: Unfit."""
        try:
            return self._packer.add(record)
        except Unfit as unfit:
            less = lighter(self._format, record.content) if unfit.rule == TOO_LARGE else None
            if less is None:
                raise
            batches = self._packer.add(replace(record, content=less))
            self._dispatch.count_shed(record.job.job_id, unfit.reason)
            return batches

    def _ship(self, batch: Batch) -> None:
        self._shipped.update([record.entry.key for record in batch.records])
        self._dispatch.ship(batch)

    def mark(self, progress: Progress) -> None:
        self._packer.mark(progress)
        self._shipped = self._dispatch.unwritten()  # of the others the ledger tells at the next page

    def write_down(self) -> None:
        """Ship what waits, and note the progress behind it. Raises: Stopped."""
        for batch in self._packer.rest():
            self._ship(batch)

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped."""
        self.write_down()
        self._dispatch.finish()
        self._dispatch.conclude()
