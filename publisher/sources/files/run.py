"""One run of an importer: what it needs, opened, and where the jobs go that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError, UsageError, refused_by_system
from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.sources.files.arc.delivered import remember_delivered
from publisher.sources.files.arc.jobs import (
    ArcIds,
    ArcJobs,
    ArcRun,
    ArcRunTable,
    SortedRuns,
)
from publisher.sources.files.arc.numbers import remember
from publisher.sources.files.log_files import DamagedArchive, LogFile, MissingFile, opened
from publisher.sources.files.read_files import Cursors
from publisher.sources.files.site_mapping import ImporterOptions, SiteMapping
from publisher.sources.files.tables import SourceTables, count_bad_lines
from publisher.sources.importers import BadLine, ImportReport, SourceStore, StoredJobs, Watch

# A file whose first lines are all bad is something else, and is left alone.
_SURELY_FOREIGN: Final = 20
_SETTLED_AT_ONCE: Final = 500
_DAY_S: Final = 86_400
_MONTH_S: Final = 31 * _DAY_S
_RUNS_PRUNED: Final = "ARC_RUNS_PRUNED_AT"  # a setting of the source
_REMEMBERED: Final = "ARC_RUNS_REMEMBERED_OF "  # with the path of a CE's database, one too


def _own_id(job: JobRecord) -> Sequence[str]:
    return (job.local_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRun:
    """One run of an importer."""

    accounting: SourceTables
    cursors: Cursors
    report: ImportReport
    arc: ArcJobs
    arc_runs: ArcRunTable
    now: int

    @contextmanager
    def trouble_reported(self, *, missing_ok: bool = False) -> Iterator[None]:
        """One file's trouble stops no other. Raises: MissingFile if `missing_ok`."""
        try:
            yield
        except SourceError as error:
            if missing_ok and isinstance(error, MissingFile):
                raise
            self.report.troubles.append(str(error))
            if isinstance(error, DamagedArchive):
                self.report.damaged.append(str(error))
        except OSError as error:
            why = refused_by_system(error, "let this user read it, and import again")
            trouble = f"{error.filename}: {why}" if error.filename else why
            self.report.troubles.append(trouble)

    def read(
        self, path: Path, content: Callable[[LogFile], None], *, missing_ok: bool = False
    ) -> bool:
        """Have a file read; return whether it is there.

        That it is not is a trouble unless `missing_ok`.
        """
        self.report.files += 1
        try:
            with self.trouble_reported(missing_ok=missing_ok), opened(path) as file:
                content(file)
        except MissingFile:
            self.report.files -= 1
            return False
        return True

    @contextmanager
    def step(self, *, bad: Sequence[BadLine], lines: int) -> Iterator[None]:
        """One transaction: what is done inside, and what could not be understood.

        Raises: what is raised inside.
        """
        with self.accounting.transaction():
            yield
            new = self.accounting.keep_bad_lines(bad)
        self.report.count_lines(lines)
        self.report.count_bad(new)

    def store(
        self,
        jobs: Sequence[JobRecord],
        *,
        file: int | None,
        replace: bool = False,
        arc_ids: ArcIds = _own_id,
    ) -> StoredJobs:
        """Write the jobs that no ARC CE publishes, inside a transaction.

        `arc_ids` are the numbers of the batch system that a CE may know a job by. Raises:
        SourceError when a CE cannot be asked.
        """
        if jobs:
            self.accounting.note_jobs()
        if not self.arc.watching:
            return self._put(jobs, file, replace=replace)
        runs = [ArcRun(job, arc_ids(job), file) for job in jobs]
        found = self.arc.sorted(runs, self.now, self.accounting.store)
        stored = self._put([run.job for run in found.own], file, replace=replace)
        self._leave(found, replace=replace)
        return stored._replace(claimed=len(found.claimed))

    def take_back(self, job_ids: Sequence[str]) -> None:
        """Remove jobs that turned out to be none, inside a transaction."""
        self.accounting.store.take_back(job_ids)
        self.arc_runs.remove(job_ids)

    def remember_ces(self) -> None:
        """The runs that CEs had before they were first looked at: they may be published.

        Raises: SourceError.
        """
        for ce in self.arc.databases():
            if self.accounting.setting(f"{_REMEMBERED}{ce}"):
                continue
            for runs in self.arc.runs_of(ce):
                with self.accounting.transaction():
                    remember(self.accounting.connection, runs)
            with self.accounting.transaction():
                self.accounting.set(f"{_REMEMBERED}{ce}", str(self.now))

    def settle_waiting(self) -> None:
        """Have what waited for a CE long enough as own jobs, and leave what a CE has by now to it.

        Raises: SourceError when a CE cannot be asked.
        """
        with self.accounting.transaction():
            self.arc.look(self.accounting.connection, self.now)
        waiting = self.arc_runs.waiting()
        for start in range(0, len(waiting), _SETTLED_AT_ONCE):
            with self.accounting.transaction():
                runs = self.arc_runs.runs(waiting[start : start + _SETTLED_AT_ONCE])
                found = self.arc.sorted(runs, self.now, self.accounting.store)
                stored = [self._put([run.job], run.file) for run in found.own]
                self._leave(found._replace(waiting=[]))
            for each in stored:
                self.report.count_jobs(each)
            self.report.count_jobs(StoredJobs(0, 0, claimed=len(found.claimed)))

    def prune_runs(self, before: int) -> None:
        """Once a day, forget old runs that were kept for a CE which has them no more.

        Raises: SourceError.
        """
        if 0 <= self.now - int(self.accounting.setting(_RUNS_PRUNED) or 0) < _DAY_S:
            return
        after = ""
        while job_ids := self.arc_runs.ended_before(before, after):
            after = job_ids[-1]
            with self.accounting.transaction():
                gone = [run.job.job_id for run in self.arc.unclaimed(self.arc_runs.runs(job_ids))]
                self.arc_runs.remove(gone)
                self.accounting.store.remember_pruned(gone)
        with self.accounting.transaction():
            self.accounting.set(_RUNS_PRUNED, str(self.now))

    def _put(
        self, jobs: Sequence[JobRecord], file: int | None, *, replace: bool = False
    ) -> StoredJobs:
        if not jobs:
            return StoredJobs(0, 0)
        inserted, updated = self.accounting.store.put(jobs, file=file, replace=replace)
        if inserted:
            self.report.cancelled += sum(job.status == "aborted" for job in jobs)
        return StoredJobs(inserted, updated, unchanged=len(jobs) - inserted - updated)

    def _leave(self, found: SortedRuns, *, replace: bool = False) -> None:
        """Keep what waits for a CE, and what is a CE's where that is joined to it.

        Elsewhere only that it is no job here: when it is told of again, A-REX may have restarted
        its job under another number.
        """
        self.arc_runs.name_own(found.own)
        gone = found.own if self.arc.join else (*found.own, *found.claimed)
        self.arc_runs.remove([run.job.job_id for run in gone])
        if self.arc.join:
            self.arc_runs.keep(found.claimed, waits=False, replace=replace)
        else:
            self.accounting.store.remember_pruned([run.job.job_id for run in found.claimed])
        self.arc_runs.keep(found.waiting, waits=True, replace=replace)


@contextmanager
def import_run(
    site: SiteMapping, store: SourceStore, now: datetime, watch: Watch
) -> Iterator[ImportRun]:
    """One run, open; in the end it reports what the source has. Raises: as `Importer.run`."""
    options = site.options
    report = ImportReport(importer=site.importer, database=store.path, watch=watch)
    accounting = SourceTables(store)
    with closing(_arc_jobs(options, store.path.absolute().parent)) as arc:
        report.notes += site.begin_import(accounting)
        run = ImportRun(
            accounting=accounting,
            cursors=Cursors(accounting.connection),
            report=report,
            arc=arc,
            arc_runs=ArcRunTable(accounting.connection),
            now=int(now.timestamp()),
        )
        run.remember_ces()
        if arc.watching and options.arc_delivered is not None:
            forgotten = remember_delivered(accounting, arc, options.arc_delivered)
            if forgotten:
                runs = plural(forgotten, "run")
                report.notes.append(
                    f"delivered, and forgotten by A-REX since: {runs}, not counted again"
                )
        run.settle_waiting()
        yield run
        if options.keep_months and arc.watching:
            run.prune_runs(run.now - options.keep_months * _MONTH_S)
        with accounting.transaction():
            arc.keep_waiting(accounting.connection, run.now)
        if waiting := len(run.arc_runs.waiting()):
            report.held += waiting
            wait = "waits" if waiting == 1 else "wait"
            report.notes.append(
                f"{plural(waiting, 'job')} that ended not long ago {wait}: "
                "an ARC CE may still claim them (arc_wait_s)"
            )
        report.bad_kept = count_bad_lines(accounting.connection)


def _arc_jobs(options: ImporterOptions, copies_below: Path) -> ArcJobs:
    """Raises: SourceError."""
    return ArcJobs(
        options.arc_databases or (),
        options.arc_wait_s,
        copies_below,
        options.arc_lrms,
        outage_s=options.arc_outage_s,
        join=options.join,
    )


def to_read(paths: Sequence[Path], site: SiteMapping) -> list[Path]:
    """The paths, or what the configuration names.

    A pattern that matches nothing stays, and is reported when it is opened. Raises: UsageError when
    neither names anything.
    """
    if paths:
        return list(paths)
    if not site.options.reads:
        key = f"{site.place}.{site.options.reads_key}"
        raise UsageError(f"name what to read: PATH here, or {key} in the configuration")
    patterns = map(str, site.options.reads)
    return [Path(path) for pattern in patterns for path in sorted(glob(pattern)) or [pattern]]


def refuse_foreign(path: Path, kind: str, bad: Sequence[BadLine], pieces: int) -> None:
    """Raises: SourceError for a file of something else, judged by its first pieces."""
    if len(bad) == pieces >= _SURELY_FOREIGN:
        what = f"is not {kind}, or not in a form that is known"
        raise SourceError(f"{path}: {what}; its first line: {bad[0].reason}")
