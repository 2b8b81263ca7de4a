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
from publisher.sources.base import Page
from publisher.sources.statistics import Accounts, JobFilter

RowsRead = Callable[[int], None]
_LONG_AGO: Final = Epoch(0)  # a job that waits for what belongs to its row is handed out as it is
_REMEMBERED: Final = 5_000  # jobs that stand for others
_OF_USER: Final = ("projects", "local_user")
_OWN: Final = {f"job.{name}": attrgetter(name) for name in (*OWN_VALUES, *_OF_USER)}
_END: Final = OWN_VALUES.index("ended_at")
_DAY_S: Final = 86_400
OWN_COLUMNS: Final = tuple(
    column for column in COLUMNS if not _OWN.keys().isdisjoint(column.inputs)
)


@dataclass(slots=True)
class SkippedJobs:
    """Jobs that a filter takes and that are left out: in progress, or with an unreadable row."""

    in_progress: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)  # by rule


class ExportPage:
    """Some jobs. For each there is one of its kind, one of its user and one of its place.

    Each may be the job itself. `own` are the values that are its own, by input.
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


class FinishedJobs:
    """The finished jobs of a site.

    What is said of jobs is asked once for those of which the same is said, whatever the filter.
    """

    def __init__(self, site: Site, *, left_out: SkippedJobs, rows_read: RowsRead) -> None:
        self._site = site
        self._source = site.source()
        self._left_out = left_out
        self._rows_read = rows_read
        self._power = site.power or Power()
        self._changes = sorted(site.policy.change_times)
        # Where charges or energy are configured, these hang on what a job used, and on its hosts.
        self._shares = site.power is None and site.policy.depends_on_kind_only
        self._known: dict[object, ExportedJob] = {}
        # Of which something is known, so that no id comes to mean another
        self._held: list[AlikeJob] = []

    def close(self) -> None:
        self._source.close()

    def pages(self, wanted: JobFilter) -> Iterator[ExportPage]:
        """Those that a filter takes, each database in the order of its rows or of an index.

        Raises: SourceError.
        """
        source, clock = self._source, self._site.clock
        every = wanted == JobFilter(ended=wanted.ended)
        for page in self._all(wanted.ended) if every else self._filtered(wanted):
            rows = [OpenRow(row=row.row, finished_seen_at=_LONG_AGO) for row in page.open]
            for each in [page, *(source.reread(rows, frozenset(), clock()) if rows else ())]:
                self._left_out.in_progress += len(each.open) if each is not page else 0
                self._left_out.unreadable.update(skipped.rule for skipped in each.skipped)
                yield from self._described_pages(each)
            self._rows_read(page.rows_read)

    def _all(self, ended: Window) -> Iterator[Page]:
        source, now, names = self._source, self._site.clock(), not self._shares
        if ended != Window():
            yield from source.window(ended, frozenset(), now, alike=True, names=names)
            return
        for database in source.databases():
            for page in source.since(None, database, frozenset(), now, alike=True, names=names):
                if page.restarted:
                    replaced = "it was replaced while it was read; export it again"
                    raise SourceError(f"{database}: {replaced}")
                yield page

    def _filtered(self, wanted: JobFilter) -> Iterator[Page]:
        """The rows that a filter takes are read by their numbers."""
        accounts: Accounts = self._site.accounts()
        with closing(accounts):
            for page in accounts.counted(wanted):
                rows = tuple(OpenRow(row=row, finished_seen_at=None) for row in page.rows)
                yield Page(jobs=(), open=rows, rows_read=page.rows_read)

    def _described_pages(self, page: Page) -> Iterator[ExportPage]:
        alike = page.alike
        places = self._places(alike)
        may_share = [
            self._shares and place.published is not None and not job.example.quantities
            for job, place in zip(alike, places, strict=True)
        ]
        shared = list(compress(alike, may_share))
        single = [*page.jobs, *map(whole_job, compress(alike, map(not_, may_share)))]
        own: dict[str, Sequence[Any]]
        if shared:
            own = _own_values(shared)
            kinds = self._once(shared, [id(job.example) for job in shared])
            yield ExportPage(kinds, self._users(shared), list(compress(places, may_share)), own)
        if single:
            described = list(map(self._described, single))
            own = {name: list(map(get, single)) for name, get in _OWN.items()}
            yield ExportPage(described, described, described, own)

    def _places(self, jobs: Sequence[AlikeJob]) -> list[ExportedJob]:
        changes = self._changes
        keys = [(id(job.place), bisect_right(changes, job.values[_END])) for job in jobs]
        return self._once(jobs, keys)

    def _users(self, jobs: Sequence[AlikeJob]) -> list[ExportedJob]:
        policy = self._site.policy
        days = [job.values[_END] // _DAY_S if policy.depends_on_month else 0 for job in jobs]
        if policy.user_depends_on_place:
            return self._once(
                jobs,
                [(id(job.user), id(job.place), day) for job, day in zip(jobs, days, strict=True)],
            )
        return self._once(jobs, [(*job.user[:3], day) for job, day in zip(jobs, days, strict=True)])

    def _once(self, jobs: Sequence[AlikeJob], keys: Sequence[object]) -> list[ExportedJob]:
        """For each job one of which the same is said, that is, with the same key."""
        known = self._known
        if len(known) >= _REMEMBERED:
            known.clear()
            self._held.clear()
        for job, key in zip(jobs, keys, strict=True):
            if key not in known:
                known[key] = self._described(whole_job(job))
                self._held.append(job)
        return [known[key] for key in keys]

    def _described(self, job: JobRecord) -> ExportedJob:
        policy, published, reason = self._site.policy, None, ""
        try:
            published = policy.describe(job)
        except Unfit as unfit:
            reason = str(unfit)
        energy = self._power.energy(job)
        return ExportedJob(job=job, policy=policy, published=published, unfit=reason, energy=energy)


def _own_values(jobs: Sequence[AlikeJob]) -> dict[str, Sequence[Any]]:
    """Those of each job and of each user, by input."""
    users = [job.user for job in jobs]
    own: dict[str, Sequence[Any]] = {}
    for name in _OF_USER:
        own[f"job.{name}"] = list(map(attrgetter(name), users))
    for name, column in zip(
        OWN_VALUES, zip(*(job.values for job in jobs), strict=True), strict=True
    ):
        own[f"job.{name}"] = column
    return own
