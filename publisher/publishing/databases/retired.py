"""Databases that an administrator retires, and the jobs that are lost with them.

How many jobs a target wanted of a database and never sent is counted and kept when the database is
retired: later nobody can tell. They stay lost until the database is found again.

    retire /srv/ce2.db, of which egi has 12 jobs pending  ->  refused; with --force: 12 jobs lost
    retire /srv/ce3.db, which does not exist any more     ->  unknown since the last success
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from publisher.jobs.reader import StoreReader
from publisher.jobs.store import JobStore, scratch_store
from publisher.ledger.answers import Hold, KnownDatabase
from publisher.ledger.contract import Entries, Ledger, Quarantine, Targets
from publisher.model.errors import SourceError, UsageError
from publisher.model.job import Epoch, JobRecord, ReadRequest, RunKey, SkippedJob
from publisher.model.text import plural
from publisher.model.time import Window, epoch, iso, month_of
from publisher.model.totals import month_name, month_number
from publisher.policy.target import Target, is_wanted
from publisher.publishing.databases.known import SourceFile, is_read, jobs_of, listed, read_today
from publisher.publishing.databases.load import Loading, LoadOptions, forget_jobs
from publisher.publishing.site import Site
from publisher.sources.base import JobSource, has_file

if TYPE_CHECKING:
    from publisher.sources.importers import Accounting

# Finished rows that lack something were waited for long enough by then.
_LONG_ENOUGH: Final = timedelta(days=365)
_ADVICE: Final = (
    "name it in `source` again and run `publisher publish --force`; `publisher quarantine list` "
    "has those that are set aside"
)


class NeverSent(NamedTuple):
    """Jobs that a target wanted and never sent, lost with a database that was retired.

    `months`: how many by the month of their end (12 x year + month - 1); None where the database
    did not exist any more, so that nobody could count them.
    """

    target: str
    file: str
    retired: datetime
    months: Mapping[int, int | None]

    @property
    def jobs(self) -> int | None:
        """How many they are; None where that is unknown of any month."""
        counts = list(self.months.values())
        return None if None in counts else sum(filter(None, counts))

    def of_months(self, first: int, last: int) -> NeverSent:
        """Return those that ended from one month to another one."""
        of_these = {month: jobs for month, jobs in self.months.items() if first <= month <= last}
        return self._replace(months=of_these)

    @property
    def text(self) -> str:
        """One line, without the target."""
        names = ", ".join(starmap(_month_text, sorted(self.months.items())))
        if self.jobs is None:
            when = f"{self.file} could not be read when it was retired at {iso(self.retired)}"
            return f"{when}: its jobs that were never sent ({names}) are lost, their number unknown"
        lost = plural(self.jobs, "job is", "jobs are")
        return f"{lost} lost ({names}): {self.file} was retired at {iso(self.retired)}"


def _month_text(month: int, jobs: int | None) -> str:
    return month_name(month) if jobs is None else f"{month_name(month)}: {jobs:,}"


def never_sent(
    known: Iterable[KnownDatabase], first: int = 0, last: int = sys.maxsize
) -> list[NeverSent]:
    """Return the jobs that were lost with retired databases, of some months or of all."""
    found = [
        NeverSent(one.target, one.file, one.retired, one.never_sent).of_months(first, last)
        for one in known
        if one.retired is not None
    ]
    return [one for one in found if one.months]


def retire(site: Site, files: Sequence[str], *, force: bool) -> list[SourceFile]:
    """Let no target miss the files of these names any more; return what is known of them.

    Raises: UsageError for a file that was never read, or is read today; without `force` also for
    one of which jobs were never sent, or SourceError where that cannot be told; LedgerError.
    """
    there = read_today(site.accounting)
    with closing(site.ledgers.open()) as ledger:
        known: dict[str, list[KnownDatabase]] = {}
        for each in ledger.databases.known():
            known.setdefault(each.file, []).append(each)
        wanted = list(dict.fromkeys(_file_of(file, list(known)) for file in files))
        _check_retirable(wanted, list(known), there)
        lost = {file: _lost(site, file, known[file], ledger, force=force) for file in wanted}
        now = site.process.clock()
        for file, of_targets in lost.items():
            for target, months in of_targets.items():
                ledger.databases.retire(target, file, months, now)
    forget_jobs(site, wanted)
    return [one for one in listed(site.ledgers, site.accounting) if one.file in wanted]


def _file_of(name: str, known: Sequence[str]) -> str:
    """Return the batch system of this name, or the file."""
    return name if name in known else os.path.abspath(name)


def _check_retirable(
    wanted: Sequence[str], known: Sequence[str], there: frozenset[str] | None
) -> None:
    for file in wanted:
        if file not in known:
            was = f"`publisher source list` shows what was: {', '.join(known)}"
            raise UsageError(f"{file}: was never read; {was}")
        if is_read(file, there):
            stop = "to stop reading it, remove it from `source` first"
            raise UsageError(f"{file}: is there and is read; {stop}")


def _lost(
    site: Site, file: str, known: Sequence[KnownDatabase], ledger: Ledger, *, force: bool
) -> dict[str, Mapping[int, int | None]]:
    """Return how many jobs each target that misses a file never sent, by month."""
    missed = [one for one in known if one.retired is None]
    try:
        with closing(jobs_of(site.ledgers)) as jobs:
            of_batch = None if os.path.isabs(file) else jobs
            is_there = has_file(Path(file)) if of_batch is None else file in jobs.sources()
            if not is_there:
                return _unknown(site, missed, ledger.targets)
            counted = _counted(site, file, of_batch, missed, ledger)
    except SourceError as error:
        if not force:
            what = "how many of its jobs were never sent cannot be told"
            raise SourceError(f"{error}; {what}: make it readable, or give --force") from error
        return _unknown(site, missed, ledger.targets)
    if any(counted.values()) and not force:
        of_targets = "; ".join(
            f"{target}: {_by_month(months)}" for target, months in counted.items() if months
        )
        raise UsageError(
            f"{file}: can be read, and has jobs that were never sent ({of_targets}): {_ADVICE}; "
            "--force gives them up"
        )
    return {target: dict(months) for target, months in counted.items()}


def _by_month(months: Mapping[int, int]) -> str:
    return ", ".join(f"{jobs:,} of {month_name(month)}" for month, jobs in sorted(months.items()))


def _unknown(
    site: Site, missed: Sequence[KnownDatabase], targets: Targets
) -> dict[str, Mapping[int, int | None]]:
    """Return the months in which jobs may have ended that each target never sent.

    A target that had a success had all jobs until then.
    """
    found: dict[str, Mapping[int, int | None]] = {one.target: {} for one in missed}
    configured = {target.name for target in site.targets}
    for one in missed:
        state = targets.state(one.target)
        if state is not None and one.target in configured:  # what is not configured wants nothing
            first = month_of(min(state.last_success or one.seen, one.seen)).number
            last = month_of(site.process.clock()).number
            found[one.target] = dict.fromkeys(range(first, last + 1))
    return found


def _counted(
    site: Site,
    file: str,
    jobs: StoreReader | None,
    missed: Sequence[KnownDatabase],
    ledger: Ledger,
) -> dict[str, Counter[int]]:
    """Return how many jobs of a file are wanted and were never sent, by target and month.

    `jobs` has those of a batch system.
    """
    targets = {target.name: target for target in site.targets}
    found: dict[str, Counter[int]] = {one.target: Counter() for one in missed}
    with ExitStack() as opened:
        others: Sequence[JobSource] = ()
        if jobs is None:
            jobs = opened.enter_context(closing(scratch_store()))
            _load_alone(site, file, jobs)
            others = _still_read(site.accounting, opened)
        for name in found.keys() & targets.keys():
            state = ledger.targets.state(name)
            window = Window(start=state and state.start)
            known = ledger.entries, ledger.quarantine
            for unsent in _unsent(targets[name], window, jobs, file, *known):
                there = _runs_in(others, unsent, epoch(site.process.clock()))
                lost = (job for job in unsent if job.run_key not in there)
                found[name].update(month_number(job.ended_at) for job in lost if job.ended_at)
    return found


def _load_alone(site: Site, path: str, store: JobStore) -> None:
    """Load the jobs of one file, also those that lack something still. Raises: SourceError."""
    now = site.process.clock()
    options = LoadOptions(frozenset(), site.accounting.read_as())
    with closing(site.accounting.open_file(path)) as sources:
        for moment in (now, now + _LONG_ENOUGH):
            if failures := Loading(store, sources, options, moment, _never).run():
                raise SourceError("; ".join(failures))


def _never() -> bool:
    return False


def _still_read(accounting: Accounting, opened: ExitStack) -> Sequence[JobSource]:
    """Return what is read today; nothing where that cannot be read."""
    try:
        return opened.enter_context(closing(accounting.open())).sources()
    except SourceError:
        return ()


def _runs_in(
    sources: Sequence[JobSource], jobs: Sequence[JobRecord | SkippedJob], now: Epoch
) -> set[RunKey]:
    """Return the runs of some jobs in sources that are read: from there they are sent."""
    ids = [job.job_id for job in jobs if job.job_id]
    request = ReadRequest(frozenset(), now)
    found: set[RunKey] = set()
    for page in chain.from_iterable(source.look_up(ids, request) for source in sources):
        found.update(job.run_key for job in page.jobs)
        found.update(one.run_key for one in page.skipped)
    return found


def _unsent(
    target: Target,
    window: Window,
    jobs: StoreReader,
    file: str,
    entries: Entries,
    quarantine: Quarantine,
) -> Iterator[Sequence[JobRecord | SkippedJob]]:
    """Yield pages of jobs of a file that a target wants, without an entry and not dropped."""
    selection = target.selection(window)
    for page in jobs.window(window):
        jobs_of_file = (job for job in page.jobs if job.row.database == file)
        wanted: list[JobRecord | SkippedJob] = [
            *(job for job in jobs_of_file if is_wanted(selection, target, job)),
            *(one for one in page.skipped if one.row.database == file),
        ]
        recorded = entries.recorded(target.name, [job.run_key for job in wanted])
        held = quarantine.held(target.name, [job.key for job in wanted])
        dropped = {key for key, one in held.items() if one.hold is Hold.DROPPED}
        yield [job for job in wanted if job.run_key not in recorded and job.key not in dropped]
