"""`import slurm`: what sacct prints, into a local accounting database.

Without a file sacct is run, for a day at a time. It cannot be asked for what is new: jobs come late
to slurmdbd when that was away. So each run asks again for the last day before the end of the one
before, and once a day for all of `look_back_s`, or for all since the run before where that is
longer ago; what is there already changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from sqlite3 import Connection
from typing import ClassVar, Final

from publisher.model.errors import SourceError
from publisher.model.job import Epoch
from publisher.model.text import plural
from publisher.model.time import iso_epoch
from publisher.sources.files.line_importer import SURELY_WRITTEN_S, LineImporter, lines_of
from publisher.sources.files.log_files import LogFile
from publisher.sources.files.run import ImportRun, import_run
from publisher.sources.files.tables import notices
from publisher.sources.importers import (
    ImportReport,
    SourceStore,
    StoredJobs,
    Watch,
    never_stopped,
    unwatched,
)
from publisher.sources.slurm.header import Header, NotSacct
from publisher.sources.slurm.notices import DELIMITER, STEPS, Gathering
from publisher.sources.slurm.records import (
    SURELY_WITHOUT_STEPS,
    SacctPiece,
    SacctReader,
    SacctRun,
    SacctStep,
)
from publisher.sources.slurm.sacct import Sacct
from publisher.sources.slurm.site_mapping import Options, SacctMapping
from publisher.sources.slurm.steps import TABLES, StepTable

__all__ = ["TABLES", "Options", "SlurmImporter", "create"]

SUMMARY: Final = (
    "import what `sacct --parsable2` printed, plain or compressed; reads only what is new"
)
PATHS: Final = (
    "file of sacct's output, the directory that holds such files, or - for standard input; "
    "without one, sacct is run"
)
_DAY_S: Final = 86_400
_MONTH_S: Final = 31 * _DAY_S
_KEPT_S: Final = 2 * _MONTH_S  # what the lines of runs and of steps have, one by one
# Settings: up to where all answers were read, and when the last look back was over.
_READ_TO, _LOOKED_BACK = "READ_TO", "LOOKED_BACK"
_READ_AGAIN: Final = """
    UPDATE SourceSetting SET Value = CAST(min(CAST(Value AS INTEGER), ?) AS TEXT)
    WHERE Source = source_number() AND Name = ?
"""


def create(
    options: object, environment: Mapping[str, str], wait: Callable[[float], bool] = never_stopped
) -> SlurmImporter:
    """Return the importer. Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return SlurmImporter(options, environment, wait)


class SlurmImporter(LineImporter[SacctRun | SacctStep]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]] = ("sacct",)
    kind: ClassVar[str] = "output of sacct"
    grows: ClassVar[bool] = False

    def __init__(
        self, options: Options, environment: Mapping[str, str], wait: Callable[[float], bool]
    ) -> None:
        self._options = options
        self._mapping = SacctMapping(options)
        # Why users can forge jobs in a file that was read, or ''; None where none was read.
        self._forgeable: str | None = None
        self._gathering = Gathering()
        self._left_out: list[SacctRun] = []  # runs that are no usage, in the lines read last
        self._sacct = Sacct(
            command=options.command,
            cluster=options.cluster,
            environment=environment,
            timeout_s=options.timeout_s,
            wait=wait,
        )
        super().__init__(self._mapping)

    def run(
        self, paths: Sequence[Path], store: SourceStore, now: datetime, watch: Watch = unwatched
    ) -> ImportReport:
        if paths or self._options.files:
            return super().run(paths, store, now, watch)
        with import_run(self.site, store, now, watch) as run:
            with run.trouble_reported():
                self._run_sacct(run)
            self.finish(run)
        return run.report

    def ask_again(self, connection: Connection, path: Path, now: datetime) -> bool:
        # Days before `look_back_s` may be purged: that nothing bad is seen of them tells nothing.
        begin = None if self._options.files else self._sacct.begin_of(path)
        if begin is None or begin < now.timestamp() - self._options.look_back_s:
            return False
        connection.execute(_READ_AGAIN, (begin + _DAY_S, _READ_TO))
        return True

    def _run_sacct(self, run: ImportRun) -> None:
        """What was read before and beside is kept.

        Raises: SourceError, also for days of which all is gone.
        """
        accounting = run.accounting
        read_to = int(accounting.setting(_READ_TO) or 0)
        looked_back = int(accounting.setting(_LOOKED_BACK) or 0)
        until = run.now
        whole = not 0 <= run.now - looked_back < _DAY_S
        # A clock that was ahead once keeps nobody from reading the last day.
        begin = min(until, read_to) - _DAY_S if read_to else until
        if whole:
            begin = min(begin, until - self._options.look_back_s)
        columns = self._sacct.columns()
        gone: list[str] = []
        while begin < until:
            end = min(begin + _DAY_S, until)
            gone += self._read_day(run, begin, end, columns)
            if not gone:
                with accounting.transaction():
                    accounting.set(_READ_TO, str(max(end, read_to)))
            begin = end
        if gone:
            others = f", and so on {plural(len(gone) - 1, 'other day')}" if len(gone) > 1 else ""
            raise SourceError(
                f"{self._sacct.command[0]}: shows no job that ended {gone[0]}{others}; check that "
                "slurmdbd still has them, and make look_back_s shorter if it was purged"
            )
        if whole:
            with accounting.transaction():
                accounting.set(_LOOKED_BACK, str(run.now))

    def _read_day(self, run: ImportRun, begin: int, end: int, columns: Sequence[str]) -> list[str]:
        """Return the times in words, if all is gone that was there before; else nothing.

        Such an answer is never taken for no jobs. Raises: SourceError.
        """
        run.report.files += 1
        with self._sacct.ended(begin, end, columns) as answer:
            found = self.read_answer(run, answer)
        known = run.accounting.store.ended_between(begin, end)
        # Slurm may have forgotten jobs from before `look_back_s`, as after a long outage.
        if known and not found and end > run.now - self._options.look_back_s:
            day = f"from {iso_epoch(Epoch(begin))} to {iso_epoch(Epoch(end))}"
            return [f"{day}, where it showed {known:,} before"]
        return []

    def pieces(self, file: LogFile, start: int) -> Iterator[SacctPiece]:
        try:
            first = next(lines_of(file, 0), None)
            if first is None:
                return
            header = Header(first.content)
            self._note_delimiter(file, header)
            begin = max(start, first.end)
            few = self._without_steps(file, is_whole=begin == first.end)
            reader = SacctReader(header, self._mapping.zone, without_steps=few)
            yield from reader.pieces(file.blocks(begin), whole=file.compressed)
        except NotSacct as error:
            raise SourceError(f"{file.path}: {error}") from error

    def _note_delimiter(self, file: LogFile, header: Header) -> None:
        if self._sacct.begin_of(file.path) is not None:
            return
        self._forgeable = self._forgeable or ""
        if header.may_be_forged:
            self._forgeable = (
                f"{file.path}: its delimiter {header.delimiter!r} may be in names that users "
                "choose, so that users can forge rows of jobs; give sacct a random --delimiter, as "
                "publisher(1) shows at `import slurm`"
            )

    def _without_steps(self, file: LogFile, *, is_whole: bool) -> int | None:
        """Return how many jobs without steps may come alone.

        Our own sacct was asked for steps, and on some days all jobs are allocations that had none.
        A file whose beginning was read before had some then, and other files may have steps alone.
        """
        if self._sacct.begin_of(file.path) is not None or self._mapping.has_lone_steps:
            return None
        return 0 if is_whole else SURELY_WITHOUT_STEPS

    def nothing_whole(self, run: ImportRun, file: LogFile) -> None:
        if file.head:  # a header at least
            return
        if run.now - file.modified < SURELY_WRITTEN_S:
            run.report.held += 1
            run.report.notes.append(
                f"{file.path}: is still empty, which is an error from an hour on; sacct prints a "
                "header at least"
            )
            return
        raise SourceError(
            f"{file.path}: is empty, and sacct prints a header at least; see why it failed"
        )

    def skips(self, record: SacctRun | SacctStep) -> str:
        reason = self._mapping.skips(record)
        is_ours = record.cluster in ("", self._options.cluster)
        if reason and is_ours and isinstance(record, SacctRun):
            self._left_out.append(record)
        return reason

    def store(
        self, run: ImportRun, records: Sequence[SacctRun | SacctStep], file: int | None
    ) -> Sequence[StoredJobs]:
        runs = [record for record in records if isinstance(record, SacctRun)]
        steps = [record for record in records if isinstance(record, SacctStep)]
        left_out, self._left_out = self._left_out, []
        stored = run.store([self._mapping.job(record) for record in runs], file=file)
        self._mapping.keep_shown(run.accounting)
        self._gathering.note(runs)
        table = StepTable(run.accounting.store, self._options.cluster)
        self._mapping.has_lone_steps |= bool(steps)
        if file is not None or steps or self._options.array_ids:
            table.keep([*runs, *left_out], steps)
        usages = table.settle(int(record.raw_id) for record in (*records, *left_out))
        incomplete = sum(record.user_ms is None for record in runs)
        raised = list(map(table.raise_job, usages))
        changed = sum(each for each, _ in raised)
        incomplete -= sum(became_known for _, became_known in raised)
        return [stored._replace(incomplete=incomplete), StoredJobs(inserted=0, updated=changed)]

    def finish(self, run: ImportRun) -> None:
        table = StepTable(run.accounting.store, self._options.cluster)
        months = self._options.keep_months
        waiting_before = run.now - months * _MONTH_S if months else 0
        with run.accounting.transaction():
            table.forget(run.now - _KEPT_S, waiting_before)
        run.report.held += table.waiting()[0]
        accounting = run.accounting
        with accounting.transaction():
            accounting.set_notice(STEPS, _steps_text(table))
            self._gathering.keep(accounting)
            if self._forgeable is not None:
                accounting.set_notice(DELIMITER, self._forgeable)
        # Runs of former imports may have become known too.
        run.report.incomplete = max(0, run.report.incomplete)
        if run.report.incomplete:
            run.report.notes.append(
                f"{plural(run.report.incomplete, 'run')} whose CPU time Slurm does not know "
                "(nodes that failed, allocations without a step, resized jobs, or nothing "
                "gathered): published as unknown, and as 0 to APEL"
            )
        run.report.notes += notices(accounting.connection)


def _steps_text(table: StepTable) -> str:
    waiting, first = table.waiting()
    if not waiting:
        return ""
    shown, steps = ", ".join(first), plural(waiting, "step")
    wait, them = ("waits for its job", "it") if waiting == 1 else ("wait for their jobs", "them")
    lacks = "which was not read" if waiting == 1 else "which were not read"
    return f"{steps} ({shown}) {wait}, {lacks}; import the output of sacct that has {them}"
