"""Finished jobs for other systems, page by page, in bounded memory.

Of jobs that differ in their own values only, what the site says of them is asked once (hot path).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter, not_
from typing import Any, Final

from publisher.model.errors import SourceError, Unfit
from publisher.model.job import OWN_VALUES, AlikeJob, Epoch, JobRecord, whole_job
from publisher.model.message import OpenRow
from publisher.model.time import Window
from publisher.pipeline.site import Site
from publisher.reporting.charges.power import Power
from publisher.reporting.export.columns import COLUMNS, Column, ExportedJob, path_of
from publisher.sources.base import Page, Source
from publisher.sources.statistics import Accounts, JobFilter

RowsRead = Callable[[int], None]
_LONG_AGO: Final = Epoch(0)  # a job that waits for what belongs to its row is handed out as it is
_REMEMBERED: Final = 3_000  # jobs that stand for others
_OF_USER: Final = ("projects", "local_user")
_OWN: Final = {f"job.{name}": attrgetter(name) for name in (*OWN_VALUES, *_OF_USER)}
_END: Final = OWN_VALUES.index("ended_at")
_DAY_S: Final = 86_400
OWN_COLUMNS: Final = tuple(column for column in COLUMNS if not _OWN.keys().isdisjoint(column.inputs))


@dataclass(slots=True)
class SkippedJobs:
    """Jobs that a filter takes and that are not handed out: still in progress, or with a row that cannot be read."""

    in_progress: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)  # by rule


class ExportPage:
    """Some jobs. For each there is one of its kind, one of its user and one of its place (which may be itself).

    `own` are the values that are its own, by input.
    """

    def __init__(
        self,
        kinds: Sequence[ExportedJob],
        users: Sequence[ExportedJob],
        places: Sequence[ExportedJob],
        own: Mapping[str, Sequence[Any]],
    ) -> None:
        self._alike = {"": kinds, "user": users, "place": places}
        self._inputs = dict(own)

    def values(self, column: Column) -> Sequence[Any]:
        """Of each job in that column."""
        inputs = [self.inputs(name) for name in column.inputs]
        return inputs[0] if column.make is None else list(map(column.make, *inputs))

    def inputs(self, name: str) -> Sequence[Any]:
        """What columns are made of."""
        if name not in self._inputs:
            self._inputs[name] = list(map(attrgetter(path_of(name)), self.alike(name)))
        return self._inputs[name]

    def alike(self, name: str) -> Sequence[ExportedJob]:
        """For each job one that has the same input, which is not its own."""
        return self._alike[name.rpartition(":")[0]]


def pages(site: Site, wanted: JobFilter, *, left_out: SkippedJobs, rows_read: RowsRead) -> Iterator[ExportPage]:
    """The finished jobs that a filter takes, each database in the order of its rows or of an index.

    Raises: SourceError.
    """
    with closing(site.source()) as source:
        describer = _Describer(site)
        found = (
            _all_jobs(site, source, wanted.ended, names=not describer.shares)
            if wanted == JobFilter(ended=wanted.ended)
            else None
        )
        for page in found or _filtered(site, source, wanted):
            rows = [OpenRow(row=row.row, finished_seen_at=_LONG_AGO) for row in page.open]
            for each in [page, *(source.reread(rows, frozenset(), site.clock()) if rows else ())]:
                left_out.in_progress += len(each.open) if each is not page else 0
                left_out.unreadable.update(skipped.rule for skipped in each.skipped)
                yield from describer.pages(each)
            rows_read(page.rows_read)


def _all_jobs(site: Site, source: Source, ended: Window, *, names: bool) -> Iterator[Page]:
    if ended != Window():
        yield from source.window(ended, frozenset(), site.clock(), alike=True, names=names)
        return
    for database in source.databases():
        for page in source.since(None, database, frozenset(), site.clock(), alike=True, names=names):
            if page.restarted:
                raise SourceError(f"{database}: it was replaced while it was read; export it again")
            yield page


def _filtered(site: Site, source: Source, wanted: JobFilter) -> Iterator[Page]:
    """The rows that a filter takes are read by their numbers."""
    accounts: Accounts = site.accounts()
    with closing(accounts):
        for page in accounts.counted(wanted):
            rows = tuple(OpenRow(row=row, finished_seen_at=None) for row in page.rows)
            yield Page(jobs=(), open=rows, rows_read=page.rows_read)


class _Describer:
    """What the site says of jobs, once for those of which it says the same."""

    def __init__(self, site: Site) -> None:
        self._policy = site.policy
        self._power = site.power or Power()
        self._changes = sorted(site.policy.change_times)
        # Where charges or energy are configured, these hang on what a job used, and on its hosts.
        self.shares = site.power is None and site.policy.depends_on_kind_only
        self._by_month = site.policy.depends_on_month
        self._by_place = site.policy.user_depends_on_place
        self._known: dict[tuple[object, ...], tuple[AlikeJob, ExportedJob]] = {}

    def pages(self, page: Page) -> Iterator[ExportPage]:
        may_share = list(map(self._may_share, page.alike))
        shared = list(compress(page.alike, may_share))
        single = [*page.jobs, *map(whole_job, compress(page.alike, map(not_, may_share)))]
        if shared:
            own: dict[str, Sequence[Any]] = {
                f"job.{name}": [getattr(job.user, name) for job in shared] for name in _OF_USER
            }
            values = zip(*(job.values for job in shared), strict=True)
            own |= {f"job.{name}": column for name, column in zip(OWN_VALUES, values, strict=True)}
            kinds, users, places = (list(map(one, shared)) for one in (self._kind, self._user, self._place))
            yield ExportPage(kinds, users, places, own)
        if single:
            described = list(map(self._described, single))
            yield ExportPage(
                described, described, described, {name: list(map(get, single)) for name, get in _OWN.items()}
            )

    def _may_share(self, job: AlikeJob) -> bool:
        return self.shares and not job.example.quantities and self._place(job).published is not None

    def _kind(self, job: AlikeJob) -> ExportedJob:
        return self._one(job, ("", id(job.example)))

    def _user(self, job: AlikeJob) -> ExportedJob:
        user = job.user
        day = job.values[_END] // _DAY_S if self._by_month else 0
        if self._by_place:
            return self._one(job, (user, id(job.place), day))
        return self._one(job, (user.user, user.vo, user.fqans, day))

    def _place(self, job: AlikeJob) -> ExportedJob:
        return self._one(job, ("place", id(job.place), bisect_right(self._changes, job.values[_END])))

    def _one(self, job: AlikeJob, at: tuple[object, ...]) -> ExportedJob:
        """The job of which the same is said."""
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[at] = job, self._described(whole_job(job))  # held, so that no id comes to mean another
        return known[1]

    def _described(self, job: JobRecord) -> ExportedJob:
        published, reason = None, ""
        try:
            published = self._policy.describe(job)
        except Unfit as unfit:
            reason = str(unfit)
        energy = self._power.energy(job)
        return ExportedJob(job=job, policy=self._policy, published=published, unfit=reason, energy=energy)
