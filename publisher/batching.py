"""Jobs on their way as single records: rendered, packed into batches, dispatched as each one fills."""

from __future__ import annotations

from datetime import datetime

from publisher.dispatch import Dispatch
from publisher.formats.base import JobFormat
from publisher.judge import Fit
from publisher.model.job import JobKey
from publisher.model.message import Rendered
from publisher.model.parcel import Packer
from publisher.model.progress import Progress
from publisher.model.row_keys import said


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

    def __init__(self, format: JobFormat, packer: Packer, dispatch: Dispatch) -> None:  # noqa: A002  # the field's word
        self._format = format
        self._packer = packer
        self._dispatch = dispatch

    def __contains__(self, key: JobKey) -> bool:
        return key in self._packer

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._packer.idle

    def take(self, fit: Fit, now: datetime) -> None:
        """Render a job and pack it; ships the batch that it closes. Raises: Unfit; Stopped."""
        published = fit.published
        batches = self._packer.add(
            Rendered(
                job=published.job,
                content=self._format.render(published, now),
                entry=fit.entry,
                receiver_key=self._format.receiver_key(published),
                first_time=fit.known is None,
                submit_host=said(published.where.spelt_host),
            )
        )
        for batch in batches:
            self._dispatch.ship(batch)

    def mark(self, progress: Progress) -> None:
        self._packer.mark(progress)

    def write_down(self) -> None:
        """Ship what waits, and note the progress behind it. Raises: Stopped."""
        for batch in self._packer.rest():
            self._dispatch.ship(batch)

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped."""
        self.write_down()
        self._dispatch.conclude()
