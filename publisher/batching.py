"""Jobs on their way as single records: rendered, packed into batches, dispatched as each one fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from publisher.dispatch import Dispatch
from publisher.errors import Unfit
from publisher.formats.base import JobFormat, lighter
from publisher.judge import Fit, set_aside
from publisher.model.job import JobKey
from publisher.model.message import Rendered
from publisher.model.months import HeldMonth
from publisher.model.parcel import TOO_LARGE, Batch, Packer
from publisher.model.progress import OpenRow, Progress
from publisher.model.row_keys import month_number, said
from publisher.model.summary_keys import KeyTotal, SummaryKeys

_CHANGED: Final = 2_000  # runs that changed after delivery and wait to be looked at together: some 10 MB


class Emptied(Protocol):
    """Asked for the rows at the receiver that lose their last jobs when changed runs of a month go out again.

    `runs`: so many of each row, by its digest.
    """

    def __call__(self, month: int, runs: Mapping[bytes, int], now: datetime) -> Sequence[KeyTotal]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What a regular round keeps back from a receiver that adds single records up, and never deletes a sum."""

    totals: Mapping[int, HeldMonth]  # months that it has as totals
    held_before: Collection[int]  # months that the last round held back
    emptied: Emptied


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

    def __init__(
        self,
        format: JobFormat,  # noqa: A002  # the field's word
        packer: Packer,
        dispatch: Dispatch,
        *,
        summed: bool,  # the receiver adds the records up under keys of its own
        guard: Guard | None = None,
    ) -> None:
        self._format = format
        self._packer = packer
        self._dispatch = dispatch
        self._keys = SummaryKeys(format.name)
        self._summed = summed
        self._guard = guard
        self._totals: Mapping[int, HeldMonth] = {} if guard is None else guard.totals
        self._changed: dict[JobKey, Rendered] = {}
        self._open: list[OpenRow] = []  # of runs held back: the next round looks at them again
        # Jobs that wait for totals to go were passed in an earlier round, and wait still.
        before = () if guard is None else [guard.totals[at] for at in guard.held_before if at in guard.totals]
        self._held = {month.month: month for month in before}
        self._shipped: set[JobKey] = set()  # since the last page began: of those before it the ledger tells

    def __contains__(self, key: JobKey) -> bool:
        return key in self._packer or key in self._changed or key in self._shipped

    @property
    def held(self) -> list[HeldMonth]:
        """Months of which something is held back."""
        return [self._held[month] for month in sorted(self._held)]

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._packer.idle

    def take(self, fit: Fit, now: datetime, place: Progress | None = None) -> None:
        """Render a job and pack it; ships the batch that it closes. Raises: Unfit; Stopped, SourceError."""
        published = fit.published
        if self._totals and (held := self._totals.get(month_number(fit.entry.ended_at))):
            self._held[held.month] = held
            return
        record = Rendered(
            published.job,
            self._format.render(published, now),
            fit.entry,
            fit.known is None,
            said(published.where.spelt_host),
            self._keys.of(published) if self._summed else None,
        )
        if self._guard is not None and self._summed and fit.known is not None:
            self._changed[fit.entry.key] = record
            if len(self._changed) >= _CHANGED:
                self._let_go(self._guard, now)
            return
        for batch in self._packed(record, place):
            self._ship(batch)

    def _let_go(self, guard: Guard, now: datetime) -> None:
        """Pack the changed runs of every month in which none of them was the last of its row at the receiver."""
        changed, self._changed = self._changed, {}
        months: dict[int, list[Rendered]] = {}
        for record in changed.values():
            months.setdefault(month_number(record.entry.ended_at), []).append(record)
        for month, records in months.items():
            runs = Counter(record.summary_key.digest for record in records if record.summary_key is not None)
            if stale := guard.emptied(month, runs, now):
                self._held[month] = HeldMonth(month=month, stale=tuple(stale), lost_jobs=0)
                self._open += [OpenRow(row=record.job.row, finished_seen_at=None) for record in records]
                continue
            for record in records:
                try:
                    for batch in self._packed(record):
                        self._ship(batch)
                except Unfit as unfit:
                    aside = set_aside(record.job, unfit)
                    self._dispatch.set_aside(aside)
                    self._packer.mark(Progress(skipped=(aside,)))

    def _packed(self, record: Rendered, place: Progress | None = None) -> Sequence[Batch]:
        """Pack a record; one that no message can hold, without what its format can leave out. Raises: Unfit."""
        try:
            return self._packer.add(record, place)
        except Unfit as unfit:
            less = lighter(self._format, record.content) if unfit.rule == TOO_LARGE else None
            if less is None:
                raise
            batches = self._packer.add(replace(record, content=less), place)
            self._dispatch.shed(record.entry.key, record.job.job_id, unfit.reason)
            return batches

    def _ship(self, batch: Batch) -> None:
        self._shipped.update([record.entry.key for record in batch.records])
        self._dispatch.ship(batch)

    def mark(self, progress: Progress) -> None:
        self._packer.mark(progress)
        self._shipped.clear()

    def write_down(self) -> None:
        """Ship what waits, and note the progress behind it. Raises: Stopped."""
        for batch in self._packer.rest():
            self._ship(batch)

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped, SourceError."""
        if self._guard is not None:
            self._let_go(self._guard, now)
        self.write_down()
        if self._open:  # after what was written down, which closes rows that were looked at
            self._packer.mark(Progress(opened=tuple(self._open)))
            self.write_down()
        self._dispatch.finish()
        self._dispatch.conclude()
